"""docs/limits.md: each thing that is not protected has an example that runs, and a number."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"


def test_the_examples_run() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 50


def test_every_row_has_a_section_with_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.+?\]\(#([\w-]+)\) \| .+ \|$", text, re.MULTILINE)
    sections = dict(re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections.pop("Elsewhere")
    slugs = {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-"): body for name, body in sections.items()}
    assert listed == list(slugs) and len(listed) == 14
    assert all(">>> " in body for body in slugs.values())
