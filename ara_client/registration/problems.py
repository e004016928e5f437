"""Problems of a registration, each with the path to the value that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a registration. ``path`` leads to the value: keys and list indexes from the root."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        where = "".join(f"[{part}]" if isinstance(part, int) else f'["{part}"]' for part in self.path)
        return f"{where or 'root'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """The outcome of parsing: a value, or the problems that prevented one.

    ``ignored`` lists problems of optional debugging fields, which the specification ignores.
    """

    value: T | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()
