"""The pages about the browser, event-level reports and fleets say what is true: their examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("ara_client.md", 50), ("event_level.md", 30), ("fleet.md", 12)])
def test_page_runs(page: str, examples: int) -> None:
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False)
    assert tried >= examples
    assert failed == 0
