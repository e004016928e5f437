"""Every example of the pages about Private Aggregation runs and says what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["paa_client.md", *sorted(str(path.relative_to(DOCS)) for path in (DOCS / "recipes").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_true(page: str) -> None:
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, verbose=False)
    assert failed == 0
    assert tried > 4 or page == "recipes/README.md"


def test_each_recipe_has_its_page() -> None:
    assert len(PAGES) == 9
    index = (DOCS / "recipes" / "README.md").read_text()
    for page in PAGES[1:]:
        name = page.removeprefix("recipes/")
        assert name == "README.md" or f"]({name})" in index
