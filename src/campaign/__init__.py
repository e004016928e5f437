"""Example ad campaigns: populations, ground truth, metrics and plots."""
