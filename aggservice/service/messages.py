"""Conversion between messages and the engine's values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from google.protobuf import timestamp_pb2
from numpy.typing import NDArray

from aggservice.engine import InvalidJobError, JobRequest, Outcome, Rows, ShuffleRequest
from aggservice.engine.opening.attribution_tasks import AttributionTask
from aggservice.engine.release.charging import Receipted
from aggservice.engine.release.result import ResultHeader, result_head
from aggservice.engine.release.statement import Statement
from aggservice.engine.request import (
    parse_discovery,
    parse_filtering_ids,
    parse_laplace,
    parse_mechanism,
    parse_noise,
    parse_percentage,
)
from aggservice.engine.shuffle import ShuffledRows
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.errors import ProtocolError
from aggservice.service.status import error_counts
from aggservice.wire import ReportBatch, Spans
from budget import Filter, Spend
from budget.amounts import decimal_text

ROWS_PER_MESSAGE = 1 << 16
_PART_BYTES = 1 << 20
_KEY_BYTES = 16
_PAGE, _MAX_PAGE = 100, 1000
_MICRO_PLACES, _ATTO_PLACES = 6, 18
_UNBOUNDED_USES = 2**32 - 1


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
    shuffle = None
    if parameters.HasField("shuffle"):
        if named is not None or parameters.debug_privacy_epsilon:
            raise InvalidJobError("a shuffle has no epsilon and no rho of its own: leave both out")
        asked = parameters.shuffle
        shuffle = ShuffleRequest.parse(
            randomizer=asked.randomizer, delta=asked.delta, bound=asked.bound, collection=asked.collection
        )
    task = None
    if parameters.HasField("attribution_task"):
        given = parameters.attribution_task
        task = AttributionTask(
            conversion_site=given.conversion_site, histogram_size=given.histogram_size, max_value=given.max_value
        )
    return JobRequest(
        job_request_id=parameters.job_request_id,
        attribution_report_to=parameters.attribution_report_to or None,
        reporting_site=parameters.reporting_site or None,
        mechanism=mechanism,
        discovery=discovery,
        others=parse_laplace(_given(parameters.others.epsilon, "others.epsilon", "1.5"))
        if parameters.HasField("others")
        else None,
        error_threshold_percent=parse_percentage(parameters.report_error_threshold_percentage),
        input_report_count=parameters.input_report_count or None,
        filtering_ids=parse_filtering_ids(parameters.filtering_ids),
        debug_run=parameters.debug_run,
        source=source,
        shuffle=shuffle,
        task=task,
        output_key=parameters.output_public_key or None,
    )


def batch_of(message: aggregation_pb2.ReportBatch) -> ReportBatch:
    """Return the columns of a message of reports."""
    count = len(message.payloads)
    key_ids = list(message.key_ids)
    if len(key_ids) == 1 and count > 1:
        key_ids = key_ids * count
    if not len(key_ids) == len(message.shared_infos) == count:
        raise ProtocolError(
            f"a batch has {count} payloads, {len(key_ids)} key_ids and {len(message.shared_infos)} shared_infos: "
            "give one of each per report, or a single key id for all"
        )
    return ReportBatch(
        payloads=Spans.of(list(message.payloads)),
        key_ids=Spans.of([key_id.encode() for key_id in key_ids]),
        shared_infos=Spans.of([info.encode() for info in message.shared_infos]),
    )


def keys_of(raw: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the high and low halves of packed 16-byte keys."""
    if len(raw) % _KEY_BYTES:
        raise ProtocolError(f"a domain part has {len(raw)} bytes: give whole keys of 16 bytes each")
    both = np.frombuffer(raw, dtype=">u8").reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


class ContentDigest:
    """A hash over the keys and reports of a stream. It does not depend on their division into messages."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"aggservice stream v1\0")

    def add_domain(self, raw: bytes) -> None:
        """Hash keys, each by itself."""
        if len(raw) % _KEY_BYTES:
            raise ProtocolError(f"a domain part has {len(raw)} bytes: give whole keys of 16 bytes each")
        self._hash.update(b"".join(b"d" + raw[at : at + _KEY_BYTES] for at in range(0, len(raw), _KEY_BYTES)))

    def add_reports(self, batch: ReportBatch) -> None:
        """Hash reports: the length of each field, then the field."""
        for row in zip(batch.payloads.views(), batch.key_ids.views(), batch.shared_infos.views(), strict=True):
            for field in row:
                self._hash.update(len(field).to_bytes(4, "big"))
                self._hash.update(field)

    def digest(self) -> bytes:
        """Return the 32 bytes."""
        return self._hash.digest()


def timestamp(time_ms: int) -> timestamp_pb2.Timestamp:
    """Return a time as a protobuf timestamp."""
    return timestamp_pb2.Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def amount(spend: Spend, chosen: Filter) -> common_pb2.PrivacyAmount:
    """Return a spend as decimal text, under the filter's name for its loss."""
    found = common_pb2.PrivacyAmount(delta=decimal_text(spend.delta_atto, _ATTO_PLACES))
    setattr(found, chosen.loss_name, decimal_text(spend.loss_micro, _MICRO_PLACES))
    return found


def statement_message(statement: Statement) -> common_pb2.Statement:
    """Return the engine's statement of guarantee as a message."""
    return common_pb2.Statement(**statement.to_plain())


def header_message(
    header: ResultHeader, receipted: Receipted | None, chosen: Filter, *, repeated: bool = False
) -> common_pb2.SummaryHeader:
    """Return the header of a finished job's summary."""
    message = common_pb2.SummaryHeader(
        job_request_id=header.job_request_id,
        return_code=common_pb2.ReturnCode.Code.Value(header.return_code.value),
        error_summary=common_pb2.ErrorSummary(error_counts=error_counts(dict(header.error_counts))),
        statement=statement_message(header.statement),
        row_count=header.row_count,
        finished_at=timestamp(header.finished_ms),
        debug_run=header.debug_run,
        files=list(header.files),
        others=header.others,
        undeclared=header.undeclared,
        repeated=repeated,
        output_public_key=base64.b64decode(header.output_public_key),
        sealed_totals=base64.b64decode(header.sealed_totals),
    )
    if receipted is None:
        return message
    message.receipt = receipted.committed.receipt
    message.ledger_entry = receipted.committed.entry.seq
    message.statement.cost.CopyFrom(amount(receipted.committed.entry.cost, chosen))
    if any(one is not None for one in (receipted.rows, receipted.shuffled, receipted.sealed)):
        message.result_head = result_head(header)
    if receipted.remaining is not None:
        least = receipted.remaining.least
        message.statement.remaining.CopyFrom(amount(least, chosen))
        message.statement.uses_bounded = chosen.limit.uses != _UNBOUNDED_USES
        message.statement.remaining_uses = least.uses if message.statement.uses_bounded else 0
    return message


def outcome_header(outcome: Outcome, chosen: Filter) -> common_pb2.SummaryHeader:
    """Return the header of an outcome."""
    return header_message(outcome.header, outcome.receipted, chosen, repeated=outcome.repeated)


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


def shared_info_batch(texts: Iterable[str]) -> Spans:
    """Return shared_info texts as a column."""
    return Spans.of([text.encode() for text in texts])


def page_size(asked: int) -> int:
    """Return how many items a page has: what was asked for, or 100."""
    if not 0 <= asked <= _MAX_PAGE:
        raise InvalidJobError(f"page_size is {asked}: give 0 to {_MAX_PAGE}")
    return asked or _PAGE
