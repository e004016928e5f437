"""What the stores promise beside the ledger: schema versions, forks, private files, retries, clear errors."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from budget import EpsilonDeltaFilter, Ledger, PostgresStore, Signer, SqliteStore, Store, verify_store
from budget.errors import LedgerMismatchError, StoreError
from budget.stores import postgres, sqlite

from .releases import TERMS


def create(store: Store) -> Ledger:
    bits = SeededBits("stores")
    return Ledger.create(
        store, terms=TERMS, filter=EpsilonDeltaFilter(), signer=Signer.generate(bits), clock=ManualClock(), bits=bits
    )


def objects(path: Path) -> set[str]:
    with sqlite3.connect(path) as db:
        return {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")}


def test_an_older_sqlite_schema_is_migrated_and_its_ledger_stays_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as old:
        old.setattr(sqlite, "MIGRATIONS", sqlite.MIGRATIONS[:1])
        store = SqliteStore(path)
        create(store)
        store.close()
    assert "units_by_key" not in objects(path)
    copy = SqliteStore(path, read_only=True)
    assert verify_store(copy).ok and "units_by_key" not in objects(path), (
        "an audit changes nothing, not even the schema"
    )
    copy.close()
    store = SqliteStore(path)
    assert "units_by_key" in objects(path) and verify_store(store).ok
    store.close()


def test_an_older_postgres_schema_is_migrated(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old:
        old.setattr(postgres, "MIGRATIONS", postgres.MIGRATIONS[:1])
        store = PostgresStore(postgres_dsn, schema="older")
        create(store)
        store.close()
    for read_only in (True, False):
        store = PostgresStore(postgres_dsn, schema="older", read_only=read_only)
        assert verify_store(store).ok
        version, present, expected = store.read("schema", lambda t: t.schema())
        assert version == (1 if read_only else 2) and present == expected
        store.close()


def test_a_newer_schema_is_refused(tmp_path: Path, postgres_dsn: str) -> None:
    path = tmp_path / "new.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerMismatchError, match="newer program"):
        SqliteStore(path)
    PostgresStore(postgres_dsn, schema="newer").close()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("UPDATE newer.schema_version SET version = 99")
    with pytest.raises(LedgerMismatchError, match="newer program"):
        PostgresStore(postgres_dsn, schema="newer")


def test_what_is_no_ledger_is_refused(tmp_path: Path, postgres_dsn: str) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE songs (title)")
    with pytest.raises(LedgerMismatchError, match="not a ledger"):
        SqliteStore(other)
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "text.db")
    with pytest.raises(StoreError, match="no ledger"):
        SqliteStore(tmp_path / "missing.db", read_only=True)
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(StoreError, match="no ledger"):
        PostgresStore(postgres_dsn, schema="nothing_here", read_only=True)
    empty = SqliteStore(tmp_path / "empty.db")
    with pytest.raises(LedgerMismatchError, match="create one"):
        Ledger.open(empty, clock=ManualClock())
    empty.close()


def test_an_unreachable_server_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_PAUSE_S", 0.0)
    with pytest.raises(StoreError, match="failed 6 times"):
        PostgresStore("postgresql://nobody:sesame@127.0.0.1:1/none?connect_timeout=1")


def test_the_sqlite_file_is_its_owners_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = SqliteStore(tmp_path / "ledger.db")
        create(store)
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    store.close()


def test_a_commit_is_flushed_to_disk(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    connection = store._open()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_forked_child_uses_connections_of_its_own(kind: str, make_store: Callable[[str], Store]) -> None:
    store = make_store(kind)
    create(store)
    parents = store._connections.take()  # type: ignore[attr-defined]
    store._connections.give_back(parents)  # type: ignore[attr-defined]
    child = os.fork()
    if child == 0:
        try:
            own = store.read("child", lambda t: t._db is not parents)  # type: ignore[attr-defined]
            code = 5 if not own else 0 if store.read("child", lambda t: t.head()) is not None else 3
            store.close()
        except BaseException:
            code = 4
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert verify_store(store).ok


def test_a_lost_connection_is_replaced_and_the_transaction_run_again(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn, schema="lost")
    create(store)
    runs = 0

    def work(transaction: Any) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            pid = transaction._db.execute("SELECT pg_backend_pid()").fetchone()[0]
            with psycopg.connect(postgres_dsn, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        return int(transaction.head().entries)

    assert store.write("lost", work) == 1 and runs == 2
    store.close()


def test_many_connections_lost_at_once_cost_one_attempt(postgres_dsn: str) -> None:
    """As when the database server starts again while a service is idle."""
    store = PostgresStore(postgres_dsn, schema="idle")
    create(store)
    together, connected = threading.Barrier(12), []

    def work(transaction: Any) -> None:
        connected.append(transaction._db.info.backend_pid)
        together.wait(30)

    threads = [threading.Thread(target=store.read, args=("idle", work)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(postgres_dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS pid", (connected,))
    assert store.read("again", lambda t: t.head()) is not None
    assert store.write("again", lambda t: t.head()) is not None
    store.close()


def test_reading_only_stores_refuse_to_write(tmp_path: Path, postgres_dsn: str) -> None:
    store: Store = SqliteStore(tmp_path / "ledger.db")
    create(store)
    store.close()
    create(PostgresStore(postgres_dsn, schema="reading"))
    for copy in (
        SqliteStore(tmp_path / "ledger.db", read_only=True),
        PostgresStore(postgres_dsn, schema="reading", read_only=True),
    ):
        with pytest.raises(StoreError, match="reading only"):
            copy.write("no", lambda t: None)
        copy.close()


def test_two_services_that_start_at_once_agree_on_one_ledger(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "ledger.db") for _ in range(2)]
    bits = SeededBits("both")
    signer = Signer.generate(bits)
    ledgers = [
        Ledger.open_or_create(
            store, terms=TERMS, filter=EpsilonDeltaFilter(), signer=signer, clock=ManualClock(), bits=bits
        )
        for store in stores
    ]
    assert ledgers[0].ledger_id == ledgers[1].ledger_id
    for store in stores:
        store.close()


def test_without_psycopg_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"aggservice\[postgres\]"):
        PostgresStore("postgresql://")
