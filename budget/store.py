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
from typing import ClassVar, Final, TypeVar

T = TypeVar("T")

PART_UNITS: Final = 1 << 16
"""The largest number of units in one row of the units table: 1.25 MiB of keys."""


_CREATED = re.compile(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX) (\w+)")


def created_by(migrations: Iterable[Iterable[str]]) -> set[str]:
    """Return the names of the tables and indexes that these migrations create."""
    return {found[1] for step in migrations for text in step if (found := _CREATED.match(text)) is not None}


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
    """The statements of one transaction. Reads see the transaction's own writes."""

    @abstractmethod
    def head(self) -> Head | None:
        """Return the head, or None before the ledger is created."""

    @abstractmethod
    def set_head(self, head: Head) -> None:
        """Write the head."""

    @abstractmethod
    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        """Add an entry and its units."""

    @abstractmethod
    def entry(self, seq: int) -> EntryRow | None:
        """Return the entry with this number, or None."""

    @abstractmethod
    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        """Yield entries from ``start`` in order."""

    @abstractmethod
    def parts(self, seq: int) -> Iterator[PartRow]:
        """Yield the parts of an entry's units in order."""

    @abstractmethod
    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        """Yield, in order of entry, the parts whose range of keys overlaps [low, high], even if no key lies in it.

        With ``caller``, only parts of their jobs.
        """

    @abstractmethod
    def count_parts(self) -> int:
        """Return the total number of parts."""

    @abstractmethod
    def job(self, caller: str, job_id: str) -> JobRow | None:
        """Return the job of this caller and id, or None."""

    def admit(self, caller: str, job_id: str) -> None:  # noqa: B027
        """Raise LeaseLostError if another service has taken over this job, and keep it from doing so until the commit.

        By default there is nothing to check: only services that share a queue of jobs can take over each other's.
        """

    @abstractmethod
    def add_job(self, job: JobRow) -> None:
        """Add a job."""

    @abstractmethod
    def count_jobs(self) -> int:
        """Return the total number of jobs."""

    @abstractmethod
    def schema(self) -> tuple[int, set[str], set[str]]:
        """Return the schema version, the tables and indexes that exist, and those that this version should have."""

    @abstractmethod
    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        """Return, ascending, the first keys of blocks that may hold keys in [low, high].

        These are the first keys in (low, high] and the greatest that is ≤ ``low``; if none is, the smallest of all.
        """

    @abstractmethod
    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        """Return the blocks with these first keys (ascending), in order."""

    @abstractmethod
    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the blocks with these first keys by ``blocks``."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every (first key, block) ascending."""


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
