"""What a ledger needs of a database: named transactions over five small tables.

| table | key | holds |
| --- | --- | --- |
| head | – | number of entries and the Merkle frontier |
| entries | seq | the entry's canonical bytes and its signed receipt |
| units | seq, part | the entry's unit keys, packed, in parts of at most ``PART_UNITS``, with the first and last key |
| jobs | caller, job id | the entry and the result (or the manifest of its files) |
| balances | first key | a block of records (see ``balances``) |

A write transaction excludes every other one of the same ledger, in all processes: each appends to one hash chain, so
they are serial by nature, and two charges can never read the same balance.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

T = TypeVar("T")

PART_UNITS: Final = 1 << 16
"""Units in one row of the units table: 1.25 MiB."""


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
    """One row of ``entries``."""

    seq: int
    header: bytes
    receipt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One row of ``units``."""

    seq: int
    part: int
    first_key: bytes
    last_key: bytes
    keys: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One row of ``jobs``."""

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
        """Return an entry."""

    @abstractmethod
    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        """Yield entries from ``start`` in order."""

    @abstractmethod
    def parts(self, seq: int) -> Iterator[PartRow]:
        """Yield the parts of an entry's units in order."""

    @abstractmethod
    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        """Yield, in order of entry, the parts whose range of keys meets [low, high] (they need not hold one there).

        With ``caller``, only those of his jobs.
        """

    @abstractmethod
    def count_parts(self) -> int:
        """Return how many parts there are in all."""

    @abstractmethod
    def job(self, caller: str, job_id: str) -> JobRow | None:
        """Return the job of that caller and id."""

    @abstractmethod
    def add_job(self, job: JobRow) -> None:
        """Take a (caller, job id)."""

    @abstractmethod
    def count_jobs(self) -> int:
        """Return how many jobs there are in all."""

    @abstractmethod
    def schema(self) -> tuple[int, set[str], set[str]]:
        """Return the schema version, the tables and indexes that exist, and those that this version has."""

    @abstractmethod
    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        """Return, ascending, the first keys of blocks that may hold keys in [low, high].

        That is those in (low, high] and the greatest at most ``low``; when none is that small, the smallest of all.
        """

    @abstractmethod
    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        """Return the blocks with these first keys (ascending), in order."""

    @abstractmethod
    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Remove the blocks with these first keys and add others."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every (first key, block) ascending."""


class Store(ABC):
    """A database that runs named transactions, whole or not at all, and retries those that lost a race.

    ``definite`` says that a failed write is not committed if a later read does not show it. A server that was lost
    while it committed may still finish.
    """

    definite: ClassVar[bool] = True

    @abstractmethod
    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in a transaction that excludes other writers, commit durably, and return its result.

        Nothing stays if ``work`` raises. ``work`` may run again when the database asks for it, so that it must have
        no other effect; ``name`` is for messages.
        """

    @abstractmethod
    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` on one consistent snapshot without keeping writers out, and return its result."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. A closed store may be used again; it opens new ones."""
