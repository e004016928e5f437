"""What a job covers: the table of units is the one in the docs, and every API has a row."""

from __future__ import annotations

from pathlib import Path

from aggservice.engine.opening.coverage import PROTECTED
from aggservice.wire import Api

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"


def test_every_api_has_a_row_in_the_table_of_the_docs() -> None:
    page = PAGE.read_text()
    assert set(PROTECTED) == set(Api)
    for api, row in PROTECTED.items():
        line = f"| `{api.value}` | {row.unit} | {row.moves} | {row.bounded_by} | `{row.shown_by}` |"
        assert line in page, line


def test_the_tests_that_the_table_names_exist() -> None:
    for row in PROTECTED.values():
        assert (PAGE.parents[1] / row.shown_by).is_file(), row.shown_by
