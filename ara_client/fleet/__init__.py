"""Many browsers at once, in columns."""
