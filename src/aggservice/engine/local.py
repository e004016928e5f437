"""The local engine: a job from sealed reports to a committed summary on one machine (the paper's Algorithm 1).

A ``Session`` is one job under way. Its owner declares keys, adds batches and finishes; everything the job will release
is decided inside ``finish``, in this order: error threshold, noise, charge. Noise that was drawn for a charge that
failed is forgotten with the session.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.charging import Charge, Receipted
from aggservice.engine.columns import JudgedBatch
from aggservice.engine.counts import ReportCounts
from aggservice.engine.debug import debug_code, debug_rows, write_debug_files
from aggservice.engine.errors import CancelledError, DomainError, EngineError, InvalidJobError, ReturnCode
from aggservice.engine.local_columns import LocalBatch
from aggservice.engine.opening import APIS, OpeningSpec, PrivacyUnit
from aggservice.engine.output import AvroShards, Destination, InLedger
from aggservice.engine.pool import BatchOpener
from aggservice.engine.release import ExactNoise, NoiseSource, ReleasePlan, Sensitivity, release
from aggservice.engine.repeats import ReportIds
from aggservice.engine.request import JobRequest
from aggservice.engine.result import ResultHeader, Rows
from aggservice.engine.shuffle_plan import ShuffleSettings
from aggservice.engine.shuffle_rows import ShuffledRows
from aggservice.engine.statement import state
from aggservice.engine.sums import KeySums
from aggservice.engine.unitlist import UnitList
from aggservice.wire import UNIT_BYTES, Api, ReportBatch
from budget import Ledger
from mechanisms import Bits, Clock

MAX_BATCH_REPORTS = 1024
MAX_BATCH_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose job it is, and the reporting origins and sites that are his (None for both: all)."""

    caller: str
    origins: frozenset[str] | None = None
    sites: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the operator decides for every job."""

    unit: PrivacyUnit = PrivacyUnit.REPORT
    sensitivities: Mapping[Api, Sensitivity] = field(default_factory=dict)
    max_report_age_ms: int = 90 * 86_400_000
    max_domain_keys: int = 200_000_000
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)

    def sensitivity(self, apis: frozenset[Api]) -> Sensitivity:
        """Return bounds that hold for units of all these APIs; of every API when there are none."""
        covered: Sensitivity | None = None
        for api in sorted(apis or Api):
            one = self.sensitivities.get(api, Sensitivity())
            covered = one if covered is None else covered.cover(one)
        return covered or Sensitivity()


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
        """Return the outcome of a job that the ledger has."""
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
        self.noise_of = noise_of
        self.keys_unreadable = keys_unreadable

    def begin(
        self,
        scope: Scope,
        request: JobRequest,
        *,
        expected_keys: int = 0,
        cleartext: bool = False,
        debug_only: bool | None = None,
    ) -> Session:
        """Begin a job. ``cleartext`` reads payloads that are not sealed; only a local test may ask for it.

        ``debug_only`` reads only reports that were marked for debugging; a debug run does unless told otherwise.
        """
        if request.shuffle is not None:
            # A shuffle is a kind of session, and its module needs this one.
            from aggservice.engine.shuffle import ShuffleSession

            return ShuffleSession(self, scope, request, request.shuffle)
        only = request.debug_run if debug_only is None else debug_only
        return Session(self, scope, request, expected_keys=expected_keys, cleartext=cleartext, debug_only=only)

    def repeated(self, scope: Scope, request: JobRequest, content: bytes = b"") -> Outcome | None:
        """Return the outcome of this very request when it has been paid for already; None when it has not.

        Raises ``JobIdTakenError`` when the caller used the job id for another request.
        """
        found = Charge.find(self.ledger, scope.caller, request, request.digest(content))
        return None if found is None else Outcome.of(found)


class Session:
    """One job under way: ``declare``, ``add``, ``finish``, or ``cancel`` from any thread."""

    def __init__(
        self,
        engine: LocalEngine,
        scope: Scope,
        request: JobRequest,
        *,
        expected_keys: int,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        self._engine = engine
        self._scope = scope
        self._request = request
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
        self._units = UnitList(distinct=engine.settings.unit == PrivacyUnit.SHARED_ID)
        self._counts = ReportCounts(
            threshold_percent=request.error_threshold_percent, announced=request.input_report_count
        )
        self._apis: set[int] = set()
        self._spec = OpeningSpec(
            attribution_report_to=request.attribution_report_to,
            reporting_site=request.reporting_site,
            filtering_ids=request.filtering_ids,
            oldest_s=(engine.clock.now_ms() - engine.settings.max_report_age_ms) // 1000,
            unit=engine.settings.unit,
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
        """Declare keys that the summary will have. Must come before the first reports."""
        self._check_cancelled()
        self._sums.declare(high, low)
        if len(self._sums) > self._engine.settings.max_domain_keys:
            raise DomainError(f"this service takes at most {self._engine.settings.max_domain_keys:,} declared keys")

    def add(self, batch: ReportBatch) -> None:
        """Add reports, in the order in which the first of equal report ids counts. Waits while workers are busy."""
        for piece in pieces(batch, len(self._request.filtering_ids)):
            self._check_cancelled()
            self._under_way.append(self._engine.opener.submit(self._spec, piece))
            while len(self._under_way) >= self._engine.opener.window:
                self._take(self._under_way.popleft().result())

    def _take(self, judged: JudgedBatch | LocalBatch) -> None:
        """Count, drop repeated reports, keep what the others pay with, and sum."""
        if not isinstance(judged, JudgedBatch) or self._ids is None:
            raise EngineError("a worker answered for another kind of job")
        self._counts.add(judged.statuses)
        fresh = self._ids.add(judged.ids)
        repeated = fresh.size - int(np.count_nonzero(fresh))
        self._counts.repeated += repeated
        self._apis.update(np.unique(judged.apis).tolist())
        self._units.add(judged.units, fresh if repeated else None, len(self._request.filtering_ids))
        self._sums.add(judged.high, judged.low, judged.values, judged.rows, fresh)

    def _drain(self) -> None:
        """Take in every batch that is still with the workers."""
        while self._under_way:
            self._check_cancelled()
            self._take(self._under_way.popleft().result())

    def finish(self, destination: Destination | None = None, *, content: bytes = b"") -> Outcome:
        """Charge and release. Raises, with nothing charged or left, when the job cannot be done.

        ``content`` is the digest of what was streamed, which makes a repeated stream the same request.
        """
        self._drain()
        self._counts.check()
        request, engine = self._request, self._engine
        if not len(self._sums) and request.discovery is None and not request.debug_run:
            raise InvalidJobError("no key was declared and no discovery asked for: there is nothing to release")
        self._ids = None
        apis = frozenset(APIS[place] for place in self._apis)
        plan = ReleasePlan.of(request, engine.settings.sensitivity(apis))
        self._check_cancelled()
        charge = Charge(
            ledger=engine.ledger, caller=self._scope.caller, request=request, digest=request.digest(content), plan=plan
        )
        noise = engine.noise_of(self._bits.child("noise"))
        if request.debug_run:
            return self._debug(charge, plan, noise, destination)
        summary = release(self._sums, plan, noise)
        rows = Rows(high=summary.high, low=summary.low, metrics=summary.metrics)
        header = self._header(plan, len(rows), others=summary.others, undeclared=summary.undeclared)
        units = self._units.take()
        self._check_cancelled()
        paid = charge.commit(
            header=header,
            rows=rows,
            units=units,
            unit=engine.settings.unit,
            destination=destination or InLedger(),
        )
        return Outcome.of(paid)

    def _header(
        self, plan: ReleasePlan, row_count: int, *, others: int | None = None, undeclared: int | None = None
    ) -> ResultHeader:
        engine, request = self._engine, self._request
        return ResultHeader(
            job_request_id=request.job_request_id,
            return_code=ReturnCode.SUCCESS_WITH_ERRORS if self._counts.bad else ReturnCode.SUCCESS,
            error_counts=self._counts.to_dict(),
            statement=state(plan, engine.settings.unit, private=engine.bits.private, debug_run=request.debug_run),
            row_count=row_count,
            finished_ms=engine.clock.now_ms(),
            others=others,
            undeclared=undeclared,
            debug_run=request.debug_run,
        )

    def _debug(self, charge: Charge, plan: ReleasePlan, noise: NoiseSource, destination: Destination | None) -> Outcome:
        """Return true and noisy values side by side, charge nothing, and say whether a real run would be paid."""
        payable = charge.check(self._units.take(), self._engine.settings.unit).payable
        rows = debug_rows(self._sums, plan, noise)
        header = self._header(plan, len(rows))
        header = replace(header, return_code=debug_code(header.return_code, payable=payable))
        if isinstance(destination, AvroShards):
            header = replace(header, files=destination.names(len(rows)))
            write_debug_files(destination, header, rows, plan)
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
