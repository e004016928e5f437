"""The table of protocols: its names, and that nothing but a protocol's own module asks for its name or class."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ldp_client import PROTOCOLS, build
from ldp_client.errors import LdpParameterError
from ldp_client.experiments.loloha_runs import PAPER_METHODS
from ldp_client.protocols import methods

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("aggservice", "ara_client", "paa_client", "ldp_client", "w3c_client", "budget")
CLASSES = {PROTOCOLS[name] for name in PROTOCOLS}


def homes() -> dict[str, set[Path]]:
    """Return every name, kind and class name of the table, with the modules that may ask for it."""
    found: dict[str, set[Path]] = {}
    for entry in CLASSES:
        home = Path(str(sys.modules[entry.__module__].__file__))
        own = [name for name in PROTOCOLS if PROTOCOLS[name] is entry]
        for word in (*own, *(protocol.kind for protocol in entry.examples()), entry.__name__):
            found.setdefault(word, set()).add(home)
    return found


def asked(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the texts and classes that a module compares with, matches on, or tests instances for."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.MatchClass):
            parts = [node.cls]
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in ("isinstance", "issubclass"):
                parts = list(node.args[1:])
            elif isinstance(called, ast.Attribute) and called.attr in ("startswith", "endswith", "removesuffix"):
                parts = list(node.args)
        for part in parts:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value, inner.lineno
                elif isinstance(inner, ast.Name):
                    yield inner.id, inner.lineno


def test_only_a_protocols_own_module_asks_for_its_name() -> None:
    allowed = homes()
    assert len(allowed) > 25
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files
        for word, line in asked(ast.parse(path.read_text(encoding="utf-8")))
        if path not in allowed.get(word, {path})
    ]
    assert found == []


def test_the_search_would_find_one() -> None:
    code = 'if name == "OLH" or kind in ("GRR", "x"): pass\nmatch p:\n    case BitFlip(): pass\nisinstance(p, Rappor)'
    assert {"OLH", "GRR", "BitFlip", "Rappor"} <= {word for word, _ in asked(ast.parse(code))}


def test_the_papers_methods_come_first_and_every_method_has_words() -> None:
    assert tuple(methods())[:7] == PAPER_METHODS
    assert all(methods().values())
    assert all(name in PROTOCOLS for entry in CLASSES for name in entry.methods)


@pytest.mark.parametrize("name", sorted(set(PROTOCOLS) - set(methods())))
def test_second_names_build_the_same_and_others_say_that_they_do_not(name: str) -> None:
    pair = {"k": 5, "epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}
    same = {"L-SUE": "RAPPOR", "LOLOHA": "OLOLOHA", "dBitFlipPM": "1BitFlipPM"}
    if name in same:
        assert build(name, **pair) == build(same[name], **pair)
    else:
        with pytest.raises(LdpParameterError, match=f"{name} is not defined over 5 values"):
            build(name, **pair)
