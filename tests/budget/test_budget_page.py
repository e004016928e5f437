"""The example on the page runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "budget.md"


def test_the_example_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(examples) == 1
    exec(compile(examples[0], str(PAGE), "exec"), {})  # noqa: S102 - our own page
    assert {path.name for path in tmp_path.iterdir()} >= {"ledger.db", "ledger.key"}
