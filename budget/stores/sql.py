"""The statements that SQLite and PostgreSQL share, written once; each driver says how to run them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

from budget.errors import StoreError
from budget.log.entries import HASH_BYTES
from budget.store import EntryRow, Head, JobRow, PartRow, Transaction

COLUMN_TYPES: Final = {"units": ("int8", "int4", "bytea", "bytea", "bytea"), "balances": ("bytea", "bytea")}
"""The columns of the tables that get many rows at once, by PostgreSQL's names of their types."""


def _blob(value: object) -> bytes:
    """Return a column's bytes; StoreError for any other type, because SQLite accepts every type in a column."""
    if not isinstance(value, bytes):
        raise StoreError("a column that holds bytes holds something else: run 'aggservice ledger verify'")
    return value


class SqlTransaction(Transaction):
    """A transaction in SQL. Statements mark each value with ``?``; a driver with another mark translates it."""

    @abstractmethod
    def _run(self, statement: str, values: tuple[object, ...]) -> None:
        """Run a statement that returns no rows."""

    @abstractmethod
    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Return all rows of a query."""

    @abstractmethod
    def _stream(self, query: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        """Yield rows a few at a time, so that a large table never sits in memory whole."""

    @abstractmethod
    def _insert(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Add many rows to one of the tables in ``COLUMN_TYPES``."""

    def head(self) -> Head | None:
        for entries, frontier in self._rows("SELECT entries, frontier FROM head WHERE id = 1"):
            raw = _blob(frontier)
            return Head(
                entries=entries, frontier=tuple(raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES))
            )
        return None

    def set_head(self, head: Head) -> None:
        self._run(
            "INSERT INTO head (id, entries, frontier) VALUES (1, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, frontier = excluded.frontier",
            (head.entries, b"".join(head.frontier)),
        )

    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        self._run("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.header, entry.receipt))
        self._insert("units", ((one.seq, one.part, one.first_key, one.last_key, one.keys) for one in parts))

    def entry(self, seq: int) -> EntryRow | None:
        rows = self._rows("SELECT header, receipt FROM entries WHERE seq = ?", (seq,))
        return EntryRow(seq=seq, header=_blob(rows[0][0]), receipt=_blob(rows[0][1])) if rows else None

    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        rows = self._stream("SELECT seq, header, receipt FROM entries WHERE seq >= ? ORDER BY seq", (start,))
        return (EntryRow(seq=row[0], header=_blob(row[1]), receipt=_blob(row[2])) for row in rows)

    def _parts(self, where: str, values: tuple[object, ...]) -> Iterator[PartRow]:
        rows = self._stream(
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
        return int(self._rows("SELECT count(*) FROM units")[0][0])

    def count_jobs(self) -> int:
        return int(self._rows("SELECT count(*) FROM jobs")[0][0])

    def job(self, caller: str, job_id: str) -> JobRow | None:
        rows = self._rows("SELECT seq, result FROM jobs WHERE caller = ? AND job_id = ?", (caller, job_id))
        return JobRow(caller=caller, job_id=job_id, seq=rows[0][0], result=rows[0][1]) if rows else None

    def add_job(self, job: JobRow) -> None:
        self._run("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job.caller, job.job_id, job.seq, job.result))

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        return self._stream("SELECT first_key, records FROM balances ORDER BY first_key")
