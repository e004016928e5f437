"""Every example of the page about this package, as it stands there."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_tells_the_truth() -> None:
    failed, tried = doctest.testfile(str(DOCS / "w3c_client.md"), module_relative=False)
    assert failed == 0 and tried > 30
