"""Databases for a ledger: memory, SQLite and PostgreSQL."""
