"""Metrics are one table: every output loops over it, and no other module knows their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aggservice.campaign import CampaignFileError, parse_campaign, run_campaign
from aggservice.campaign.metrics import METRICS, STANDARD, Metric, SliceColumns, shown_in
from aggservice.campaign.sweep.grid import parse_field
from aggservice.campaign.sweep.output import table_of, write_rows
from aggservice.campaign.sweep.run import run_sweep

ROOT = Path(__file__).resolve().parents[2]
OWN = {
    ("sweep/output.py", "coverage"): "the column of slices.csv",
    ("optimise/errors.py", "rmsre"): "what is minimised",
    ("commands/campaigns/optimise.py", "rmsre"): "what is minimised",
    ("assess/slices.py", "above_noise"): "the column of slices",
    ("assess/event_level.py", "above_noise"): "the column of slices",
    ("studio/static/tune.js", "rmse"): "the sum that explains it",
    ("studio/static/tune.js", "rmsre"): "the sum that explains it, and its curve",
}
"""Where a name stands for something else, or for one metric on purpose."""
FACTS = {"bias", "truth", "estimate", "precision", "recall", "left_out_share", "standard_error"}
"""Names of what jobs, slices and scores have besides; as metrics they are in sweeps alone."""
TINY = """
name = "tiny"
[population]
size = 200
days = 3
conversion_rate = 0.5
delay_days = { name = "exponential", mean = 0.2 }
[[keys.fields]]
name = "ad"
values = ["red", "blue"]
[[measures]]
of = "count"
scale = 32768
[[queries]]
epsilon = "10"
[draw]
metrics = ["own_metric_of_test:LargestError"]
"""


def test_no_other_module_matches_on_the_names_of_metrics() -> None:
    levels = (
        {name for one in map(METRICS.__getitem__, METRICS) for name in (one.name, one.in_job, one.in_query)}
        - {"", "covered"}
        - FACTS
    )
    assert len(levels) == 8
    folders = ("aggservice/campaign", "aggservice/studio", "aggservice/commands/campaigns")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".js")]
    found = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for name in levels:
            if re.search(rf"""["'.]{name}\b(?! import)""", text):
                found.add((str(path.relative_to(ROOT / "aggservice")).removeprefix("campaign/"), name))
    mine = {("metrics.py", name) for name in levels}
    assert found - mine == OWN.keys()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a metric of one's own: the largest error of a slice."""
    (tmp_path / "own_metric_of_test.py").write_text(
        "import numpy as np\n"
        "from aggservice.campaign.metrics import Metric\n"
        "class LargestError(Metric):\n"
        "    name = 'largest_error'\n"
        "    title = 'largest error'\n"
        "    columns = ('truth', 'estimate')\n"
        "    def value(self, slices):\n"
        "        return float(np.max(np.abs(slices.estimate - slices.truth), initial=0.0))\n"
    )
    return tmp_path


def test_a_metric_of_ones_own_reaches_every_output(own: Path) -> None:
    campaign = parse_campaign(TINY, folder=own)
    result = run_campaign(campaign, own / "run", seed="metrics", workers=1, unsealed=True)
    job = result.assessments[0].figures[0]
    largest = max(abs(row.estimate - row.truth) for row in result.assessments[0].slices)
    assert job.values["largest_error"] == pytest.approx(largest)
    plain = result.metrics.to_plain()
    assert plain["queries"][0]["measures"][0]["largest_error"] == pytest.approx(largest)
    assert plain["jobs"][0]["figures"][0]["largest_error"] == pytest.approx(largest)
    assert "largest error" in (own / "run" / "report.html").read_text(encoding="utf-8")
    field = parse_field("queries.0.epsilon=5,10", campaign.document)
    swept = run_sweep(campaign, [field], own / "sweep", seed="metrics")
    write_rows(swept.rows, [field], own / "sweep")
    assert (own / "sweep" / "sweep.csv").read_text(encoding="utf-8").splitlines()[0].endswith(",largest_error")
    assert "largest error" in [column.header for column in table_of(swept.rows, [field], campaign.metrics).columns]


def test_a_name_that_is_not_a_metric_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match=r"line 17: draw.metrics is 'rmsrr'. There is no metric 'rmsrr': did"):
        parse_campaign(TINY.replace("own_metric_of_test:LargestError", "rmsrr"), folder=tmp_path)


def test_the_table_has_every_standard_metric_once() -> None:
    assert [METRICS[name] for name in METRICS][: len(STANDARD)] == list(STANDARD)
    for one in STANDARD:
        assert one.title and one.says and one.places <= Metric.places
        assert set(one.columns) <= set(SliceColumns.__dataclass_fields__)
        assert bool(one.columns) == bool(one.in_job)
    assert [one.name for one in shown_in("report", STANDARD)] == ["coverage", "above_noise", "rmsre"]


def test_intervals_that_hold_the_truth_are_counted_by_a_campaign_that_asks(tmp_path: Path) -> None:
    text = TINY.replace("own_metric_of_test:LargestError", "truth_coverage")
    result = run_campaign(
        parse_campaign(text, folder=tmp_path), tmp_path / "run", seed="held", workers=1, unsealed=True
    )
    found = result.assessments[0]
    held = sum(row.low <= row.truth <= row.high for row in found.slices)
    assert found.slice_count == len(found.slices) and found.figures[0].values["truth_coverage"] == held
    assert result.metrics.queries[0].measures[0].values["truth_coverage"] == held / found.slice_count
    assert "intervals that hold the truth" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
