"""The store for several services at once: PostgreSQL through psycopg.

A write transaction first takes an exclusive lock on the ``head`` table, which lets readers pass and makes writers of
all services queue; at READ COMMITTED every later statement then sees what the one before committed. Reads run
REPEATABLE READ, READ ONLY on one snapshot. A transaction that lost its connection or a race runs again: it is safe,
because a commit looks up its job first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final, LiteralString

from budget.errors import BudgetError, LedgerMismatchError, StoreError
from budget.log.merkle import HASH_BYTES
from budget.store import EntryRow, Head, JobRow, PartRow, Store, T, Transaction, created_by
from budget.stores.connections import Connections

if TYPE_CHECKING:
    import psycopg

_ATTEMPTS: Final = 6
_PAUSE_S: Final = 0.05
_FETCH: Final = 256
_MIGRATION_LOCK: Final = 0x41474C47

MIGRATIONS: Final[tuple[tuple[LiteralString, ...], ...]] = (
    (
        "CREATE TABLE head (id integer PRIMARY KEY CHECK (id = 1), entries bigint NOT NULL, frontier bytea NOT NULL)",
        "CREATE TABLE entries (seq bigint PRIMARY KEY, header bytea NOT NULL, receipt bytea NOT NULL)",
        "CREATE TABLE units (seq bigint NOT NULL, part integer NOT NULL, first_key bytea NOT NULL,"
        " last_key bytea NOT NULL, keys bytea NOT NULL, PRIMARY KEY (seq, part))",
        "CREATE TABLE jobs (caller text NOT NULL, job_id text NOT NULL, seq bigint NOT NULL, result bytea NOT NULL,"
        " PRIMARY KEY (caller, job_id))",
        "CREATE TABLE balances (first_key bytea PRIMARY KEY, records bytea NOT NULL)",
        # Keys are hashes: trying to compress them only costs time.
        "ALTER TABLE units ALTER COLUMN keys SET STORAGE EXTERNAL",
        "ALTER TABLE balances ALTER COLUMN records SET STORAGE EXTERNAL",
    ),
    (
        "CREATE INDEX units_by_key ON units (first_key, last_key)",
        "CREATE UNIQUE INDEX jobs_by_entry ON jobs (seq)",
    ),
)
"""The statements that take a database from each schema version to the next."""


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as problem:
        raise StoreError("a PostgreSQL ledger needs psycopg: pip install 'aggservice[postgres]'") from problem
    return psycopg


class _PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._db = connection
        self._cursors = count()

    def _rows(self, query: LiteralString, values: tuple[object, ...] = ()) -> list[Any]:
        return self._db.execute(query, values, binary=True).fetchall()

    def _stream(self, query: LiteralString, values: tuple[object, ...] = ()) -> Iterator[Any]:
        """Yield rows a few at a time, so that a large table never sits in memory whole."""
        with self._db.cursor(name=f"stream{next(self._cursors)}", binary=True) as cursor:
            cursor.itersize = _FETCH
            cursor.execute(query, values)
            yield from cursor

    def head(self) -> Head | None:
        rows = self._rows("SELECT entries, frontier FROM head WHERE id = 1")
        if not rows:
            return None
        raw = rows[0][1]
        return Head(entries=rows[0][0], frontier=tuple(raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES)))

    def set_head(self, head: Head) -> None:
        self._db.execute(
            "INSERT INTO head (id, entries, frontier) VALUES (1, %s, %b)"
            " ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, frontier = excluded.frontier",
            (head.entries, b"".join(head.frontier)),
        )

    def _copy(self, statement: LiteralString, types: list[str], rows: Iterable[tuple[object, ...]]) -> None:
        with self._db.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        self._db.execute("INSERT INTO entries VALUES (%s, %b, %b)", (entry.seq, entry.header, entry.receipt))
        self._copy(
            "COPY units FROM STDIN (FORMAT BINARY)",
            ["int8", "int4", "bytea", "bytea", "bytea"],
            ((one.seq, one.part, one.first_key, one.last_key, one.keys) for one in parts),
        )

    def entry(self, seq: int) -> EntryRow | None:
        rows = self._rows("SELECT seq, header, receipt FROM entries WHERE seq = %s", (seq,))
        return EntryRow(seq=rows[0][0], header=rows[0][1], receipt=rows[0][2]) if rows else None

    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        rows = self._stream("SELECT seq, header, receipt FROM entries WHERE seq >= %s ORDER BY seq", (start,))
        return (EntryRow(seq=row[0], header=row[1], receipt=row[2]) for row in rows)

    def _parts(self, query: LiteralString, values: tuple[object, ...]) -> Iterator[PartRow]:
        rows = self._stream(query, values)
        return (PartRow(seq=a, part=b, first_key=c, last_key=d, keys=e) for a, b, c, d, e in rows)

    def parts(self, seq: int) -> Iterator[PartRow]:
        return self._parts(
            "SELECT seq, part, first_key, last_key, keys FROM units WHERE seq = %s ORDER BY part", (seq,)
        )

    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        if caller is None:
            return self._parts(
                "SELECT seq, part, first_key, last_key, keys FROM units"
                " WHERE first_key <= %b AND last_key >= %b ORDER BY seq, part",
                (high, low),
            )
        return self._parts(
            "SELECT units.seq, part, first_key, last_key, keys FROM units JOIN jobs ON jobs.seq = units.seq"
            " WHERE first_key <= %b AND last_key >= %b AND caller = %s ORDER BY units.seq, part",
            (high, low, caller),
        )

    def count_parts(self) -> int:
        return int(self._rows("SELECT count(*) FROM units")[0][0])

    def count_jobs(self) -> int:
        return int(self._rows("SELECT count(*) FROM jobs")[0][0])

    def job(self, caller: str, job_id: str) -> JobRow | None:
        rows = self._rows(
            "SELECT caller, job_id, seq, result FROM jobs WHERE caller = %s AND job_id = %s", (caller, job_id)
        )
        return JobRow(caller=rows[0][0], job_id=rows[0][1], seq=rows[0][2], result=rows[0][3]) if rows else None

    def add_job(self, job: JobRow) -> None:
        self._db.execute("INSERT INTO jobs VALUES (%s, %s, %s, %b)", (job.caller, job.job_id, job.seq, job.result))

    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        below = self._rows(
            "SELECT first_key FROM balances WHERE first_key <= %b ORDER BY first_key DESC LIMIT 1", (low,)
        ) or self._rows("SELECT first_key FROM balances ORDER BY first_key LIMIT 1")
        if not below:
            return []
        rows = self._rows(
            "SELECT first_key FROM balances WHERE first_key > %b AND first_key <= %b ORDER BY first_key",
            (below[0][0], high),
        )
        return [below[0][0], *(row[0] for row in rows)]

    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        rows = self._rows("SELECT records FROM balances WHERE first_key = ANY(%b) ORDER BY first_key", (first_keys,))
        return [row[0] for row in rows]

    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        if first_keys:
            self._db.execute("DELETE FROM balances WHERE first_key = ANY(%b)", (first_keys,))
        self._copy("COPY balances FROM STDIN (FORMAT BINARY)", ["bytea", "bytea"], blocks)

    def schema(self) -> tuple[int, set[str], set[str]]:
        version = int(self._rows("SELECT version FROM schema_version")[0][0])
        rows = self._rows(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'i') AND relname <> 'schema_version' AND relname NOT LIKE '%%_pkey'"
        )
        return version, {row[0] for row in rows}, created_by(MIGRATIONS[:version])

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        return self._stream("SELECT first_key, records FROM balances ORDER BY first_key")


class PostgresStore(Store):
    """A ledger in a schema of a PostgreSQL database, given by its connection string.

    The schema is made when it does not exist and brought to the newest version, unless ``read_only``.
    """

    definite = False

    def __init__(self, dsn: str, *, schema: str = "aggservice_ledger", read_only: bool = False) -> None:
        self._dsn = dsn
        self._schema = schema
        self._read_only = read_only
        self._driver = _driver()
        self._connections: Connections[psycopg.Connection[Any]] = Connections(self._open)
        if not read_only:
            self._attempt("migrate", self._migrate)
        self._attempt("look at the schema of", self._check_version)

    def _open(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = self._driver.connect(self._dsn, autocommit=True)
        connection.execute(
            self._driver.sql.SQL("SET search_path TO {}").format(self._driver.sql.Identifier(self._schema))
        )
        return connection

    def _migrate(self, connection: psycopg.Connection[Any]) -> None:
        sql = self._driver.sql
        with connection.transaction():
            # Two services that start at once must not both create the tables.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
            row = connection.execute("SELECT version FROM schema_version").fetchone()
            version = 0 if row is None else int(row[0])
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            if row is None:
                connection.execute("INSERT INTO schema_version VALUES (%s)", (len(MIGRATIONS),))
            elif version < len(MIGRATIONS):
                connection.execute("UPDATE schema_version SET version = %s", (len(MIGRATIONS),))

    def _check_version(self, connection: psycopg.Connection[Any]) -> None:
        try:
            row = connection.execute("SELECT version FROM schema_version").fetchone()
        except self._driver.errors.UndefinedTable as problem:
            raise StoreError(f"there is no ledger in schema {self._schema!r} of this database") from problem
        if row is None or not 1 <= row[0] <= len(MIGRATIONS):
            raise LedgerMismatchError(
                f"the database has schema version {row and row[0]}, this program knows 1 to {len(MIGRATIONS)}:"
                " use a newer program"
            )

    def _attempt(self, name: str, run: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run on a connection, again when the database says that a race or a connection was lost."""
        errors = self._driver.errors
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._once(run)
            except (self._driver.OperationalError, errors.SerializationFailure, errors.DeadlockDetected) as problem:
                if attempt == _ATTEMPTS:
                    text = f"transaction {name!r} on PostgreSQL failed {attempt} times: {problem}"
                    raise StoreError(text) from problem
                if not isinstance(problem, errors.SerializationFailure | errors.DeadlockDetected):
                    self._connections.close()  # a server that went away took the idle ones too
                time.sleep(_PAUSE_S * 2**attempt)
            except self._driver.Error as problem:
                raise StoreError(f"transaction {name!r} on PostgreSQL failed: {problem}") from problem

    def _once(self, run: Callable[[psycopg.Connection[Any]], T]) -> T:
        connection = self._connections.take()
        clean = False
        try:
            try:
                result = run(connection)
            except BudgetError:
                # An answer, not a fault: the connection is as good as before once it is rolled back.
                connection.rollback()
                clean = True
                raise
            clean = True
            return result
        finally:
            if clean:
                self._connections.give_back(connection)
            else:
                connection.close()  # which rolls back

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        if self._read_only:
            raise StoreError("this ledger is open for reading only")

        def run(connection: psycopg.Connection[Any]) -> T:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            connection.execute("LOCK TABLE head IN EXCLUSIVE MODE")
            result = work(_PostgresTransaction(connection))
            connection.execute("COMMIT")
            return result

        return self._attempt(name, run)

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        def run(connection: psycopg.Connection[Any]) -> T:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            result = work(_PostgresTransaction(connection))
            connection.execute("COMMIT")
            return result

        return self._attempt(name, run)

    def close(self) -> None:
        self._connections.close()
