"""A job on this machine: an opener opens its batches, and the results are added in the order of the batches.

A subclass decides what it keeps of opened reports (``_take``) and what it releases (``_release``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.jobs.session import EngineParts, Scope, Session
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.engine.opening.pool import Columns
from aggservice.engine.release.output import Destination
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.units import UnitList
from aggservice.job.errors import EngineError
from aggservice.job.request import JobRequest
from aggservice.job.result import Outcome
from aggservice.wire import UNIT_BYTES, Randomizer, ReportBatch
from aggservice.wire.report.registry import TokenCheck

MAX_BATCH_REPORTS = 1024
MAX_BATCH_BYTES = 2 << 20


class BatchSession(Session):
    """One job in progress on this machine, batch by batch."""

    def __init__(
        self,
        parts: EngineParts,
        scope: Scope,
        request: JobRequest,
        *,
        destination: Destination,
        cleartext: bool = False,
        debug_only: bool = False,
        randomizer: Randomizer | None = None,
        evidence: TokenCheck | None = None,
    ) -> None:
        super().__init__(
            parts,
            scope,
            request,
            destination=destination,
            cleartext=cleartext,
            debug_only=debug_only,
            randomizer=randomizer,
            evidence=evidence,
        )
        self._ids: ReportIds | None = ReportIds(salt=self._bits.child("report id salt").word())
        self._units = UnitList(distinct=randomizer is None and self._spec.unit == PrivacyUnit.SHARED_ID)
        self._in_progress: deque[Future[Columns]] = deque()

    def add(self, batch: ReportBatch) -> None:
        """Add reports; of reports with equal ids, the first one added counts. Waits while workers are busy."""
        self._check_batch(batch)
        for piece in pieces(batch, len(self._request.filtering_ids)):
            self._check_cancelled()
            self._in_progress.append(self._parts.opener.submit(self._spec, piece))
            while len(self._in_progress) >= self._parts.opener.window:
                self._take(self._in_progress.popleft().result())

    def _check_batch(self, batch: ReportBatch) -> None:
        """Refuse a batch because of its public parts: here, if the job would have too many reports."""
        self._count_submitted(len(batch))

    @abstractmethod
    def _take(self, judged: Columns) -> None:
        """Add a batch that a worker has opened."""

    def _take_public(self, judged: Columns, units_per_report: int) -> NDArray[np.bool_]:
        """Count a batch and keep the unit keys that its reports pay with; return which reports are not repeated."""
        if self._ids is None:
            raise EngineError("a batch of reports arrived after the job was finished")
        self._counts.add(judged.statuses)
        fresh = self._ids.add(judged.ids)
        repeated = fresh.size - int(np.count_nonzero(fresh))
        self._counts.repeated += repeated
        self._units.add(judged.units, fresh if repeated else None, units_per_report)
        return fresh

    def _drain(self) -> None:
        """Wait for every batch that is still with the workers, and add it."""
        while self._in_progress:
            self._check_cancelled()
            self._take(self._in_progress.popleft().result())

    def finish(self, *, content: bytes = b"") -> Outcome:
        self._drain()
        self._counts.check()
        self._check_releasable()
        self._ids = None
        return self._release(content)

    @abstractmethod
    def _check_releasable(self) -> None:
        """Refuse a job that has nothing, or too much, to release. Only public facts may decide this."""

    @abstractmethod
    def _release(self, content: bytes) -> Outcome:
        """Decide what is charged and released, and commit it."""

    def _take_units(self) -> NDArray[np.uint8]:
        """Return the units of the reports taken in, distinct and ascending; refuse more than the operator allows."""
        units = self._units.take()
        self._check_units(len(units))
        return units


def pieces(batch: ReportBatch, units_per_report: int = 1) -> list[ReportBatch]:
    """Divide a batch so that each piece, and what a worker returns for it, has a bounded number of reports and bytes.

    Both then fit a worker's slot of shared memory. Otherwise both sides could write to the pipe at the same time, and
    each would wait for the other to read.
    """
    if len(batch) == 0:
        return []
    columns = (batch.payloads, batch.key_ids, batch.shared_infos)
    ends = np.cumsum(sum(column.stops - column.starts for column in columns))
    most = max(1, min(MAX_BATCH_REPORTS, MAX_BATCH_BYTES // (UNIT_BYTES * units_per_report)))
    found = []
    start = 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + most, len(batch))
        found.append(batch.slice(start, stop))
        start = stop
    return found
