"""The stores that every test of the ledger runs on, a real PostgreSQL among them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from budget import MemoryStore, PostgresStore, SqliteStore, Store

_schemas = itertools.count()


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """The connection string of a PostgreSQL server that lives as long as the tests of this process.

    Its folder is not one of pytest's: those are closed to the user that the server runs as when the tests run as root.
    """
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    with tempfile.TemporaryDirectory(prefix="aggservice-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Make empty stores by name: memory, sqlite or postgres."""
    made: list[Store] = []

    def make(kind: str) -> Store:
        number = next(_schemas)
        if kind == "memory":
            made.append(MemoryStore())
        elif kind == "sqlite":
            made.append(SqliteStore(tmp_path / f"ledger{number}.db"))
        else:
            made.append(PostgresStore(request.getfixturevalue("postgres_dsn"), schema=f"ledger{number}"))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> Store:
    """An empty store of each kind."""
    return make_store(request.param)
