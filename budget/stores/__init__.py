"""Where a ledger lives: memory, SQLite or PostgreSQL."""
