"""The streams of a service: waiting, running and finished ones, each visible to its caller only.

A stream ends with its connection, so the book is kept in memory and is bounded. After a restart, streams that were paid
for are found in the ledger; all others are gone. Jobs over files are in the queue.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from aggservice.engine import Session
from aggservice.job.errors import CancelledError, JobIdTakenError, UnpaidError
from aggservice.job.request import JobRequest
from aggservice.job.result import Rows
from aggservice.mechanisms import Clock
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.errors import NoSuchJobError
from aggservice.service.jobs.ends import FINISHED, IN_PROGRESS, RECEIVED, fail_message, finish_message, job_message

_REFUSALS_KEPT = 64
_DEBUG_ROWS_KEPT = 10_000
_REFUSED_UNITS_KEPT = 5_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class JobRecord:
    """One job as its caller sees it. Changed from the event loop only."""

    caller: str
    request: JobRequest
    asked: aggregation_pb2.CreateJobRequest
    received_ms: int
    updated_ms: int
    started_ms: int | None = None
    status: aggregation_pb2.Job.Status = RECEIVED
    stage: str = "queued"
    session: Session | None = None
    cancelled: bool = False
    summary: common_pb2.SummaryHeader | None = None
    debug_rows: Rows | None = None
    problem: BaseException | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[str, str]:
        """The caller and the job id."""
        return self.caller, self.request.job_request_id

    @property
    def reports_read(self) -> int:
        """How many reports have been opened."""
        return self.session.reports_read if self.session else 0

    def begin(self, session: Session) -> None:
        """Record the session that runs the job; raise ``CancelledError`` if it was cancelled while it waited."""
        if self.cancelled:
            raise CancelledError("the job was cancelled while it waited; nothing was charged")
        self.session = session

    def cancel(self) -> None:
        """End the job at its next step, unless it has been committed by then."""
        self.cancelled = True
        if self.session is not None:
            self.session.cancel()

    def message(self) -> aggregation_pb2.Job:
        """Return the job as GetJob shows it."""
        job = job_message(
            self.request.job_request_id,
            self.asked,
            status=self.status,
            stage=self.stage,
            reports_read=self.reports_read,
            received_ms=self.received_ms,
            updated_ms=self.updated_ms,
            started_ms=self.started_ms,
        )
        if self.problem is not None:
            fail_message(job, self.problem, self.updated_ms)
        if self.summary is not None:
            finish_message(job, self.summary)
        return job


class JobBook:
    """Streams by caller and id: all running ones, and a limited number of finished ones."""

    def __init__(self, clock: Clock, *, finished_kept: int) -> None:
        self._clock = clock
        self._kept = finished_kept
        self._jobs: dict[tuple[str, str], JobRecord] = {}
        self._finished: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._refusals: OrderedDict[tuple[str, str], UnpaidError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, caller: str, job_request_id: str) -> JobRecord | None:
        """Return a caller's job, or None."""
        return self._jobs.get((caller, job_request_id))

    def of_caller(self, caller: str) -> list[JobRecord]:
        """Return a caller's jobs."""
        return [record for record in self._jobs.values() if record.caller == caller]

    def running(self) -> list[JobRecord]:
        """Return the jobs that have not finished."""
        return [record for record in self._jobs.values() if record.status != FINISHED]

    def check_free(self, caller: str, job_request_id: str) -> None:
        """Refuse the id of a stream that is under way."""
        found = self.find(caller, job_request_id)
        if found is not None and found.status != FINISHED:
            raise JobIdTakenError(f"job {job_request_id!r} is under way: wait for it with WatchJob")

    def open(self, caller: str, request: JobRequest, asked: aggregation_pb2.CreateJobRequest) -> JobRecord:
        """Enter a new job; it replaces a finished job of the same id.

        Unknown fields of ``asked`` are dropped: they could fill a whole message.
        """
        now = self._clock.now_ms()
        asked.DiscardUnknownFields()
        record = JobRecord(caller=caller, request=request, asked=asked, received_ms=now, updated_ms=now)
        self._finished.pop(record.key, None)
        self._jobs[record.key] = record
        return record

    def change(
        self, record: JobRecord, *, status: aggregation_pb2.Job.Status | None = None, stage: str | None = None
    ) -> None:
        """Record a job's progress, and wake the calls that watch it."""
        record.updated_ms = self._clock.now_ms()
        if status is not None:
            record.status = status
            if status == IN_PROGRESS and record.started_ms is None:
                record.started_ms = record.updated_ms
        if stage is not None:
            record.stage = stage
        record.changed.set()
        record.changed = asyncio.Event()

    def close(
        self,
        record: JobRecord,
        *,
        summary: common_pb2.SummaryHeader | None = None,
        debug_rows: Rows | None = None,
        problem: BaseException | None = None,
    ) -> None:
        """Record how a job ended. Rows are in the ledger or in files; only those of a small debug run are kept here.

        Pass ``problem`` through ``without_frames`` first.
        """
        record.session = None
        record.summary, record.problem = summary, problem
        if debug_rows is not None and len(debug_rows) <= _DEBUG_ROWS_KEPT:
            record.debug_rows = debug_rows
        self.change(record, status=FINISHED, stage="finished")
        self._finished[record.key] = None
        while len(self._finished) > self._kept:
            key, _ = self._finished.popitem(last=False)
            del self._jobs[key]
        if isinstance(problem, UnpaidError):
            self.refuse(record.key, problem)

    def refuse(self, key: tuple[str, str], problem: UnpaidError) -> None:
        """Remember which units could not pay for a job; the oldest refusals are dropped when they are too many."""
        self._refusals[key] = problem
        self._refusals.move_to_end(key)
        while len(self._refusals) > _REFUSALS_KEPT or self._refused_units() > _REFUSED_UNITS_KEPT:
            if len(self._refusals) == 1:
                break
            self._refusals.popitem(last=False)

    def _refused_units(self) -> int:
        return sum(problem.count for problem in self._refusals.values())

    def refusal(self, caller: str, job_request_id: str) -> UnpaidError:
        """Return the error of a refused job, with every unit that could not pay."""
        found = self._refusals.get((caller, job_request_id))
        if found is None:
            raise NoSuchJobError(f"you have no recent job {job_request_id!r} that was refused for its budget")
        return found
