"""From cleartext reports to a summary without code: seal, stream, and find the reports that cannot pay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.service import embedded
from aggservice.wire import (
    BucketRows,
    ReportBatch,
    decode_batch,
    open_batch,
    read_reports,
    write_buckets,
    write_reports,
)

from ..engine.conftest import ORIGIN, Maker


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


def test_sealed_streamed_refused_and_mended(tmp_path: Path) -> None:
    maker = Maker()
    plain, sealed, more = tmp_path / "plain.avro", tmp_path / "sealed.avro", tmp_path / "more.avro"
    reports = [maker.report({1: 10}, debug_mode=True) for _ in range(3)]
    write_reports(plain, [ReportBatch.of(reports, cleartext=True)])
    public = tmp_path / "public.json"
    public.write_text(maker.keys.public(maker.clock).serialise())
    assert "3 reports" in run("seal", plain, sealed, "--keys", public).output
    assert [list(one.shared_infos) for one in read_reports(sealed)] == [list(ReportBatch.of(reports).shared_infos)]
    (batch,) = read_reports(sealed)
    columns, _ = decode_batch(open_batch(batch, maker.keys.by_id))
    assert sum(one.value for one in columns.contributions()) == 30
    again = run("seal", sealed, tmp_path / "twice.avro", "--keys", public, code=2)
    assert "row 1" in again.output and not (tmp_path / "twice.avro").exists()
    rows = BucketRows.domain(np.zeros(1, np.uint64), np.ones(1, np.uint64))
    write_buckets(tmp_path / "domain.avro", rows)
    state = tmp_path / "state"
    with embedded(keys=maker.keys, clock=maker.clock, state=state) as service:
        asks = ("--service", service.address, "--attribution-report-to", ORIGIN, "--domain", tmp_path / "domain.avro")
        assert run("job", "aggregate", "a", sealed, "--service", service.address, code=2)
        summed = json.loads(run("job", "aggregate", "a", sealed, *asks, "--epsilon", "64", "--json").stdout)
        assert summed["return_code"] == "SUCCESS" and list(summed["facts"][0]) == ["bucket", "metric"]
        write_reports(more, [ReportBatch.of([maker.report({1: 5})]), *read_reports(sealed)])
        refused = run("job", "aggregate", "b", more, *asks, "--epsilon", "64", code=2)
        assert "PRIVACY_BUDGET_EXHAUSTED" in refused.output
        assert refused.output.count(f"{more}, row ") == 3 and "--keep PAYABLE.avro" in refused.output
        keep = tmp_path / "payable.avro"
        given = ("job", "unpaid", "b", "--service", service.address)
        words = run(*given, "--reports", more, "--keep", keep).output
        for row, report in enumerate(reports, start=2):
            name = json.loads(report.shared_info)["report_id"]
            assert f"report {name}: {more}, row {row}" in words
        assert sum(len(one) for one in read_reports(keep)) == 1
        assert [len(one["reports"]) for one in json.loads(run(*given, "--reports", more, "--json").stdout)] == [1, 1, 1]
        assert "reports" not in json.loads(run(*given, "--json").stdout)[0]
        run(*given, "--keep", keep, code=2)
        paid = json.loads(run("job", "aggregate", "c", keep, *asks, "--epsilon", "64", "--json").stdout)
        assert paid["return_code"] == "SUCCESS"
    check = ("ledger", "check", state / "ledger.sqlite", "--caller", "local", "--epsilon", "1", "--reports", more)
    words = run(*check, code=1).output
    assert words.count(f"{more}, row ") == 4
    left = ("ledger", "balance", state / "ledger.sqlite", "--reports", more)
    words = run(*left).output
    assert words.count("  report ") == 4 and f"{more}, row 4" in words
    assert all(len(one["reports"]) == 1 for one in json.loads(run(*left, "--json").stdout)["units"])
    found = json.loads(run(*check, "--json", code=1).stdout)
    assert sorted(one["reports"][0]["row"] for one in found["first"]) == [1, 2, 3, 4]
