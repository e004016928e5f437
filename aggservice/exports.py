"""Exports of a package that are imported when they are first used, so that a process loads only what it runs."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def exports_of(package: str, source: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562) that finds what the package imports for type checkers.

    ``source`` is the package's ``__file__``: the imports below its ``if TYPE_CHECKING`` are read when a name is first
    asked for. The package keeps what it has found, so that each name is looked up once.
    """

    @cache
    def modules() -> dict[str, str | None]:
        tree = ast.parse(Path(source).read_bytes())
        blocks = [one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
        imports = [one for block in blocks for one in block.body if isinstance(one, ast.ImportFrom)]
        return {name.name: one.module for one in imports for name in one.names}

    def find(name: str) -> Any:
        if (module := modules().get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(import_module(package), name, value)
        return value

    return find
