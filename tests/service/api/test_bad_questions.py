"""Questions that make no sense, or too much work for one call, are refused by name and delay no other caller."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import timestamp_pb2

from aggservice.client import Client, ClientError, JobParameters
from aggservice.job.messages import parameters_message
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.service import EmbeddedService
from aggservice.service.log import EventLog
from aggservice.service.status import message_of
from budget import SqliteStore
from budget.errors import StoreError

ORIGIN = "https://adtech.example"
MANY = tuple(range(256))


def test_questions_about_too_many_units_are_refused_before_any_work(maker: Any, client: Client) -> None:
    """10,000 reports with 256 filtering IDs each are two million hashes; no other caller may wait for them."""
    infos = [maker.info().serialise() for _ in range(2_000)]
    asks = JobParameters(attribution_report_to=ORIGIN, filtering_ids=MANY)
    questions: list[Callable[[], object]] = [
        lambda: client.check_budget(asks, infos),
        lambda: client.balances(infos, filtering_ids=MANY),
    ]
    for question in questions:
        with pytest.raises(ClientError, match="units") as caught:
            question()
        assert caught.value.return_code == "INVALID_JOB"
    # What a caller needs is still answered.
    assert client.check_budget(replace(asks, filtering_ids=tuple(range(50))), infos).unit_count == 100_000
    assert len(client.balances(infos[:10], filtering_ids=MANY)) == 2_560


def test_a_unit_of_another_length_and_a_receipt_that_is_none_are_refused(client: Client) -> None:
    for unit in (b"x", bytes(19), bytes(21)):
        with pytest.raises(ClientError, match="20 bytes") as caught:
            list(client.entries(unit=unit))
        assert caught.value.return_code == "INVALID_JOB"
    assert list(client.entries(unit=bytes(20))) == []
    for receipt in (b"", b"{}", b"\xff", b'{"format":"aggservice-receipt-1"}'):
        with pytest.raises(ClientError, match="not a receipt") as caught:
            client.verify_ledger([receipt])
        assert caught.value.return_code == "INVALID_JOB"


@pytest.mark.parametrize(("seconds", "nanos"), [(2**62, 0), (-(2**62), 0), (0, -1), (0, 2**31 - 1)])
def test_a_time_that_is_none_is_refused(client: Client, seconds: int, nanos: int) -> None:
    for name in ("before", "not_before"):
        with pytest.raises(ClientError, match=name) as caught:
            client._call(
                client._budget.ListEntries,
                budget_pb2.ListEntriesRequest(**{name: timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)}),
            )
        assert caught.value.return_code == "INVALID_JOB"
    with pytest.raises(ClientError, match="years 1 to 9999"):
        list(client.entries(before_ms=2**62))


def test_a_log_that_cannot_be_written_ends_nothing(maker: Any) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        log = EventLog(maker.clock, stream)
        log.event("call", method="Aggregate")
        log.fault("call_failed", ValueError("x"))


def test_fields_that_we_do_not_know_are_not_kept_with_a_job(service: EmbeddedService, client: Client) -> None:
    """The book keeps a thousand finished jobs; with a whole message each, one caller could fill memory."""
    unknown = b"\xfa\x3f" + _varint(3 << 20) + bytes(3 << 20)  # field 1023, a string of 3 MiB
    asks = parameters_message(JobParameters(attribution_report_to=ORIGIN), "a").SerializeToString() + unknown
    first = b"\x0a" + _varint(len(asks)) + asks  # AggregateRequest.job_parameters
    end = aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=0)).SerializeToString()
    with grpc.insecure_channel(service.address) as channel:
        call = channel.stream_stream("/aggservice.v1.AggregationService/Aggregate")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([first, end])))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # nothing to release
    asked = aggregation_pb2.GetJobRequest(job_request_id="a")
    assert client._call(client._aggregation.GetJob, asked).ByteSize() < 2_000


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def test_more_receipts_than_a_message_holds_are_checked_all_the_same(maker: Any, client: Client) -> None:
    asks = JobParameters(attribution_report_to=ORIGIN)
    receipt = client.aggregate("receipts", asks, [maker.report({1: 1})], domain=[1]).receipt
    many = [receipt] * (5 * 2**20 // len(receipt))
    assert sum(map(len, many)) > 4 * 2**20  # what the service takes at once
    assert client.verify_ledger(many).ok
    with pytest.raises(ClientError, match="not a receipt"):
        client.verify_ledger([*many, b"{}"])


@pytest.mark.parametrize(
    ("field", "example"),
    [
        ("privacy_params.laplace_dp_params.job_epsilon", "1.5"),
        ("privacy_params.gaussian_dp_params.job_rho", "0.5"),
        ("key_discovery.delta", "0.000001"),
        ("others.epsilon", "1.5"),
    ],
)
def test_a_missing_amount_is_called_missing(client: Client, field: str, example: str) -> None:
    asked = parameters_message(JobParameters(attribution_report_to=ORIGIN), "a")
    part = asked
    for name in field.split(".")[:-1]:
        part = getattr(part, name)
    part.SetInParent()
    with pytest.raises(ClientError) as caught:
        client._call(client._budget.CheckBudget, budget_pb2.CheckBudgetRequest(job_parameters=asked))
    assert caught.value.message == f"{field} is missing: give a decimal number such as {example}"
    assert caught.value.return_code == "INVALID_JOB"


def test_pages_of_the_log_join_and_filter(maker: Any, client: Client) -> None:
    asks = JobParameters(attribution_report_to=ORIGIN, epsilon="1")
    for job in ("a", "b", "c"):
        client.aggregate(job, asks, [maker.report({1: 1})], domain=[1])
    every = list(client.entries())
    assert [one.kind for one in every] == ["genesis", "release", "release", "release"]
    assert [one.cost is None for one in every] == [True, False, False, False]
    assert list(client.entries(page_size=1)) == list(client.entries(page_size=3)) == every
    assert [one.index for one in client.entries(caller="local", page_size=2)] == [1, 2, 3]
    assert [one.job_request_id for one in client.entries(job_request_id="b")] == ["b"]
    assert list(client.entries(not_before_ms=every[-1].time_ms + 1)) == []
    assert list(client.entries(before_ms=every[-1].time_ms + 1)) == every
    assert all(later.previous_hash == one.entry_hash for one, later in itertools.pairwise(every))


def test_an_error_of_the_ledgers_file_shows_no_folder_of_the_service(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError) as caught:
        SqliteStore(path).read("log", lambda transaction: None)
    assert "ledger.sqlite" in message_of(caught.value) and str(tmp_path) not in message_of(caught.value)
