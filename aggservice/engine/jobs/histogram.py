"""A histogram job: sums per key, released with noise (Algorithm 1 of the paper, see docs/engine.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.jobs.batches import BatchSession
from aggservice.engine.jobs.session import EngineParts, Scope
from aggservice.engine.opening.coverage import Coverage
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.opening.pool import Columns
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.debug import debug_rows
from aggservice.engine.release.noise import NoiseSource, ReleasePlan, release
from aggservice.engine.release.output import Destination, ResultBound
from aggservice.engine.tables.sums import MOST_KEYS, KeySums, SumColumns
from aggservice.job.errors import DomainError, EngineError, InvalidJobError
from aggservice.job.request import JobRequest, SumRequest, TaskRequest
from aggservice.job.result import Outcome, ResultHeader, Rows
from aggservice.wire import Api, ReportBatch
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from budget import Ledger, Release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """True sums of a job: for simulations that release the same reports many times, never for a caller.

    ``by_status`` counts reports per status, ``repeated`` those with an id seen before; ``units`` are the distinct units
    that pay, ascending; ``covers`` says how often the bounds of each API count.
    """

    by_status: NDArray[np.int64]
    repeated: int
    units: NDArray[np.uint8]
    covers: Mapping[Api, int]
    sums: SumColumns


def check_priced(request: SumRequest, ledger: Ledger) -> None:
    """Refuse a mechanism that the ledger has no price for, before any report arrives."""
    ledger.filter.cost(Release(mechanisms=ReleasePlan.of(request, ledger.terms, {}).mechanisms()))


def check_declarable(request: JobRequest, *, reading: bool) -> None:
    """Refuse keys declared after the first reports, or in a job with an attribution task, which has its own keys."""
    if not request.has_domain:
        raise DomainError("the keys of a W3C job are the indexes of its histogram: send no domain")
    if reading:
        raise DomainError("keys were declared after the first reports: send all domain parts first")


def check_declared(keys: int, most: int) -> None:
    """Refuse more declared keys than the operator allows."""
    if keys > most:
        raise DomainError(f"the job declares more than {most:,} keys, the most that this service accepts")


def check_discoverable(declared: int, payload_bytes: int) -> None:
    """Refuse reports that may hold more keys than a job can discover, by the size of all payloads so far.

    ``declared`` must not count discovered keys: a caller could fill up to the limit and learn their number for free.
    """
    if declared + payload_bytes // SMALLEST_CONTRIBUTION_BYTES > MOST_KEYS:
        raise InvalidJobError(
            "these reports may contain more keys than a job can discover: divide them over several jobs"
        )


def check_batch_size(request: JobRequest, used: int, least: int) -> None:
    """Refuse a W3C job with fewer usable reports than the operator's minimum (specification, "aggregation")."""
    if isinstance(request, TaskRequest) and used < least:
        raise InvalidJobError(
            f"the job has {used} usable reports, and a job over W3C Attribution needs at least {least}; nothing was "
            "charged: send more reports"
        )


def check_releasable(declared: int, *, discovers: bool) -> None:
    """Refuse a job that declares no key and does not discover keys."""
    if not declared and not discovers:
        raise InvalidJobError(
            "the job declares no key and does not ask for discovery, so there is nothing to release: "
            "send a domain or set key discovery"
        )


class HistogramSession(BatchSession):
    """One histogram in progress. Noise that was drawn for a charge that failed is dropped with the session."""

    def __init__(
        self,
        parts: EngineParts,
        scope: Scope,
        request: SumRequest,
        *,
        destination: Destination,
        expected_keys: int,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        check_priced(request, parts.ledger)
        super().__init__(parts, scope, request, destination=destination, cleartext=cleartext, debug_only=debug_only)
        self._sum_request = request
        self._discovers = request.discovery is not None or request.debug_run
        self._sums = KeySums(
            salt=self._bits.child("key salt").word(),
            discover=self._discovers,
            mask=request.discovery.mask if request.discovery else None,
            expected=expected_keys,
        )
        if isinstance(request, TaskRequest):
            check_declared(request.task.histogram_size, parts.settings.max_domain_keys)
            self._sums.declare(*request.keys)
        self._coverage = Coverage()
        self._reading = False
        self._payload_bytes = 0
        self._lost: Exception | None = None
        self._tally: Tally | None = None

    @property
    def spec(self) -> OpeningSpec:
        """What workers need to know to open and judge this job's reports."""
        return self._spec

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Declare keys that the summary will have. Call it before the first reports are added, else DomainError."""
        self._check_cancelled()
        check_declarable(self._request, reading=self._reading)
        self._sums.declare(high, low)
        check_declared(len(self._sums), self._parts.settings.max_domain_keys)

    def _check_batch(self, batch: ReportBatch) -> None:
        """Also refuse a job without keys and discovery, and reports that may hold more keys than it can discover."""
        self._reading = True
        self._check_releasable()
        super()._check_batch(batch)
        self._payload_bytes += int((batch.payloads.stops - batch.payloads.starts).sum())
        if self._discovers:
            check_discoverable(self._sums.declared, self._payload_bytes)

    def _check_releasable(self) -> None:
        check_releasable(self._columns().declared, discovers=self._discovers)

    def add_judged(self, judged: JudgedBatch) -> None:
        """Add reports that were judged already (``judge_columns``), under the rules of ``add``."""
        self._check_cancelled()
        self._reading = True
        self._check_releasable()
        self._count_submitted(judged.statuses.size)
        self._take(judged)

    def tally(self) -> Tally:
        """End the job without a charge, and return its true sums. For simulations."""
        self._drain()
        if self._lost is not None:
            raise self._lost
        return Tally(
            by_status=self._counts.by_status,
            repeated=self._counts.repeated,
            units=self._units.take(),
            covers=self._coverage.covers(),
            sums=self._sums.columns(),
        )

    def resume(self, tally: Tally) -> None:
        """Use ``tally`` in place of reports and keys; ``finish`` then checks, charges and releases it."""
        self._tally = replace(tally, sums=replace(tally.sums, sums=tally.sums.sums.copy()))
        self._counts.add_counted(tally.by_status)
        self._counts.repeated = tally.repeated
        self._units.add(tally.units, None, 1)

    def _columns(self) -> SumColumns:
        return self._sums.columns() if self._tally is None else self._tally.sums

    def _take(self, judged: Columns) -> None:
        """Count, drop repeated reports, keep the units of the other reports, and sum.

        The sum is the first step that depends on contributions. If it fails, the job continues to its charge and
        fails there.
        """
        if not isinstance(judged, JudgedBatch):
            raise EngineError("a worker returned columns of another kind of job")
        fresh = self._take_public(judged, len(self._request.filtering_ids))
        self._coverage.add(judged)
        if self._lost is None:
            try:
                self._sums.add(judged.high, judged.low, judged.values, judged.rows, fresh)
            except Exception as problem:
                self._lost = problem

    def _release(self, content: bytes) -> Outcome:
        request = self._sum_request
        check_batch_size(request, self._counts.used, self._parts.settings.w3c_minimum_batch)
        covers = self._coverage.covers() if self._tally is None else self._tally.covers
        plan, header, charge = self._planned(request, covers, content)
        noise = self._parts.noise_of(self._bits.child("noise"))
        if request.debug_run:
            return self._debug(charge, header, plan, noise)

        def make() -> tuple[ResultHeader, Rows]:
            if self._lost is not None:
                raise self._lost
            rows = release(self._columns(), plan, noise)
            return replace(header, row_count=len(rows), others=rows.others, undeclared=rows.undeclared), rows

        return self._keep(charge, make, units=self._take_units(), failed=header, bound=self._bound())

    def _bound(self) -> ResultBound:
        """Return the most rows that the summary can have, from declared keys and sizes of payloads.

        Reports that were not sealed here have no payloads: their job is a simulation, and its own sums bound it.
        """
        columns = self._columns()
        found = self._payload_bytes // SMALLEST_CONTRIBUTION_BYTES if self._payload_bytes else len(columns)
        return ResultBound(declared=columns.declared, rows=columns.declared + (found if self._discovers else 0))

    def _debug(self, charge: Charge, header: ResultHeader, plan: ReleasePlan, noise: NoiseSource) -> Outcome:
        """Return true and noisy values side by side, charge nothing, and say whether a real run could be paid."""
        if self._lost is not None:
            raise self._lost
        payable = charge.check(self._units.take()).payable
        rows = debug_rows(self._columns(), plan, noise)
        return self._debug_outcome(header, rows, plan, payable=payable)
