"""Report ids in an executor: which reports are repeated, and the units that the others pay with, sorted into a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.spark.blobs import Blob, DomainFacts, IdBlob, IdReceipt, ReportFacts, joint_fingerprint
from aggservice.engine.spark.plan import OpeningPlan
from aggservice.engine.spark.scratch import check_size, mapped_column, new_name, write_columns
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.units import UnitList, sort_units, squeeze
from aggservice.job.errors import EngineError
from aggservice.wire import UNIT_BYTES

_SAMPLES = 64
_COPY_BYTES = 1 << 24
_FIRST_WORD = np.dtype(">u8")


def compare_ids(plan: OpeningPlan, blobs: Iterable[tuple[int, Blob]]) -> Iterator[IdReceipt]:
    """Find the repeated reports of one partition of ids: of equal ids, the first in the order of files and rows counts.

    Two tasks that do this for the same partition write the same bytes under different names.
    """
    held: list[IdBlob] = []
    fingerprints: dict[int, bytes] = {}
    reports: list[ReportFacts] = []
    domains: list[DomainFacts] = []
    for _, blob in blobs:
        if isinstance(blob, IdBlob):
            if blob.rows.size:
                held.append(blob)
            if blob.fingerprint:
                fingerprints[blob.split] = blob.fingerprint
        elif isinstance(blob, ReportFacts):
            reports.append(blob)
        elif isinstance(blob, DomainFacts):
            domains.append(blob)
        else:
            raise EngineError("a partition of report ids got a blob of another kind")
    held.sort(key=lambda blob: (blob.split, int(blob.rows[0])))
    # Another salt than the partitions': ids of one partition have similar hashes under theirs.
    seen = ReportIds(salt=plan.salt ^ 0x5851F42D4C957F2D)
    units = UnitList(distinct=plan.distinct_units)
    repeats: list[NDArray[np.int64]] = []
    for blob in held:
        fresh = seen.add(blob.ids)
        everything_is_fresh = bool(fresh.all())
        units.add(blob.units.reshape(-1, UNIT_BYTES), None if everything_is_fresh else fresh, blob.units.shape[1])
        if not everything_is_fresh:
            rows = blob.rows[~fresh]
            repeats.append(np.stack((np.full(rows.size, blob.split, dtype=np.int64), rows), axis=1))
    taken = units.take()
    repeated = sum(len(one) for one in repeats)
    yield IdReceipt(
        reports=tuple(reports),
        domains=tuple(domains),
        units=write_columns(plan.scratch, "units", [taken]),
        unit_count=len(taken),
        repeats=write_columns(plan.scratch, "repeats", repeats) if repeated else "",
        repeated=repeated,
        fingerprint=joint_fingerprint(fingerprints),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRun:
    """A file of distinct units in ascending order."""

    name: str
    count: int


def mapped_units(folder: str, run: SortedRun) -> NDArray[np.uint8]:
    """Return the units of a file as rows of 20 bytes, read when they are used."""
    path = Path(folder) / run.name
    check_size(path, run.count * UNIT_BYTES)
    return mapped_column(path, np.uint8, run.count * UNIT_BYTES).view(np.uint8).reshape(-1, UNIT_BYTES)


def ranges_of(folder: str, runs: list[SortedRun], most: int) -> list[tuple[int, int]]:
    """Divide all keys by their first eight bytes into ranges of about ``most`` units, from a few units of each run."""
    total = sum(run.count for run in runs)
    samples, weights = [], []
    for run in runs:
        every = max(1, run.count // _SAMPLES)
        found = np.array(mapped_units(folder, run)[::every, :8]).view(_FIRST_WORD)[:, 0].astype(np.uint64)
        samples.append(found)
        weights.append(np.full(found.size, run.count / found.size))
    ordered = np.argsort(np.concatenate(samples), kind="stable")
    before = np.cumsum(np.concatenate(weights)[ordered])
    steps = np.searchsorted(before, np.arange(most, total, most))
    cuts = np.unique(np.concatenate(samples)[ordered][np.minimum(steps, ordered.size - 1)]).tolist()
    edges = [0, *cuts, 1 << 64]
    return [(low, high) for low, high in itertools.pairwise(edges) if low < high]


def merge_range(folder: str, runs: tuple[SortedRun, ...], low: int, high: int) -> SortedRun:
    """Write the distinct units of all runs whose first eight bytes lie in [low, high) into one sorted file."""
    found = []
    for run in runs:
        units = mapped_units(folder, run)
        found.append(units[_position(units, low) : _position(units, high)])
    together = np.concatenate(found)
    sort_units(together)
    kept = together[: squeeze(together)]
    return SortedRun(name=write_columns(folder, "range", [kept]), count=len(kept))


def _position(units: NDArray[np.uint8], word: int) -> int:
    """Return how many units have first eight bytes below ``word``; bisection reads a few pages only."""
    if word >= 1 << 64:
        return len(units)
    first, last = 0, len(units)
    key = word.to_bytes(8, "big")
    while first < last:
        middle = (first + last) // 2
        if units[middle, :8].tobytes() < key:
            first = middle + 1
        else:
            last = middle
    return first


def join_runs(folder: str, runs: list[SortedRun]) -> SortedRun:
    """Append files of ascending ranges to one another, without holding them in memory."""
    if len(runs) == 1:
        return runs[0]
    name = new_name("units")
    with (Path(folder) / name).open("xb") as out:
        for run in runs:
            check_size(Path(folder) / run.name, run.count * UNIT_BYTES)
            with (Path(folder) / run.name).open("rb") as file:
                while chunk := file.read(_COPY_BYTES):
                    out.write(chunk)
    return SortedRun(name=name, count=sum(run.count for run in runs))
