"""One partition of keys in an executor: sum, draw noise once, and write the noisy rows under this attempt's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.release.debug import debug_rows
from aggservice.engine.release.noise import add_declared_noise, discovered
from aggservice.engine.spark.blobs import Blob, DomainBlob, PartReceipt, RepeatedBlob, SumBlob
from aggservice.engine.spark.plan import SummingPlan
from aggservice.engine.spark.scratch import write_columns
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.sums import KeySums, SumColumns
from aggservice.job.errors import EngineError

PART = "part"
"""The kind of file that holds noisy rows in the scratch folder."""


def release_part(plan: SummingPlan, partition: int, blobs: Iterable[tuple[int, Blob]]) -> Iterator[PartReceipt]:
    """Sum a partition and release it.

    Every attempt at this draws its own noise and writes its own file. The service uses the one file whose receipt
    arrived and removes the others, so that no second draw for a key is ever published.
    """
    summed = _Summed(plan)
    for _, blob in blobs:
        summed.take(blob)
    order, sums = summed.columns()
    noise = plan.noise_of(plan.bits.child(f"partition {partition}"))
    if plan.debug_run:
        rows = debug_rows(sums, plan.release, noise)
        assert rows.unnoised is not None
        name = write_columns(plan.opening.scratch, PART, [order, rows.high, rows.low, rows.metrics, rows.unnoised])
        declared, found = sums.declared, len(sums) - sums.declared
        yield PartReceipt(partition=partition, name=name, declared=declared, found=found, undeclared=0, released=0)
        return
    declared_keys, others = sums.split()
    undeclared = sums.outside + int(others.sums.sum()) if plan.release.others is not None else 0
    add_declared_noise(declared_keys, plan.release, noise)
    kept = np.empty(0, dtype=np.int64) if plan.release.discovery is None else discovered(others, plan.release, noise)
    metrics = others.sums[kept]
    yield PartReceipt(
        partition=partition,
        name=write_columns(
            plan.opening.scratch,
            PART,
            [
                order,
                np.concatenate((declared_keys.high, others.high[kept])),
                np.concatenate((declared_keys.low, others.low[kept])),
                np.concatenate((declared_keys.sums, metrics)),
            ],
        ),
        declared=sums.declared,
        found=kept.size,
        undeclared=undeclared,
        released=sum(metrics.tolist()),
    )


class _Summed:
    """The sums of a partition. Declared keys come before contributions, and repeated reports last."""

    def __init__(self, plan: SummingPlan) -> None:
        self._plan = plan
        self._domain: list[DomainBlob] = []
        self._order: NDArray[np.uint64] | None = None
        # Another salt than the partitions': keys of one partition have similar hashes under theirs.
        self._salt = plan.opening.salt ^ 0x14057B7EF767814F
        self._sums = KeySums(salt=self._salt, discover=plan.discovers, mask=plan.mask)
        self._repeated: KeySums | None = None
        self._seen: dict[int, bytes] = {}

    def take(self, blob: Blob) -> None:
        """Add a blob to the sums."""
        if isinstance(blob, DomainBlob) and self._order is None:
            self._domain.append(blob)
        elif isinstance(blob, SumBlob) and self._repeated is None:
            self._declare()
            _add(self._sums, blob.high, blob.low, blob.sums)
            if blob.fingerprint:
                self._seen[blob.split] = blob.fingerprint
        elif isinstance(blob, RepeatedBlob):
            self._declare()
            if self._repeated is None:
                columns = self._sums.columns()
                self._repeated = KeySums(salt=self._salt, expected=len(columns))
                self._repeated.declare(columns.high, columns.low)
            _add(self._repeated, blob.high, blob.low, blob.sums)
        else:
            raise EngineError("a partition of keys got a blob of another kind, or out of order")

    def _declare(self) -> None:
        """Declare the keys in the order of the domain; of equal keys the first one counts."""
        if self._order is not None:
            return
        self._domain.sort(key=lambda blob: (blob.split, int(blob.rows[0])))
        orders = [self._plan.bases[blob.split] + blob.rows.astype(np.uint64) for blob in self._domain]
        order = np.concatenate([np.empty(0, dtype=np.uint64), *orders])
        count = order.size
        self._sums = KeySums(salt=self._salt, discover=self._plan.discovers, mask=self._plan.mask, expected=count)
        for blob in self._domain:
            self._sums.declare(blob.high, blob.low)
        if self._sums.declared < count:
            ids = ReportIds(salt=self._salt)
            pairs = (np.stack((blob.high, blob.low), axis=1) for blob in self._domain)
            order = order[np.concatenate([ids.add(pair) for pair in pairs])]
        self._order, self._domain = order, []

    def columns(self) -> tuple[NDArray[np.uint64], SumColumns]:
        """Return the ordinals of the declared keys in the domain, and all sums.

        EngineError if a report file changed after it was counted: the sums would not be of the reports that pay.
        """
        self._declare()
        if [self._seen.get(split) for split in range(len(self._plan.fingerprints))] != list(self._plan.fingerprints):
            raise EngineError("a report file changed while the job ran")
        assert self._order is not None
        columns = self._sums.columns()
        again = self._repeated
        if again is None:
            return self._order, columns
        sums = columns.sums - again.sums
        kept = np.flatnonzero((sums > 0) | (np.arange(sums.size) < columns.declared))
        return self._order, SumColumns(
            high=columns.high[kept],
            low=columns.low[kept],
            sums=sums[kept],
            declared=columns.declared,
            outside=columns.outside - again.outside,
        )


def _add(sums: KeySums, high: NDArray[np.uint64], low: NDArray[np.uint64], values: NDArray[np.int64]) -> None:
    sums.add(high, low, values, np.zeros(high.size, dtype=np.int32), np.ones(1, dtype=np.bool_))
