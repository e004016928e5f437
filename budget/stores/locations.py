"""Open a ledger by its location: a SQLite file, a PostgreSQL connection string, or an exported log."""

from __future__ import annotations

from pathlib import Path

from budget.errors import StoreError
from budget.log.export import ExportedLog, is_log
from budget.store import Store
from budget.stores.postgres import PostgresStore
from budget.stores.sqlite import SqliteStore

SCHEMA = "aggservice_ledger"


def is_dsn(location: str) -> bool:
    """Return whether ``location`` is a PostgreSQL connection string, as a URI or as key=value pairs."""
    return location.startswith(("postgresql://", "postgres://")) or ("=" in location and not Path(location).exists())


def open_store(location: str, *, schema: str = SCHEMA, read_only: bool = True) -> Store:
    """Open the database at ``location``; StoreError if it is an exported log or does not exist."""
    if is_dsn(location):
        return PostgresStore(location, schema=schema, read_only=read_only)
    if is_log(Path(location)):
        raise StoreError(f"{location} is an exported log: give the database itself")
    return SqliteStore(location, read_only=read_only)


def open_ledger_or_log(location: str, *, schema: str = SCHEMA) -> Store | ExportedLog:
    """Open the database or exported log at ``location`` for reading."""
    if not is_dsn(location) and is_log(Path(location)):
        return ExportedLog(Path(location))
    return open_store(location, schema=schema)
