"""The page about requerying: its examples run, its files parse, and it names every field there is."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from aggservice.campaign import make_plan
from aggservice.campaign.plan import TARGETS, parse_plan
from aggservice.campaign.requery.file import RETURN_CODES, STEPS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "requerying.md"


def test_the_page_is_true() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    assert failed == 0
    assert tried > 15


def test_the_plan_of_the_page_can_be_made() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(blocks) == 1
    asked = parse_plan(blocks[0])
    assert make_plan(asked.lines, asked.resources).feasible


def test_the_page_names_every_step_target_and_example() -> None:
    text = PAGE.read_text()
    for word in (*STEPS, *RETURN_CODES):
        assert f'"{word}"' in text
    for word in TARGETS:
        assert f"`{word}`" in text
    files = sorted((ROOT / "examples" / "requerying").glob("*.toml"))
    readme = (ROOT / "examples" / "requerying" / "README.md").read_text()
    for path in files:
        assert f"(../examples/requerying/{path.name})" in text and f"({path.name})" in readme


def test_the_figures_of_the_page_are_those_of_the_soak() -> None:
    text, soak = PAGE.read_text(), (ROOT / "docs" / "soak" / "adversaries.txt").read_text()
    for number in re.findall(r": ([\d,]+)$", soak, flags=re.M):
        if int(number.replace(",", "")) > 100 and not number.startswith(("12,", "13,")):
            assert number in text, number
