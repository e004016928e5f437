"""Figures and tables of the papers, each as data and as a plot, found by name; those about shuffling and tracking.

A figure is a name and a function from a request to files. ``loloha`` and ``rappor`` beside this module have the others.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from aggservice.mechanisms import Clock, ExactBinaryShuffle, SeededBits, closed_epsilon, shuffled_epsilon
from ldp_client.errors import FigureError
from ldp_client.protocols.direct import BitwiseEverlasting
from ldp_client.protocols.rappor import Rappor
from ldp_client.tracking import Percentile, trackability

#: The modules with a tuple ``FIGURES``, in the order of the list.
_MODULES = ("loloha", "rappor", "figures")


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


def all_figures() -> dict[str, Figure]:
    """Return every figure by name, in the order of modules and of their tuples."""
    modules = [import_module(f"ldp_client.experiments.{name}") for name in _MODULES]
    return {figure.name: figure for module in modules for figure in module.FIGURES}


def find_figure(name: str) -> Figure:
    """Return the figure ``name``; FigureError lists all names if there is none."""
    figures = all_figures()
    if name not in figures:
        raise FigureError(f"there is no figure {name!r}: choose one of {', '.join(figures)}")
    return figures[name]


SHUFFLED_EPSILONS = (0.5, 1.0, 2.0, 4.0)
SHUFFLED_REPORTS = (10, 30, 100, 300, 1000, 2000, 10_000, 100_000, 1_000_000, 10_000_000)
EXACT_REPORTS = 2000
VALUES = 16
DELTA = 1e-6

Row = tuple[float, int, float, float, float, float | None]


def amplification(request: FigureRequest) -> list[Row]:
    """Return (ε₀, reports, closed bound, numerical bound, numerical bound of 16-ary response, exact value or None).

    The exact value is that of binary response, for small numbers of reports.
    """
    rows: list[Row] = []
    for local in SHUFFLED_EPSILONS:
        for reports in SHUFFLED_REPORTS:
            request.progress(
                len(rows), len(SHUFFLED_EPSILONS) * len(SHUFFLED_REPORTS), f"ε₀ = {local:g}, {reports} reports"
            )
            exact = None
            if reports <= EXACT_REPORTS:
                exact = ExactBinaryShuffle(epsilon0=local, reports=reports).epsilon(DELTA)
            wide = shuffled_epsilon(local, reports, DELTA, k=VALUES)
            any_randomizer = shuffled_epsilon(local, reports, DELTA)
            rows.append((local, reports, closed_epsilon(local, reports, DELTA), any_randomizer, wide, exact))
    return rows


def _shuffling(request: FigureRequest) -> FigureFiles:
    rows = amplification(request)
    data = request.write_table(
        "shuffling.csv",
        ("epsilon_local", "reports", "closed", "any_randomizer", f"response_of_{VALUES}", "exact_binary"),
        ((*row[:2], *("" if each is None else six_digits(each) for each in row[2:])) for row in rows),
    )
    figure, panels = grid_of_panels(1, len(SHUFFLED_EPSILONS))
    for local, axes in zip(SHUFFLED_EPSILONS, panels, strict=True):
        mine = [row for row in rows if row[0] == local]
        reports = [row[1] for row in mine]
        labels = (
            "Theorem 7",
            "any randomizer, numerical",
            f"{VALUES}-ary response, numerical",
            "binary response, exact",
        )
        for column, (label, marker) in enumerate(zip(labels, "...x", strict=True), start=2):
            axes.plot(reports, [row[column] for row in mine], marker=marker, label=label)
        axes.axhline(local, linestyle=":", color="grey")
        axes.set(xscale="log", yscale="log", ylim=(1e-4, 10 * local))
        axes.set(title=f"ε₀ = {local:g}, δ = {DELTA:g}", xlabel="reports", ylabel="central ε")
    panels[0].legend(fontsize=7)
    million = {row[0]: row for row in rows if row[1] == 1_000_000}
    lines = [
        f"a million reports of ε₀ = {local:g}: Theorem 7 {row[2]:.4g}, any randomizer {row[3]:.4g}, "
        f"{VALUES}-ary response {row[4]:.4g}"
        for local, row in million.items()
    ]
    return FigureFiles(files=(data, request.save_plot(figure, "shuffling.png")), lines=tuple(lines))


TRACKED_REPORTS = range(2, 16)
DRAWS = 20_000
LEVELS = (0.5, 0.9)
STRING = "http://example.com"
BITWISE_PAIRS = ((100_000, 1_000_000), (1_000_000, 1_000_000), (500_000, 2_000_000))
BITWISE_REPORTS = range(1, 13)


def percentiles(request: FigureRequest) -> list[tuple[int, Percentile, Percentile]]:
    """Return (reports, median, 90th percentile) of RAPPOR's trackability; ``users`` of the request counts draws."""
    law = Rappor().stream_law(STRING)
    bits = SeededBits(request.seed)
    rows = []
    for done, reports in enumerate(TRACKED_REPORTS):
        request.progress(done, len(TRACKED_REPORTS), f"{reports} reports")
        found = trackability(law, reports, request.users or DRAWS, bits.child(f"tracking/{reports}"))
        median, ninth = (found.percentile(level) for level in LEVELS)
        rows.append((reports, median, ninth))
    return rows


def _figure_1(request: FigureRequest) -> FigureFiles:
    rows = percentiles(request)
    data = request.write_table(
        "tracking-1.csv",
        ("reports", "median", "median_low", "median_high", "percentile_90", "percentile_90_low", "percentile_90_high"),
        (
            (
                reports,
                *(six_digits(value) for found in (median, ninth) for value in (found.value, found.low, found.high)),
            )
            for reports, median, ninth in rows
        ),
    )
    figure, (axes,) = grid_of_panels(1, 1, width=5.5, height=4)
    for index, name in enumerate(("median", "90th percentile")):
        found = [(median, ninth)[index] for _, median, ninth in rows]
        spread = [[each.value - each.low for each in found], [each.high - each.value for each in found]]
        axes.errorbar([row[0] for row in rows], [each.value for each in found], spread, capsize=3, label=name)
    axes.set(xlabel="reports", ylabel="trackability")
    axes.legend()
    lines = [
        f"{reports:>2} reports: median {median.value:.3f} [{median.low:.3f}, {median.high:.3f}], "
        f"90th percentile {ninth.value:.3f} [{ninth.low:.3f}, {ninth.high:.3f}]"
        for reports, median, ninth in rows
    ]
    return FigureFiles(files=(data, request.save_plot(figure, "tracking-1.png")), lines=tuple(lines))


def bitwise_rows() -> list[tuple[int, int, int, float, float, float]]:
    """Return (ε₁ and ε₂ in millionths, reports, lower bound, exact value, Theorem 13) by enumeration."""
    rows = []
    for kept, sent in BITWISE_PAIRS:
        protocol = BitwiseEverlasting(epsilon_permanent_micro=kept, epsilon_report_micro=sent)
        exact = protocol.finite_state()
        for reports in BITWISE_REPORTS:
            low, high = protocol.untrackable_at_least(reports), protocol.untrackable(reports)
            rows.append((kept, sent, reports, low, exact.untrackable(reports), high))
    return rows


def _figure_bitwise(request: FigureRequest) -> FigureFiles:
    rows = bitwise_rows()
    data = request.write_table(
        "tracking-bitwise.csv",
        ("epsilon_permanent", "epsilon_report", "reports", "at_least", "exact", "theorem_13"),
        ((kept / 10**6, sent / 10**6, reports, *map(six_digits, values)) for kept, sent, reports, *values in rows),
    )
    figure, panels = grid_of_panels(1, len(BITWISE_PAIRS))
    for (kept, sent), axes in zip(BITWISE_PAIRS, panels, strict=True):
        mine = [row for row in rows if row[:2] == (kept, sent)]
        for column, name in ((5, "Theorem 13"), (4, "exact"), (3, "lower bound")):
            axes.plot([row[2] for row in mine], [row[column] for row in mine], marker=".", label=name)
        axes.set(title=f"ε₁ = {kept / 10**6:g}, ε₂ = {sent / 10**6:g}", xlabel="reports", ylabel="γ")
    panels[0].legend(fontsize=8)
    outside = sum(not low <= exact <= high for *_, low, exact, high in rows)
    line = f"{len(rows)} exact values by enumeration, {outside} of them outside the lower bound and Theorem 13"
    return FigureFiles(files=(data, request.save_plot(figure, "tracking-bitwise.png")), lines=(line,))


FIGURES = (
    Figure(name="shuffling", title="Shuffling: central ε of n shuffled reports at δ = 10⁻⁶", make=_shuffling),
    Figure(name="tracking-1", title="Tracking, Figure 1: trackability of RAPPOR's reports", make=_figure_1),
    Figure(name="tracking-bitwise", title="Tracking, section 6: the exact value and its bounds", make=_figure_bitwise),
)
