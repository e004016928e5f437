"""docs/tracking.md and docs/shuffling.md: their Python runs, their files are there, their numbers are the kept ones."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from aggservice.mechanisms import closed_epsilon, shuffled_epsilon, small_epsilon

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("page, count", [("tracking.md", 3), ("shuffling.md", 3)])
def test_the_examples_run(page: str, count: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), {})  # noqa: S102


@pytest.mark.parametrize("page, least", [("tracking.md", 7), ("shuffling.md", 3)])
def test_every_file_a_page_names_is_there(page: str, least: int) -> None:
    links = re.findall(r"\]\(((?:figures|soak)/[^)]+)\)", (DOCS / page).read_text(encoding="utf-8"))
    assert len(links) >= least
    assert [link for link in links if not (DOCS / link).is_file()] == []


def rows(name: str) -> list[dict[str, str]]:
    with (DOCS / "figures" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_kept_figure_1_meets_the_paper_and_the_page() -> None:
    found = {int(row["reports"]): row for row in rows("tracking-1.csv")}
    assert list(found) == list(range(2, 16))
    assert 4.7 <= float(found[7]["percentile_90"]) <= 5.5
    text = (DOCS / "tracking.md").read_text(encoding="utf-8")
    number = r"(\d+\.\d+)"
    entry = rf"{number} \[{number}, {number}\]"
    quoted = re.findall(rf"\| (\d+) \| {entry} \| {entry} \|", text)
    assert [int(line[0]) for line in quoted] == [2, 5, 7, 10, 15]
    for line in quoted:
        kept = list(found[int(line[0])].values())[1:]
        assert [float(value) for value in line[1:]] == pytest.approx([float(value) for value in kept], abs=6e-4)
    for row in found.values():
        for kind in ("median", "percentile_90"):
            assert float(row[f"{kind}_low"]) <= float(row[kind]) <= float(row[f"{kind}_high"])


def test_the_kept_exact_values_lie_between_their_bounds() -> None:
    found = rows("tracking-bitwise.csv")
    assert len(found) == 36
    for row in found:
        assert float(row["at_least"]) <= float(row["exact"]) <= float(row["theorem_13"])


def test_the_kept_amplification_is_in_order() -> None:
    found = rows("shuffling.csv")
    assert len(found) == 40
    for row in found:
        local, numerical, closed = (float(row[key]) for key in ("epsilon_local", "any_randomizer", "closed"))
        assert numerical <= min(local, closed) * (1 + 1e-5)
        assert float(row["response_of_16"]) <= numerical * (1 + 1e-5)
        if row["exact_binary"]:
            assert float(row["exact_binary"]) <= numerical * (1 + 1e-5)
    text = (DOCS / "shuffling.md").read_text(encoding="utf-8")
    for row in found:
        if row["reports"] == "1000000":
            assert f"| {float(row['any_randomizer']):.4g} | {float(row['response_of_16']):.4g} |" in text


def test_the_page_quotes_what_the_functions_say() -> None:
    text = (DOCS / "shuffling.md").read_text(encoding="utf-8")
    at = (0.3, 10_000, 1e-6)
    for value, digits in (
        (closed_epsilon(*at), 4),
        (small_epsilon(*at), 4),
        (shuffled_epsilon(*at), 5),
        (shuffled_epsilon(*at, k=16), 5),
        (shuffled_epsilon(4.0, 100_000, 1e-6), 4),
    ):
        assert f"{value:.{digits}f}" in text
