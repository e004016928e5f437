"""Many devices at once, in columns."""
