"""Debug runs: true sums beside noisy ones, for reports whose browsers marked them for debugging.

The one, named, exception to the rule that no true value stands beside its noisy one (docs/design.md). Nothing is
charged; the return code says whether a real run would have been paid. Files go to a folder ``debug`` of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from aggservice.engine.errors import ResultWriteError, ReturnCode
from aggservice.engine.output import AvroShards, summary_rows
from aggservice.engine.release import NoiseSource, ReleasePlan
from aggservice.engine.result import ResultHeader, Rows
from aggservice.engine.sums import KeySums
from aggservice.wire import IN_DOMAIN, IN_REPORTS, BucketRows, write_buckets


def debug_rows(sums: KeySums, plan: ReleasePlan, noise: NoiseSource) -> Rows:
    """Return every key of the domain and of the reports with its noisy and its true sum and where it was found."""
    unnoised = sums.sums.copy()
    annotations = np.where(unnoised > 0, IN_REPORTS, 0).astype(np.uint8)
    annotations[: sums.declared] |= IN_DOMAIN
    found = len(sums) - sums.declared
    draws = np.concatenate(
        (
            noise.draw(plan.declared_noise, sums.declared),
            noise.draw(plan.discovered_noise if plan.discover else plan.declared_noise, found),
        )
    )
    return Rows(
        high=sums.high.copy(),
        low=sums.low.copy(),
        metrics=unnoised + draws,
        unnoised=unnoised,
        annotations=annotations,
    )


def regular_rows(rows: Rows, plan: ReleasePlan) -> Rows:
    """Return the rows that a real run would have released with the same noise."""
    assert rows.annotations is not None
    declared = (rows.annotations & IN_DOMAIN) != 0
    kept = declared | (rows.metrics > plan.threshold) if plan.discover else declared
    return Rows(high=rows.high[kept], low=rows.low[kept], metrics=rows.metrics[kept])


def debug_code(code: ReturnCode, *, payable: bool) -> ReturnCode:
    """Return the code of a debug run: it says so when a real run would not have been paid."""
    return code if payable else ReturnCode.DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_EXHAUSTED


class _Near:
    """Files that are written beside their place under a hidden name and then moved there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[tuple[Path, Path]] = []

    def path(self, name: str) -> Path:
        hidden = self.folder / f".{name}.part"
        self.written.append((hidden, self.folder / name))
        return hidden

    def publish(self) -> None:
        for hidden, final in self.written:
            os.replace(hidden, final)


def write_debug_files(destination: AvroShards, header: ResultHeader, rows: Rows, plan: ReleasePlan) -> None:
    """Write the summary that a real run would have had, and the debug summary in the folder ``debug`` beside it."""
    regular = regular_rows(rows, plan)
    below = destination.folder / "debug"
    try:
        below.mkdir(exist_ok=True)
        here, there = _Near(destination.folder), _Near(below)
        for name, page in zip(destination.names(len(regular)), destination.pages(regular), strict=True):
            write_buckets(here.path(name), summary_rows(page))
        here.path(destination.header_name).write_bytes(header.to_bytes())
        for name, page in zip(destination.names(len(rows)), destination.pages(rows), strict=True):
            write_buckets(there.path(name), debug_avro_rows(page))
        here.publish()
        there.publish()
    except OSError as problem:
        raise ResultWriteError(f"the debug summary could not be written: {problem.strerror}") from problem


def debug_avro_rows(rows: Rows) -> BucketRows:
    """Return debug rows as the Avro writer takes them: unnoised metric, noise, and where each key was found."""
    assert rows.unnoised is not None
    numbers = np.stack((rows.unnoised, rows.metrics - rows.unnoised), axis=1)
    return BucketRows(key_high=rows.high, key_low=rows.low, numbers=numbers, tags=rows.annotations)
