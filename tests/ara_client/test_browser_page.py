"""The page about the browser says what is true: its examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_page_runs() -> None:
    failed, tried = doctest.testfile(str(DOCS / "ara_client.md"), module_relative=False)
    assert tried >= 50
    assert failed == 0
