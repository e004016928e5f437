"""Jobs: cancellation, deadlines, logs, and outputs that two jobs want."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from aggservice.client import Client, ClientError, Job, JobParameters, JobStatus
from aggservice.engine.release import charging
from aggservice.job.messages import parameters_message
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.service import EmbeddedService, ServiceConfig, embedded
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports

ORIGIN = "https://adtech.example"
ASKS = JobParameters(attribution_report_to=ORIGIN)


def stream(service: EmbeddedService, messages: Iterator[Any], **more: Any) -> Any:
    channel = grpc.insecure_channel(service.address)
    call = channel.stream_stream(
        "/aggservice.v1.AggregationService/Aggregate",
        request_serializer=aggregation_pb2.AggregateRequest.SerializeToString,
        response_deserializer=aggregation_pb2.AggregateResponse.FromString,
    )
    return call(messages, **more)


def parts(maker: Any, job: str, pause_s: float) -> Iterator[aggregation_pb2.AggregateRequest]:
    yield aggregation_pb2.AggregateRequest(job_parameters=parameters_message(ASKS, job))
    yield aggregation_pb2.AggregateRequest(domain=(1).to_bytes(16, "big"))
    report = maker.report({1: 1})
    yield aggregation_pb2.AggregateRequest(
        reports=aggregation_pb2.ReportBatch(
            payloads=[report.payloads[0].payload],
            key_ids=[report.payloads[0].key_id],
            shared_infos=[report.shared_info],
        )
    )
    time.sleep(pause_s)
    yield aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=1))


def finished(client: Client, job: str) -> Job:
    for _ in range(100):
        found = client.get_job(job)
        if found.job_status == JobStatus.FINISHED:
            return found
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def test_a_stream_that_is_cancelled_or_overdue_leaves_nothing(
    maker: Any, service: EmbeddedService, client: Client
) -> None:
    before = service.ledger.checkpoint()
    call = stream(service, parts(maker, "cancelled", 5))
    time.sleep(0.5)
    call.cancel()
    late = stream(service, parts(maker, "late", 5), timeout=0.5)
    with pytest.raises(grpc.RpcError) as caught:
        list(late)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    for job in ("cancelled", "late"):
        assert finished(client, job).summary is None
        with pytest.raises(ClientError):
            client.summary(job)
    assert service.ledger.checkpoint() == before
    # The id of a job that left nothing may be used again.
    assert client.aggregate("cancelled", ASKS, [maker.report({1: 1})], domain=[1]).return_code == "SUCCESS"


def test_a_stream_without_its_end_is_not_aggregated(maker: Any, service: EmbeddedService, client: Client) -> None:
    before = service.ledger.checkpoint()
    whole = list(parts(maker, "a", 0))
    wrong = aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=2))
    twice = [*whole[:-1], whole[0], whole[-1]]
    for messages in (whole[:-1], whole[:2], [*whole[:-1], wrong], [*whole, whole[1]], twice):
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(service, iter(messages)))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert service.ledger.checkpoint() == before
    assert any(answer.HasField("header") for answer in stream(service, iter(whole)))


def test_cancel_job_ends_a_stream_from_another_connection(maker: Any, service: EmbeddedService, client: Client) -> None:
    before = service.ledger.checkpoint()
    call = stream(service, parts(maker, "a", 1))
    time.sleep(0.5)
    client.cancel_job("a")
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert service.ledger.checkpoint() == before
    done = client.aggregate("b", ASKS, [maker.report({1: 1})], domain=[1])
    assert client.cancel_job("b").summary.receipt == done.receipt


def test_one_job_id_runs_once_at_a_time(maker: Any, service: EmbeddedService, client: Client) -> None:
    call = stream(service, parts(maker, "a", 1))
    time.sleep(0.4)
    with pytest.raises(ClientError, match="under way"):
        client.aggregate("a", ASKS, [maker.report({1: 1})], domain=[1])
    assert any(answer.HasField("header") for answer in call)


def test_logs_say_who_did_what_and_nothing_that_a_report_holds(maker: Any, tmp_path: Path) -> None:
    from aggservice.service import Service
    from aggservice.service.embedded import run_service
    from aggservice.service.log import EventLog

    output = io.StringIO()
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", ledger="memory")
    config = replace(config, limits=replace(config.limits, processes=0))
    log = EventLog(maker.clock, output)
    from aggservice.service.config.keyring import KeyRing

    service = Service(config, clock=maker.clock, bits=maker.bits, keys=KeyRing(maker.keys, maker.clock), log=log)
    report = maker.report({0xDEADBEEF: 12_345})
    with run_service(service) as running, Client(running.address) as client:
        client.aggregate("a-job", ASKS, [report], domain=[0xDEADBEEF])
        with pytest.raises(ClientError):
            client.aggregate("b-job", replace(ASKS, epsilon="nonsense"), [report], domain=[1])
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert {line["event"] for line in lines} == {"started", "call", "job", "stopped"}
    calls = [line for line in lines if line["event"] == "call"]
    assert [(line["method"], line["status"]) for line in calls] == [
        ("Aggregate", "OK"),
        ("Aggregate", "INVALID_ARGUMENT"),
    ]
    assert all(line["caller"] == "local" for line in calls)
    text = output.getvalue().lower()
    info = json.loads(report.shared_info)
    secrets = [info["report_id"], info["reporting_origin"], "deadbeef", "3735928559", "12345", "nonsense"]
    secrets += [report.payloads[0].payload.hex()[:16], maker.keys.pairs[0].id]
    assert not [one for one in secrets if one.lower() in text]


def test_faults_of_the_service_tell_where_they_arose_and_never_what_they_quote(
    maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a charge and after it: neither the caller nor the log sees the text of an error that nobody expected."""
    from aggservice.service import Service
    from aggservice.service.config.keyring import KeyRing
    from aggservice.service.embedded import run_service
    from aggservice.service.log import EventLog

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the sum of deadbeef is 12345")

    output = io.StringIO()
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", ledger="memory")
    config = replace(config, limits=replace(config.limits, processes=0))
    service = Service(
        config,
        clock=maker.clock,
        bits=maker.bits,
        keys=KeyRing(maker.keys, maker.clock),
        log=EventLog(maker.clock, output),
    )
    report = maker.report({1: 5})
    shown = []
    with run_service(service) as running, Client(running.address) as client:
        monkeypatch.setattr(running.ledger, "balances", broken)
        monkeypatch.setattr("aggservice.engine.jobs.histogram.release", broken)
        for ask in (
            lambda: client.balances([report.shared_info]),
            lambda: client.aggregate("a-job", ASKS, [report], domain=[1]),
            lambda: client.aggregate("a-job", ASKS, [report], domain=[1]),
        ):
            with pytest.raises(ClientError) as caught:
                ask()
            shown.append(str(caught.value))
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    faults = [(line["event"], line["error"]) for line in lines if "error" in line]
    assert faults == [("call_failed", "RuntimeError"), ("summary_lost", "RuntimeError")]
    assert all(" broken" in line["where"] for line in lines if "error" in line)
    text = output.getvalue() + " ".join(shown)
    assert "12345" not in text and "deadbeef" not in text


def _files(tmp_path: Path, maker: Any) -> ServiceConfig:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    write_reports(tmp_path / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 1})])])
    write_buckets(
        tmp_path / "in" / "domain.avro",
        BucketRows(
            key_high=np.zeros(1, dtype=np.uint64),
            key_low=np.ones(1, dtype=np.uint64),
            numbers=np.empty((1, 0), dtype=np.int64),
        ),
    )
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        ledger="sqlite",
        input_folder=tmp_path / "in",
        output_folder=tmp_path / "out",
    )
    return replace(config, limits=replace(config.limits, processes=0, jobs=1))


def _create(client: Client, job: str, output: str) -> None:
    client.create_job(
        job,
        replace(ASKS, epsilon="1"),
        input_data_blob_prefix="reports",
        output_data_blob_prefix=output,
        output_domain_blob_prefix="domain",
    )


def test_two_jobs_never_write_to_the_same_prefix(maker: Any, tmp_path: Path) -> None:
    config = _files(tmp_path, maker)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        holder = stream(service, parts(maker, "holder", 1.5))  # takes the only slot, so that files must wait
        time.sleep(0.4)
        _create(client, "first", "same")
        with pytest.raises(ClientError) as caught:
            _create(client, "second", "same")
        assert caught.value.return_code == "RESULT_WRITE_ERROR"
        # A job that waits can be cancelled, and its prefix is free again.
        client.cancel_job("first")
        list(holder)
        with pytest.raises(ClientError):
            client.watch_job("first")
        _create(client, "third", "same")
        assert client.watch_job("third").summary.row_count == 1


def test_an_output_folder_that_became_a_link_is_noticed_before_the_charge(maker: Any, tmp_path: Path) -> None:
    config = _files(tmp_path, maker)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        before = service.ledger.checkpoint()
        holder = stream(service, parts(maker, "holder", 1.5))
        time.sleep(0.4)
        _create(client, "swapped", "folder/sum")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "out" / "folder").rmdir()
        (tmp_path / "out" / "folder").symlink_to(elsewhere)
        holder.cancel()
        with pytest.raises(ClientError) as caught:
            client.watch_job("swapped")
        assert caught.value.return_code == "PERMISSION_ERROR"
        assert not list(elsewhere.iterdir())
        assert service.ledger.checkpoint() == before


def test_a_summary_too_large_for_a_stream_is_refused_before_the_charge(
    maker: Any, service: EmbeddedService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charging, "MOST_ROWS_IN_LEDGER", 3)
    before = service.ledger.checkpoint()
    with pytest.raises(ClientError, match="ask for files") as caught:
        client.aggregate("a", ASKS, [maker.report({1: 1})], domain=[1, 2, 3, 4])
    assert caught.value.return_code == "RESULT_WRITE_ERROR"
    assert service.ledger.checkpoint() == before
