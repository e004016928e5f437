"""One job in progress: what every kind of job shares, from the first batch of reports to the charge.

A kind of job says what it keeps of opened reports (``_take``) and what it releases (``_release``). Until reports have
been charged, nothing that a caller can see depends on what the reports contain (docs/design.md, semantics 8). A job
can fail because of its parameters, its declared keys or the public parts of reports; any later failure is paid for.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import CancelledError, EngineError, InvalidJobError, PaidFailureError, ReturnCode
from aggservice.engine.opening.counts import ReportCounts
from aggservice.engine.opening.coverage import APIS, PrivacyUnit
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.opening.pool import BatchOpener, Columns
from aggservice.engine.release.charging import Charge, Receipted, Result
from aggservice.engine.release.noise import NoiseSource, ReleasePlan
from aggservice.engine.release.output import Destination
from aggservice.engine.release.result import ResultHeader, Rows
from aggservice.engine.release.statement import Statement
from aggservice.engine.request import JobRequest
from aggservice.engine.shuffle.plan import ShufflePlan, ShuffleSettings
from aggservice.engine.shuffle.rows import ShuffledRows
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.units import UnitList
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import UNIT_BYTES, Randomizer, ReportBatch
from aggservice.wire.report.device_tokens import TokenCheck
from budget import Ledger, Sensitivity

MAX_BATCH_REPORTS = 1024
MAX_BATCH_BYTES = 2 << 20
MOST_REPORTS = (1 << 31) - 1
"""Reports per job. Each contributes at most 2³², so sums fit into 63 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The caller of a job, and the reporting origins and sites whose reports they may use (None for both: all)."""

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
class EngineParts:
    """What the sessions of one engine use.

    ``noise_of`` makes a job's source of noise from its bits. ``keys_unreadable`` returns whether the newest private
    keys could not be read.
    """

    ledger: Ledger
    opener: BatchOpener
    clock: Clock
    bits: Bits
    settings: EngineSettings
    noise_of: Callable[[Bits], NoiseSource]
    keys_unreadable: Callable[[], bool]

    @property
    def unit(self) -> PrivacyUnit:
        """What pays for histograms, as the ledger's terms say."""
        return PrivacyUnit(self.ledger.terms.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished job: its header, its rows (None if they are in files), and the ledger's record of it.

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


class Session(ABC):
    """One job in progress: ``declare``, ``add``, ``finish``, or ``cancel`` from any thread."""

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
        self._parts = parts
        self._scope = scope
        self._request = request
        self._destination = destination
        self._submitted = 0
        self._bits = parts.bits.child(f"job {scope.caller} {request.job_request_id}")
        self._ids: ReportIds | None = ReportIds(salt=self._bits.child("report id salt").word())
        self._units = UnitList(distinct=randomizer is None and parts.unit == PrivacyUnit.SHARED_ID)
        self._counts = ReportCounts(
            threshold_percent=request.error_threshold_percent, announced=request.input_report_count
        )
        bounds = [parts.ledger.terms.bounds.get(api.value, Sensitivity()) for api in APIS]
        self._spec = OpeningSpec(
            attribution_report_to=request.attribution_report_to,
            reporting_site=request.reporting_site,
            filtering_ids=request.filtering_ids,
            oldest_s=(parts.clock.now_ms() - parts.settings.max_report_age_ms) // 1000,
            bounds=tuple((one.l1, one.l0) for one in bounds),
            unit=parts.unit,
            debug_run=debug_only,
            cleartext=cleartext,
            any_origin=cleartext,
            keys_unreadable=parts.keys_unreadable(),
            origins=scope.origins,
            sites=scope.sites,
            randomizer=randomizer,
            evidence=evidence,
        )
        self._in_progress: deque[Future[Columns]] = deque()
        self._cancelled = threading.Event()

    @property
    def reports_read(self) -> int:
        """How many reports have been opened and counted."""
        return self._counts.read

    def cancel(self) -> None:
        """End the job at its next step, unless it has been committed by then. Nothing of it is left."""
        self._cancelled.set()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the job was cancelled; nothing was charged")

    @abstractmethod
    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Declare keys that the summary will have. Must come before the first reports."""

    def add(self, batch: ReportBatch) -> None:
        """Add reports; of reports with equal ids, the first one added counts. Waits while workers are busy."""
        self._check_batch(batch)
        for piece in pieces(batch, len(self._request.filtering_ids)):
            self._check_cancelled()
            self._in_progress.append(self._parts.opener.submit(self._spec, piece))
            while len(self._in_progress) >= self._parts.opener.window:
                self._take(self._in_progress.popleft().result())

    def _check_batch(self, batch: ReportBatch) -> None:
        """Refuse a batch by what is public about it: here, more reports than a job may have."""
        self._submitted += len(batch)
        if self._submitted > MOST_REPORTS:
            raise InvalidJobError(f"the job has more than {MOST_REPORTS:,} reports: divide them over several jobs")

    @abstractmethod
    def _take(self, judged: Columns) -> None:
        """Take in a batch that a worker has opened."""

    def _take_public(self, judged: Columns, units_per_report: int) -> NDArray[np.bool_]:
        """Count a batch and keep the units that its reports pay with; return which reports are not repeated."""
        if self._ids is None:
            raise EngineError("a batch of reports arrived after the job was finished")
        self._counts.add(judged.statuses)
        fresh = self._ids.add(judged.ids)
        repeated = fresh.size - int(np.count_nonzero(fresh))
        self._counts.repeated += repeated
        self._units.add(judged.units, fresh if repeated else None, units_per_report)
        return fresh

    def _drain(self) -> None:
        """Take in every batch that is still with the workers."""
        while self._in_progress:
            self._check_cancelled()
            self._take(self._in_progress.popleft().result())

    def finish(self, *, content: bytes = b"") -> Outcome:
        """Charge and release. If the job cannot be done, raise with nothing charged and nothing left.

        Only PaidFailureError means that the job was charged. ``content`` is the digest of what was streamed; with it,
        a repeated stream is recognised as the same request.
        """
        self._drain()
        self._counts.check()
        self._check_releasable()
        self._ids = None
        return self._release(content)

    @abstractmethod
    def _check_releasable(self) -> None:
        """Refuse a job that has nothing to release, or too much, by what is public about it."""

    @abstractmethod
    def _release(self, content: bytes) -> Outcome:
        """Decide what is charged and released, and commit it."""

    def _header(self, statement: Statement, *, row_count: int) -> ResultHeader:
        return ResultHeader(
            job_request_id=self._request.job_request_id,
            return_code=ReturnCode.SUCCESS_WITH_ERRORS if self._counts.bad else ReturnCode.SUCCESS,
            error_counts=self._counts.to_dict(),
            statement=statement,
            row_count=row_count,
            finished_ms=self._parts.clock.now_ms(),
            debug_run=self._request.debug_run,
        )

    def _charge(self, plan: ReleasePlan | ShufflePlan, content: bytes) -> Charge:
        return Charge(
            ledger=self._parts.ledger,
            caller=self._scope.caller,
            request=self._request,
            digest=self._request.digest(content),
            plan=plan,
        )

    def _commit(
        self, charge: Charge, make: Callable[[], Result], *, failed: ResultHeader, declared: int = 0
    ) -> Outcome:
        """Charge the units and keep what ``make`` returns; ``failed`` is committed in its place if it is lost."""
        units = self._units.take()
        self._check_cancelled()
        return Outcome.of(
            charge.commit(make, units=units, destination=self._destination, failed=failed, declared=declared)
        )


def pieces(batch: ReportBatch, units_per_report: int = 1) -> list[ReportBatch]:
    """Divide a batch so that each piece, and what a worker returns for it, has a bounded number of reports and bytes.

    Both then fit a worker's slot of shared memory. If both sides sent what does not fit through the pipe at the same
    time, each would wait for the other to read.
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
