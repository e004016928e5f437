"""Where a ledger is, in one text: a SQLite file, a PostgreSQL connection string, or an exported log."""

from __future__ import annotations

from pathlib import Path

from budget.errors import StoreError
from budget.log.export import ExportedLog, is_log
from budget.store import Store
from budget.stores.postgres import PostgresStore
from budget.stores.sqlite import SqliteStore

SCHEMA = "aggservice_ledger"


def is_dsn(place: str) -> bool:
    """Return whether ``place`` is a PostgreSQL connection string, as a URI or as key=value pairs."""
    return place.startswith(("postgresql://", "postgres://")) or ("=" in place and not Path(place).exists())


def open_store(place: str, *, schema: str = SCHEMA, read_only: bool = True) -> Store:
    """Open the database at ``place``; StoreError when it is an exported log or not there."""
    if is_dsn(place):
        return PostgresStore(place, schema=schema, read_only=read_only)
    if is_log(Path(place)):
        raise StoreError(f"{place} is an exported log: this needs the database itself")
    return SqliteStore(place, read_only=read_only)


def open_place(place: str, *, schema: str = SCHEMA) -> Store | ExportedLog:
    """Open, for reading, whatever ledger is at ``place``."""
    if not is_dsn(place) and is_log(Path(place)):
        return ExportedLog(Path(place))
    return open_store(place, schema=schema)
