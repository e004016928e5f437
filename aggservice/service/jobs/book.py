"""The jobs of a service: which are waiting, running and finished, and who may see them.

The book lives in memory and is bounded. What was paid for is in the ledger, and is found there after a restart; what
was not, is gone with the service, as if it had never been asked for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from aggservice.engine import CancelledError, JobRequest, Rows, Session, UnpaidError
from aggservice.mechanisms import Clock
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.errors import NoSuchJobError
from aggservice.service.messages import timestamp
from aggservice.service.status import detail_of, message_of

_REFUSALS_KEPT = 64
_DEBUG_ROWS_KEPT = 10_000
_REFUSED_UNITS_KEPT = 5_000_000

RECEIVED = aggregation_pb2.Job.RECEIVED
IN_PROGRESS = aggregation_pb2.Job.IN_PROGRESS
FINISHED = aggregation_pb2.Job.FINISHED


@dataclass(slots=True, kw_only=True, eq=False)
class JobRecord:
    """One job as its owner sees it. Changed only from the event loop."""

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
        """Whose job, and which."""
        return self.caller, self.request.job_request_id

    @property
    def reports_read(self) -> int:
        """How many reports have been opened."""
        return self.session.reports_read if self.session else 0

    def begin(self, session: Session) -> None:
        """Note the session that runs the job, unless somebody cancelled it while it waited."""
        if self.cancelled:
            raise CancelledError("the job was cancelled while it waited; nothing was charged")
        self.session = session

    def cancel(self) -> None:
        """End the job at its next step, if it has not been committed by then."""
        self.cancelled = True
        if self.session is not None:
            self.session.cancel()

    def message(self) -> aggregation_pb2.Job:
        """Return the job as getJob shows it."""
        job = aggregation_pb2.Job(
            job_request_id=self.request.job_request_id,
            job_status=self.status,
            request_received_at=timestamp(self.received_ms),
            request_updated_at=timestamp(self.updated_ms),
            request=self.asked,
            progress=aggregation_pb2.Progress(reports_read=self.reports_read, stage=self.stage),
        )
        if self.started_ms is not None:
            job.request_processing_started_at.CopyFrom(timestamp(self.started_ms))
        if self.problem is not None:
            fail_message(job, self.problem, self.updated_ms)
        if self.summary is not None:
            finish_message(job, self.summary)
        return job


def fail_message(job: aggregation_pb2.Job, problem: BaseException, finished_ms: int) -> None:
    """Fill in what getJob shows of a job that ended with an error."""
    detail = detail_of(problem, job.job_request_id)
    job.result_info.return_code = detail.return_code
    job.result_info.return_message = message_of(problem)
    job.result_info.finished_at.CopyFrom(timestamp(finished_ms))
    job.result_info.detail.CopyFrom(detail)
    job.result_info.error_summary.error_counts.extend(detail.error_counts)


def finish_message(job: aggregation_pb2.Job, summary: common_pb2.SummaryHeader) -> None:
    """Fill in what getJob shows of a job that finished with a summary."""
    job.result_info.return_code = summary.return_code
    job.result_info.return_message = "the summary is ready"
    job.result_info.error_summary.CopyFrom(summary.error_summary)
    job.result_info.finished_at.CopyFrom(summary.finished_at)
    job.summary.CopyFrom(summary)


class JobBook:
    """Jobs by caller and id. Finished ones are kept up to a number; running ones always."""

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

    def running(self) -> list[JobRecord]:
        """Return the jobs that have not finished."""
        return [record for record in self._jobs.values() if record.status != FINISHED]

    def open(self, caller: str, request: JobRequest, asked: aggregation_pb2.CreateJobRequest) -> JobRecord:
        """Enter a new job, in the place of a finished one of the same id.

        Of ``asked`` only what we know is kept: fields that we do not can fill a whole message.
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
        """Note that a job has gone on, and wake those who watch it."""
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
        """Note how a job ended. Rows are in the ledger or in files; only a small debug run's are kept here.

        Whoever caught ``problem`` sees to it that it is kept ``without_frames``.
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
            self._refusals[record.key] = problem
            self._refusals.move_to_end(record.key)
            while len(self._refusals) > _REFUSALS_KEPT or self._refused_units() > _REFUSED_UNITS_KEPT:
                if len(self._refusals) == 1:
                    break
                self._refusals.popitem(last=False)

    def _refused_units(self) -> int:
        return sum(problem.count for problem in self._refusals.values())

    def refusal(self, caller: str, job_request_id: str) -> UnpaidError:
        """Return why a job was not paid for, with every unit that could not pay."""
        found = self._refusals.get((caller, job_request_id))
        if found is None:
            raise NoSuchJobError(f"no job {job_request_id!r} of yours was refused for its budget lately")
        return found
