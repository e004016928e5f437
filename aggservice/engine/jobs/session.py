"""One job in progress: what every kind of job on every engine shares, from its parameters to the charge.

Until reports have been charged, nothing that a caller can see depends on what the reports contain (docs/design.md,
semantics 8). A job can fail because of its parameters, its declared keys or the public parts of reports; any later
failure is paid for.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.opening.counts import ReportCounts
from aggservice.engine.opening.coverage import APIS, PrivacyUnit
from aggservice.engine.opening.judging import OpeningSpec
from aggservice.engine.opening.pool import BatchOpener
from aggservice.engine.release.charging import Charge, Result
from aggservice.engine.release.debug import debug_code, write_debug_files
from aggservice.engine.release.noise import NoiseSource, ReleasePlan
from aggservice.engine.release.output import AvroShards, Destination, ResultBound
from aggservice.engine.release.statement import statement_of
from aggservice.engine.shuffle import ShufflePlan, ShuffleSettings
from aggservice.job.errors import CancelledError, InputReadError, InvalidJobError, ReturnCode
from aggservice.job.request import JobRequest, SumRequest, TaskRequest
from aggservice.job.result import Outcome, ResultHeader, Rows, Statement
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import Api, BucketRows, Randomizer, ReportBatch, read_domain, read_reports
from aggservice.wire.errors import AvroError
from aggservice.wire.hpke.summaries import SummarySealer
from aggservice.wire.report.registry import TokenCheck
from budget import Ledger, Sensitivity
from budget.files.staging import Attempt


class InputFile(Protocol):
    """A file of reports or of keys. It pickles, so that another process can open it."""

    @property
    def name(self) -> str:
        """The name of the file in error messages."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""

    def open(self) -> BinaryIO:
        """Open the file for reading; InputReadError if that fails."""


def read_domain_file(file: InputFile) -> Iterator[BucketRows]:
    """Yield the keys of a domain file; InputReadError if it cannot be read."""
    try:
        with file.open() as stream:
            yield from read_domain(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem


def read_report_file(file: InputFile) -> Iterator[ReportBatch]:
    """Yield the reports of a file in batches; InputReadError if it cannot be read."""
    try:
        with file.open() as stream:
            yield from read_reports(stream)
    except AvroError as problem:
        raise InputReadError(str(problem)) from problem


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
    """The operator's settings for every job. The ledger has the privacy unit and the bounds per API (``Terms``)."""

    max_report_age_ms: int = 90 * 86_400_000
    max_domain_keys: int = 200_000_000
    w3c_minimum_batch: int = 20
    max_units: int = 200_000_000
    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine that its sessions use.

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
        """The privacy unit that pays for histograms, from the ledger's terms."""
        return PrivacyUnit(self.ledger.terms.unit)


class Session(ABC):
    """One job in progress: ``declare``, ``add``, ``finish``, or ``cancel`` from any thread.

    Keys and reports come as columns, or as files, which the engine may read in other processes.
    """

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
        self._submitted = 0
        self._bits = parts.bits.child(f"job {scope.caller} {request.job_request_id}")
        self._destination = destination
        if request.output_key is not None:
            sealer = SummarySealer(
                output_public_key=request.output_key,
                job_request_id=request.job_request_id,
                bits=self._bits.child("sealing"),
            )
            self._destination = replace(destination, sealer=sealer)
        self._counts = ReportCounts(request)
        bounds = [parts.ledger.terms.bounds.get(api.value, Sensitivity()) for api in APIS]
        task, least_micro = None, 0
        if isinstance(request, TaskRequest):
            task, least_micro = request.task, request.mechanism.pure_micro
            bounds[APIS.index(Api.W3C_ATTRIBUTION)] = Sensitivity(l1=task.max_value, l0=task.max_value)
        self._spec = OpeningSpec(
            attribution_report_to=request.attribution_report_to,
            reporting_site=request.reporting_site,
            filtering_ids=request.filtering_ids,
            oldest_s=(parts.clock.now_ms() - parts.settings.max_report_age_ms) // 1000,
            bounds=tuple((one.l1, one.l0) for one in bounds),
            unit=parts.unit if task is None else PrivacyUnit.REPORT,
            debug_run=debug_only,
            cleartext=cleartext,
            any_origin=cleartext,
            keys_unreadable=parts.keys_unreadable(),
            origins=scope.origins,
            sites=scope.sites,
            randomizer=randomizer,
            evidence=evidence,
            task=task,
            least_micro=least_micro,
        )
        self._cancelled = threading.Event()

    @property
    def reports_read(self) -> int:
        """How many reports have been opened and counted."""
        return self._counts.read

    def cancel(self) -> None:
        """End the job at its next step, unless it has been committed by then. A cancelled job leaves nothing behind."""
        self._cancelled.set()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError("the job was cancelled; nothing was charged")

    @abstractmethod
    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Declare keys that the summary will have. Must come before the first reports."""

    @abstractmethod
    def add(self, batch: ReportBatch) -> None:
        """Add reports; of reports with equal ids, the first one added counts."""

    def declare_files(self, files: Sequence[InputFile]) -> None:
        """Declare the keys of domain files, in order."""
        for file in files:
            for rows in read_domain_file(file):
                self.declare(rows.key_high, rows.key_low)

    def add_files(self, files: Sequence[InputFile]) -> None:
        """Add the reports of files, in order."""
        for file in files:
            for batch in read_report_file(file):
                self.add(batch)

    def _count_submitted(self, reports: int) -> None:
        """Refuse more reports than a job may have."""
        self._submitted += reports
        if self._submitted > MOST_REPORTS:
            raise InvalidJobError(f"the job has more than {MOST_REPORTS:,} reports: divide them over several jobs")

    def _check_units(self, units: int) -> None:
        """Refuse a charge of more units than the operator allows, before any noise is drawn."""
        most = self._parts.settings.max_units
        if units > most:
            raise InvalidJobError(
                f"the job would charge {units:,} privacy units, and this service charges at most {most:,} at once; "
                "nothing was charged: divide the reports over several jobs"
            )

    @abstractmethod
    def finish(self, *, content: bytes = b"") -> Outcome:
        """Charge the job, release its result and return it. If the job fails, raise; nothing is charged or kept.

        PaidFailureError is the exception: then the job was charged. ``content`` is the digest of what was streamed, by
        which a repeated stream is recognised as the same request.
        """

    def _header(self, statement: Statement, *, row_count: int) -> ResultHeader:
        return ResultHeader(
            job_request_id=self._request.job_request_id,
            return_code=ReturnCode.SUCCESS_WITH_ERRORS if self._counts.bad else ReturnCode.SUCCESS,
            error_counts=self._counts.to_dict(),
            statement=statement,
            row_count=row_count,
            finished_ms=self._parts.clock.now_ms(),
            debug_run=self._request.debug_run,
            output_public_key=self._request.output_key or b"",
        )

    def _planned(
        self, request: SumRequest, covers: Mapping[Api, int], content: bytes
    ) -> tuple[ReleasePlan, ResultHeader, Charge]:
        """Return the release plan of a histogram over these APIs, its header without rows, and its charge."""
        plan = ReleasePlan.of(request, self._parts.ledger.terms, covers)
        statement = statement_of(
            plan,
            self._parts.unit,
            self._parts.ledger.filter,
            private=self._parts.bits.private,
            debug_run=request.debug_run,
        )
        return plan, self._header(statement, row_count=0), self._charge(plan, content)

    def _charge(self, plan: ReleasePlan | ShufflePlan, content: bytes) -> Charge:
        return Charge(
            ledger=self._parts.ledger,
            caller=self._scope.caller,
            request=self._request,
            digest=self._request.digest(content),
            plan=plan,
        )

    def _keep(
        self,
        charge: Charge,
        make: Callable[[], Result],
        *,
        units: NDArray[np.uint8],
        failed: ResultHeader,
        bound: ResultBound,
        staged: Attempt | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Charge the units and keep what ``make`` returns; if that is lost, keep ``failed`` instead."""
        try:
            self._check_cancelled()
        except CancelledError:
            if staged is not None:
                staged.discard()
            raise
        return charge.commit(
            make,
            units=units,
            destination=self._destination,
            failed=failed,
            bound=bound,
            staged=staged,
            make_room=make_room,
        ).checked

    def _debug_outcome(self, header: ResultHeader, rows: Rows, plan: ReleasePlan, *, payable: bool) -> Outcome:
        """Return a debug run's rows, and write them to files if the job asks for files."""
        header = replace(header, row_count=len(rows), return_code=debug_code(header.return_code, payable=payable))
        if isinstance(self._destination, AvroShards):
            header = replace(header, files=self._destination.names(len(rows)))
            write_debug_files(self._destination, header, rows, plan)
        return Outcome(header=header, rows=rows)
