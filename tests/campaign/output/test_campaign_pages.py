"""What docs/campaign.md shows is run, and its table names every field that the parser takes."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_runs() -> None:
    failed, ran = doctest.testfile(str(ROOT / "docs" / "campaign.md"), module_relative=False)
    assert ran >= 6 and failed == 0


def test_the_page_names_every_field() -> None:
    page = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
    paths = sorted((ROOT / "aggservice" / "campaign" / "file").glob("*.py"))
    source = "".join(path.read_text(encoding="utf-8") for path in paths)
    readers = "text|whole|number|exact|amount|flag|texts|choice|time_ms|file_path|section|sections|take"
    called = rf"\.(?:{readers})\(\s*\"(\w+)\""
    fields = set(re.findall(called, source)) | set(re.findall(r'distribution\(\s*section, "(\w+)"', source))
    assert len(fields) > 60
    missing = {field for field in fields if not re.search(rf"\b{field}\b", page)}
    assert missing == set()
