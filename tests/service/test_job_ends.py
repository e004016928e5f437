"""How jobs end: what is kept of one that failed, and what its owner is told."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.engine import Session
from aggservice.service import EmbeddedService, ServiceConfig, embedded
from aggservice.wire import ReportBatch, write_reports

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
        found = sum(isinstance(one, Session) and one._engine is engine for one in gc.get_objects())
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
        pytest.raises(ClientError, match="cannot be made: File name too long") as caught,
    ):
        asks = replace(ASKS, discovery_delta="1e-8")
        client.create_job("a", asks, input_data_blob_prefix="reports", output_data_blob_prefix="x" * 300 + "/sum")
    assert caught.value.return_code == "RESULT_WRITE_ERROR"
