"""The two pictures of docs/design.md are those of the code: packages with arrows, and the types along a job."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
#: Below all packages, and not drawn.
GROUND = ("kinds", "files", "exports", "compiler", "rpc")


def picture(title: str) -> str:
    """Return the diagram that follows a heading."""
    found = re.search(rf"^## {re.escape(title)}\n.*?```mermaid\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def packages() -> dict[str, str]:
    """Return the packages by their full names, with the names that the picture uses."""
    folders = [path.parent for path in (ROOT / "aggservice").glob("*/__init__.py")]
    names = {f"aggservice.{path.name}": path.name for path in folders}
    return names | {name: name for name in ("ara_client", "paa_client", "w3c_client", "ldp_client", "budget")}


def imported_names() -> Iterator[tuple[str, str, str, int]]:
    """Yield for each import across packages: who imports, from which package, which module, and how many names."""
    names = packages()
    for package in names:
        for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    parts = node.module.split(".")
                    other = ".".join(parts[:2]) if ".".join(parts[:2]) in names else parts[0]
                    if other in names and other != package:
                        yield package, other, node.module, len(node.names)


def imports() -> dict[str, set[str]]:
    """Return which packages each package imports, by the names that the picture uses."""
    names = packages()
    found: dict[str, set[str]] = {name: set() for name in names.values()}
    for package, other, _, _ in imported_names():
        found[names[package]].add(names[other])
    return {name: others - set(GROUND) for name, others in found.items() if name not in GROUND}


def reduced(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the arrows that no longer way through other packages replaces."""

    def reach(name: str) -> set[str]:
        return graph[name].union(*(reach(other) for other in graph[name]))

    return {
        (name, other)
        for name, others in graph.items()
        for other in others
        if not any(other in reach(middle) for middle in others - {other})
    }


def test_the_picture_of_packages_is_the_imports() -> None:
    drawn = set(re.findall(r"^\s*(\w+) --> (\w+)$", picture("Packages"), re.MULTILINE))
    assert drawn == reduced(imports())


def test_few_names_are_imported_past_a_front() -> None:
    """A front is a package itself, or a module of it that the page lists; each listed one is used by others."""
    rows = re.findall(
        r"^\| `([\w.]+)` \| (`.*`) \|$", PAGE[PAGE.index("\n## Fronts\n") :].split("\n## ")[1], re.MULTILINE
    )
    fronts = {f"{package}.{module}" for package, listed in rows for module in re.findall(r"`([\w.]+)`", listed)}
    names: Counter[str] = Counter()
    for _, _, module, count in imported_names():
        names[module] += count
    assert len(rows) >= 10 and fronts <= set(names)
    past = sum(count for module, count in names.items() if module not in fronts and module not in packages())
    assert past < names.total() / 10, f"{past} of {names.total()} names"


def test_the_picture_of_types_along_a_job_is_the_code() -> None:
    """Every arrow names a function, whose annotations have the type that it comes from and the type that it makes."""
    arrows = re.findall(r"^\s*(\w+) -->\|([\w.:]+)\| (\w+)$", picture("Types along a job"), re.MULTILINE)
    assert len(arrows) >= 6
    for source, place, made in arrows:
        module, _, name = place.partition(":")
        found: Any = import_module(module)
        owner = None
        for part in name.split("."):
            owner, found = found, getattr(found, part)
        found = getattr(found, "fget", found)
        hints = {key: str(hint) for key, hint in get_type_hints(found).items()}
        returned = hints.pop("return")
        assert re.search(rf"\b{made}\b", returned), f"{place} returns {returned}, not {made}"
        takes = " ".join([*hints.values(), getattr(owner, "__name__", ""), *_fields(owner)])
        assert re.search(rf"\b{source}\b", takes), f"{place} does not take a {source}: {takes}"


def _fields(owner: Any) -> list[str]:
    """Return the types of a class's fields: what a method has besides its arguments."""
    return [str(hint) for hint in get_type_hints(owner).values()] if isinstance(owner, type) else []
