"""The audit: replay a log from its first entry and compare."""
