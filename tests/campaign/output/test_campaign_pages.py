"""What docs/campaign.md shows is run, and its table of the browser names every field that is read."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from aggservice.campaign.settings.device import DEVICES

ROOT = Path(__file__).parents[3]


def test_the_page_runs() -> None:
    failed, ran = doctest.testfile(str(ROOT / "docs" / "campaign.md"), module_relative=False)
    assert ran >= 6 and failed == 0


def test_the_page_names_every_field_of_the_browser() -> None:
    """The tables of the other settings are generated: tests/files compares them."""
    page = (ROOT / "docs" / "campaign.md").read_text(encoding="utf-8")
    fields = {key for name in DEVICES for key in DEVICES[name].settings_keys()}
    fields |= {"kind", "api", "windows_days", "buckets", "field", "epsilon", "reports_a_source"}
    assert len(fields) > 20
    missing = {field for field in fields if not re.search(rf"\b{field}\b", page)}
    assert missing == set()
