"""The local engine: a job from sealed reports to a committed summary on one machine (the paper's Algorithm 1).

A ``Session`` is one job under way. Its owner declares keys, adds batches and finishes; everything the job will release
is decided inside ``finish``, in this order: error threshold, noise, charge. Noise that was drawn for a charge that
failed is forgotten with the session. Nothing that a caller can see depends on what reports hold until they have been
charged (docs/design.md, semantics 8): what can fail fails on declared things and public parts, or as a paid failure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import (
    CancelledError,
    DomainError,
    EngineError,
    InvalidJobError,
    PaidFailureError,
    ReturnCode,
)
from aggservice.engine.opening.counts import ReportCounts
from aggservice.engine.opening.coverage import APIS, Coverage, PrivacyUnit
from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.opening.ldp_columns import LocalBatch
from aggservice.engine.opening.pool import BatchOpener
from aggservice.engine.release.charging import Charge, Receipted
from aggservice.engine.release.debug import debug_code, debug_rows, write_debug_files
from aggservice.engine.release.noise import ExactNoise, NoiseSource, ReleasePlan, release
from aggservice.engine.release.output import AvroShards, Destination, InLedger
from aggservice.engine.release.result import ResultHeader, Rows
from aggservice.engine.release.statement import Statement, state
from aggservice.engine.request import JobRequest
from aggservice.engine.shuffle.plan import ShuffleSettings
from aggservice.engine.shuffle.rows import ShuffledRows
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.sums import MOST_KEYS, KeySums
from aggservice.engine.tables.units import UnitList
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import UNIT_BYTES, ReportBatch
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from budget import Ledger, Release, Sensitivity

MAX_BATCH_REPORTS = 1024
MAX_BATCH_BYTES = 2 << 20
MOST_REPORTS = (1 << 31) - 1
"""Reports of one job. None contributes more than 2³², so that sums fit 63 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose job it is, and the reporting origins and sites that are his (None for both: all)."""

    caller: str
    origins: frozenset[str] | None = None
    sites: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the operator decides for every job. The privacy unit and the bounds per API are the ledger's (``Terms``)."""

    max_report_age_ms: int = 90 * 86_400_000
    max_domain_keys: int = 200_000_000
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished job: its header, its rows (None when they are in files), and the ledger's word for it.

    A shuffle has ``shuffled`` reports in place of rows.
    """

    header: ResultHeader
    rows: Rows | None
    receipted: Receipted | None
    repeated: bool = False
    shuffled: ShuffledRows | None = None

    @classmethod
    def of(cls, paid: Receipted) -> Outcome:
        """Return the outcome of a job that the ledger has; PaidFailureError if its summary was lost."""
        if paid.header.failed:
            raise PaidFailureError(paid.header.return_code)
        return cls(header=paid.header, rows=paid.rows, shuffled=paid.shuffled, receipted=paid, repeated=paid.repeated)


class LocalEngine:
    """Runs jobs on this machine. Safe for several threads; each session belongs to one at a time.

    ``noise_of`` makes a job's source of noise from its bits; tests replace it to put every draw through the engine.
    ``keys_unreadable`` tells whether the newest private keys could not be read.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        opener: BatchOpener,
        clock: Clock,
        bits: Bits,
        settings: EngineSettings | None = None,
        noise_of: Callable[[Bits], NoiseSource] = ExactNoise,
        keys_unreadable: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ledger = ledger
        self.opener = opener
        self.clock = clock
        self.bits = bits
        self.settings = settings or EngineSettings()
        self.unit = PrivacyUnit(ledger.terms.unit)
        self.noise_of = noise_of
        self.keys_unreadable = keys_unreadable

    def begin(
        self,
        scope: Scope,
        request: JobRequest,
        *,
        destination: Destination | None = None,
        expected_keys: int = 0,
        cleartext: bool = False,
        debug_only: bool | None = None,
    ) -> Session:
        """Begin a job whose result goes to ``destination`` (the ledger, unless it is given).

        ``cleartext`` reads payloads that are not sealed; only a local test may ask for it. ``debug_only`` reads only
        reports that were marked for debugging; a debug run does unless told otherwise.
        """
        if request.shuffle is not None:
            # A shuffle is a kind of session, and its module needs this one.
            from aggservice.engine.jobs.shuffle import ShuffleSession

            return ShuffleSession(self, scope, request, request.shuffle, destination=destination or InLedger())
        only = request.debug_run if debug_only is None else debug_only
        return Session(
            self,
            scope,
            request,
            destination=destination or InLedger(),
            expected_keys=expected_keys,
            cleartext=cleartext,
            debug_only=only,
        )

    def find(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Receipted | None:
        """Return what this very request has paid for already; None when it has not.

        Raises ``JobIdTakenError`` when the caller used the job id for another request.
        """
        return Charge.find(self.ledger, scope.caller, request, request.digest(content))


class Session:
    """One job under way: ``declare``, ``add``, ``finish``, or ``cancel`` from any thread."""

    def __init__(
        self,
        engine: LocalEngine,
        scope: Scope,
        request: JobRequest,
        *,
        destination: Destination,
        expected_keys: int,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        self._engine = engine
        self._scope = scope
        self._request = request
        self._destination = destination
        self._reading = False
        self._submitted = 0
        self._payload_bytes = 0
        self._lost: Exception | None = None
        if request.shuffle is None:  # a mechanism that the ledger has no price for is refused before reports come
            mechanisms = ReleasePlan.of(request, engine.ledger.terms, {}).mechanisms()
            engine.ledger.filter.cost(Release(mechanisms=mechanisms))
        self._bits = engine.bits.child(f"job {scope.caller} {request.job_request_id}")
        discovers = request.discovery is not None or request.debug_run
        salts = self._bits.child("salt")
        self._sums = KeySums(
            salt=salts.word(),
            discover=discovers,
            mask=request.discovery.mask if request.discovery else None,
            expected=expected_keys,
        )
        self._ids: ReportIds | None = ReportIds(salt=salts.word())
        self._units = UnitList(distinct=engine.unit == PrivacyUnit.SHARED_ID)
        self._counts = ReportCounts(
            threshold_percent=request.error_threshold_percent, announced=request.input_report_count
        )
        self._coverage = Coverage()
        bounds = [engine.ledger.terms.bounds.get(api.value, Sensitivity()) for api in APIS]
        self._spec = OpeningSpec(
            attribution_report_to=request.attribution_report_to,
            reporting_site=request.reporting_site,
            filtering_ids=request.filtering_ids,
            oldest_s=(engine.clock.now_ms() - engine.settings.max_report_age_ms) // 1000,
            bounds=tuple((one.l1, one.l0) for one in bounds),
            unit=engine.unit,
            debug_run=debug_only,
            cleartext=cleartext,
            any_origin=cleartext,
            keys_unreadable=engine.keys_unreadable(),
            origins=scope.origins,
            sites=scope.sites,
        )
        self._under_way: deque[Future[JudgedBatch | LocalBatch]] = deque()
        self._cancelled = threading.Event()

    @property
    def reports_read(self) -> int:
        """How many reports have been opened and counted."""
        return self._counts.read

    def cancel(self) -> None:
        """End the job at its next step, if it has not been committed by then. Nothing of it is left."""
        self._cancelled.set()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the job was cancelled; nothing was charged")

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Declare keys that the summary will have. Must come before the first reports, whatever they hold."""
        self._check_cancelled()
        if self._reading:
            raise DomainError("declare every key before the first reports: send all domain parts first")
        self._sums.declare(high, low)
        if len(self._sums) > self._engine.settings.max_domain_keys:
            raise DomainError(f"this service takes at most {self._engine.settings.max_domain_keys:,} declared keys")

    def add(self, batch: ReportBatch) -> None:
        """Add reports, in the order in which the first of equal report ids counts. Waits while workers are busy."""
        self._begin_reading(batch)
        for piece in pieces(batch, len(self._request.filtering_ids)):
            self._check_cancelled()
            self._under_way.append(self._engine.opener.submit(self._spec, piece))
            while len(self._under_way) >= self._engine.opener.window:
                self._take(self._under_way.popleft().result())

    def _begin_reading(self, batch: ReportBatch) -> None:
        """Refuse reports on what is public: no key to sum them under, or more than a job may have."""
        self._reading = True
        self._require_keys()
        self._submitted += len(batch)
        if self._submitted > MOST_REPORTS:
            raise InvalidJobError(f"a job has at most {MOST_REPORTS:,} reports: divide them over several jobs")
        self._payload_bytes += int((batch.payloads.stops - batch.payloads.starts).sum())
        if len(self._sums) + self._payload_bytes // SMALLEST_CONTRIBUTION_BYTES > MOST_KEYS and self._discovers:
            raise InvalidJobError(
                "these reports may hold more keys than a job can discover: divide them over several jobs"
            )

    @property
    def _discovers(self) -> bool:
        return self._request.discovery is not None or self._request.debug_run

    def _require_keys(self) -> None:
        if not self._sums.declared and not self._discovers:
            raise InvalidJobError("no key was declared and no discovery asked for: there is nothing to release")

    def _take(self, judged: JudgedBatch | LocalBatch) -> None:
        """Count, drop repeated reports, keep what the others pay with, and sum.

        The first thing that depends on contributions is the sum; if it fails, the job goes on to its charge and fails
        there.
        """
        if not isinstance(judged, JudgedBatch) or self._ids is None:
            raise EngineError("a worker answered for another kind of job")
        self._counts.add(judged.statuses)
        fresh = self._ids.add(judged.ids)
        repeated = fresh.size - int(np.count_nonzero(fresh))
        self._counts.repeated += repeated
        self._coverage.add(judged)
        self._units.add(judged.units, fresh if repeated else None, len(self._request.filtering_ids))
        if self._lost is None:
            try:
                self._sums.add(judged.high, judged.low, judged.values, judged.rows, fresh)
            except Exception as problem:
                self._lost = problem

    def _drain(self) -> None:
        """Take in every batch that is still with the workers."""
        while self._under_way:
            self._check_cancelled()
            self._take(self._under_way.popleft().result())

    def finish(self, *, content: bytes = b"") -> Outcome:
        """Charge and release. Raises, with nothing charged or left, when the job cannot be done.

        PaidFailureError alone says that the job was charged. ``content`` is the digest of what was streamed, which
        makes a repeated stream the same request.
        """
        self._drain()
        self._counts.check()
        self._require_keys()
        request, engine = self._request, self._engine
        self._ids = None
        plan = ReleasePlan.of(request, engine.ledger.terms, self._coverage.covers())
        header = self._header(
            state(plan, engine.unit, private=engine.bits.private, debug_run=request.debug_run), row_count=0
        )
        charge = Charge(
            ledger=engine.ledger, caller=self._scope.caller, request=request, digest=request.digest(content), plan=plan
        )
        noise = engine.noise_of(self._bits.child("noise"))
        if request.debug_run:
            return self._debug(charge, header, plan, noise)
        units = self._units.take()
        self._check_cancelled()

        def make() -> tuple[ResultHeader, Rows]:
            if self._lost is not None:
                raise self._lost
            summary = release(self._sums, plan, noise)
            rows = Rows(high=summary.high, low=summary.low, metrics=summary.metrics)
            named = replace(header, row_count=len(rows), others=summary.others, undeclared=summary.undeclared)
            return named, rows

        return Outcome.of(
            charge.commit(make, units=units, destination=self._destination, failed=header, declared=self._sums.declared)
        )

    def _header(self, statement: Statement, *, row_count: int) -> ResultHeader:
        return ResultHeader(
            job_request_id=self._request.job_request_id,
            return_code=ReturnCode.SUCCESS_WITH_ERRORS if self._counts.bad else ReturnCode.SUCCESS,
            error_counts=self._counts.to_dict(),
            statement=statement,
            row_count=row_count,
            finished_ms=self._engine.clock.now_ms(),
            debug_run=self._request.debug_run,
        )

    def _debug(self, charge: Charge, header: ResultHeader, plan: ReleasePlan, noise: NoiseSource) -> Outcome:
        """Return true and noisy values side by side, charge nothing, and say whether a real run would be paid."""
        if self._lost is not None:
            raise self._lost
        payable = charge.check(self._units.take()).payable
        rows = debug_rows(self._sums, plan, noise)
        header = replace(header, row_count=len(rows), return_code=debug_code(header.return_code, payable=payable))
        if isinstance(self._destination, AvroShards):
            header = replace(header, files=self._destination.names(len(rows)))
            write_debug_files(self._destination, header, rows, plan)
        return Outcome(header=header, rows=rows, receipted=None)


def pieces(batch: ReportBatch, units_a_report: int = 1) -> list[ReportBatch]:
    """Divide a batch so that each piece, and what a worker makes of it, has a bounded number of reports and bytes.

    Both then fit a worker's slot of shared memory. That matters: were both sides to send what does not fit through the
    pipe at once, each would wait for the other to read.
    """
    if len(batch) == 0:
        return []
    columns = (batch.payloads, batch.key_ids, batch.shared_infos)
    ends = np.cumsum(sum(column.stops - column.starts for column in columns))
    most = max(1, min(MAX_BATCH_REPORTS, MAX_BATCH_BYTES // (UNIT_BYTES * units_a_report)))
    found = []
    start = 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + most, len(batch))
        found.append(batch.slice(start, stop))
        start = stop
    return found
