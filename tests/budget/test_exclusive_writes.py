"""A write transaction begins when no other one runs: what it reads cannot change before it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from budget import MemoryStore, PostgresStore, SqliteStore, Store
from budget.errors import StoreError
from budget.store import Head, Transaction

WAIT_S = 0.5


def two_stores(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Store, Store]:
    """Return two views of one store, as two services have them."""
    if kind == "memory":
        store = MemoryStore()
        return store, store
    if kind == "sqlite":
        path = tmp_path / "ledger.db"
        return SqliteStore(path, busy_timeout_s=20), SqliteStore(path, busy_timeout_s=20)
    dsn = request.getfixturevalue("postgres_dsn")
    return PostgresStore(dsn, schema="exclusive"), PostgresStore(dsn, schema="exclusive")


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_second_write_waits_until_the_first_has_committed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The second one's work does not begin during the first, and then it reads what the first wrote."""
    first, second = two_stores(kind, tmp_path, request)
    entered, seen, failed = threading.Event(), [], []

    def later(transaction: Transaction) -> None:
        entered.set()
        seen.append(transaction.head())
        transaction.set_head(Head(entries=2, frontier=()))

    def other() -> None:
        try:
            second.write("later", later)
        except StoreError as problem:
            failed.append(problem)

    waiting = threading.Thread(target=other)

    def work(transaction: Transaction) -> bool:
        assert transaction.head() is None
        waiting.start()
        began = entered.wait(WAIT_S)
        transaction.set_head(Head(entries=1, frontier=()))
        return began

    try:
        assert not first.write("first", work), "a second write began while the first one ran"
    finally:
        waiting.join(timeout=30)
    assert not waiting.is_alive() and not failed
    assert seen == [Head(entries=1, frontier=())]
    assert first.read("head", lambda transaction: transaction.head()) == Head(entries=2, frontier=())
    first.close()
    second.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_write_that_fails_leaves_nothing(kind: str, make_store: Callable[[str], Store]) -> None:
    store = make_store(kind)

    def work(transaction: Transaction) -> None:
        transaction.set_head(Head(entries=1, frontier=()))
        transaction.replace_blocks([], [(bytes(20), bytes(40))])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write("fails", work)
    assert store.read("look", lambda t: (t.head(), list(t.blocks()))) == (None, [])
