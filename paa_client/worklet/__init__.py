"""Shared Storage worklets: the API they call, and their isolation."""
