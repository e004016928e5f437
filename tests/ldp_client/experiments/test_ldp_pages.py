"""The Python in docs/ldp_client.md runs, and the claims it makes in numbers hold."""

from __future__ import annotations

import re
from pathlib import Path

from ldp_client.experiments.loloha import first_micro, variances

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ldp_client.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})  # noqa: S102


def test_exact_ololoha_is_as_close_to_l_osue_as_the_page_says() -> None:
    found = {(micro, alpha, name): value for micro, alpha, name, value in variances()}
    points = {key[:2] for key in found}
    assert len(points) == 60
    for micro, alpha in points:
        ratio = found[micro, alpha, "OLOLOHA-exact"] / found[micro, alpha, "L-OSUE"]
        assert 1 - 1e-9 < ratio < (1.001 if first_micro(micro, alpha) >= 2_000_000 else 1.03)


def test_every_file_the_page_names_is_there() -> None:
    links = re.findall(r"\]\((figures/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) >= 8
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
