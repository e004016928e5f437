"""The package with one change in its source: what a test must notice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

PACKAGE = "w3c_client"


class _Changed(SourceFileLoader):
    def __init__(self, fullname: str, path: str, old: str, new: str) -> None:
        super().__init__(fullname, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> Any:
        source = self.get_data(self.path).decode()
        if self._old not in source:  # not an assertion, which a test would take for the mutant's end
            raise LookupError(f"{fullname} has no {self._old!r}: the mutant must change something")
        return compile(source.replace(self._old, self._new), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = f"{PACKAGE}.{module}", old, new

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Changed(fullname, spec.origin, self._old, self._new)
        return spec


@contextmanager
def mutated(module: str, old: str, new: str) -> Iterator[ModuleType]:
    """Import the package afresh with ``old`` replaced by ``new`` in one of its modules; undo that at the end."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == PACKAGE}
    finder = _Finder(module, old, new)
    sys.meta_path.insert(0, finder)
    try:
        yield import_module(PACKAGE)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.modules.update(kept)
