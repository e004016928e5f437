"""The typed client library."""
