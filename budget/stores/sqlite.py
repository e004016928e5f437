"""The embedded store: one SQLite file in write-ahead mode, safe for several threads and processes.

A write transaction is ``BEGIN IMMEDIATE``; ``synchronous=FULL`` makes a commit survive a power cut. Only the owner can
read the file, and SQLite gives its ``-wal`` and ``-shm`` files the same mode, so that nobody else can read the bytes
of a result that was never committed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from budget.errors import LedgerMismatchError, StoreError
from budget.store import COLUMN_TYPES, Store, T, Transaction, created_by
from budget.stores.connections import Connections

_IN_CHUNK: Final = 500
_WAL_KEPT_BYTES: Final = 64 << 20
_PAUSE_S: Final = 0.05
_APPLICATION_ID: Final = 0x41474C47  # "AGLG"
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), entries INTEGER NOT NULL, frontier BLOB NOT NULL)",
        "CREATE TABLE entries (seq INTEGER PRIMARY KEY, header BLOB NOT NULL, receipt BLOB NOT NULL)",
        "CREATE TABLE units (seq INTEGER NOT NULL, part INTEGER NOT NULL, first_key BLOB NOT NULL,"
        " last_key BLOB NOT NULL, keys BLOB NOT NULL, UNIQUE (seq, part))",
        "CREATE TABLE jobs (caller TEXT NOT NULL, job_id TEXT NOT NULL, seq INTEGER NOT NULL, result BLOB NOT NULL,"
        " UNIQUE (caller, job_id))",
        "CREATE TABLE balances (first_key BLOB NOT NULL UNIQUE, records BLOB NOT NULL)",
    ),
    (
        # To find the entries that charged a unit, and the job of an entry, without a scan.
        "CREATE INDEX units_by_key ON units (first_key, last_key)",
        "CREATE UNIQUE INDEX jobs_by_entry ON jobs (seq)",
    ),
)
"""The statements that bring a database from each schema version to the next."""


class SqliteTransaction(Transaction):
    """A transaction on one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def _run(self, statement: str, values: tuple[object, ...]) -> None:
        self._db.execute(statement, values)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    def _stream(self, query: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        return iter(self._db.execute(query, values))

    def _insert(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        marks = ",".join("?" * len(COLUMN_TYPES[table]))
        self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(first_keys), _IN_CHUNK):
            some = tuple(first_keys[start : start + _IN_CHUNK])
            marks = ",".join("?" * len(some))
            rows = self._rows(f"SELECT records FROM balances WHERE first_key IN ({marks}) ORDER BY first_key", some)
            found.extend(row[0] for row in rows)
        return found

    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        self._db.executemany("DELETE FROM balances WHERE first_key = ?", ((key,) for key in first_keys))
        self._insert("balances", blocks)

    def schema(self) -> tuple[int, set[str], set[str]]:
        version = int(self._rows("PRAGMA user_version")[0][0])
        rows = self._rows("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")
        return version, {row[0] for row in rows}, created_by(MIGRATIONS[:version])


class SqliteDatabase:
    """One SQLite file with tables of our own: the base of a ledger's store, and of a service's queue of jobs.

    ``read_only`` opens the file without changing it (to audit a copy); otherwise the file is created if needed and
    brought to the newest schema. Each running transaction has its own connection; a forked process opens new ones.
    """

    what = "ledger"
    application_id = _APPLICATION_ID

    def __init__(self, path: Path | str, *, read_only: bool = False, busy_timeout_s: float = 120.0) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._connections = Connections(self._open)
        if read_only:
            if not self.path.is_file():
                raise StoreError(f"there is no {self.what} at {self.path}: check the path")
        else:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError:
                pass
            except OSError as problem:
                raise StoreError(f"cannot create a {self.what} at {self.path}: {problem.strerror}") from problem
        connection = self._open()
        try:
            if not read_only:
                self._migrate(connection)
            self._check_version(connection)
        except BaseException:
            connection.close()
            raise
        self._connections.give_back(connection)

    def migrations(self) -> tuple[tuple[str, ...], ...]:
        """Return the statements that bring the database from each schema version to the next."""
        return MIGRATIONS

    def _open(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rw"
        if self._read_only and not os.access(self.path.parent, os.W_OK) and not Path(f"{self.path}-wal").exists():
            mode = "ro&immutable=1"  # a copy in a folder where SQLite cannot create its lock files
        try:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=self._busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            if not self._read_only:
                self._use_wal(connection)
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
            connection.execute("PRAGMA cache_size = -65536")
        except sqlite3.Error as problem:
            raise StoreError(f"cannot open the {self.what} {self.path.name}: {problem}") from problem
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to a write-ahead log; retry, since SQLite does not wait if another process does the same."""
        for left in range(int(self._busy_timeout_s / _PAUSE_S), -1, -1):
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as problem:
                if "locked" not in str(problem) or not left:
                    raise
                time.sleep(_PAUSE_S)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the schema to the newest version, in one transaction per version."""
        while True:
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                foreign = version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if foreign:
                    raise LedgerMismatchError(
                        f"{self.path} is a SQLite database, but not a {self.what}: give another path"
                    )
                if version >= len(self.migrations()):
                    connection.execute("ROLLBACK")
                    return
                for statement in self.migrations()[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
                connection.execute(f"PRAGMA application_id = {self.application_id}")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _check_version(self, connection: sqlite3.Connection) -> None:
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as problem:
            raise StoreError(f"{self.path.name} is not a SQLite database: {problem}") from problem
        if not 1 <= version <= len(self.migrations()):
            raise LedgerMismatchError(
                f"{self.path.name} has schema version {version}, but this program knows 1 to"
                f" {len(self.migrations())}: use a newer program"
            )

    def transact(self, name: str, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on a connection, in a transaction that ``begin`` begins; StoreError if the database fails."""
        try:
            with self._connections.lend(lambda connection: connection.execute("ROLLBACK")) as connection:
                connection.execute(begin)
                result = work(connection)
                connection.execute("COMMIT")
                return result
        except sqlite3.Error as problem:
            raise StoreError(f"transaction {name!r} on {self.path.name} failed: {problem}") from problem

    def exclusive(self, name: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a transaction that excludes other writers."""
        if self._read_only:
            raise StoreError(f"{self.path.name} is open for reading only: open it without read_only")
        with self._connections.writer:
            return self.transact(name, "BEGIN IMMEDIATE", work)

    def close(self) -> None:
        """Close all idle connections."""
        self._connections.close()


class SqliteStore(SqliteDatabase, Store):
    """A ledger in one SQLite file; see ``SqliteDatabase``."""

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self.exclusive(name, lambda connection: work(SqliteTransaction(connection)))

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self.transact(name, "BEGIN", lambda connection: work(SqliteTransaction(connection)))


class MemoryStore(Store):
    """The tables of ``SqliteStore`` in an SQLite database that has no file, behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in (text for step in MIGRATIONS for text in step):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._run(name, "COMMIT", work)

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._run(name, "ROLLBACK", work)

    def _run(self, name: str, end: str, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            try:
                self._db.execute("BEGIN")
                result = work(SqliteTransaction(self._db))
                self._db.execute(end)
            except sqlite3.Error as problem:
                raise StoreError(f"transaction {name!r} in memory failed: {problem}") from problem
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            return result

    def close(self) -> None:
        """Do nothing: the tables exist as long as this object."""
