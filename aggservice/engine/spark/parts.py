"""Noisy rows in part files, and how they become shards: declared keys in their order, then discovered keys.

A part holds columns one after the other: the ordinals of its declared keys, then the high and low halves of all its
keys (declared ones first, in order; then the others, ascending), their metrics, and in a debug run their true sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.release.output import write_shard
from aggservice.engine.spark.blobs import PartReceipt
from aggservice.engine.spark.scratch import check_size, mapped_column, new_name
from aggservice.job.result import Rows
from aggservice.wire.avro.schemas import IN_DOMAIN, IN_REPORTS
from aggservice.wire.hpke.summaries import SummarySealer

_WORD = 8
PART_ROW_BYTES = 4 * _WORD
"""The bytes of a declared key in a part file."""
SHARD = "shard"
"""The kind of file that ``write_declared`` writes into the scratch folder."""

Tasks = Callable[[Callable[[tuple[int, int, str]], str], Sequence[tuple[int, int, str]]], list[str]]
"""Runs a function for each item in executors, and returns the results in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    path: Path
    declared: int
    found: int
    debug_run: bool

    @classmethod
    def of(cls, folder: str, receipt: PartReceipt, *, debug_run: bool) -> _Part:
        part = cls(
            path=Path(folder) / receipt.name, declared=receipt.declared, found=receipt.found, debug_run=debug_run
        )
        check_size(part.path, _WORD * (part.declared + (4 if debug_run else 3) * part.rows))
        return part

    @property
    def rows(self) -> int:
        return self.declared + self.found

    def order(self) -> NDArray[np.generic]:
        return mapped_column(self.path, np.uint64, self.declared)

    def columns(self, start: int, stop: int) -> list[NDArray[np.generic]]:
        """Return high, low and metrics (and true sums) of some rows."""
        kinds = (np.uint64, np.uint64, np.int64, np.int64)[: 4 if self.debug_run else 3]
        first = _WORD * self.declared
        return [
            mapped_column(self.path, kind, stop - start, first + _WORD * (number * self.rows + start))
            for number, kind in enumerate(kinds)
        ]


class PartRows:
    """The rows of all parts. Nothing is read before it is needed, and at most a shard is held at once.

    Rows of discovered keys are put in order in memory: 56 bytes each.
    """

    def __init__(self, folder: str, receipts: Sequence[PartReceipt], tasks: Tasks, *, debug_run: bool = False) -> None:
        self._folder = folder
        self._receipts = tuple(receipts)
        self._tasks = tasks
        self._debug_run = debug_run
        self.declared = sum(receipt.declared for receipt in receipts)
        self.found = sum(receipt.found for receipt in receipts)

    def __len__(self) -> int:
        return self.declared + self.found

    def _parts(self) -> list[_Part]:
        return [_Part.of(self._folder, receipt, debug_run=self._debug_run) for receipt in self._receipts]

    def write_shards(self, paths: Sequence[Path], rows_per_shard: int, sealer: SummarySealer | None = None) -> None:
        """Write the shards. Executors write those that have only declared keys; this process writes the others."""
        whole = self.declared // rows_per_shard
        cuts = _cuts([part.order() for part in self._parts()], self.declared, rows_per_shard)
        if whole > 1:
            work = partial(write_declared, self._folder, self._receipts, sealer)
            names = self._tasks(work, [(cuts[shard], cuts[shard + 1], paths[shard].name) for shard in range(whole)])
            for name, path in zip(names, paths, strict=False):
                (Path(self._folder) / name).replace(path)
        else:
            whole = 0
        rest = self._rows(cuts[whole], 1 << 64)
        pages = list(rest.pages(rows_per_shard)) or ([rest] if not whole else [])
        for path, page in zip(paths[whole:], pages, strict=True):
            write_shard(path, page, name=path.name, sealer=sealer)

    def rows(self) -> Rows:
        """Return all rows in memory; rows of a debug run have true sums and annotations."""
        return self._rows(0, 1 << 64)

    def _rows(self, low: int, high: int) -> Rows:
        parts = self._parts()
        declared = declared_columns(parts, low, high)
        found = [
            np.concatenate(columns) for columns in zip(*(p.columns(p.declared, p.rows) for p in parts), strict=True)
        ]
        ascending = np.lexsort((found[1], found[0]))
        columns = [np.concatenate((first, then[ascending])) for first, then in zip(declared, found, strict=True)]
        if not self._debug_run:
            return Rows(high=columns[0], low=columns[1], metrics=columns[2])
        annotations = np.where(columns[3] > 0, IN_REPORTS, 0).astype(np.uint8)
        annotations[: declared[0].size] |= IN_DOMAIN
        return Rows(high=columns[0], low=columns[1], metrics=columns[2], unnoised=columns[3], annotations=annotations)


def _cuts(orders: Sequence[NDArray[np.generic]], declared: int, rows_per_shard: int) -> list[int]:
    """Return the ordinals at which the shards of declared keys begin, and the one after the last whole shard.

    An ordinal is the row of a key in the domain. Repeated keys leave gaps, so each ordinal is found by bisection.
    """
    last = max((int(order[-1]) + 1 for order in orders if order.size), default=0)

    def at(rank: int) -> int:
        low, high = 0, last
        while low < high:
            middle = (low + high) // 2
            if sum(int(np.searchsorted(order, np.uint64(middle))) for order in orders) < rank:
                low = middle + 1
            else:
                high = middle
        return low

    return [at(rank) for rank in range(0, declared + 1, rows_per_shard)]


def declared_columns(parts: Sequence[_Part], low: int, high: int) -> list[NDArray[np.generic]]:
    """Return the columns of declared keys with ordinals in [low, high), in order."""
    orders, found = [], []
    for part in parts:
        order = part.order()
        begin = int(np.searchsorted(order, np.uint64(low)))
        end = order.size if high >= 1 << 64 else int(np.searchsorted(order, np.uint64(high)))
        orders.append(order[begin:end])
        found.append(part.columns(begin, end))
    ordered = np.argsort(np.concatenate(orders), kind="stable")
    return [np.concatenate(columns)[ordered] for columns in zip(*found, strict=True)]


def write_declared(
    folder: str, receipts: Sequence[PartReceipt], sealer: SummarySealer | None, shard: tuple[int, int, str]
) -> str:
    """Write the declared keys of a range of ordinals as a shard, in an executor; return its name in ``folder``.

    ``shard`` has the range and the name that the shard gets later. The rows are what the parts hold: a task that runs
    again writes the same rows under another name.
    """
    low_bound, high_bound, published = shard
    parts = [_Part.of(folder, receipt, debug_run=False) for receipt in receipts]
    high, low, metrics = declared_columns(parts, low_bound, high_bound)
    rows = Rows(high=high.view(np.uint64), low=low.view(np.uint64), metrics=metrics.view(np.int64))
    name = new_name(SHARD)
    write_shard(Path(folder) / name, rows, name=published, sealer=sealer)
    return name
