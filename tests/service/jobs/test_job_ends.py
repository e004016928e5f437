"""How jobs end: what is kept of one that failed, and what its caller learns."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from aggservice.client import Client, ClientError, JobParameters, JobStatus
from aggservice.engine import Session
from aggservice.service import EmbeddedService, ServiceConfig, embedded
from aggservice.service.jobs.asked import FileJob
from aggservice.wire import ReportBatch, write_reports
from budget.errors import StoreError

ORIGIN = "https://adtech.example"
ASKS = JobParameters(attribution_report_to=ORIGIN)


def file_service(tmp_path: Path, maker: Any) -> ServiceConfig:
    """Return the configuration of a service with folders, and put a report that may be debugged into them."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    write_reports(tmp_path / "in" / "reports.avro", [ReportBatch.of([maker.report({1: 7}, debug_mode=True)])])
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        ledger="memory",
        input_folder=tmp_path / "in",
        output_folder=tmp_path / "out",
    )
    return replace(config, limits=replace(config.limits, processes=0))


def sessions_of(service: EmbeddedService) -> int:
    """Return how many sessions of a service are still in memory."""
    engine = service.service.engine
    for _ in range(50):
        gc.collect()
        found = sum(isinstance(one, Session) and one._parts is engine.parts for one in gc.get_objects())
        if not found:
            break
        time.sleep(0.02)
    return found


def test_a_job_that_failed_keeps_nothing_of_its_session(maker: Any, tmp_path: Path) -> None:
    """Its sums, units and unpaid noise would otherwise stay for as long as the book remembers the job."""
    config = file_service(tmp_path, maker)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        report = maker.report({1: 1})
        client.aggregate("paid", replace(ASKS, epsilon="64"), [report], domain=[1])
        for job in range(3):
            with pytest.raises(ClientError) as caught:
                client.aggregate(f"unpaid-{job}", ASKS, [report], domain=[1])
            assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
            with pytest.raises(ClientError) as caught:
                client.aggregate(f"nothing-{job}", ASKS, [report], domain=[])
            assert caught.value.return_code == "INVALID_JOB"
        none_bad = replace(ASKS, discovery_delta="1e-8", attribution_report_to="https://other.example")
        client.create_job("files", none_bad, input_data_blob_prefix="reports", output_data_blob_prefix="sum")
        with pytest.raises(ClientError) as caught:
            client.watch_job("files")
        assert caught.value.return_code == "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
        assert sessions_of(service) == 0
        # What an owner may ask about is still there.
        assert len(list(client.unpaid_units("unpaid-0"))) == 1
        with pytest.raises(ClientError) as caught:
            client.summary("unpaid-1")
        assert caught.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
        assert sessions_of(service) == 0


def test_a_debug_run_writes_true_values_nowhere_but_below_its_folder(maker: Any, tmp_path: Path) -> None:
    """Links that were laid out beforehand, where it makes its folder and its files, are not followed."""
    config = file_service(tmp_path, maker)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim"
    victim.write_bytes(b"not yours")
    out = tmp_path / "out"
    (out / "debug").symlink_to(elsewhere)
    (out / ".sum-1-of-1.part").symlink_to(victim)
    asks = replace(ASKS, debug_run=True)
    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        client.create_job("linked", asks, input_data_blob_prefix="reports", output_data_blob_prefix="sum")
        with pytest.raises(ClientError) as caught:
            client.watch_job("linked")
        assert caught.value.return_code == "RESULT_WRITE_ERROR"
        (out / "debug").unlink()
        client.create_job("real", asks, input_data_blob_prefix="reports", output_data_blob_prefix="sum")
        assert client.watch_job("real").summary.row_count == 1
    assert {one.name for one in elsewhere.iterdir()} == {"victim"} and victim.read_bytes() == b"not yours"
    assert sorted(str(one.relative_to(out)) for one in out.rglob("*") if one.is_file()) == [
        "debug/sum-1-of-1",
        "sum-1-of-1",
        "sum-statement.json",
    ]


def test_a_folder_that_cannot_be_made_is_told_by_name(maker: Any, tmp_path: Path) -> None:
    with (
        embedded(file_service(tmp_path, maker), keys=maker.keys, clock=maker.clock) as service,
        Client(service.address) as client,
        pytest.raises(ClientError, match="cannot be created: File name too long") as caught,
    ):
        asks = replace(ASKS, discovery_delta="1e-8")
        client.create_job("a", asks, input_data_blob_prefix="reports", output_data_blob_prefix="x" * 300 + "/sum")
    assert caught.value.return_code == "RESULT_WRITE_ERROR"


def test_a_job_that_was_paid_for_is_never_called_cancelled_or_failed(
    maker: Any, service: EmbeddedService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is cancelled while its charge commits, and one whose answer fails after it, are finished jobs."""
    real, committing = service.ledger.commit, threading.Event()

    def slow(**asked: Any) -> Any:
        committing.set()
        time.sleep(0.5)
        return real(**asked)

    def failing(**asked: Any) -> Any:
        real(**asked)
        raise StoreError("the connection was lost after the commit")

    monkeypatch.setattr(service.ledger, "commit", slow)
    with Client(service.address, attempts=1) as impatient:
        thread = threading.Thread(target=lambda: suppressed(impatient, maker, "cancelled"))
        thread.start()
        assert committing.wait(20)
        impatient.close()
        thread.join(20)
    monkeypatch.setattr(service.ledger, "commit", failing)
    with Client(service.address, attempts=1) as unlucky:
        suppressed(unlucky, maker, "lost")
    monkeypatch.setattr(service.ledger, "commit", real)
    for job in ("cancelled", "lost"):
        for _ in range(100):
            if client.get_job(job).job_status == JobStatus.FINISHED:
                break
            time.sleep(0.05)
        for found in (client.get_job(job), client.watch_job(job), client.cancel_job(job)):
            assert found.summary.row_count == 1 and found.summary.receipt
        assert client.summary(job).receipt == client.get_job(job).summary.receipt
    assert len(list(client.entries(caller="local"))) == 2


def suppressed(client: Client, maker: Any, job: str) -> None:
    """Ask for a job and do not wait for the answer."""
    with suppress(ClientError, ValueError, grpc.RpcError):
        client.aggregate(job, ASKS, [maker.report({1: 1})], domain=[1])


def test_one_call_sent_many_times_at_once_begins_one_job(
    maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = file_service(tmp_path, maker)
    asks = replace(ASKS, discovery_delta="1e-8")
    answers: list[str] = []

    def ask(client: Client, output: str) -> None:
        try:
            client.create_job("a", asks, input_data_blob_prefix="reports", output_data_blob_prefix=output)
            answers.append("begun")
        except ClientError as problem:
            answers.append(problem.return_code)

    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        real, together = service.service.queue.add, threading.Barrier(4)
        monkeypatch.setattr(service.service.queue, "add", lambda *asked: (together.wait(20), real(*asked))[1])
        monkeypatch.setattr(FileJob, "expected_keys", lambda self: time.sleep(0.5) or 0)
        threads = [threading.Thread(target=ask, args=(client, output)) for output in ("sum", "sum", "sum", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        # Whichever output came first is the job's; another is another request, and is not kept from other jobs.
        assert set(answers) == {"INVALID_JOB", "begun"} and len(answers) == 4
        assert client.watch_job("a").job_status == JobStatus.FINISHED
        monkeypatch.setattr(service.service.queue, "add", real)
        (left,) = {"sum", "other"} - {one.name.removesuffix("-1-of-1") for one in (tmp_path / "out").glob("*-of-1")}
        client.create_job("b", asks, input_data_blob_prefix="reports", output_data_blob_prefix=left)
        assert client.watch_job("b").job_status == JobStatus.FINISHED
