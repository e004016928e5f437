"""What executors must know about one job, and how its work is divided into partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.engine.jobs.session import InputFile
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.release.noise import NoiseSource, ReleasePlan
from aggservice.engine.spark.settings import SparkSettings
from aggservice.engine.tables.report_ids import first_slot
from aggservice.job.parameters import AttributionTask
from aggservice.job.request import KeyMask
from aggservice.mechanisms import Bits

DOMAIN_ROW_BYTES = 17
"""16 bytes of a bucket and one of its length."""
_CONTRIBUTION_BYTES = 64
"""About what a contribution takes in a report file."""
_SMALL_INPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """How a job is divided: report ids over the first ``ids`` partitions, keys over the ``keys`` after them.

    Both numbers come from the sizes of files, which the caller knows, and never from what reports contain.
    """

    ids: int
    keys: int

    @classmethod
    def of(
        cls, settings: SparkSettings, *, domain_bytes: int, report_bytes: int, discovers: bool, slots: int
    ) -> Partitions:
        """Return the partitions of a job; an input that is not small gets at least one of each kind per task slot.

        A job that discovers keys may find one in every contribution.
        """
        least = 1 if domain_bytes + report_bytes < _SMALL_INPUT_BYTES else slots
        rows = domain_bytes // DOMAIN_ROW_BYTES
        if discovers:
            rows = max(rows, report_bytes // _CONTRIBUTION_BYTES)
        return cls(
            ids=max(least, -(-report_bytes // settings.partition_bytes)),
            keys=max(least, -(-rows // settings.partition_rows)),
        )

    @property
    def count(self) -> int:
        """The total number of partitions."""
        return self.ids + self.keys

    def home(self, split: int) -> int:
        """Return the partition that receives the facts about a file."""
        return split % self.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningPlan:
    """What executors need to open and compare reports.

    ``key_ids`` names the private keys that the job began with: a task that runs again after a rotation uses no other.
    ``scratch`` is a folder of the staging area that executors and the service share.
    """

    spec: OpeningSpec
    keys: str | None
    key_ids: tuple[str, ...]
    partitions: Partitions
    salt: int
    distinct_units: bool
    scratch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SummingPlan:
    """What executors need to sum and release one partition of keys.

    ``bases`` has the ordinal of the first key of each domain file. ``fingerprints`` says what each report file
    contained when its reports were counted and charged for.
    """

    opening: OpeningPlan
    release: ReleasePlan
    discovers: bool
    mask: KeyMask | None
    debug_run: bool
    bits: Bits
    noise_of: Callable[[Bits], NoiseSource]
    bases: tuple[int, ...]
    fingerprints: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A task: one file, by its number among the job's files."""

    number: int
    file: InputFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKeys:
    """The keys of a W3C histogram in place of a domain file: every index."""

    number: int
    task: AttributionTask


def splits(files: Sequence[InputFile]) -> list[Split]:
    """Return one task per file, in order."""
    return [Split(number=number, file=file) for number, file in enumerate(files)]


def divide(
    high: NDArray[np.uint64], low: NDArray[np.uint64], salt: int, parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows ordered by the partition of their hash, and where each partition begins and the last one ends."""
    order = np.empty(high.size, dtype=np.int64)
    bounds = np.zeros(parts + 1, dtype=np.int64)
    if parts == 1:
        bounds[1] = high.size
        return np.arange(high.size), bounds
    divide_kernel(high, low, np.uint64(salt), parts, order, bounds)
    return order, bounds


@njit(cache=True, nogil=True)
def divide_kernel(high, low, salt, parts, order, bounds):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Sort row numbers by partition with a stable counting sort."""
    where = np.empty(high.size, dtype=np.int32)
    for i in range(high.size):
        part = first_slot(high[i], low[i], salt, parts)
        where[i] = part
        bounds[part + 1] += 1
    for part in range(parts):
        bounds[part + 1] += bounds[part]
    nexts = bounds[:-1].copy()
    for i in range(high.size):
        order[nexts[where[i]]] = i
        nexts[where[i]] += 1
