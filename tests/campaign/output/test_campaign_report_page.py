"""What ``report.html`` says: verdicts, what was sent beside the truth, both units, and no total over shared batches."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aggservice import __version__
from aggservice.campaign import RunResult, parse_campaign, run_campaign
from aggservice.campaign.output.page import GOOD, number, percent, verdicts_of, write_report

CAMPAIGN = """
name = "page"
[population]
size = 1_500
days = 4
conversion_rate = 0.6
value = { name = "lognormal", median = 50, sigma = 1 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 600
scale = 100
[collection]
batch_hours = 24
lost = 0.1
[service]
epsilon = "50"
[[queries]]
name = "windows"
over = "rolling"
window = 2
epsilon = "20"
[[queries]]
name = "daily"
over = "each"
epsilon = "0.01"
[[queries]]
name = "too much"
over = "all"
epsilon = "50"
"""


class Tables(HTMLParser):
    """Collects the cells of all tables, and the text of each element with a class."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.boxes: list[tuple[str, str]] = []
        self._cell: list[str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self._cell = []
        elif dict(attrs).get("class") in ("note", "guarantee"):
            self.boxes.append((str(dict(attrs)["class"]), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            assert self._cell is not None
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        elif self.boxes:
            self.boxes[-1] = (self.boxes[-1][0], self.boxes[-1][1] + data)

    def headed(self, first: str) -> list[list[str]]:
        """The rows of the first table whose first head starts so."""
        return next(one for one in self.tables if one[0][0].startswith(first))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("page")
    campaign = parse_campaign(CAMPAIGN, folder=folder, file="somewhere/spring/ads.toml")
    return run_campaign(campaign, folder / "out", seed="page", workers=1, unsealed=True)


@pytest.fixture(scope="module")
def page(run: RunResult) -> str:
    return run.report.read_text(encoding="utf-8")


def test_the_table_of_slices_shows_what_was_sent_and_marks_truths_outside(run: RunResult, page: str) -> None:
    rows = Tables(page).headed("slice")
    assert rows[0] == ["slice", "truth", "sent", "estimate", "95 % interval of what was sent", "relative error"]
    shown = run.metrics.jobs_of("windows")[-1].slices
    scales = {"purchases": 4096, "money": 100}
    outside = 0
    for cells, one in zip(rows[1:], shown, strict=True):
        sent = one.sent / scales[one.measure]
        assert abs(float(cells[2].replace(",", "")) - sent) <= 0.5
        assert cells[1].endswith("*") == (not one.low <= one.truth <= one.high)
        outside += cells[1].endswith("*")
    assert outside >= 1, "a tenth of the reports is lost: some truth must lie outside"
    assert f"* marks {outside} of {len(shown)} truths outside" in page
    assert "The truth may lie outside" in page


def test_both_units_are_shown(run: RunResult, page: str) -> None:
    measures = run.metrics.queries[0].measures
    statement = next(one.statement for one in run.answers if one.job.query.name == "windows")
    assert statement is not None
    for one in measures:
        assert one.half_width == statement.interval_half_width / float(Fraction(one.scale))
    assert (
        f"±{number(measures[1].half_width)} money (± {statement.interval_half_width:,} divided by the scale 100)"
        in page
    )


def test_a_run_from_a_seed_promises_nothing_in_green(page: str) -> None:
    boxes = Tables(page).boxes
    assert any("NOT PRIVATE" in text and kind == "note" for kind, text in boxes)
    assert not any("private" in text.lower() for kind, text in boxes if kind == "guarantee")


def test_jobs_that_share_batches_are_not_added_up(run: RunResult, page: str) -> None:
    windows, daily, _ = run.metrics.queries
    last = run.metrics.jobs_of("windows")[-1]
    assert windows.totals_of == last.job and windows.jobs == 3
    assert [one.waterfall for one in windows.measures] == list(last.waterfalls)
    assert [one.truth for one in windows.measures] == [one.truth for one in last.figures]
    assert daily.totals_of == "" and daily.measures[0].truth == sum(
        job.figures[0].truth for job in run.metrics.jobs_of("daily")
    )
    assert daily.measures[0].waterfall is not None
    assert daily.measures[0].waterfall.happened == run.metrics.events.conversions
    heads = [one[0][0] for one in Tables(page).tables]
    assert f"Job {last.job}" in heads and heads.count("In all") == 2


def test_verdicts_and_hints(run: RunResult, page: str) -> None:
    windows, daily, refused = verdicts_of(run.metrics, "ads.toml")
    assert refused.level == "no answer" and "1 of 1 jobs were refused" in refused.hints[0]
    assert windows.level == "usable with care" and "“lost”" in " ".join(windows.hints)
    assert daily.level == "mostly error"
    (needed,) = re.findall(r"Noise of purchases: .*±5% needs ε = ([\d.]+), or fewer", daily.hints[0])
    poor = replace(run.metrics, ledger=replace(run.metrics.ledger, epsilon="2"))
    assert f"{needed}, more than the 2 that a job can have" in verdicts_of(poor, "ads.toml")[1].hints[0]
    query = run.metrics.queries[1].measures[0]
    assert query.half_width is not None
    mean = query.truth / query.slices
    assert float(needed.replace(",", "")) == pytest.approx(0.01 * query.half_width / mean / GOOD, rel=0.01)
    boxes = Tables(page).boxes
    assert [kind for kind, text in boxes if text.startswith(("windows:", "daily:", "too much:"))] == ["note"] * 3


def test_the_top_says_file_date_version_and_epsilon(run: RunResult, page: str, tmp_path: Path) -> None:
    assert "<dd>spring/ads.toml</dd>" in page and "somewhere" not in page
    assert "made from the seed “page”, without a date" in page
    assert f"aggservice {__version__}" in page
    assert "= 20 (windows), 0.01 (daily), 50 (too much); a report has ε = 50, δ = 0.00001 in all" in page
    made = int(datetime(2026, 3, 4, tzinfo=UTC).timestamp() * 1000)
    write_report(run.campaign, replace(run.metrics, private=True), [], tmp_path / "dated.html", made_ms=made)
    assert "<dd>2026-03-04</dd>" in (tmp_path / "dated.html").read_text(encoding="utf-8")


def test_no_number_is_minus_nothing() -> None:
    assert [number(-0.4), number(-0.0, 1), number(-0.04, 1), percent(-0.0001)] == ["0", "0.0", "0.0", "0.0%"]
    assert number(-1234.5, 1) == "-1,234.5" and number(None) == "–"
