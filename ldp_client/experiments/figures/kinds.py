"""What a figure is: a name, and a function from a request to files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aggservice.mechanisms import Clock


def _silent(done: int, total: int, words: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """How to make a figure. What a figure does not need, it ignores.

    ``runs`` is how often an experiment is repeated, ``budget_s`` after how many seconds no further run is begun;
    ``users`` and ``collections`` cut a data set down, for a quick look; ``epsilons_micro`` and ``datasets`` take
    part of a grid; ``workers`` is how many processes share the runs. ``progress`` is told (done, total, words).
    """

    out: Path
    clock: Clock
    data: Path | None = None
    runs: int | None = None
    budget_s: float | None = None
    seed: str = "figures"
    users: int | None = None
    collections: int | None = None
    epsilons_micro: tuple[int, ...] | None = None
    datasets: tuple[str, ...] | None = None
    workers: int = 1
    progress: Callable[[int, int, str], None] = field(default=_silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of it: the files written, and lines that say what they show."""

    files: tuple[Path, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure or table of a paper."""

    name: str
    title: str
    make: Callable[[FigureRequest], Made]


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def shown(value: float) -> str:
    """Return a number as it stands in a data file: six significant digits."""
    return f"{value:.6g}"
