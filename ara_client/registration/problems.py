"""What is wrong with a registration: every problem, with the path to the value that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One flaw of a registration. ``path`` leads to the value: keys and list positions from the root."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        where = "".join(f"[{part}]" if isinstance(part, int) else f'["{part}"]' for part in self.path)
        return f"{where or 'root'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """The outcome of parsing: a value, or the problems for which there is none.

    ``ignored`` are flaws of optional debugging features, which the specification forgives.
    """

    value: T | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()
