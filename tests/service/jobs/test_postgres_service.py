"""Two services over one PostgreSQL ledger: one budget, one job id, one summary."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggservice.client import Client, ClientError, JobParameters
from aggservice.service import ServiceConfig, embedded

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
