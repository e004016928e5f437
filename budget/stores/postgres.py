"""The store for several services: PostgreSQL through psycopg.

A write transaction first takes an exclusive lock on the ``head`` table, which does not block readers and makes the
writers of all services queue; at READ COMMITTED it then sees everything that earlier writers committed. Reads run
REPEATABLE READ, READ ONLY on one snapshot. A transaction that lost its connection or a race is retried, which is safe
because a commit looks up its job first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, LiteralString

from budget.errors import LedgerMismatchError, StoreError
from budget.store import COLUMN_TYPES, Store, T, Transaction, created_by
from budget.stores.connections import Connections

if TYPE_CHECKING:
    import psycopg

_ATTEMPTS: Final = 6
_PAUSE_S: Final = 0.05
_FETCH: Final = 256
_COPY_BYTES: Final = 1 << 20
_MIGRATION_LOCK: Final = 0x41474C47

Guard = Callable[["psycopg.Connection[Any]", str, str], None]
"""Checks, on the connection of a commit, that a caller's job was not taken over (``Transaction.admit``)."""

MIGRATIONS: Final[tuple[tuple[LiteralString, ...], ...]] = (
    (
        "CREATE TABLE head (id integer PRIMARY KEY CHECK (id = 1), entries bigint NOT NULL, frontier bytea NOT NULL)",
        "CREATE TABLE entries (seq bigint PRIMARY KEY, header bytea NOT NULL, receipt bytea NOT NULL)",
        "CREATE TABLE units (seq bigint NOT NULL, part integer NOT NULL, first_key bytea NOT NULL,"
        " last_key bytea NOT NULL, keys bytea NOT NULL, PRIMARY KEY (seq, part))",
        "CREATE TABLE jobs (caller text NOT NULL, job_id text NOT NULL, seq bigint NOT NULL, result bytea NOT NULL,"
        " PRIMARY KEY (caller, job_id))",
        "CREATE TABLE balances (first_key bytea PRIMARY KEY, records bytea NOT NULL)",
        # Keys are hashes and cannot be compressed: trying costs time.
        "ALTER TABLE units ALTER COLUMN keys SET STORAGE EXTERNAL",
        "ALTER TABLE balances ALTER COLUMN records SET STORAGE EXTERNAL",
    ),
    (
        "CREATE INDEX units_by_key ON units (first_key, last_key)",
        "CREATE UNIQUE INDEX jobs_by_entry ON jobs (seq)",
    ),
)
"""The statements that bring a database from each schema version to the next."""


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as problem:
        raise StoreError("a PostgreSQL ledger needs psycopg: pip install 'aggservice[postgres]'") from problem
    return psycopg


def marked(statement: str) -> bytes:
    """Return a statement with each ``?`` replaced by psycopg's mark for a value."""
    return statement.replace("?", "%s").encode()


class _PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Any], guard: Guard | None = None) -> None:
        self._db = connection
        self._cursors = count()
        self._guard = guard

    def admit(self, caller: str, job_id: str) -> None:
        if self._guard is not None:
            self._guard(self._db, caller, job_id)

    def _run(self, statement: str, values: tuple[object, ...]) -> None:
        self._db.execute(marked(statement), values)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        return self._db.execute(marked(query), values, binary=True).fetchall()

    def _stream(self, query: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        with self._db.cursor(name=f"stream{next(self._cursors)}", binary=True) as cursor:
            cursor.itersize = _FETCH
            cursor.execute(marked(query), values)
            yield from cursor

    def _insert(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        # The client library moves all bytes that the server has not read yet each time it sends some, so that one COPY
        # of many megabytes would take quadratic time.
        left = iter(rows)
        for first in left:
            with self._db.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
                copy.set_types(COLUMN_TYPES[table])
                size = 0
                for row in chain((first,), left):
                    copy.write_row(row)
                    size += sum(len(value) for value in row if isinstance(value, bytes))
                    if size >= _COPY_BYTES:
                        break

    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        rows = self._rows("SELECT records FROM balances WHERE first_key = ANY(%b) ORDER BY first_key", (first_keys,))
        return [row[0] for row in rows]

    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        if first_keys:
            self._run("DELETE FROM balances WHERE first_key = ANY(%b)", (first_keys,))
        self._insert("balances", blocks)

    def schema(self) -> tuple[int, set[str], set[str]]:
        version = int(self._rows("SELECT version FROM schema_version")[0][0])
        rows = self._rows(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'i') AND relname <> 'schema_version' AND relname NOT LIKE '%%_pkey'"
        )
        return version, {row[0] for row in rows}, created_by(MIGRATIONS[:version])


class PostgresDatabase:
    """One schema of our own in a PostgreSQL database: the base of a ledger's store, and of the services' queue.

    Unless ``read_only``, the schema is created if needed and brought to the newest version.
    """

    what = "ledger"

    def __init__(self, dsn: str, *, schema: str = "aggservice_ledger", read_only: bool = False) -> None:
        self._dsn = dsn
        self._schema = schema
        self._read_only = read_only
        self._driver = _driver()
        self._connections: Connections[psycopg.Connection[Any]] = Connections(self._open)
        if not read_only:
            self._attempt("migrate", self._migrate)
        self._attempt("check_schema", self._check_version)

    def migrations(self) -> tuple[tuple[LiteralString, ...], ...]:
        """Return the statements that bring the schema from each version to the next."""
        return MIGRATIONS

    def _open(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = self._driver.connect(self._dsn, autocommit=True)
        connection.execute(
            self._driver.sql.SQL("SET search_path TO {}").format(self._driver.sql.Identifier(self._schema))
        )
        return connection

    def _migrate(self, connection: psycopg.Connection[Any]) -> None:
        sql = self._driver.sql
        with connection.transaction():
            # Prevents two services that start at once from both creating the tables.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
            row = connection.execute("SELECT version FROM schema_version").fetchone()
            version = 0 if row is None else int(row[0])
            for statements in self.migrations()[version:]:
                for statement in statements:
                    connection.execute(statement)
            if row is None:
                connection.execute("INSERT INTO schema_version VALUES (%s)", (len(self.migrations()),))
            elif version < len(self.migrations()):
                connection.execute("UPDATE schema_version SET version = %s", (len(self.migrations()),))

    def _check_version(self, connection: psycopg.Connection[Any]) -> None:
        try:
            row = connection.execute("SELECT version FROM schema_version").fetchone()
        except self._driver.errors.UndefinedTable as problem:
            text = f"there is no {self.what} in schema {self._schema!r} of this database: create one"
            raise StoreError(text) from problem
        if row is None or not 1 <= row[0] <= len(self.migrations()):
            raise LedgerMismatchError(
                f"the database has schema version {row and row[0]}, but this program knows 1 to"
                f" {len(self.migrations())}: use a newer program"
            )

    def _attempt(self, name: str, run: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run on a connection; retry if the database reports a lost race or a lost connection."""
        errors = self._driver.errors
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._connections.lend(lambda connection: connection.rollback()) as connection:
                    return run(connection)
            except (self._driver.OperationalError, errors.SerializationFailure, errors.DeadlockDetected) as problem:
                if attempt == _ATTEMPTS:
                    text = f"transaction {name!r} on PostgreSQL failed {attempt} times: {problem}"
                    raise StoreError(text) from problem
                if not isinstance(problem, errors.SerializationFailure | errors.DeadlockDetected):
                    self._connections.close()  # a server that stopped has closed the idle ones too
                time.sleep(_PAUSE_S * 2**attempt)
            except self._driver.Error as problem:
                raise StoreError(f"transaction {name!r} on PostgreSQL failed: {problem}") from problem

    def transact(self, name: str, begin: tuple[LiteralString, ...], work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run ``work`` in a transaction that ``begin`` begins; run it again after a lost race or connection."""

        def run(connection: psycopg.Connection[Any]) -> T:
            for statement in begin:
                connection.execute(statement)
            result = work(connection)
            connection.execute("COMMIT")
            return result

        return self._attempt(name, run)

    def close(self) -> None:
        """Close all idle connections."""
        self._connections.close()


class PostgresStore(PostgresDatabase, Store):
    """A ledger in one schema of a PostgreSQL database; see ``PostgresDatabase``.

    A service that shares its queue of jobs sets ``guard``, which every commit then passes.
    """

    definite = False
    guard: Guard | None = None

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        if self._read_only:
            raise StoreError("this store is open for reading only: open it without read_only")
        begin = ("BEGIN ISOLATION LEVEL READ COMMITTED", "LOCK TABLE head IN EXCLUSIVE MODE")
        return self.transact(name, begin, lambda connection: work(_PostgresTransaction(connection, self.guard)))

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        begin = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
        return self.transact(name, begin, lambda connection: work(_PostgresTransaction(connection)))
