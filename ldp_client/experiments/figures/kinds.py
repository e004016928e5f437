"""The type of a figure (a name, and a function from a request to files), and functions to write tables and plots."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggservice.mechanisms import Clock
from ldp_client.errors import FigureError


def _silent(done: int, total: int, words: str) -> None:
    """Ignore progress: the default of ``FigureRequest.progress``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """How to make a figure; a figure ignores the options that it does not need.

    ``runs`` is how often an experiment is repeated; after ``budget_s`` seconds no further run starts; ``users`` and
    ``collections`` use part of a data set; ``epsilons_micro`` and ``datasets`` use part of a grid; ``workers`` is the
    number of processes. ``progress`` is called with (done, total, text).
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

    def write_table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
        """Write a CSV file into the folder and return its path."""
        return write_table(self.out / name, header, rows)

    def save_plot(self, figure: Any, name: str) -> Path:
        """Write a figure as PNG into the folder and return its path."""
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.out / name, dpi=110, metadata={"Software": None})
        return self.out / name


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureFiles:
    """The result of making a figure: the files written, and lines of text that summarise them."""

    files: tuple[Path, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure or table of a paper."""

    name: str
    title: str
    make: Callable[[FigureRequest], FigureFiles]


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def six_digits(value: float) -> str:
    """Return a number as text for a data file: six significant digits."""
    return f"{value:.6g}"


def grid_of_panels(rows: int, columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, row by row. Needs matplotlib (the ``plots`` extra)."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise FigureError("plots need matplotlib: pip install 'aggservice[plots]'") from error
    figure = Canvas(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)
