"""Two services over one PostgreSQL ledger: one budget, one job id, one summary, and one service that commits a job."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.engine.jobs.histogram import HistogramSession
from aggservice.service import ServiceConfig, embedded
from aggservice.wire import BucketRows, ReportBatch, write_buckets, write_reports
from budget.errors import LeaseLostError

ASKS = JobParameters(attribution_report_to="https://adtech.example", epsilon="40")


@pytest.fixture
def dsn_file(tmp_path: Path) -> Iterator[Path]:
    """A file with the connection string of a PostgreSQL server of this test's own."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    with tempfile.TemporaryDirectory(prefix="aggservice-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder)
        path = tmp_path / "dsn"
        path.touch(mode=0o600)
        path.write_text(server.get_uri() + "\n")
        yield path
        server.cleanup()


def test_two_services_share_one_ledger(maker: Any, dsn_file: Path, tmp_path: Path) -> None:
    config = ServiceConfig(state=tmp_path / "state", listen="127.0.0.1:0", ledger="postgres", ledger_dsn_file=dsn_file)
    config = replace(config, limits=replace(config.limits, processes=0))
    reports = [maker.report({1: 5}) for _ in range(20)]
    with (
        embedded(config, keys=maker.keys, clock=maker.clock) as one,
        embedded(config, keys=maker.keys, clock=maker.clock) as other,
        Client(one.address) as first,
        Client(other.address) as second,
    ):
        summary = first.aggregate("a", ASKS, reports, domain=[1])
        again = second.aggregate("a", ASKS, reports, domain=[1])
        assert again.repeated and again.to_dict() == summary.to_dict() and again.receipt == summary.receipt
        with pytest.raises(ClientError) as caught:
            second.aggregate("b", ASKS, reports, domain=[1])
        assert (caught.value.return_code, caught.value.count) == ("PRIVACY_BUDGET_EXHAUSTED", 20)
        assert second.summary("a").to_dict() == summary.to_dict()
        assert second.balances([reports[0].shared_info])[0].remaining.epsilon == "24"
        assert first.verify_ledger([again.receipt]).ok


def test_a_service_that_lost_its_lease_commits_nothing(
    maker: Any, dsn_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the charge another service takes the job over: the charge is refused, and the output stays empty."""
    config = ServiceConfig(
        state=tmp_path / "state",
        listen="127.0.0.1:0",
        ledger="postgres",
        ledger_dsn_file=dsn_file,
        input_folder=tmp_path,
        output_folder=tmp_path,
    )
    config = replace(config, limits=replace(config.limits, processes=0))
    reports = [maker.report({1: 5}) for _ in range(20)]
    write_reports(tmp_path / "reports.avro", [ReportBatch.of(reports)])
    none, keys = np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64)
    domain = BucketRows(key_high=none, key_low=keys, numbers=np.empty((1, 0), dtype=np.int64))
    write_buckets(tmp_path / "domain.avro", domain)
    (tmp_path / "out").mkdir()
    finish = HistogramSession.finish
    finished: list[BaseException | None] = []

    with embedded(config, keys=maker.keys, clock=maker.clock) as service, Client(service.address) as client:
        database = service.service.queue.database

        def late(self: HistogramSession, *, content: bytes = b"") -> Any:
            database.write("take_over", lambda execute: execute("UPDATE queue SET owner = 'another service'"))
            try:
                outcome = finish(self, content=content)
            except BaseException as problem:
                finished.append(problem)
                raise
            finished.append(None)
            return outcome

        monkeypatch.setattr(HistogramSession, "finish", late)
        client.create_job(
            "a",
            ASKS,
            input_data_blob_prefix="reports.avro",
            output_data_blob_prefix="out/summary",
            output_domain_blob_prefix="domain.avro",
        )
        deadline = time.monotonic() + 60
        while not finished and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [type(one) for one in finished] == [LeaseLostError]
        assert {one.uses for one in client.balances([one.shared_info for one in reports])} == {0}
        assert not list((tmp_path / "out").iterdir())
        assert client.get_job("a").job_status != "FINISHED"
