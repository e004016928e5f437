"""Requests, headers and rows of jobs to and from protobuf messages: the only module that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from aggservice.job.errors import DESCRIPTIONS, EngineError, InvalidJobError
from aggservice.job.parameters import AttributionTask, JobParameters, ShuffleParameters
from aggservice.job.request import (
    TASK_HAS,
    HistogramRequest,
    JobRequest,
    ShuffleRequest,
    TaskRequest,
    parse_discovery,
    parse_filtering_ids,
    parse_laplace,
    parse_mechanism,
    parse_noise,
    parse_percentage,
    parse_shuffle,
)
from aggservice.job.result import (
    Outcome,
    Rows,
    ShuffledRows,
    ShuffleStatement,
    Statement,
    Summary,
    SummaryHeader,
    result_head,
)
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from budget import Filter, Spend
from budget.amounts import decimal_text

ROWS_PER_MESSAGE = 1 << 16
_PART_BYTES = 1 << 20
_MICRO_PLACES, _ATTO_PLACES = 6, 18
_UNBOUNDED_USES = 2**32 - 1


T = TypeVar("T")


def value_of(kind: type[T], message: Message, **given: Any) -> T:
    """Build a dataclass: fields in ``given`` as they are, all others from the message's fields of the same name."""
    copied = (field.name for field in fields(kind) if field.name not in given)  # type: ignore[arg-type]
    return kind(**{name: getattr(message, name) for name in copied}, **given)


def _texts(message: Message) -> dict[str, str]:
    """Return the fields of a message that holds texts only."""
    return {one.name: getattr(message, one.name) for one in message.DESCRIPTOR.fields}


def _given(text: str, field: str, example: str) -> str:
    """Return the text of an amount that its message must hold."""
    if not text.strip():
        raise InvalidJobError(f"{field} is missing: give a decimal number such as {example}")
    return text


def request_of(parameters: aggregation_pb2.JobParameters, source: tuple[str, ...] = ()) -> JobRequest:
    """Return the engine's request for a message; raise ``InvalidJobError`` naming what is wrong with it."""
    privacy = parameters.privacy_params
    named = privacy.WhichOneof("mechanism")
    if named == "named_mechanism":
        mechanism = parse_mechanism(privacy.named_mechanism.name, privacy.named_mechanism.parameters)
    elif named == "gaussian_dp_params":
        rho = _given(privacy.gaussian_dp_params.job_rho, "privacy_params.gaussian_dp_params.job_rho", "0.5")
        mechanism = parse_noise(rho=rho)
    else:
        epsilon = parameters.debug_privacy_epsilon
        if named is not None:
            field = "privacy_params.laplace_dp_params.job_epsilon"
            epsilon = _given(privacy.laplace_dp_params.job_epsilon, field, "1.5")
        mechanism = parse_noise(epsilon=epsilon)
    discovery = None
    if parameters.HasField("key_discovery"):
        discovery = parse_discovery(
            delta=_given(parameters.key_discovery.delta, "key_discovery.delta", "0.000001"),
            key_mask=parameters.key_discovery.key_mask,
            rule=parameters.key_discovery.rule,
        )
    others = None
    if parameters.HasField("others"):
        others = parse_laplace(_given(parameters.others.epsilon, "others.epsilon", "1.5"))
    filtering_ids = parse_filtering_ids(parameters.filtering_ids)
    common: dict[str, Any] = {
        "job_request_id": parameters.job_request_id,
        "attribution_report_to": parameters.attribution_report_to or None,
        "reporting_site": parameters.reporting_site or None,
        "error_threshold_percent": parse_percentage(parameters.report_error_threshold_percentage),
        "input_report_count": parameters.input_report_count or None,
        "minimum_report_count": parameters.minimum_report_count,
        "source": source,
        "output_key": parameters.output_public_key or None,
    }
    if parameters.HasField("attribution_task"):
        if discovery is not None or others is not None:
            raise InvalidJobError(TASK_HAS)
        if parameters.debug_run or parameters.HasField("shuffle") or filtering_ids != (0,):
            raise InvalidJobError(
                "W3C reports have no debug mode, filtering IDs or randomizer: leave debug_run, filtering_ids and "
                "shuffle out of a job with an attribution_task"
            )
        return TaskRequest(**common, mechanism=mechanism, task=value_of(AttributionTask, parameters.attribution_task))
    if parameters.HasField("shuffle"):
        if named is not None or parameters.debug_privacy_epsilon:
            raise InvalidJobError("a shuffle has no epsilon and no rho of its own: leave both out")
        if discovery is not None or others is not None or parameters.debug_run:
            raise InvalidJobError("a shuffle has no key discovery, others total or debug run: leave them out")
        if filtering_ids != (0,):
            raise InvalidJobError("local reports have no filtering IDs: leave filtering_ids out of a shuffle")
        return ShuffleRequest(**common, **parse_shuffle(**_texts(parameters.shuffle)))
    return HistogramRequest(
        **common,
        mechanism=mechanism,
        discovery=discovery,
        others=others,
        filtering_ids=filtering_ids,
        debug_run=parameters.debug_run,
    )


def parameters_message(parameters: JobParameters, job_request_id: str) -> aggregation_pb2.JobParameters:
    """Return the message for a job id; InvalidJobError for a number that does not fit into it."""
    if parameters.key_mask is not None and not 0 <= parameters.key_mask < 1 << 128:
        raise InvalidJobError(f"key_mask {parameters.key_mask} is outside 0 to 2^128 - 1")
    for name in ("input_report_count", "minimum_report_count"):
        if not -(1 << 63) <= getattr(parameters, name) < 1 << 63:
            raise InvalidJobError(f"{name} {getattr(parameters, name)} does not fit into 64 bits")
    if sum(map(bool, (parameters.epsilon, parameters.rho, parameters.mechanism))) > 1:
        raise InvalidJobError("epsilon, rho and mechanism are different kinds of noise: give one of them")
    task = parameters.attribution_task
    if task is not None:
        for name, number in (("histogram_size", task.histogram_size), ("max_value", task.max_value)):
            if not 0 <= number < 1 << 32:
                raise InvalidJobError(f"{name} {number} does not fit into 32 bits")
    message = aggregation_pb2.JobParameters(
        job_request_id=job_request_id,
        attribution_report_to=parameters.attribution_report_to,
        reporting_site=parameters.reporting_site,
        report_error_threshold_percentage=parameters.report_error_threshold_percentage,
        input_report_count=parameters.input_report_count,
        minimum_report_count=parameters.minimum_report_count,
        filtering_ids=",".join(map(str, parameters.filtering_ids)),
        debug_run=parameters.debug_run,
        output_public_key=parameters.output_public_key,
    )
    if parameters.epsilon:
        message.privacy_params.laplace_dp_params.job_epsilon = parameters.epsilon
    if parameters.rho:
        message.privacy_params.gaussian_dp_params.job_rho = parameters.rho
    if parameters.mechanism:
        message.privacy_params.named_mechanism.name = parameters.mechanism
        message.privacy_params.named_mechanism.parameters.update(parameters.mechanism_parameters)
    if parameters.discovery_delta:
        message.key_discovery.delta = parameters.discovery_delta
        message.key_discovery.rule = parameters.discovery_rule
        if parameters.key_mask is not None:
            message.key_discovery.key_mask = parameters.key_mask.to_bytes(16, "big")
    if parameters.others_epsilon:
        message.others.epsilon = parameters.others_epsilon
    if parameters.shuffle is not None:
        message.shuffle.CopyFrom(aggregation_pb2.Shuffle(**asdict(parameters.shuffle)))
    if task is not None:
        message.attribution_task.CopyFrom(aggregation_pb2.AttributionTask(**asdict(task)))
    return message


def parameters_of(message: aggregation_pb2.JobParameters) -> JobParameters:
    """Return the parameters that a message holds."""
    privacy, discovery = message.privacy_params, message.key_discovery
    return value_of(
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
        shuffle=value_of(ShuffleParameters, message.shuffle) if message.HasField("shuffle") else None,
        attribution_task=value_of(AttributionTask, message.attribution_task)
        if message.HasField("attribution_task")
        else None,
    )


def timestamp(time_ms: int) -> timestamp_pb2.Timestamp:
    """Return a time as a protobuf timestamp."""
    return timestamp_pb2.Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def amount(spend: Spend, chosen: Filter) -> common_pb2.PrivacyAmount:
    """Return a spend as decimal text, under the filter's name for its loss."""
    found = common_pb2.PrivacyAmount(delta=decimal_text(spend.delta_atto, _ATTO_PLACES))
    setattr(found, chosen.loss_name, decimal_text(spend.loss_micro, _MICRO_PLACES))
    return found


def outcome_header(outcome: Outcome, chosen: Filter) -> common_pb2.SummaryHeader:
    """Return the header of a finished job's summary; ``chosen`` is the ledger's filter."""
    header, committed = outcome.header, outcome.committed
    message = common_pb2.SummaryHeader(
        job_request_id=header.job_request_id,
        return_code=common_pb2.ReturnCode.Code.Value(header.return_code),
        error_summary=common_pb2.ErrorSummary(error_counts=error_counts(header.error_counts)),
        statement=common_pb2.Statement(**header.statement.to_plain()),
        row_count=header.row_count,
        finished_at=timestamp(header.finished_ms),
        debug_run=header.debug_run,
        files=list(header.files),
        others=header.others,
        undeclared=header.undeclared,
        repeated=outcome.repeated,
        output_public_key=header.output_public_key,
        sealed_totals=header.sealed_totals,
    )
    if committed is None:
        return message
    message.receipt = committed.receipt
    message.ledger_entry = committed.entry.seq
    message.statement.cost.CopyFrom(amount(committed.entry.cost, chosen))
    if any(one is not None for one in (outcome.rows, outcome.shuffled, outcome.sealed)):
        message.result_head = result_head(header)
    if outcome.remaining is not None:
        least = outcome.remaining.least
        message.statement.remaining.CopyFrom(amount(least, chosen))
        message.statement.uses_bounded = chosen.limit.uses != _UNBOUNDED_USES
        message.statement.remaining_uses = least.uses if message.statement.uses_bounded else 0
    return message


def error_counts(counts: Mapping[str, int]) -> list[common_pb2.ErrorCount]:
    """Return counters with their descriptions."""
    return [
        common_pb2.ErrorCount(category=name, count=count, description=DESCRIPTIONS.get(name, ""))
        for name, count in counts.items()
    ]


def rows_message(rows: Rows) -> common_pb2.SummaryRows:
    """Return a page of rows as a message."""
    message = common_pb2.SummaryRows(buckets=rows.buckets(), metrics=rows.metrics.tolist())
    if rows.unnoised is not None and rows.annotations is not None:
        message.unnoised_metrics.extend(rows.unnoised.tolist())
        message.annotations = rows.annotations.tobytes()
    return message


def shuffled_messages(rows: ShuffledRows, first: int = 0) -> Iterator[common_pb2.ShuffledReports]:
    """Yield the reports of a shuffle from ``first`` on, in messages of bounded size."""
    for page in rows.pages(max(1, _PART_BYTES // rows.width), first):
        yield common_pb2.ShuffledReports(reports=page.reports.tobytes())


def sealed_messages(document: bytes) -> Iterator[common_pb2.SealedPart]:
    """Yield a sealed document in messages of bounded size."""
    for at in range(0, len(document), _PART_BYTES):
        yield common_pb2.SealedPart(document=document[at : at + _PART_BYTES])


def return_code_name(number: int) -> str:
    """Return the name of a return code; UNKNOWN_n for one that a newer service has added."""
    known = common_pb2.ReturnCode.Code.DESCRIPTOR.values_by_number.get(number)
    return known.name if known is not None else f"UNKNOWN_{number}"


def _amounts_set(message: common_pb2.PrivacyAmount) -> dict[str, str]:
    return {name: getattr(message, name) for name in ("epsilon", "rho", "delta") if getattr(message, name)}


def _statement(message: common_pb2.Statement) -> Statement:
    return value_of(
        Statement,
        message,
        cost=_amounts_set(message.cost),
        remaining=_amounts_set(message.remaining),
        shuffle=value_of(ShuffleStatement, message.shuffle) if message.HasField("shuffle") else None,
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


def header_of(message: common_pb2.SummaryHeader) -> SummaryHeader:
    """Return what the service says about a summary, without its rows."""
    return value_of(SummaryHeader, message, **_header_fields(message))


def summary_of(
    parts: Iterable[aggregation_pb2.AggregateResponse] | Iterable[aggregation_pb2.SummaryChunk],
) -> Summary:
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
        raise EngineError("the service ended the stream without a summary: ask again with the same job id")
    both = np.frombuffer(b"".join(buckets), dtype=">u8").reshape(-1, 2)
    width = max(1, header.statement.shuffle.report_bytes)
    reports = b"".join(shuffled)
    return value_of(
        Summary,
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
