"""A histogram job: sums per key, released with noise (Algorithm 1 of the paper, see docs/engine.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import DomainError, EngineError, InvalidJobError
from aggservice.engine.jobs.session import EngineParts, Outcome, Scope, Session
from aggservice.engine.opening.coverage import Coverage
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.pool import Columns
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.debug import debug_code, debug_rows, write_debug_files
from aggservice.engine.release.noise import NoiseSource, ReleasePlan, release
from aggservice.engine.release.output import AvroShards, Destination
from aggservice.engine.release.result import ResultHeader, Rows
from aggservice.engine.release.statement import statement_of
from aggservice.engine.request import JobRequest
from aggservice.engine.tables.sums import MOST_KEYS, KeySums
from aggservice.wire import ReportBatch
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from budget import Release


class HistogramSession(Session):
    """One histogram in progress. Noise that was drawn for a charge that failed is dropped with the session."""

    def __init__(
        self,
        parts: EngineParts,
        scope: Scope,
        request: JobRequest,
        *,
        destination: Destination,
        expected_keys: int,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        # A mechanism that the ledger has no price for is refused before any report arrives.
        mechanisms = ReleasePlan.of(request, parts.ledger.terms, {}).mechanisms()
        parts.ledger.filter.cost(Release(mechanisms=mechanisms))
        super().__init__(parts, scope, request, destination=destination, cleartext=cleartext, debug_only=debug_only)
        self._discovers = request.discovery is not None or request.debug_run
        self._sums = KeySums(
            salt=self._bits.child("key salt").word(),
            discover=self._discovers,
            mask=request.discovery.mask if request.discovery else None,
            expected=expected_keys,
        )
        self._coverage = Coverage()
        self._reading = False
        self._payload_bytes = 0
        self._lost: Exception | None = None

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Declare keys that the summary will have. Must come before the first reports, whatever they contain."""
        self._check_cancelled()
        if self._reading:
            raise DomainError("keys were declared after the first reports: send all domain parts first")
        self._sums.declare(high, low)
        most = self._parts.settings.max_domain_keys
        if len(self._sums) > most:
            raise DomainError(f"the job declares more than {most:,} keys, the most that this service accepts")

    def _check_batch(self, batch: ReportBatch) -> None:
        """Also refuse reports without a key to sum them under, or with more keys than a job can discover."""
        self._reading = True
        self._check_releasable()
        super()._check_batch(batch)
        self._payload_bytes += int((batch.payloads.stops - batch.payloads.starts).sum())
        if len(self._sums) + self._payload_bytes // SMALLEST_CONTRIBUTION_BYTES > MOST_KEYS and self._discovers:
            raise InvalidJobError(
                "these reports may contain more keys than a job can discover: divide them over several jobs"
            )

    def _check_releasable(self) -> None:
        if not self._sums.declared and not self._discovers:
            raise InvalidJobError(
                "the job declares no key and does not ask for discovery, so there is nothing to release: "
                "send a domain or set key discovery"
            )

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
        request, parts = self._request, self._parts
        plan = ReleasePlan.of(request, parts.ledger.terms, self._coverage.covers())
        header = self._header(
            statement_of(plan, parts.unit, private=parts.bits.private, debug_run=request.debug_run), row_count=0
        )
        charge = self._charge(plan, content)
        noise = parts.noise_of(self._bits.child("noise"))
        if request.debug_run:
            return self._debug(charge, header, plan, noise)

        def make() -> tuple[ResultHeader, Rows]:
            if self._lost is not None:
                raise self._lost
            summary = release(self._sums, plan, noise)
            rows = Rows(high=summary.high, low=summary.low, metrics=summary.metrics)
            named = replace(header, row_count=len(rows), others=summary.others, undeclared=summary.undeclared)
            return named, rows

        return self._commit(charge, make, failed=header, declared=self._sums.declared)

    def _debug(self, charge: Charge, header: ResultHeader, plan: ReleasePlan, noise: NoiseSource) -> Outcome:
        """Return true and noisy values side by side, charge nothing, and say whether a real run could be paid."""
        if self._lost is not None:
            raise self._lost
        payable = charge.check(self._units.take()).payable
        rows = debug_rows(self._sums, plan, noise)
        header = replace(header, row_count=len(rows), return_code=debug_code(header.return_code, payable=payable))
        if isinstance(self._destination, AvroShards):
            header = replace(header, files=self._destination.names(len(rows)))
            write_debug_files(self._destination, header, rows, plan)
        return Outcome(header=header, rows=rows, receipted=None)
