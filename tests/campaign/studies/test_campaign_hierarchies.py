"""Hierarchies in campaign files: levels add up after least squares, as the dense solution does."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from aggservice.campaign import CampaignFileError, RunResult, parse_campaign, run_campaign

TEXT = """
name = "levels"
[population]
size = 800
days = 4
conversion_rate = 0.5
delay_days = {{ name = "exponential", mean = 0.5 }}
value = {{ name = "lognormal", median = 20, sigma = 0.5 }}
[[keys.fields]]
name = "ad"
values = ["red", "blue"]
[[keys.fields]]
name = "product"
from = "conversion"
values = ["hat", "shoe", "sock"]
[[measures]]
name = "sales"
scale = 8192
[[measures]]
name = "dollars"
of = "value"
most = 100
scale = 200
[collection]
batch_hours = 24
[service]
epsilon = "{limit}"
[[queries]]
name = "whole"
over = "all"
by = ["ad"]
epsilon = "4"
[[queries]]
name = "daily"
over = "each"
by = ["ad"]
epsilon = "8"
[[queries]]
name = "daily by product"
over = "each"
epsilon = "8"
[[hierarchies]]
name = "time and product"
levels = ["whole", "daily", "daily by product"]
"""


def run(tmp_path: Path, *, limit: str = "64", draw: bool = False) -> tuple[RunResult, list[dict[str, str]]]:
    campaign = parse_campaign(TEXT.format(limit=limit), folder=tmp_path)
    found = run_campaign(campaign, tmp_path / "run", seed="levels", workers=1, draw=draw, unsealed=True)
    with (tmp_path / "run" / "hierarchies.csv").open(encoding="utf-8") as stream:
        return found, list(csv.DictReader(stream))


def test_levels_add_up_and_equal_the_dense_solution(tmp_path: Path) -> None:
    """For one ad and measure: 1 + 4 + 12 noisy sums of 12 cells, weighted by their exact variances."""
    found, rows = run(tmp_path)
    assert len(rows) == 2 * 2 * (1 + 4 + 12)
    mine = [row for row in rows if row["slice"].startswith("red") and row["measure"] == "dollars"]
    leaves = [(row["job"][-3:], row["slice"]) for row in mine if row["query"] == "daily by product"]
    design, noisy, weight = [], [], []
    for row in mine:
        day = row["job"][-3:]
        holds = {"whole": lambda one: True, "daily": lambda one, day=day: one[0] == day}.get(
            row["query"], lambda one, row=row, day=day: one == (day, row["slice"])
        )
        design.append([float(holds(one)) for one in leaves])
        noisy.append(float(row["before"]))
        # "whole" and "daily" add up three keys, each with its own noise.
        epsilon, keys = {"whole": (4.0, 3), "daily": (8.0, 3), "daily by product": (8.0, 1)}[row["query"]]
        weight.append(epsilon**2 / keys)
    root = np.sqrt(np.array(weight))
    cells = np.linalg.lstsq(root[:, None] * np.array(design), root * np.array(noisy), rcond=None)[0]
    assert [float(row["after"]) for row in mine] == pytest.approx((np.array(design) @ cells).tolist(), rel=1e-4)
    levels = found.metrics.hierarchies[0].levels
    assert [(one.query, one.measure, one.slices, one.missing) for one in levels] == [
        (query, measure, slices, 0)
        for query, slices in (("whole", 2), ("daily", 8), ("daily by product", 24))
        for measure in ("sales", "dollars")
    ]
    for one in levels:
        assert one.half_width_before is not None and one.half_width_after is not None
        assert one.half_width_after < one.half_width_before
        assert one.covered_after >= 0.75 * one.slices


def test_a_refused_level_is_found_from_the_others(tmp_path: Path) -> None:
    """ε* is enough for both daily queries and not for the whole, which is asked for last."""
    found, rows = run(tmp_path, limit="16")
    whole = [one for one in found.metrics.hierarchies[0].levels if one.query == "whole"]
    assert [(one.missing, one.found, one.rmse_before) for one in whole] == [(2, 2, None)] * 2
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        if row["query"] == "daily":
            sums[row["slice"], row["measure"]] += float(row["after"])
    for row in rows:
        if row["query"] == "whole":
            assert row["before"] == "" and float(row["after"]) == pytest.approx(sums[row["slice"], row["measure"]])


def test_report_and_picture(tmp_path: Path) -> None:
    run(tmp_path, draw=True)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Hierarchy: time and product" in page and "before and after least squares" in page
    assert (tmp_path / "run" / "plots" / "hierarchy-time-and-product-dollars.svg").is_file()
    plain = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert plain["hierarchies"][0]["levels"][0]["query"] == "whole"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('levels = ["whole", "daily"', 'levels = ["daily", "whole"', 'Put over = "all" first'),
        ('over = "each"\nby = ["ad"]', 'over = "rolling"\nwindow = 2\nby = ["ad"]', "has windows that overlap"),
        ('over = "all"\nby = ["ad"]', 'over = "all"\nby = ["product"]', "whose slices it does not divide"),
        ('by = ["ad"]\nepsilon = "8"', 'by = ["ad"]\nrepeat = 2\nepsilon = "8"', "which repeats"),
        ('"daily by product"]', '"weekly"]', "Did you mean|Write"),
        ('levels = ["whole", "daily", "daily by product"]', 'levels = ["whole"]', "two queries or more"),
    ],
)
def test_what_does_not_add_up_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = TEXT.format(limit="64")
    assert old in text
    with pytest.raises(CampaignFileError, match=message):
        parse_campaign(text.replace(old, new), folder=tmp_path)
