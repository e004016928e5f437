"""The Python in docs/wire.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "wire.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/wire.md", "exec"), {})  # noqa: S102
