"""What a browser keeps, attribute by attribute, so that no test about its stores can forget one that is added later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from sortedcontainers import SortedList


def parts(value: object) -> Iterator[Any]:
    """Yield what a container holds, keys of maps included; nothing for anything else."""
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | Set | SortedList):
        yield from value


def kept(owner: object) -> dict[str, Any]:
    """Return the attributes of an object, whether it has a dictionary or slots."""
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(owner, name) for name in slots if hasattr(owner, name)} | getattr(owner, "__dict__", {})


def attributes(root: object, package: str) -> set[str]:
    """Return ``Class.attribute`` for each object of a package that can change and that ``root`` leads to."""
    found: set[str] = set()
    seen: set[int] = set()
    left = [root]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        left += parts(value)
        kind = type(value)
        frozen = is_dataclass(value) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if kind.__module__.split(".")[0] == package and not (frozen or isinstance(value, Enum | type)):
            found |= {f"{kind.__name__}.{name}" for name in kept(value)}
            left += kept(value).values()
    return found


def rows(value: object, *kinds: type) -> Iterator[Any]:
    """Yield the objects of some kinds that a store holds, at any depth of containers and plain objects."""
    if isinstance(value, kinds):
        yield value
        return
    for part in parts(value):
        yield from rows(part, *kinds)
    if type(value).__module__.split(".")[0].endswith("_client"):
        for part in kept(value).values():
            yield from rows(part, *kinds)
