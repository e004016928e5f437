"""Where the queue is stored: beside a SQLite ledger, in the PostgreSQL database of the ledger, or in memory.

The queue has a file or a schema of its own: the audit of a ledger refuses tables that it does not know.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, LiteralString, Protocol, TypeVar

from aggservice.mechanisms import Clock
from aggservice.service.errors import ConfigError
from budget.errors import BudgetError, LeaseLostError
from budget.stores.postgres import PostgresDatabase, marked
from budget.stores.sqlite import SqliteDatabase

T = TypeVar("T")
Execute = Callable[..., list[Any]]
"""Runs one statement, whose values are marked with ``?``, and returns its rows."""

SCHEMA: Final = "aggservice_jobs"
_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

SQLITE_TABLES: Final = (
    (
        "CREATE TABLE queue (seq INTEGER PRIMARY KEY AUTOINCREMENT, caller TEXT NOT NULL, job_id TEXT NOT NULL,"
        " request BLOB NOT NULL, output TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,"
        " lease_until_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, cancelled INTEGER NOT NULL,"
        " reports_read INTEGER NOT NULL, received_ms INTEGER NOT NULL, started_ms INTEGER,"
        " updated_ms INTEGER NOT NULL, result BLOB NOT NULL, status BLOB NOT NULL, UNIQUE (caller, job_id))",
        "CREATE UNIQUE INDEX queue_outputs ON queue (output) WHERE state <> 'finished'",
        "CREATE INDEX queue_unfinished ON queue (caller, seq) WHERE state <> 'finished'",
    ),
)
POSTGRES_TABLES: Final[tuple[tuple[LiteralString, ...], ...]] = (
    (
        "CREATE TABLE queue (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, caller text NOT NULL,"
        " job_id text NOT NULL, request bytea NOT NULL, output text NOT NULL, state text NOT NULL,"
        " owner text NOT NULL, lease_until_ms bigint NOT NULL, attempts integer NOT NULL, cancelled integer NOT NULL,"
        " reports_read bigint NOT NULL, received_ms bigint NOT NULL, started_ms bigint, updated_ms bigint NOT NULL,"
        " result bytea NOT NULL, status bytea NOT NULL, UNIQUE (caller, job_id))",
        "CREATE UNIQUE INDEX queue_outputs ON queue (output) WHERE state <> 'finished'",
        "CREATE INDEX queue_unfinished ON queue (caller, seq) WHERE state <> 'finished'",
    ),
)


class QueueDatabase(Protocol):
    """Runs transactions over the table ``queue``. A query ending in ``skip_locked`` skips rows that others hold."""

    skip_locked: str
    shared: bool
    """Whether several services can use the queue."""

    def write(self, name: str, work: Callable[[Execute], T]) -> T:
        """Run ``work`` in one transaction, commit it durably and return its result; it may be run again."""

    def now_ms(self, execute: Execute) -> int:
        """Return the time that leases are measured by: one clock for all services."""

    def close(self) -> None:
        """Release connections and locks."""


class MemoryQueue:
    """A queue that ends with the service, for a ledger in memory."""

    skip_locked = ""
    shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in SQLITE_TABLES[0]:
            self._connection.execute(statement)

    def write(self, name: str, work: Callable[[Execute], T]) -> T:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                result = work(_execute(self._connection))
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return result

    def now_ms(self, execute: Execute) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        """Keep the jobs: a service that starts again in this process finds them."""


class SqliteQueue(SqliteDatabase):
    """A queue in a SQLite file, for one service at a time: the service holds a lock beside it while it runs."""

    what = "queue of jobs"
    application_id = 0x41474A42  # "AGJB"
    skip_locked = ""
    shared = False

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._lock: IO[bytes] = path.with_suffix(".lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"another service uses the queue {path.name} in {path.parent}: give each service a state folder of "
                "its own, or let them share a PostgreSQL ledger"
            ) from None
        try:
            super().__init__(path)
        except BudgetError:
            self._lock.close()
            raise

    def migrations(self) -> tuple[tuple[str, ...], ...]:
        return SQLITE_TABLES

    def write(self, name: str, work: Callable[[Execute], T]) -> T:
        return self.exclusive(name, lambda connection: work(_execute(connection)))

    def now_ms(self, execute: Execute) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        super().close()
        self._lock.close()


class PostgresQueue(PostgresDatabase):
    """A queue that several services share, in a schema of its own in the database of their ledger."""

    what = "queue of jobs"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    shared = True

    def __init__(self, dsn: str, *, schema: str = SCHEMA) -> None:
        super().__init__(dsn, schema=schema)

    def migrations(self) -> tuple[tuple[LiteralString, ...], ...]:
        return POSTGRES_TABLES

    def write(self, name: str, work: Callable[[Execute], T]) -> T:
        begin = ("BEGIN ISOLATION LEVEL READ COMMITTED",)
        return self.transact(name, begin, lambda connection: work(_execute_marked(connection)))

    def now_ms(self, execute: Execute) -> int:
        return int(execute(_NOW)[0][0])

    def hold(self, connection: Any, seq: int, owner: str) -> None:
        """Keep a job with its owner until the transaction of ``connection`` ends; LeaseLostError if it has another.

        The ledger's commit calls this on its own connection to the same database.
        """
        table = self._driver.sql.Identifier(self._schema, "queue")
        query = self._driver.sql.SQL("SELECT 1 FROM {} WHERE seq = %s AND owner = %s AND state = 'running' FOR SHARE")
        if connection.execute(query.format(table), (seq, owner)).fetchone() is None:
            raise LeaseLostError("another service has taken over this job; its result is dropped here")


def _execute(connection: sqlite3.Connection) -> Execute:
    return lambda statement, *values: connection.execute(statement, values).fetchall()


def _execute_marked(connection: Any) -> Execute:
    def execute(statement: str, *values: object) -> list[Any]:
        cursor = connection.execute(marked(statement), values)
        return cursor.fetchall() if cursor.description is not None else []

    return execute
