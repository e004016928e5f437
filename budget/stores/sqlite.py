"""The embedded store: one SQLite file in write-ahead mode, safe for several threads and processes.

A write transaction is ``BEGIN IMMEDIATE``; ``synchronous=FULL`` makes a commit survive a power cut. The file is
created readable by its owner only, and SQLite gives its ``-wal`` and ``-shm`` files the same mode, so that the bytes
of a result that was never committed are readable by nobody else.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from budget.errors import BudgetError, LedgerMismatchError, StoreError
from budget.log.merkle import HASH_BYTES
from budget.store import EntryRow, Head, JobRow, PartRow, Store, T, Transaction, created_by
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
        # Finding the entries that charged a unit, and the job of an entry, without a scan.
        "CREATE INDEX units_by_key ON units (first_key, last_key)",
        "CREATE UNIQUE INDEX jobs_by_entry ON jobs (seq)",
    ),
)
"""The statements that take a database from each schema version to the next."""


def _blob(value: object) -> bytes:
    """Return a column's bytes; StoreError for another type, which SQLite lets anybody put there."""
    if not isinstance(value, bytes):
        raise StoreError("a column that holds bytes holds something else: run 'aggservice ledger verify'")
    return value


class _SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def head(self) -> Head | None:
        row = self._db.execute("SELECT entries, frontier FROM head WHERE id = 1").fetchone()
        if row is None:
            return None
        raw = _blob(row[1])
        return Head(entries=row[0], frontier=tuple(raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES)))

    def set_head(self, head: Head) -> None:
        self._db.execute(
            "INSERT INTO head (id, entries, frontier) VALUES (1, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, frontier = excluded.frontier",
            (head.entries, b"".join(head.frontier)),
        )

    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.header, entry.receipt))
        self._db.executemany(
            "INSERT INTO units VALUES (?, ?, ?, ?, ?)",
            ((one.seq, one.part, one.first_key, one.last_key, one.keys) for one in parts),
        )

    def entry(self, seq: int) -> EntryRow | None:
        row = self._db.execute("SELECT seq, header, receipt FROM entries WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else EntryRow(seq=row[0], header=_blob(row[1]), receipt=_blob(row[2]))

    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        rows = self._db.execute("SELECT seq, header, receipt FROM entries WHERE seq >= ? ORDER BY seq", (start,))
        return (EntryRow(seq=row[0], header=_blob(row[1]), receipt=_blob(row[2])) for row in rows)

    def _parts(self, where: str, values: tuple[object, ...]) -> Iterator[PartRow]:
        rows = self._db.execute(
            f"SELECT units.seq, part, first_key, last_key, keys FROM units {where} ORDER BY units.seq, part", values
        )
        return (PartRow(seq=a, part=b, first_key=c, last_key=d, keys=e) for a, b, c, d, e in rows)

    def parts(self, seq: int) -> Iterator[PartRow]:
        return self._parts("WHERE seq = ?", (seq,))

    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        if caller is None:
            return self._parts("WHERE first_key <= ? AND last_key >= ?", (high, low))
        return self._parts(
            "JOIN jobs ON jobs.seq = units.seq WHERE first_key <= ? AND last_key >= ? AND jobs.caller = ?",
            (high, low, caller),
        )

    def count_parts(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM units").fetchone()[0])

    def count_jobs(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM jobs").fetchone()[0])

    def job(self, caller: str, job_id: str) -> JobRow | None:
        row = self._db.execute(
            "SELECT caller, job_id, seq, result FROM jobs WHERE caller = ? AND job_id = ?", (caller, job_id)
        ).fetchone()
        return None if row is None else JobRow(caller=row[0], job_id=row[1], seq=row[2], result=row[3])

    def add_job(self, job: JobRow) -> None:
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job.caller, job.job_id, job.seq, job.result))

    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        below = self._db.execute("SELECT max(first_key) FROM balances WHERE first_key <= ?", (low,)).fetchone()[0]
        if below is None:
            below = self._db.execute("SELECT min(first_key) FROM balances").fetchone()[0]
            if below is None:
                return []
        rows = self._db.execute(
            "SELECT first_key FROM balances WHERE first_key > ? AND first_key <= ? ORDER BY first_key", (below, high)
        )
        return [below, *(row[0] for row in rows)]

    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(first_keys), _IN_CHUNK):
            some = first_keys[start : start + _IN_CHUNK]
            marks = ",".join("?" * len(some))
            rows = self._db.execute(
                f"SELECT records FROM balances WHERE first_key IN ({marks}) ORDER BY first_key", some
            )
            found.extend(row[0] for row in rows)
        return found

    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        self._db.executemany("DELETE FROM balances WHERE first_key = ?", ((key,) for key in first_keys))
        self._db.executemany("INSERT INTO balances (first_key, records) VALUES (?, ?)", blocks)

    def schema(self) -> tuple[int, set[str], set[str]]:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        rows = self._db.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")
        return version, {row[0] for row in rows}, created_by(MIGRATIONS[:version])

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._db.execute("SELECT first_key, records FROM balances ORDER BY first_key"))


class SqliteStore(Store):
    """A ledger in one SQLite file.

    ``read_only`` opens the file without changing a byte of it (an audit of a copy); otherwise the file is created
    when it does not exist and brought to the newest schema. Each thread that is inside a transaction has a connection
    of its own; a process that forks opens new ones.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False, busy_timeout_s: float = 120.0) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._connections = Connections(self._open)
        if read_only:
            if not self.path.is_file():
                raise StoreError(f"there is no ledger at {self.path}")
        else:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError:
                pass
            except OSError as problem:
                raise StoreError(f"cannot make a ledger at {self.path}: {problem.strerror}") from problem
        connection = self._open()
        try:
            if not read_only:
                self._migrate(connection)
            self._check_version(connection)
        except BaseException:
            connection.close()
            raise
        self._connections.give_back(connection)

    def _open(self) -> sqlite3.Connection:
        mode = "ro" if self._read_only else "rw"
        if self._read_only and not os.access(self.path.parent, os.W_OK) and not Path(f"{self.path}-wal").exists():
            mode = "ro&immutable=1"  # a copy on a medium where SQLite cannot even make its lock files
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
            raise StoreError(f"cannot open the ledger {self.path.name}: {problem}") from problem
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to a write-ahead log, for which SQLite does not wait when another process does the same at once."""
        for left in range(int(self._busy_timeout_s / _PAUSE_S), -1, -1):
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as problem:
                if "locked" not in str(problem) or not left:
                    raise
                time.sleep(_PAUSE_S)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the schema to the newest version, one transaction a version."""
        while True:
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                foreign = version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if foreign:
                    raise LedgerMismatchError(f"{self.path} is a database, but not a ledger")
                if version >= len(MIGRATIONS):
                    connection.execute("ROLLBACK")
                    return
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
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
        if not 1 <= version <= len(MIGRATIONS):
            raise LedgerMismatchError(
                f"{self.path.name} has schema version {version}, this program knows 1 to {len(MIGRATIONS)}:"
                " use a newer program"
            )

    def _run(self, name: str, begin: str, work: Callable[[Transaction], T]) -> T:
        connection = self._connections.take()
        clean = False
        try:
            connection.execute(begin)
            try:
                result = work(_SqliteTransaction(connection))
            except BudgetError:
                # An answer, not a fault: the connection is as good as before once it is rolled back.
                connection.execute("ROLLBACK")
                clean = True
                raise
            connection.execute("COMMIT")
            clean = True
        except sqlite3.Error as problem:
            raise StoreError(f"transaction {name!r} on {self.path.name} failed: {problem}") from problem
        finally:
            if clean:
                self._connections.give_back(connection)
            else:
                connection.close()  # which rolls back
        return result

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        if self._read_only:
            raise StoreError(f"{self.path.name} is open for reading only")
        with self._connections.writer:
            return self._run(name, "BEGIN IMMEDIATE", work)

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return self._run(name, "BEGIN", work)

    def close(self) -> None:
        self._connections.close()
