"""The interface between a ledger and a database: named transactions over five small tables.

| table | key | holds |
| --- | --- | --- |
| head | – | number of entries and the Merkle frontier |
| entries | seq | the entry's canonical bytes and its signed receipt |
| units | seq, part | the entry's unit keys, packed, in parts of at most ``PART_UNITS``, with the first and last key |
| jobs | caller, job id | the entry and the result (or the manifest of its files) |
| balances | first key | a block of records (see ``balances``) |

A write transaction excludes all other writes to the same ledger, in all processes: each appends to one hash chain, so
writes are serial, and two charges can never read the same balance.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from budget.errors import StoreError

T = TypeVar("T")

HASH_BYTES: Final = 32
PART_UNITS: Final = 1 << 16
"""The largest number of units in one row of the units table: 1.25 MiB of keys."""
COLUMN_TYPES: Final = {"units": ("int8", "int4", "bytea", "bytea", "bytea"), "balances": ("bytea", "bytea")}
"""The columns of the tables that get many rows at once, by PostgreSQL's names of their types."""
_CREATED = re.compile(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)")


def created_by(migrations: Iterable[Iterable[str]]) -> set[str]:
    """Return the names of the tables and indexes that these migrations create."""
    return {found[1] for step in migrations for text in step if (found := _CREATED.match(text)) is not None}


def _blob(value: object) -> bytes:
    """Return a column's bytes; StoreError for any other type, because SQLite accepts every type in a column."""
    if not isinstance(value, bytes):
        raise StoreError("a column that holds bytes holds something else: run 'aggservice ledger verify'")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where the log ends: how many entries it has, and the frontier of the Merkle tree over them."""

    entries: int
    frontier: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """One row of the table ``entries``: an entry and its receipt."""

    seq: int
    header: bytes
    receipt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One row of the table ``units``: a part of the unit keys of an entry."""

    seq: int
    part: int
    first_key: bytes
    last_key: bytes
    keys: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One row of the table ``jobs``: the entry and the result of a job."""

    caller: str
    job_id: str
    seq: int
    result: bytes


class Transaction(ABC):
    """The statements of one transaction. Reads see the transaction's own writes.

    SQLite and PostgreSQL share the statements written here; each driver says how to run them. A statement marks each
    value with ``?``; a driver with another mark translates it.
    """

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
        """Return the head, or None before the ledger is created."""
        for entries, frontier in self._rows("SELECT entries, frontier FROM head WHERE id = 1"):
            raw = _blob(frontier)
            return Head(
                entries=entries, frontier=tuple(raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES))
            )
        return None

    def set_head(self, head: Head) -> None:
        """Write the head."""
        self._run(
            "INSERT INTO head (id, entries, frontier) VALUES (1, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET entries = excluded.entries, frontier = excluded.frontier",
            (head.entries, b"".join(head.frontier)),
        )

    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        """Add an entry and its units."""
        self._run("INSERT INTO entries VALUES (?, ?, ?)", (entry.seq, entry.header, entry.receipt))
        self._insert("units", ((one.seq, one.part, one.first_key, one.last_key, one.keys) for one in parts))

    def entry(self, seq: int) -> EntryRow | None:
        """Return the entry with this number, or None."""
        rows = self._rows("SELECT header, receipt FROM entries WHERE seq = ?", (seq,))
        return EntryRow(seq=seq, header=_blob(rows[0][0]), receipt=_blob(rows[0][1])) if rows else None

    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        """Yield entries from ``start`` in order."""
        rows = self._stream("SELECT seq, header, receipt FROM entries WHERE seq >= ? ORDER BY seq", (start,))
        return (EntryRow(seq=row[0], header=_blob(row[1]), receipt=_blob(row[2])) for row in rows)

    def _parts(self, where: str, values: tuple[object, ...]) -> Iterator[PartRow]:
        rows = self._stream(
            f"SELECT units.seq, part, first_key, last_key, keys FROM units {where} ORDER BY units.seq, part", values
        )
        return (PartRow(seq=a, part=b, first_key=c, last_key=d, keys=e) for a, b, c, d, e in rows)

    def parts(self, seq: int) -> Iterator[PartRow]:
        """Yield the parts of an entry's units in order."""
        return self._parts("WHERE seq = ?", (seq,))

    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        """Yield, in order of entry, the parts whose range of keys overlaps [low, high], even if no key lies in it.

        With ``caller``, only parts of their jobs.
        """
        if caller is None:
            return self._parts("WHERE first_key <= ? AND last_key >= ?", (high, low))
        return self._parts(
            "JOIN jobs ON jobs.seq = units.seq WHERE first_key <= ? AND last_key >= ? AND jobs.caller = ?",
            (high, low, caller),
        )

    def count_parts(self) -> int:
        """Return the total number of parts."""
        return int(self._rows("SELECT count(*) FROM units")[0][0])

    def job(self, caller: str, job_id: str) -> JobRow | None:
        """Return the job of this caller and id, or None."""
        rows = self._rows("SELECT seq, result FROM jobs WHERE caller = ? AND job_id = ?", (caller, job_id))
        return JobRow(caller=caller, job_id=job_id, seq=rows[0][0], result=rows[0][1]) if rows else None

    def admit(self, caller: str, job_id: str) -> None:  # noqa: B027
        """Raise LeaseLostError if another service has taken over this job, and keep it from doing so until the commit.

        By default there is nothing to check: only services that share a queue of jobs can take over each other's.
        """

    def add_job(self, job: JobRow) -> None:
        """Add a job."""
        self._run("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job.caller, job.job_id, job.seq, job.result))

    def count_jobs(self) -> int:
        """Return the total number of jobs."""
        return int(self._rows("SELECT count(*) FROM jobs")[0][0])

    @abstractmethod
    def schema(self) -> tuple[int, set[str], set[str]]:
        """Return the schema version, the tables and indexes that exist, and those that this version should have."""

    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        """Return, ascending, the first keys of blocks that may hold keys in [low, high].

        These are the first keys in (low, high] and the greatest that is ≤ ``low``; if none is, the smallest of all.
        """
        below = self._rows(
            "SELECT first_key FROM balances WHERE first_key <= ? ORDER BY first_key DESC LIMIT 1", (low,)
        ) or self._rows("SELECT first_key FROM balances ORDER BY first_key LIMIT 1")
        if not below:
            return []
        rows = self._rows(
            "SELECT first_key FROM balances WHERE first_key > ? AND first_key <= ? ORDER BY first_key",
            (below[0][0], high),
        )
        return [below[0][0], *(row[0] for row in rows)]

    @abstractmethod
    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        """Return the blocks with these first keys (ascending), in order."""

    @abstractmethod
    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the blocks with these first keys by ``blocks``."""

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every (first key, block) ascending."""
        return self._stream("SELECT first_key, records FROM balances ORDER BY first_key")


class Store(ABC):
    """A database that runs each named transaction completely or not at all, and retries one that lost a race.

    ``definite`` is whether a later read shows for certain if a failed write was committed. A database server may still
    finish a commit after its client lost the connection.
    """

    definite: ClassVar[bool] = True

    @abstractmethod
    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in a transaction that excludes other writers, commit durably, and return its result.

        If ``work`` raises, nothing is written. The store may retry ``work``, so it must have no other effect. ``name``
        appears in error messages.
        """

    @abstractmethod
    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` on one consistent snapshot, without blocking writers, and return its result."""

    @abstractmethod
    def close(self) -> None:
        """Close all idle connections. A store can be used again afterwards; it then opens new ones."""
