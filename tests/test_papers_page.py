"""docs/paper.md: each row names a function that exists and a test or command that exists; its examples run."""

from __future__ import annotations

import ast
import doctest
import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from aggservice.commands import Program

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "paper.md"
HEADER = "| item | what it says | function | shown by | number |"


def rows(text: str) -> list[tuple[str, list[str]]]:
    """Return (section, cells) of every row of every table with the page's header."""
    found, section, inside = [], "", False
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        inside = line == HEADER or (inside and line.startswith("|"))
        if inside and line != HEADER and not line.startswith("| ---"):
            found.append((section, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]))
    return found


@lru_cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def problem_with_function(name: str) -> str | None:
    """Return what is wrong with ``module:name``, or None."""
    module, _, attributes = name.partition(":")
    if not attributes:
        return f"{name} is not written as module:name"
    try:
        found: Any = import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        return f"{name}: {error}"
    return None


def problem_with_runnable(name: str) -> str | None:
    """Return what is wrong with a test ``path::function`` or with a command ``aggservice …``, or None."""
    if name.startswith("aggservice "):
        words = [word for word in name.split()[1:] if not word.startswith("-")]
        command: Any = Program.load(words[0]) if words[0] in Program.table else None
        if command is not None and hasattr(command, "commands"):
            command = command.commands.get(words[1]) if len(words) > 1 else None
        return None if command is not None else f"there is no command {name}"
    path, _, function = name.partition("::")
    if path.startswith("tests/browser/"):
        return f"{path} runs neither in make test nor in make soak"
    if not function.startswith("test_"):
        return f"{name} is neither a command nor written as path::test_name"
    if not (ROOT / path).is_file():
        return f"there is no file {path}"
    return None if function in functions_of(ROOT / path) else f"{path} has no {function}"


def problems(text: str) -> list[str]:
    """Return every fault of the page's tables."""
    found = []
    for section, cells in rows(text):
        where = f"{section}, {cells[0]}"
        if len(cells) != 5 or not all(cells):
            found.append(f"{where}: a row has five cells")
            continue
        functions, runnables = (re.findall(r"`([^`]+)`", cell) for cell in cells[2:4])
        pages = re.findall(r"\]\(([\w.]+)\)", cells[2])
        if not (functions or pages) or not any(one.startswith("tests/") for one in runnables):
            found.append(f"{where}: names no function, or no test")
        told = [*map(problem_with_function, functions), *map(problem_with_runnable, runnables)]
        told += [None if (PAGE.parent / page).is_file() else f"there is no page {page}" for page in pages]
        found += [f"{where}: {one}" for one in told if one]
    return found


def test_the_examples_run() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 100


def test_every_row_names_something_that_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert problems(text) == []
    assert len(rows(text)) >= 80


ITEMS = {
    "Privacy Sandbox reports": {
        "Algorithm": "1 2 3 4 5 6 7 8 9",
        "Definition": "3.1 3.2 3.4 3.5 3.6 4.1 4.8 4.10 B.1",
        "Theorem": "4.2 4.3 4.5 5.1",
        "Corollary": "4.4 4.6 5.3",
        "Lemma": "4.9 4.11 A.1 B.2",
        "Fact": "3.3 4.7 5.2",
        "Remark": "2.1 2.2 2.3 3.7",
        "Figure": "1 2 3",
        "Table": "1 2",
        "Equation": "1",
    },
    "LOLOHA": {
        "Algorithm": "1 2",
        "Definition": "2.1 3.2",
        "Proposition": "2.2 2.3 3.6",
        "Theorem": "3.1 3.3 3.4 3.5",
        "Figure": "1 2 3 4",
        "Table": "1 2",
        "Equation": "1 2 3 4 5 6 7 8",
    },
    "RAPPOR": {"Observation": "1"},
    "Tracking": {
        "Definition": "1 3 5 6 7 8 9 10 11 15 18",
        "Theorem": "2 4 12 13 14 16 17 19 20",
        "Corollary": "21",
        "Figure": "1",
    },
    "Shuffling": {
        "Algorithm": "1 2 3 4 5",
        "Definition": "1",
        "Theorem": "2 5 6 7 8",
        "Lemma": "3 4",
        "Remark": "1",
        "Corollary": "9",
    },
}
"""Every numbered item of the papers, by section of the page."""


def items(cell: str) -> set[str]:
    """Return the items that the first cell of a row names: `Theorems 16, 17` is two of them."""
    one = r"\(?[\dAB][\d.]*\)?"
    groups = re.findall(rf"([A-Z][a-z]+?)s? ({one}(?:(?:, | and ){one})*)", cell)
    return {f"{kind} {number}" for kind, numbers in groups for number in re.findall(r"[\dAB][\d.]*", numbers)}


@pytest.mark.parametrize("section", ITEMS)
def test_every_item_of_a_paper_has_a_row(section: str) -> None:
    wanted = {f"{kind} {number}" for kind, numbers in ITEMS[section].items() for number in numbers.split()}
    own = [cells[0] for name, cells in rows(PAGE.read_text(encoding="utf-8")) if name == section]
    assert wanted - set().union(*map(items, own)) == set()


def test_the_glossary_has_the_terms_of_table_2() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = " ".join(re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)).lower().replace("-", " ")
    for term in [
        "ad",
        "ad tech",
        "advertiser",
        "aggregatable report",
        "ara",
        "attribution",
        "conversion",
        "impression",
        "key discovery",
        "paa",
        "publisher",
        "requerying",
        "shared storage",
        "source",
        "summary report",
        "trigger",
    ]:
        assert re.search(rf"\b{term}\b", terms), term


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("`ara_client.model:outputs_of`", "`ara_client.model:outputs_off`", "outputs_off"),
        ("`ara_client.model:outputs_of`", "`ara_client.models:outputs_of`", "ara_client.models"),
        ("::test_figure_3_day_by_day`", "::test_figure_3_by_day`", "has no test_figure_3_by_day"),
        ("tests/ara_client/test_states.py::", "tests/ara_client/test_state.py::", "no file"),
        ("`aggservice demo`", "`aggservice demonstrate`", "no command"),
        ("| 6 × 6 − 9 = 27 |", "| |", "five cells"),
        ("`ara_client.model:outputs_of`", "outputs_of", "names no function, or no test"),
        (
            "`tests/ldp_client/privacy/test_ldp_privacy.py::test_loloha_clients_keep_their_epsilons`",
            "`aggservice demo`",
            "or no test",
        ),
        ("[glossary](glossary.md)", "[glossary](glossaries.md)", "no page"),
    ],
)
def test_a_dangling_row_is_found(right: str, wrong: str, told: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(right) >= 1
    assert any(told in one for one in problems(text.replace(right, wrong)))
