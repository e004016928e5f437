"""From the service's messages to the values that the client library returns. No other module reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from aggservice.client import values
from aggservice.client.errors import ClientError, bad_argument, return_code_name
from aggservice.client.parameters import AttributionTask, JobParameters, ShuffleParameters
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import common_pb2

T = TypeVar("T")


def _value(kind: type[T], message: Message, **given: Any) -> T:
    """Build a dataclass: fields in ``given`` as they are, all others from the message's fields of the same name."""
    copied = (field.name for field in fields(kind) if field.name not in given)  # type: ignore[arg-type]
    return kind(**{name: getattr(message, name) for name in copied}, **given)


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
    return _value(values.Amount, message)


def _amounts_set(message: common_pb2.PrivacyAmount) -> dict[str, str]:
    return {name: getattr(message, name) for name in ("epsilon", "rho", "delta") if getattr(message, name)}


def _statement(message: common_pb2.Statement) -> values.Statement:
    return _value(
        values.Statement,
        message,
        noise_standard_deviation=float(message.noise_standard_deviation or 0),
        cost=_amounts_set(message.cost),
        remaining=_amounts_set(message.remaining),
        shuffle=_value(values.Shuffled, message.shuffle) if message.HasField("shuffle") else None,
    )


def _header_fields(message: common_pb2.SummaryHeader) -> dict[str, Any]:
    return {
        "return_code": return_code_name(message.return_code),
        "error_counts": {one.category: one.count for one in message.error_summary.error_counts},
        "statement": _statement(message.statement),
        "finished_ms": message.finished_at.ToMilliseconds(),
        "others": message.others if message.HasField("others") else None,
        "undeclared": message.undeclared if message.HasField("undeclared") else None,
        "files": tuple(message.files),
    }


def summary_header(message: common_pb2.SummaryHeader) -> values.SummaryHeader:
    """Return what the service says about a summary, without its rows."""
    return _value(values.SummaryHeader, message, **_header_fields(message))


def summary(
    parts: Iterable[aggregation_pb2.AggregateResponse] | Iterable[aggregation_pb2.SummaryChunk],
) -> values.Summary:
    """Put a summary together from the messages of a stream; messages of progress are skipped."""
    header: common_pb2.SummaryHeader | None = None
    buckets, metrics, unnoised, annotations, shuffled, sealed = [], [], [], [], [], []
    for message in parts:
        part = message.WhichOneof("part")
        if part == "header":
            header = message.header
        elif part == "rows":
            buckets.append(message.rows.buckets)
            metrics.append(np.array(message.rows.metrics, dtype=np.int64))
            unnoised.append(np.array(message.rows.unnoised_metrics, dtype=np.int64))
            annotations.append(message.rows.annotations)
        elif part == "shuffled":
            shuffled.append(message.shuffled.reports)
        elif part == "sealed":
            sealed.append(message.sealed.document)
    if header is None:
        raise ClientError("the service ended the stream without a summary: ask again with the same job id")
    both = np.frombuffer(b"".join(buckets), dtype=">u8").reshape(-1, 2)
    width = max(1, header.statement.shuffle.report_bytes)
    reports = b"".join(shuffled)
    return _value(
        values.Summary,
        header,
        high=both[:, 0].astype(np.uint64),
        low=both[:, 1].astype(np.uint64),
        metrics=np.concatenate(metrics) if metrics else np.empty(0, dtype=np.int64),
        unnoised=np.concatenate(unnoised) if header.debug_run and unnoised else None,
        annotations=np.frombuffer(b"".join(annotations), dtype=np.uint8) if header.debug_run else None,
        reports=tuple(reports[at : at + width] for at in range(0, len(reports), width)),
        sealed=b"".join(sealed),
        **_header_fields(header),
    )


def _parameters(message: aggregation_pb2.JobParameters) -> JobParameters:
    privacy, discovery = message.privacy_params, message.key_discovery
    return _value(
        JobParameters,
        message,
        epsilon=privacy.laplace_dp_params.job_epsilon or message.debug_privacy_epsilon,
        rho=privacy.gaussian_dp_params.job_rho,
        mechanism=privacy.named_mechanism.name,
        mechanism_parameters=dict(privacy.named_mechanism.parameters),
        discovery_delta=discovery.delta,
        discovery_rule=discovery.rule,
        key_mask=int.from_bytes(discovery.key_mask, "big") if discovery.key_mask else None,
        others_epsilon=message.others.epsilon,
        filtering_ids=tuple(map(int, filter(None, message.filtering_ids.split(",")))),
        shuffle=_value(ShuffleParameters, message.shuffle) if message.HasField("shuffle") else None,
        attribution_task=_value(AttributionTask, message.attribution_task)
        if message.HasField("attribution_task")
        else None,
    )


def job(message: aggregation_pb2.Job) -> values.Job:
    """Return a job."""
    asked, result = message.request, message.result_info
    return values.Job(
        job_request_id=message.job_request_id,
        job_status=values.JobStatus(message.Status.Name(message.job_status)),
        progress=_value(values.Progress, message.progress),
        received_ms=_time_ms(message, "request_received_at"),
        started_ms=_time_ms(message, "request_processing_started_at"),
        updated_ms=_time_ms(message, "request_updated_at"),
        parameters=_parameters(asked.job_parameters) if message.HasField("request") else None,
        input_data_blob_prefixes=tuple(asked.input_data_blob_prefixes or filter(None, [asked.input_data_blob_prefix])),
        output_data_blob_prefix=asked.output_data_blob_prefix,
        output_domain_blob_prefix=asked.output_domain_blob_prefix,
        result=values.JobResult(
            return_code=return_code_name(result.return_code),
            message=result.return_message,
            error_counts=tuple(_value(values.ErrorCount, one) for one in result.error_summary.error_counts),
            finished_ms=result.finished_at.ToMilliseconds(),
        )
        if message.HasField("result_info")
        else None,
        summary=summary_header(message.summary) if message.HasField("summary") else None,
    )


def balance(message: budget_pb2.Balance) -> values.Balance:
    """Return a balance."""
    return _value(values.Balance, message, spent=amount(message.spent), remaining=amount(message.remaining))


def unpaid_unit(message: common_pb2.UnpaidUnit) -> values.UnpaidUnit:
    """Return a unit that could not pay."""
    return _value(
        values.UnpaidUnit, message, spent=amount(message.spent), job_request_ids=tuple(message.job_request_ids)
    )


def budget_check(message: budget_pb2.CheckBudgetResponse) -> values.BudgetCheck:
    """Return the answer of a dry run."""
    return _value(
        values.BudgetCheck, message, unpaid=tuple(map(unpaid_unit, message.unpaid)), cost=amount(message.cost)
    )


def ledger_entry(message: budget_pb2.LedgerEntry) -> values.LedgerEntry:
    """Return an entry of the log."""
    cost = amount(message.cost) if message.HasField("cost") else None
    return _value(values.LedgerEntry, message, time_ms=message.time.ToMilliseconds(), cost=cost)


def verification(message: budget_pb2.VerifyLedgerResponse) -> values.Verification:
    """Return the result of an audit."""
    bad = message.first_bad_entry
    return _value(values.Verification, message, first_bad_entry=None if message.ok or bad < 0 else bad)
