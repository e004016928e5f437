"""Exports of a package that are imported when they are first used, so that a process loads only what it runs.

A package lists its names twice: as imports that only type checkers see, and here by module. ``tests/test_house.py``
reads every exported name, so the two cannot disagree unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def exports_of(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562) that finds ``names``, which are by module below it.

    The package keeps what it has found, so that each name is looked up once.
    """
    modules = {name: f"{package}.{module}" for module, found in names.items() for name in found}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(import_module(package), name, value)
        return value

    return find
