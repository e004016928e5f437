"""Exact draws, hashes and packed bits for many clients at once."""
