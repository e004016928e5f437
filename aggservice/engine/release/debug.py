"""Debug runs: true sums beside noisy ones, for reports whose browsers marked them for debugging.

This is the only exception to the rule that no true value stands beside its noisy one (docs/design.md). Nothing is
charged; the return code says whether a real run would have been paid. Files go to a folder ``debug`` of their own.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggservice.engine.release.noise import NoiseSource, ReleasePlan, draws
from aggservice.engine.release.output import AvroShards, summary_rows
from aggservice.engine.tables.sums import SumColumns
from aggservice.job.errors import ResultWriteError, ReturnCode
from aggservice.job.result import ResultHeader, Rows
from aggservice.wire import BucketRows, write_buckets
from aggservice.wire.avro.schemas import IN_DOMAIN, IN_REPORTS
from budget.files.staging import move_new, new_file, open_below, opened_folder


def debug_rows(sums: SumColumns, plan: ReleasePlan, noise: NoiseSource) -> Rows:
    """Return every key of the domain and of the reports with its noisy and its true sum and where it was found.

    Declared keys come first, in the order in which they were declared; then the other keys, in ascending order.
    """
    _, found = sums.split()
    order = np.concatenate((np.arange(sums.declared), sums.declared + np.lexsort((found.low, found.high))))
    high, low, unnoised = sums.high[order], sums.low[order], sums.sums[order]
    annotations = np.where(unnoised > 0, IN_REPORTS, 0).astype(np.uint8)
    annotations[: sums.declared] |= IN_DOMAIN
    at = sums.declared
    undeclared_noise = plan.declared_noise if plan.discovery is None else plan.discovered_noise
    drawn = np.concatenate(
        (draws(noise, plan.declared_noise, high[:at], low[:at]), draws(noise, undeclared_noise, high[at:], low[at:]))
    )
    return Rows(high=high, low=low, metrics=unnoised + drawn, unnoised=unnoised, annotations=annotations)


def regular_rows(rows: Rows, plan: ReleasePlan) -> Rows:
    """Return the rows that a real run would have released with the same noise."""
    assert rows.annotations is not None
    declared = (rows.annotations & IN_DOMAIN) != 0
    kept = declared if plan.discovery is None else declared | (rows.metrics > plan.threshold)
    return Rows(high=rows.high[kept], low=rows.low[kept], metrics=rows.metrics[kept])


def debug_code(code: str, *, payable: bool) -> str:
    """Return the code of a debug run; it shows whether a real run could have been paid."""
    return code if payable else ReturnCode.DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_EXHAUSTED


class _Near:
    """Files that are written under a hidden name and then renamed. No link is followed."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._written: list[str] = []

    def write(self, name: str, content: BucketRows | bytes) -> None:
        self._written.append(name)
        with new_file(self._folder, f".{name}.part") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                write_buckets(file, content)

    def publish(self) -> None:
        for name in self._written:
            move_new(f".{name}.part", name, self._folder, source_folder=self._folder)

    def forget(self) -> None:
        """Remove what was written and not published."""
        for name in self._written:
            with suppress(OSError):
                os.unlink(f".{name}.part", dir_fd=self._folder)


def write_debug_files(destination: AvroShards, header: ResultHeader, rows: Rows, plan: ReleasePlan) -> None:
    """Write the summary that a real run would have had, and the debug summary in the folder ``debug`` beside it.

    True values must not go where the caller may not write, so no link is followed on the way.
    """
    if destination.remote is not None:
        with tempfile.TemporaryDirectory(prefix="aggservice-debug-") as private:
            near = replace(destination, prefix=Path(private) / destination.prefix.name, remote=None)
            write_debug_files(near, header, rows, plan)
            destination.remote.upload(Path(private))
        return
    regular = regular_rows(rows, plan)
    try:
        with opened_folder(destination.prefix.parent.absolute()) as folder:
            below = open_below(folder, "debug")
            here, there = _Near(folder), _Near(below)
            try:
                for name, page in zip(destination.names(len(regular)), destination.pages(regular), strict=True):
                    here.write(name, summary_rows(page))
                here.write(destination.header_name, header.to_bytes())
                for name, page in zip(destination.names(len(rows)), destination.pages(rows), strict=True):
                    there.write(name, debug_avro_rows(page))
                here.publish()
                there.publish()
            finally:
                here.forget()
                there.forget()
                os.close(below)
    except OSError as problem:
        name = f" {problem.filename2!r}" if isinstance(problem, FileExistsError) else ""
        raise ResultWriteError(f"the debug summary could not be written: {problem.strerror}{name}") from problem


def debug_avro_rows(rows: Rows) -> BucketRows:
    """Return debug rows as the Avro writer takes them: unnoised metric, noise, and where each key was found."""
    assert rows.unnoised is not None
    numbers = np.stack((rows.unnoised, rows.metrics - rows.unnoised), axis=1)
    return BucketRows(key_high=rows.high, key_low=rows.low, numbers=numbers, tags=rows.annotations)
