"""Sweeps: one campaign under many settings, and the table and plots of their errors."""
