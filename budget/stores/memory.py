"""A store in the memory of this process: for tests, demos and dry runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from budget.errors import StoreError
from budget.store import EntryRow, Head, JobRow, PartRow, Store, T, Transaction


@dataclass(slots=True)
class _Tables:
    head: Head | None = None
    entries: list[EntryRow] = field(default_factory=list)
    parts: list[tuple[PartRow, ...]] = field(default_factory=list)
    jobs: dict[tuple[str, str], JobRow] = field(default_factory=dict)
    blocks: SortedDict = field(default_factory=SortedDict)


class _MemoryTransaction(Transaction):
    """Changes the tables directly and keeps an undo function per step."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables
        self.undo: list[Callable[[], object]] = []

    def head(self) -> Head | None:
        return self._tables.head

    def set_head(self, head: Head) -> None:
        before = self._tables.head
        self.undo.append(lambda: setattr(self._tables, "head", before))
        self._tables.head = head

    def append(self, entry: EntryRow, parts: Iterable[PartRow]) -> None:
        if entry.seq != len(self._tables.entries):
            raise StoreError(f"entry {entry.seq} is out of order: the next one is {len(self._tables.entries)}")
        held = tuple(parts)
        self._tables.entries.append(entry)
        self.undo.append(self._tables.entries.pop)
        self._tables.parts.append(held)
        self.undo.append(self._tables.parts.pop)

    def entry(self, seq: int) -> EntryRow | None:
        return self._tables.entries[seq] if 0 <= seq < len(self._tables.entries) else None

    def entries(self, start: int = 0) -> Iterator[EntryRow]:
        return iter(self._tables.entries[start:])

    def parts(self, seq: int) -> Iterator[PartRow]:
        return iter(self._tables.parts[seq])

    def parts_between(self, low: bytes, high: bytes, caller: str | None = None) -> Iterator[PartRow]:
        theirs = None if caller is None else {job.seq for job in self._tables.jobs.values() if job.caller == caller}
        return (
            part
            for held in self._tables.parts
            for part in held
            if part.first_key <= high and part.last_key >= low and (theirs is None or part.seq in theirs)
        )

    def count_parts(self) -> int:
        return sum(len(held) for held in self._tables.parts)

    def job(self, caller: str, job_id: str) -> JobRow | None:
        return self._tables.jobs.get((caller, job_id))

    def add_job(self, job: JobRow) -> None:
        key = (job.caller, job.job_id)
        if key in self._tables.jobs:
            raise StoreError(f"job id {job.job_id!r} of {job.caller!r} exists already")
        self._tables.jobs[key] = job
        self.undo.append(lambda: self._tables.jobs.pop(key))

    def count_jobs(self) -> int:
        return len(self._tables.jobs)

    def schema(self) -> tuple[int, set[str], set[str]]:
        return 0, set(), set()

    def block_index(self, low: bytes, high: bytes) -> list[bytes]:
        blocks = self._tables.blocks
        start = max(blocks.bisect_right(low) - 1, 0)
        stop = max(blocks.bisect_right(high), start + 1)
        return list(blocks.islice(start, stop))

    def read_blocks(self, first_keys: list[bytes]) -> list[bytes]:
        return [self._tables.blocks[key] for key in first_keys]

    def replace_blocks(self, first_keys: list[bytes], blocks: Iterable[tuple[bytes, bytes]]) -> None:
        for key in first_keys:
            block = self._tables.blocks.pop(key)
            self.undo.append(lambda key=key, block=block: self._tables.blocks.__setitem__(key, block))  # type: ignore[misc]
        for key, block in blocks:
            if key in self._tables.blocks:
                raise StoreError(f"a block with the first key {key.hex()} exists already")
            self._tables.blocks[key] = block
            self.undo.append(lambda key=key: self._tables.blocks.pop(key))  # type: ignore[misc]

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self._tables.blocks.items()))


class MemoryStore(Store):
    """Tables in this process's memory behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tables = _Tables()

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            transaction = _MemoryTransaction(self._tables)
            try:
                return work(transaction)
            except BaseException:
                for step in reversed(transaction.undo):
                    step()
                raise

    def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        with self._lock:
            return work(_MemoryTransaction(self._tables))

    def close(self) -> None:
        """Do nothing: there is no connection."""
