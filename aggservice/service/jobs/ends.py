"""Jobs as callers see them: the message of a job, how it ended, and an error that was stored."""

from __future__ import annotations

from google.rpc import status_pb2

from aggservice.job.errors import PaidFailureError, ReturnCode
from aggservice.job.messages import outcome_header, timestamp
from aggservice.job.result import Outcome
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.errors import RememberedError
from aggservice.service.queue.rows import JobEnd, JobState, QueuedJob
from aggservice.service.status import detail_of, message_of, status_of
from budget import Filter

RECEIVED = aggregation_pb2.Job.RECEIVED
IN_PROGRESS = aggregation_pb2.Job.IN_PROGRESS
FINISHED = aggregation_pb2.Job.FINISHED
_STATES = {
    JobState.WAITING: (RECEIVED, "queued"),
    JobState.RUNNING: (IN_PROGRESS, "reading"),
    JobState.FINISHED: (FINISHED, "finished"),
}


def job_message(
    job_request_id: str,
    asked: aggregation_pb2.CreateJobRequest,
    *,
    status: aggregation_pb2.Job.Status,
    stage: str,
    reports_read: int,
    received_ms: int,
    updated_ms: int,
    started_ms: int | None,
) -> aggregation_pb2.Job:
    """Return a job as GetJob shows it, without its result."""
    job = aggregation_pb2.Job(
        job_request_id=job_request_id,
        job_status=status,
        request_received_at=timestamp(received_ms),
        request_updated_at=timestamp(updated_ms),
        request=asked,
        progress=aggregation_pb2.Progress(reports_read=reports_read, stage=stage),
    )
    if started_ms is not None:
        job.request_processing_started_at.CopyFrom(timestamp(started_ms))
    return job


def row_message(row: QueuedJob, reports_read: int | None = None) -> aggregation_pb2.Job:
    """Return a stored job as GetJob shows it; ``reports_read`` is newer than the row's if this service runs it."""
    status, stage = _STATES[row.state]
    job = job_message(
        row.job_id,
        aggregation_pb2.CreateJobRequest.FromString(row.request),
        status=status,
        stage=stage,
        reports_read=row.reports_read if reports_read is None else reports_read,
        received_ms=row.received_ms,
        updated_ms=row.updated_ms,
        started_ms=row.started_ms,
    )
    job.MergeFromString(row.result)
    return job


def fail_message(job: aggregation_pb2.Job, problem: BaseException, finished_ms: int) -> None:
    """Fill in the result of a job that ended with an error."""
    detail = detail_of(problem, job.job_request_id)
    job.result_info.return_code = detail.return_code
    job.result_info.return_message = message_of(problem)
    job.result_info.finished_at.CopyFrom(timestamp(finished_ms))
    job.result_info.detail.CopyFrom(detail)
    job.result_info.error_summary.error_counts.extend(detail.error_counts)


def finish_message(job: aggregation_pb2.Job, summary: common_pb2.SummaryHeader) -> None:
    """Fill in the result of a job that finished with a summary."""
    job.result_info.return_code = summary.return_code
    job.result_info.return_message = "the summary is ready"
    job.result_info.error_summary.CopyFrom(summary.error_summary)
    job.result_info.finished_at.CopyFrom(summary.finished_at)
    job.summary.CopyFrom(summary)


def committed_message(job_request_id: str, paid: Outcome, chosen: Filter) -> aggregation_pb2.Job:
    """Return a job that the ledger has, with its summary or its paid failure."""
    message = aggregation_pb2.Job(job_request_id=job_request_id, job_status=FINISHED)
    if paid.header.failed:
        fail_message(message, PaidFailureError(ReturnCode(paid.header.return_code)), paid.header.finished_ms)
    else:
        finish_message(message, outcome_header(paid, chosen))
    message.request_updated_at.CopyFrom(message.result_info.finished_at)
    return message


def failed_end(job_request_id: str, problem: BaseException, now_ms: int) -> JobEnd:
    """Return how a job ended with an error, to store."""
    job = aggregation_pb2.Job(job_request_id=job_request_id)
    fail_message(job, problem, now_ms)
    return JobEnd(
        result=aggregation_pb2.Job(result_info=job.result_info).SerializeToString(),
        status=status_of(problem, job_request_id).SerializeToString(),
        finished_ms=now_ms,
    )


def finished_end(summary: common_pb2.SummaryHeader, now_ms: int) -> JobEnd:
    """Return how a job ended with a summary, to store."""
    job = aggregation_pb2.Job()
    finish_message(job, summary)
    return JobEnd(result=job.SerializeToString(), status=b"", finished_ms=now_ms)


def remembered(row: QueuedJob) -> RememberedError:
    """Return the stored error of a job that failed."""
    info = aggregation_pb2.Job.FromString(row.result).result_info
    code = ReturnCode(common_pb2.ReturnCode.Code.Name(info.return_code))
    return RememberedError(status_pb2.Status.FromString(row.status), code, info.return_message, info.detail.remedy)
