"""The house rules that a tree alone can show: exports per package, one name per class, rooms of a readable size."""

from __future__ import annotations

import ast
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "aggservice.mechanisms",
    "aggservice.wire",
    "aggservice.engine",
    "aggservice.service",
    "aggservice.client",
    "aggservice.campaign",
    "aggservice.audit",
    "ara_client",
    "paa_client",
    "ldp_client",
    "w3c_client",
    "budget",
)
LARGE = {"aggservice/mechanisms": 18}
"""Folders that may hold more modules than others: one idea per sampler."""


def modules_of(package: str) -> list[Path]:
    folder = ROOT / package.replace(".", "/")
    return [path for path in sorted(folder.rglob("*.py")) if "rpc" not in path.parts]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_what_its_users_need(package: str) -> None:
    exported = import_module(package).__all__
    assert len(set(exported)) == len(exported)
    assert all(hasattr(import_module(package), name) for name in exported)


PARALLELS = {"Browser", "Fleet", "Config"}
"""What every browser's package has, under one name and with one interface."""


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for package in ("aggservice", "ara_client", "paa_client", "ldp_client", "w3c_client", "budget")
        for path in modules_of(package)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == PARALLELS


def test_rooms_are_small_and_say_what_they_hold() -> None:
    folders = {path.parent for top in ("aggservice", *PACKAGES) for path in modules_of(top)}
    for folder in sorted(folders):
        name = str(folder.relative_to(ROOT))
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= LARGE.get(name, 16), name
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), name


def test_rooms_of_tests_are_small() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert {str(one.relative_to(ROOT)): n for one in folders if (n := len(list(one.glob("*.py")))) > 19} == {}
