"""The audit: a log replayed from its first entry."""
