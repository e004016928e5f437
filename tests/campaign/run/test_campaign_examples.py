"""Every example runs, at a small size, and shows what its README says it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggservice.campaign import RunResult, load_campaign, run_campaign
from aggservice.campaign.columns import Fate
from aggservice.campaign.compare import run_comparison
from aggservice.campaign.file.campaign import campaign_of
from aggservice.wire import read_reports
from small_examples import EXAMPLES, NAMES, smaller


def run_small(name: str, tmp_path: Path, *, draw: bool = False) -> RunResult:
    result = run_campaign(smaller(name, 500), tmp_path / name, seed=f"test {name}", workers=1, draw=draw)
    assert all(one.adds_up for found in result.assessments for one in found.waterfalls)
    return result


def test_there_are_nine_and_each_has_its_page() -> None:
    assert NAMES == [
        "event_level",
        "key_discovery",
        "late_reports",
        "paper_figure_2",
        "reach_and_frequency",
        "rolling_window",
        "thanksgiving",
        "three_apis",
        "training_labels",
    ]
    for name in NAMES:
        page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        assert "picture.png" in page and (EXAMPLES / name / "picture.png").stat().st_size > 5_000
        assert f"aggservice run examples/{name}/campaign.toml" in page


def test_thanksgiving_with_its_report(tmp_path: Path) -> None:
    result = run_small("thanksgiving", tmp_path, draw=True)
    page = result.report.read_text(encoding="utf-8")
    assert page.count("<svg") == len(list((result.out / "plots").glob("*.svg"))) >= 3
    assert "<script" not in page and "src=" not in page
    (found,) = result.assessments
    assert {row.names["product"] for row in found.slices} == {"sneakers", "sandals", "flip-flops", "hats"}
    assert all(row.truth == 0 for row in found.slices if row.names["product"] == "hats")
    assert found.remaining == {"epsilon": "54", "delta": "0.00001"}


def test_reach_and_frequency(tmp_path: Path) -> None:
    result = run_small("reach_and_frequency", tmp_path)
    (found,) = result.assessments
    truth = {(row.names["campaign"], row.names["views"]): row.truth for row in found.slices}
    assert len(truth) == 9
    assert truth["Thanksgiving", "1+ views"] > truth["Thanksgiving", "2+ views"] > truth["Thanksgiving", "5+ views"]


def test_figure_2_of_the_paper(tmp_path: Path) -> None:
    """The paper, 2.1.3: shoes and pants are sent, jackets are over budget, shirts are sent, shoes again are null."""
    campaign = load_campaign(EXAMPLES / "paper_figure_2" / "campaign.toml")
    result = run_campaign(campaign, tmp_path / "out", seed="figure 2", workers=1, draw=False)
    names, half = campaign.keys.field("campaign").values, campaign.client.l1 // 2
    reports = result.truth.reports
    sent = [
        [(names[int(reports.key_low[at])], int(reports.value[at])) for at in range(*reports.offset[row : row + 2])]
        for row in range(len(reports))
    ]
    assert sent == [[("shoes", half)], [("pants", half)], [], [("shirts", half)], []]
    assert reports.null.tolist() == [False, False, True, False, True]
    (found,) = result.assessments
    assert {row.names["campaign"]: row.sent for row in found.slices} == {
        "shoes": half, "pants": half, "jackets": 0, "shirts": half,
    }  # fmt: skip
    fates = result.truth.items.fate.tolist()
    assert fates.count(Fate.CAPPED_L1) == 1 and len(fates) == 4
    assert found.paid and result.metrics.reports.null == 2
    sealed = [one for path in (result.out / "batches").rglob("*.avro") for one in read_reports(path)]
    assert sum(len(one) for one in sealed) == 5


def test_event_level_counts_and_labels(tmp_path: Path) -> None:
    result = run_small("event_level", tmp_path)
    (found,) = result.assessments
    assert len(found.slices) == 4
    assert "27 possible combinations" in found.statement
    rows = (result.out / "labels.csv").read_text().splitlines()
    assert len(rows) == 1 + len(result.truth.events.impressions)


def test_training_labels(tmp_path: Path) -> None:
    result = run_small("training_labels", tmp_path)
    model = result.metrics.model
    assert model is not None and model.distance_corrected < model.distance_noisy


def test_key_discovery(tmp_path: Path) -> None:
    result = run_small("key_discovery", tmp_path)
    (found,) = result.assessments
    assert found.discovery is not None
    assert found.discovery.precision in (None, 1.0)
    assert found.discovery.left_out_keys == found.discovery.true_keys - found.discovery.released


def test_rolling_window_spends_the_budget_to_the_last(tmp_path: Path) -> None:
    result = run_small("rolling_window", tmp_path)
    assert [one.job for one in result.assessments if not one.paid] == ["one-too-many-all"]
    whole = next(one for one in result.assessments if one.query == "whole period")
    assert whole.remaining["epsilon"] == "0"


@pytest.mark.parametrize("policy", ["drop", "next"])
def test_late_reports(tmp_path: Path, policy: str) -> None:
    campaign = smaller("late_reports", 500)
    document = {**campaign.document, "collection": {**campaign.document["collection"], "late_reports": policy}}
    result = run_campaign(
        campaign_of(document, folder=campaign.folder), tmp_path / "late", seed="late", workers=1, draw=False
    )
    month = next(one for one in result.assessments if one.query == "month")
    daily = [one for one in result.assessments if one.query == "daily"]
    assert len(daily) == 30 and all(one.adds_up for found in result.assessments for one in found.waterfalls)
    assert sum(one.waterfalls[0].happened for one in daily) == month.waterfalls[0].happened
    late = result.metrics.reports.late
    assert late > 0 if policy == "drop" else late < 5


def test_three_apis_count_the_same_purchases(tmp_path: Path) -> None:
    found = run_comparison(smaller("three_apis", 400), tmp_path / "three", seed="test three_apis", draw=False)
    happened = {api: run.assessments[0].waterfalls[0].happened for api, run in found.runs.items()}
    assert set(happened) == {"ara", "paa", "w3c"} and len(set(happened.values())) == 1
    lost = found.runs["w3c"].assessments[0].waterfalls[0].conversions
    assert lost[Fate.SITE_BUDGET] > 0 and all(one.adds_up for one in found.runs["w3c"].assessments[0].waterfalls)
