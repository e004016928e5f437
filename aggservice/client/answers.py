"""From the service's messages to what the client library returns besides summaries."""

from __future__ import annotations

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from aggservice.client import values
from aggservice.client.errors import bad_argument
from aggservice.job.messages import header_of, parameters_of, return_code_name, value_of
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import common_pb2


def _time_ms(message: Message, name: str) -> int | None:
    return getattr(message, name).ToMilliseconds() if message.HasField(name) else None


def timestamp(time_ms: int | None) -> timestamp_pb2.Timestamp | None:
    """Return a time as a message; None stays None."""
    if time_ms is None:
        return None
    found = timestamp_pb2.Timestamp()
    try:
        found.FromMilliseconds(time_ms)
    except ValueError:
        raise bad_argument(f"the time {time_ms} ms is outside the years 1 to 9999") from None
    return found


def amount(message: common_pb2.PrivacyAmount) -> values.Amount:
    """Return an amount."""
    return value_of(values.Amount, message)


def job(message: aggregation_pb2.Job) -> values.Job:
    """Return a job."""
    asked, result = message.request, message.result_info
    return values.Job(
        job_request_id=message.job_request_id,
        job_status=values.JobStatus(message.Status.Name(message.job_status)),
        progress=value_of(values.Progress, message.progress),
        received_ms=_time_ms(message, "request_received_at"),
        started_ms=_time_ms(message, "request_processing_started_at"),
        updated_ms=_time_ms(message, "request_updated_at"),
        parameters=parameters_of(asked.job_parameters) if message.HasField("request") else None,
        input_data_blob_prefixes=tuple(asked.input_data_blob_prefixes or filter(None, [asked.input_data_blob_prefix])),
        output_data_blob_prefix=asked.output_data_blob_prefix,
        output_domain_blob_prefix=asked.output_domain_blob_prefix,
        result=values.JobResult(
            return_code=return_code_name(result.return_code),
            message=result.return_message,
            error_counts=tuple(value_of(values.ErrorCount, one) for one in result.error_summary.error_counts),
            finished_ms=result.finished_at.ToMilliseconds(),
        )
        if message.HasField("result_info")
        else None,
        summary=header_of(message.summary) if message.HasField("summary") else None,
    )


def balance(message: budget_pb2.Balance) -> values.Balance:
    """Return a balance."""
    return value_of(values.Balance, message, spent=amount(message.spent), remaining=amount(message.remaining))


def unpaid_unit(message: common_pb2.UnpaidUnit) -> values.UnpaidUnit:
    """Return a unit that could not pay."""
    return value_of(
        values.UnpaidUnit, message, spent=amount(message.spent), job_request_ids=tuple(message.job_request_ids)
    )


def budget_check(message: budget_pb2.CheckBudgetResponse) -> values.BudgetCheck:
    """Return the answer of a dry run."""
    return value_of(
        values.BudgetCheck, message, unpaid=tuple(map(unpaid_unit, message.unpaid)), cost=amount(message.cost)
    )


def ledger_entry(message: budget_pb2.LedgerEntry) -> values.LedgerEntry:
    """Return an entry of the log."""
    cost = amount(message.cost) if message.HasField("cost") else None
    return value_of(values.LedgerEntry, message, time_ms=message.time.ToMilliseconds(), cost=cost)


def verification(message: budget_pb2.VerifyLedgerResponse) -> values.Verification:
    """Return the result of an audit."""
    bad = message.first_bad_entry
    return value_of(values.Verification, message, first_bad_entry=None if message.ok or bad < 0 else bad)
