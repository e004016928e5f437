"""``transcript.json`` of a run: the columns agree with the plain computation and with the ledger."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.campaign import RunResult, parse_campaign, run_campaign
from aggservice.campaign.assess.losses import (
    ContributionBounds,
    PrivacyLoss,
    QueryPrice,
    ReportTruth,
    query_losses,
    total_losses,
)
from aggservice.campaign.assess.run_losses import Balances, UnitColumns, run_transcript, unit_keys
from aggservice.campaign.errors import CampaignFileError
from aggservice.commands.campaigns.run import show
from aggservice.wire import Api, SharedInfo, read_reports
from aggservice.wire.report.units import report_unit, shared_id_unit

TEXT = """
name = "losses"
[population]
size = 300
days = 3
impressions = { name = "poisson", mean = 2 }
conversion_rate = 0.5
conversions = { name = "geometric", mean = 2.0 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
name = "purchases"
of = "count"
scale = 9000
[client]
form = "FORM"
[collection]
batch_hours = 24
lost = 0.05
retried = 0.1
[service]
epsilon = "30"
unit = "UNIT"
[[queries]]
name = "rolling"
over = "rolling"
window = 2
epsilon = "9"
[[queries]]
name = "found"
over = "each"
discovery = true
delta = "0.000001"
epsilon = "2.000001"
others_epsilon = "1"
[[queries]]
name = "daily"
over = "each"
epsilon = "9"
"""


def run(tmp_path: Path, form: str = "deployed", unit: str = "report") -> tuple[RunResult, dict[str, Any]]:
    text = TEXT.replace("FORM", form).replace("UNIT", unit)
    result = run_campaign(parse_campaign(text, folder=tmp_path), tmp_path / "out", workers=1, draw=False)
    return result, json.loads((tmp_path / "out" / "transcript.json").read_text())


def plain_totals(result: RunResult) -> dict[str, PrivacyLoss]:
    """Recompute every loss report by report, from the truth."""
    reports, collected, client = result.truth.reports, result.truth.collected, result.campaign.client
    assert reports.unit is not None
    sent = []
    for row in range(len(reports)):
        values = reports.value[int(reports.offset[row]) : int(reports.offset[row + 1])].tolist()
        contributions = tuple((0, value) for value in values if value)
        sent.append(ReportTruth(report_id=str(row), unit=f"source {reports.unit[row]}", contributions=contributions))
    rounds = []
    for answer in result.answers:
        if answer.paid:
            query = answer.job.query
            price = QueryPrice(
                epsilon_micro=int((Fraction(query.epsilon) + Fraction(query.others_epsilon or "0")) * 10**6),
                delta_atto=int(Fraction(query.delta) * 10**18) if query.discovery else 0,
            )
            rows = [int(row) for batch in answer.job.batches for row in collected.rows[batch]]
            rounds.append(
                query_losses(price, [sent[row] for row in rows], ContributionBounds(l1=client.l1, l0=client.l0))
            )
    return total_losses(rounds)


@pytest.mark.parametrize(("form", "unit"), [("deployed", "report"), ("paper", "report"), ("deployed", "shared-id")])
def test_a_runs_transcript_is_the_truth_and_the_ledger(tmp_path: Path, form: str, unit: str) -> None:
    result, transcript = run(tmp_path, form, unit)
    assert [one["outcome"] for one in transcript["rounds"]] == [
        "released" if answer.paid else "PRIVACY_BUDGET_EXHAUSTED" for answer in result.answers
    ]
    totals = plain_totals(result)
    assert transcript["units"] >= len(totals) > 50
    for one in transcript["largest_losses"]:
        loss = totals.get(one["unit"], PrivacyLoss())
        assert (one["lost"]["epsilon_exact"], one["lost"]["delta_exact"]) == (str(loss.epsilon), str(loss.delta))
        if unit == "report":
            assert one["charged_by_share"] == one["lost"]
    losses = [Fraction(one["lost"]["epsilon_exact"]) for one in transcript["largest_losses"]]
    assert losses == sorted(losses, reverse=True) and losses[0] == max(loss.epsilon for loss in totals.values())
    with (tmp_path / "out" / "losses.csv").open() as stream:
        table = list(csv.DictReader(stream))
    whole = [row for row in table if row["t"] == "all"]
    assert len(whole) == transcript["units"]
    for row in whole:
        loss = totals.get(row["unit"], PrivacyLoss())
        assert float(row["epsilon"]) == pytest.approx(float(loss.epsilon), rel=1e-8)
        assert unit != "report" or (row["epsilon"], row["delta"]) == (row["epsilon_charged"], row["delta_charged"])
        rounds = [one for one in table if one["unit"] == row["unit"] and one["t"] != "all"]
        assert sum(float(one["epsilon"]) for one in rounds) == pytest.approx(float(loss.epsilon), rel=1e-7)
        assert sum(float(one["delta"]) for one in rounds) == pytest.approx(float(loss.delta), rel=1e-7)
    assert transcript["units_past_the_limit"] == transcript["units_undercharged"] == 0
    assert transcript.get("units_charged_otherwise", 0) == 0
    assert ("units_charged_otherwise" in transcript) == (unit == "report")


def test_units_that_were_charged_too_little_or_lost_too_much_are_counted(tmp_path: Path) -> None:
    """Balances of a ledger that forgot ε, δ or nothing, and limits below what some units lost, each by itself."""
    result, _ = run(tmp_path)
    totals, columns = plain_totals(result), UnitColumns.of(result.truth)
    assert columns is not None
    nothing = np.zeros(columns.report.size, dtype=np.int64)
    plenty = nothing + 10**9
    for loss, delta, under in (
        (nothing, plenty, [one for one in totals.values() if one.epsilon]),
        (plenty, nothing, [one for one in totals.values() if one.delta]),
        (plenty, plenty + 10**15, []),
    ):
        balances = Balances(loss_micro=loss, delta_atto=delta, fresh=False)
        table = tmp_path / "losses.csv"
        found = run_transcript(result.campaign, result.truth, result.answers, balances, table)
        assert found["units_undercharged"] == len(under)
    half_epsilon = max(float(one.epsilon) for one in totals.values()) / 2
    half_delta = max(float(one.delta) for one in totals.values()) / 2
    for epsilon, delta in ((f"{half_epsilon:.6f}", "0.1"), ("64", f"{half_delta:.18f}")):
        limits = replace(result.campaign.service, epsilon=epsilon, delta=delta)
        found = run_transcript(replace(result.campaign, service=limits), result.truth, result.answers, None, table)
        limit = PrivacyLoss(Fraction(epsilon), Fraction(delta))
        past = sum(one.exceeds(limit) for one in totals.values())
        assert found["units_past_the_limit"] == past > 0


@pytest.mark.parametrize("unit", ["report", "shared-id"])
def test_unit_keys_are_those_of_the_sealed_reports(tmp_path: Path, unit: str) -> None:
    result, _ = run(tmp_path, unit=unit)
    columns = UnitColumns.of(result.truth)
    assert columns is not None
    keys = {
        row.tobytes() for row in unit_keys(result.campaign, result.truth, columns.report, Api.ATTRIBUTION_REPORTING)
    }
    of = report_unit if unit == "report" else shared_id_unit
    sealed = {
        of(SharedInfo.parse(info))
        for path in (tmp_path / "out" / "batches").rglob("*.avro")
        for batch in read_reports(path)
        for info in batch.shared_infos
    }
    received = result.truth.collected.batch[columns.report] >= 0
    mine = {
        row.tobytes()
        for row in unit_keys(result.campaign, result.truth, columns.report[received], Api.ATTRIBUTION_REPORTING)
    }
    assert mine and mine <= sealed and mine <= keys


def test_a_device_within_ten_minutes_is_a_unit_of_private_aggregation(tmp_path: Path) -> None:
    text = """
name = "reach"
[population]
size = 120
days = 2
impressions = { name = "poisson", mean = 4 }
[[keys.fields]]
name = "ad"
values = ["a", "b", "c"]
[client]
kind = "reach"
cap = 2
[[queries]]
name = "twice"
epsilon = "10"
repeat = 2
"""
    result = run_campaign(parse_campaign(text, folder=tmp_path), tmp_path / "out", workers=1, draw=False)
    transcript = json.loads((tmp_path / "out" / "transcript.json").read_text())
    reports = result.truth.reports
    assert reports.unit is not None and len(reports) > 100
    worst = transcript["largest_losses"][0]
    unit = max(set(reports.unit.tolist()), key=lambda one: int(reports.value[reports.unit == one].sum()))
    total = int(reports.value[reports.unit == unit].sum())
    assert Fraction(worst["lost"]["epsilon_exact"]) == Fraction(2 * 10 * total, result.campaign.client.l1)
    assert worst["unit"].startswith("device ") and worst["charged_by_share"] == worst["lost"]
    assert transcript["units_past_the_limit"] == transcript["units_charged_otherwise"] == 0


def both_kinds(tmp_path: Path, size: int) -> tuple[RunResult, dict[str, Any]]:
    """Run the event-level example with summary reports beside its event-level ones."""
    text = (Path(__file__).parents[3] / "examples" / "event_level" / "campaign.toml").read_text(encoding="utf-8")
    text = text.replace('kind = "event-level"', 'kind = "attribution"').replace("size = 20_000", f"size = {size}")
    text += '\n[[measures]]\nname = "sales"\nof = "count"\nscale = 7001\n[[queries]]\nname = "all"\nepsilon = "3.1"\n'
    text += '[[queries]]\nname = "weekly"\nover = "each"\nepsilon = "2"\n[collection]\nbatch_hours = 168\n'
    campaign = parse_campaign(text, folder=tmp_path)
    result = run_campaign(campaign, tmp_path / "out", seed="both", workers=1)
    return result, json.loads((tmp_path / "out" / "transcript.json").read_text())


def test_one_loss_per_source_over_event_level_and_summary_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Theorem 5.1 and the paper's ε_{x,t} add up: ε = 5 whatever happens, and a share of each summary."""
    result, transcript = both_kinds(tmp_path, 300)
    summed = plain_totals(result)
    assert len(summed) > 30 and transcript["units"] == len(summed)
    shown = {one["unit"]: one for one in transcript["largest_losses"]}
    assert shown.keys() == summed.keys()
    for unit, loss in summed.items():
        assert Fraction(shown[unit]["lost"]["epsilon_exact"]) == loss.epsilon > 0
        assert Fraction(shown[unit]["event_level"]["epsilon_exact"]) == 5
        assert Fraction(shown[unit]["together"]["epsilon_exact"]) == loss.epsilon + 5
    most = max(loss.epsilon for loss in summed.values()) + 5
    ads = len(result.truth.events.impressions)
    assert transcript["event_level"]["sources"] == ads > len(summed)
    assert Fraction(transcript["event_level"]["largest_loss"]["together"]["epsilon_exact"]) == most
    with (tmp_path / "out" / "losses.csv").open(encoding="utf-8", newline="") as stream:
        lines = {row["unit"]: row for row in csv.DictReader(stream) if row["t"] == "together"}
    assert {unit: float(row["epsilon"]) for unit, row in lines.items()} == pytest.approx(
        {unit: float(loss.epsilon) + 5 for unit, loss in summed.items()}, rel=1e-8
    )
    page = result.report.read_text(encoding="utf-8")
    assert f"ε = {float(most):.9g}, δ = 0 together" in page
    assert f"Each of {ads:,} sources loses ε = 5 by its event-level reports" in page
    plain = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert plain["losses"]["together"] == f"{float(most):.9g}"
    assert plain["queries"][-1]["name"] == "event-level" and plain["queries"][-1]["epsilon"] == "5"
    with (tmp_path / "out" / "labels.csv").open(encoding="utf-8") as stream:
        assert sum(1 for _ in stream) == ads + 1
    show(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"with summary reports it is at most ε = {float(most):.9g} (source " in printed
    assert f"{plain['reports']['event_level']:,} event-level reports" in printed


def test_event_level_reports_of_an_attribution_campaign_need_its_api(tmp_path: Path) -> None:
    text = TEXT.replace("FORM", "deployed").replace("UNIT", "report")
    kinds = "\n[client.windows_days]\na = [1]\n[client.buckets]\na = [1]\n[collection]"
    with pytest.raises(CampaignFileError, match="field"):
        parse_campaign(text.replace("[collection]", kinds), folder=tmp_path)
    paa = text.replace('form = "deployed"', 'api = "paa"\nfield = "ad"')
    with pytest.raises(CampaignFileError, match=r"field|windows_days"):
        parse_campaign(paa.replace("[collection]", kinds), folder=tmp_path)
    text = (Path(__file__).parents[3] / "examples" / "event_level" / "campaign.toml").read_text(encoding="utf-8")
    text = text.replace('kind = "event-level"', 'kind = "attribution"')
    with pytest.raises(CampaignFileError, match="Write another name"):
        parse_campaign(text + '[[queries]]\nname = "event-level"\nepsilon = "1"\n', folder=tmp_path)
