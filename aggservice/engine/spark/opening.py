"""Opening a file in an executor: from reports to blobs of ids and of contributions, addressed to their partitions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.jobs.batches import pieces
from aggservice.engine.jobs.session import read_domain_file, read_report_file
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.judging import Opener
from aggservice.engine.spark.blobs import (
    FINGERPRINT_BYTES,
    Blob,
    DomainBlob,
    DomainFacts,
    IdBlob,
    RepeatedBlob,
    ReportFacts,
    SumBlob,
)
from aggservice.engine.spark.plan import OpeningPlan, Split, TaskKeys, divide
from aggservice.engine.spark.scratch import mapped_column
from aggservice.engine.tables.sums import KeySums
from aggservice.job.errors import EngineError
from aggservice.wire import UNIT_BYTES, KeySet, read_key_set
from aggservice.wire.errors import KeySetError

_FLUSH_KEYS = 1 << 19
_FLUSH_REPORTS = 1 << 16

Addressed = Iterator[tuple[int, Blob]]


@lru_cache(maxsize=4)
def opener_of(keys: str | None, key_ids: tuple[str, ...]) -> Opener:
    """Return an opener with exactly these keys, which this machine reads from its own copy of the key file."""
    if keys is None:
        return Opener(KeySet(()))
    try:
        found = {pair.id: pair for pair in read_key_set(Path(keys)).pairs}
        return Opener(KeySet(tuple(found[key_id] for key_id in key_ids)))
    except KeySetError as problem:
        raise EngineError(f"an executor cannot use the service's key file: {problem}") from None
    except KeyError:
        raise EngineError(
            "an executor's key file lacks keys of the service: give every machine the same file"
        ) from None


class _Reader:
    """Opens the reports of one file, and fingerprints what it found."""

    def __init__(self, plan: OpeningPlan, split: Split) -> None:
        self._plan = plan
        self._split = split
        self._hash = blake2b(digest_size=FINGERPRINT_BYTES)
        self.payload_bytes = 0

    def batches(self) -> Iterator[JudgedBatch]:
        opener = opener_of(self._plan.keys, self._plan.key_ids)
        for batch in read_report_file(self._split.file):
            self.payload_bytes += int((batch.payloads.stops - batch.payloads.starts).sum())
            for piece in pieces(batch, len(self._plan.spec.filtering_ids)):
                judged = opener.open(self._plan.spec, piece)
                if not isinstance(judged, JudgedBatch):
                    raise EngineError("an executor opened reports of another kind of job")
                for array in judged.arrays():
                    self._hash.update(np.ascontiguousarray(array).data)
                yield judged

    @property
    def fingerprint(self) -> bytes:
        return self._hash.digest()


def open_split(plan: OpeningPlan, split: Split, progress: Callable[[int], None]) -> Addressed:
    """Open the reports of a file; yield blobs for each partition, then the facts about the file.

    ``progress`` is called with each number of reports read.
    """
    reader, gathered = _Reader(plan, split), _Gathered(plan, split.number)
    gc.disable()  # opening makes thousands of short-lived objects and no cycles
    try:
        for judged in reader.batches():
            gathered.add(judged)
            progress(judged.statuses.size)
            yield from gathered.full()
    except EngineError as problem:
        yield plan.partitions.home(split.number), gathered.facts(reader, problem)
        return
    finally:
        gc.enable()
    yield from gathered.flush(reader.fingerprint)
    yield plan.partitions.home(split.number), gathered.facts(reader, None)


class _Gathered:
    """The ids and sums of a file that have not been sent yet, and the facts counted so far."""

    def __init__(self, plan: OpeningPlan, split: int) -> None:
        self._plan = plan
        self._split = split
        self._sums = self._empty()
        self._ids: list[NDArray[np.uint64]] = []
        self._units: list[NDArray[np.uint8]] = []
        self._held = 0
        self._sent = 0
        self._statuses = np.zeros(256, dtype=np.int64)
        self._apis: set[int] = set()
        self._debug_days: set[bytes] = set()

    def _empty(self) -> KeySums:
        return KeySums(salt=self._plan.salt, discover=True)

    def add(self, judged: JudgedBatch) -> None:
        """Add a batch."""
        self._statuses += np.bincount(judged.statuses, minlength=256)
        self._apis.update(np.unique(judged.apis).tolist())
        self._debug_days.update(row.tobytes() for row in judged.debug_days)
        self._ids.append(judged.ids)
        self._units.append(judged.units)
        self._held += len(judged.ids)
        everything = np.ones(len(judged.ids), dtype=np.bool_)
        self._sums.add(judged.high, judged.low, judged.values, judged.rows, everything)

    def full(self) -> Addressed:
        """Yield the blobs if enough is held, and nothing otherwise."""
        if len(self._sums) >= _FLUSH_KEYS or self._held >= _FLUSH_REPORTS:
            yield from self.flush(b"")

    def flush(self, fingerprint: bytes) -> Addressed:
        """Yield all that is held as blobs; with a fingerprint, at least one blob for every partition."""
        partitions = self._plan.partitions
        if self._held or fingerprint:
            ids = np.concatenate([np.empty((0, 2), dtype=np.uint64), *self._ids])
            per_report = len(self._plan.spec.filtering_ids)
            units = np.concatenate([np.empty((0, UNIT_BYTES), dtype=np.uint8), *self._units])
            units = units.reshape(len(ids), per_report, UNIT_BYTES)
            order, bounds = divide(ids[:, 0], ids[:, 1], self._plan.salt, partitions.ids)
            for part in range(partitions.ids):
                mine = order[bounds[part] : bounds[part + 1]]
                if mine.size or fingerprint:
                    yield (
                        part,
                        IdBlob(
                            split=self._split,
                            rows=self._sent + mine,
                            ids=ids[mine],
                            units=units[mine],
                            fingerprint=fingerprint,
                        ),
                    )
            self._sent += self._held
        if len(self._sums) or fingerprint:
            columns = self._sums.columns()
            order, bounds = divide(columns.high, columns.low, self._plan.salt, partitions.keys)
            for part in range(partitions.keys):
                mine = order[bounds[part] : bounds[part + 1]]
                if mine.size or fingerprint:
                    yield (
                        partitions.ids + part,
                        SumBlob(
                            split=self._split,
                            high=columns.high[mine],
                            low=columns.low[mine],
                            sums=columns.sums[mine],
                            fingerprint=fingerprint,
                        ),
                    )
        self._sums, self._ids, self._units, self._held = self._empty(), [], [], 0

    def facts(self, reader: _Reader, problem: EngineError | None) -> ReportFacts:
        """Return the facts that were counted about the file."""
        return ReportFacts(
            split=self._split,
            statuses=self._statuses,
            apis=tuple(sorted(self._apis)),
            debug_days=frozenset(self._debug_days),
            payload_bytes=reader.payload_bytes,
            fingerprint=b"" if problem is not None else reader.fingerprint,
            problem=problem,
        )


def repeated_split(
    plan: OpeningPlan, split: Split, fingerprint: bytes, repeats: tuple[tuple[str, int], ...]
) -> Addressed:
    """Open a file again and yield the contributions of its repeated reports, to be subtracted.

    ``repeats`` are the files, with their numbers of rows, that list the repeated reports of all files.
    """
    rows = np.sort(np.concatenate([_rows_of(plan, split.number, name, count) for name, count in repeats]))
    reader = _Reader(plan, split)
    sums = KeySums(salt=plan.salt, discover=True)
    first = 0
    for judged in reader.batches():
        chosen = np.zeros(len(judged.ids), dtype=np.bool_)
        begin, end = np.searchsorted(rows, [first, first + len(judged.ids)])
        chosen[rows[begin:end] - first] = True
        sums.add(judged.high, judged.low, judged.values, judged.rows, chosen)
        first += len(judged.ids)
    if reader.fingerprint != fingerprint:
        raise EngineError("a report file changed while the job ran")
    columns = sums.columns()
    order, bounds = divide(columns.high, columns.low, plan.salt, plan.partitions.keys)
    for part in range(plan.partitions.keys):
        mine = order[bounds[part] : bounds[part + 1]]
        if mine.size:
            blob = RepeatedBlob(high=columns.high[mine], low=columns.low[mine], sums=columns.sums[mine])
            yield plan.partitions.ids + part, blob


def _rows_of(plan: OpeningPlan, split: int, name: str, count: int) -> NDArray[np.int64]:
    path = Path(plan.scratch) / name
    found = mapped_column(path, np.int64, 2 * count).reshape(-1, 2)
    begin, end = np.searchsorted(found[:, 0], [split, split + 1])
    return np.array(found[begin:end, 1], dtype=np.int64)


def _keys(split: Split | TaskKeys) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the high and low halves of declared keys, some at a time."""
    if isinstance(split, Split):
        yield from ((rows.key_high, rows.key_low) for rows in read_domain_file(split.file))
        return
    for start in range(0, split.task.histogram_size, _FLUSH_KEYS):
        low = np.arange(start, min(start + _FLUSH_KEYS, split.task.histogram_size), dtype=np.uint64)
        yield np.zeros(low.size, dtype=np.uint64), low


def domain_split(plan: OpeningPlan, split: Split | TaskKeys) -> Addressed:
    """Yield the declared keys of a domain file or a task for each partition, and their number."""
    partitions = plan.partitions
    held: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []
    sent = waiting = 0

    def flush() -> Addressed:
        high, low = (np.concatenate(columns) for columns in zip(*held, strict=True))
        order, bounds = divide(high, low, plan.salt, partitions.keys)
        for part in range(partitions.keys):
            mine = order[bounds[part] : bounds[part + 1]]
            if mine.size:
                blob = DomainBlob(split=split.number, rows=sent + mine, high=high[mine], low=low[mine])
                yield partitions.ids + part, blob

    try:
        for columns in _keys(split):
            held.append(columns)
            waiting += columns[0].size
            if waiting >= _FLUSH_KEYS:
                yield from flush()
                held, sent, waiting = [], sent + waiting, 0
        if waiting:
            yield from flush()
    except EngineError as problem:
        yield partitions.home(split.number), DomainFacts(split=split.number, rows=0, problem=problem)
        return
    yield partitions.home(split.number), DomainFacts(split=split.number, rows=sent + waiting)
