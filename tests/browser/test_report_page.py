"""``report.html`` and ``comparison.html`` in a real browser: quiet, accessible in light and dark, nothing cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggservice.campaign import parse_campaign, run_campaign
from aggservice.campaign.compare import run_comparison, write_comparison

from .devtools import Chromium, Page
from .test_studio_page import _AXE

WIDTHS = (1280, 400)
MIN_FONT_PX = 12.0
DRAWN_WIDTH_PT, DRAWN_FONT_PT = 691.2, 11.0
#: Screenshots are kept when this names a folder.
_KEEP = os.environ.get("AGGSERVICE_SCREENSHOTS")
_BOXES = """[...document.querySelectorAll('figure svg')].map((one) => {
  const box = one.getBoundingClientRect(); return [box.width, box.height]; })"""
_CUT = """[...document.querySelectorAll('table, figure svg')].filter((one) =>
  one.getBoundingClientRect().right > innerWidth && getComputedStyle(one.closest('.scroll') ?? document.body).overflowX
  !== 'auto').length"""

CAMPAIGN = """
name = "A page to read"
description = "Two measures, four days, some reports lost."
[population]
size = 400
days = 4
conversion_rate = 0.5
value = { name = "lognormal", median = 50, sigma = 1 }
[[keys.fields]]
name = "ad"
values = ["a rather long name of an advertisement", "b"]
[[measures]]
name = "purchases"
of = "count"
scale = 4096
[[measures]]
name = "money"
of = "value"
most = 100
scale = 100
[collection]
lost = 0.1
[[queries]]
epsilon = "{epsilon}"
"""


@pytest.fixture(scope="module")
def browser(build: Path) -> Iterator[Chromium]:
    with Chromium() as running:
        yield running


@pytest.fixture(scope="module")
def reports(build: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A private report with a good verdict, one from a seed that is mostly error, and a comparison."""
    folder = tmp_path_factory.mktemp("reports")
    good = parse_campaign(CAMPAIGN.replace("{epsilon}", "60"), folder=folder, file="spring/good.toml")
    bad = parse_campaign(CAMPAIGN.replace("{epsilon}", "0.1"), folder=folder, file="spring/bad.toml")
    compared = run_comparison(good, folder / "compared", ("ara", "w3c"), seed="page")
    return {
        "good": run_campaign(good, folder / "good", workers=1, unsealed=True).report,
        "bad": run_campaign(bad, folder / "bad", workers=1, unsealed=True, seed="page").report,
        "compared": write_comparison(compared),
    }


def check_colours(page: Page, axe: str) -> None:
    """The checker's rules hold, the contrast of text among them."""
    page.evaluate(f"{axe}; 0")
    assert page.evaluate(_AXE) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["good", "bad", "compared"])
def test_the_report_opens_without_a_word(
    browser: Chromium, reports: dict[str, Path], axe: str, name: str, width: int
) -> None:
    address = reports[name].resolve().as_uri()
    page = browser.open_page()
    page.resize(width, 900)
    page.navigate(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "only tables and pictures scroll"
    assert page.evaluate(_CUT) == 0
    sizes = page.evaluate(_BOXES)
    assert len(sizes) >= (1 if name == "compared" else 4)
    for wide, high in sizes:
        assert high > 100
        assert name == "compared" or width < 1280 or DRAWN_FONT_PT * wide / DRAWN_WIDTH_PT >= MIN_FONT_PX
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        check_colours(page, axe)
        if _KEEP:
            page.screenshot(Path(_KEEP) / f"report-{name}-{width}-{scheme}.png", whole=True)
    assert page.console == []
    assert [url for _, url in page.requests if not url.startswith("data:")] == [address]
    page.close()
