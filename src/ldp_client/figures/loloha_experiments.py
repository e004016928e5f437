"""Figures 3 and 4 and Table 2 of the LOLOHA paper: all methods on all data sets, over the whole grid.

The three share their runs, which are kept in one file a folder (``loloha-cells.csv``) as they are made: a figure asked
for again, or after its time was up, goes on where the last one stopped. Runs are the outer loop, so that wherever it
stops cells differ by one run at most. Each run draws from a seed of its own, so any number of worker processes makes
the same file to the byte.
"""

from __future__ import annotations

import csv
import functools
import math
import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from ldp_client.datasets import NAMES, Dataset, load
from ldp_client.errors import FigureError
from ldp_client.experiment import Outcome, run
from ldp_client.figures.kinds import Figure, FigureRequest, Made, shown, write_table
from ldp_client.figures.loloha import EPSILONS_MICRO, first_micro
from ldp_client.figures.plotting import grid_of_panels, save
from ldp_client.methods import PAPER_METHODS, build, has_second_step
from ldp_client.protocol import FrequencyProtocol
from ldp_client.steps import MICRO
from mechanisms import SeededBits

ALPHAS = (Fraction(4, 10), Fraction(5, 10), Fraction(6, 10))
METHODS = (*PAPER_METHODS, "OLOLOHA-exact")
#: As many runs as the paper. One sampled bit a user that never changes leaves the error of one run of 1BitFlipPM
#: uncertain by 7 %, where other methods' is by 1 %: three times the runs leave its mean uncertain by 1 % too.
RUNS = 20
RUNS_OF = {"1BitFlipPM": 60}
CONFIDENCE = 0.95

_KEY = ("dataset", "method", "epsilon_permanent", "alpha", "run")
_MEASURED = tuple(each.name for each in fields(Outcome))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One point of the figures; methods without a second step have no α of their own (0 stands for none)."""

    dataset: str
    method: str
    epsilon_micro: int
    alpha: Fraction

    def protocol(self, data: Dataset) -> FrequencyProtocol:
        """Return the method of this cell on its data set."""
        alpha = self.alpha or ALPHAS[0]
        return build(
            self.method,
            k=data.k,
            epsilon_permanent_micro=self.epsilon_micro,
            epsilon_first_micro=first_micro(self.epsilon_micro, alpha),
            buckets=data.buckets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where data and draws come from: all that a worker process needs to know besides the cell."""

    seed: str
    folder: Path | None
    users: int | None
    collections: int | None

    def dataset(self, name: str) -> Dataset:
        """Return a data set, cut down as asked; each process loads it once."""
        return _loaded(self, name)

    def outcome(self, number: int, cell: Cell) -> Outcome:
        """Return what run ``number`` of a cell measured, whichever process makes it."""
        data = self.dataset(cell.dataset)
        label = f"{cell.dataset}/{cell.method}/{cell.epsilon_micro}/{float(cell.alpha)}/{number}"
        return run(data, cell.protocol(data), SeededBits(self.seed).child(label))


@functools.lru_cache(maxsize=len(NAMES))
def _loaded(source: Source, name: str) -> Dataset:
    data = load(name, SeededBits(source.seed).child(name), source.folder)
    return data.part(source.users or data.users, source.collections or data.collections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over runs and half the width of its Student interval; one run has no interval (NaN)."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3e} ± {self.half:.0e}"

    @staticmethod
    def over(values: Sequence[float]) -> Interval:
        """Return the mean of ``values`` and its interval at the confidence of these figures."""
        if len(values) < 2:
            return Interval(mean=values[0], half=math.nan)
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return Interval(mean=fmean(values), half=float(student.isf((1 - CONFIDENCE) / 2, len(values) - 1)) * spread)


def grid(request: FigureRequest) -> list[Cell]:
    """Return the cells asked for, data set by data set."""
    names = request.datasets or NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise FigureError(f"these figures are on {', '.join(NAMES)}, not on {', '.join(unknown)}")
    return [
        Cell(dataset=name, method=method, epsilon_micro=micro, alpha=alpha)
        for name in names
        for micro in request.epsilons_micro or EPSILONS_MICRO
        for method in METHODS
        for alpha in (ALPHAS if has_second_step(method) else (Fraction(0),))
    ]


def measure(request: FigureRequest) -> dict[Cell, list[Outcome]]:
    """Return every run of every cell: those kept from before, and as many new ones as asked for and time allows."""
    cells = grid(request)
    runs = {cell: request.runs if request.runs is not None else RUNS_OF.get(cell.method, RUNS) for cell in cells}
    if min(runs.values()) < 1 or request.workers < 1:
        raise FigureError(f"at least one run and one worker are needed, not {request.runs} and {request.workers}")
    path = request.out / "loloha-cells.csv"
    size = f"{request.users or 'all'}x{request.collections or 'all'}"
    kept = _read(path, request.seed, size)
    wanted = [(number, cell) for number in range(max(runs.values())) for cell in cells if number < runs[cell]]
    missing = [(number, cell) for number, cell in wanted if (cell, number) not in kept]
    for number, cell, outcome in _made(request, missing):
        _append(path, (request.seed, size), cell, number, outcome)
        kept[cell, number] = outcome
    found: dict[Cell, list[Outcome]] = {}
    for number, cell in wanted:
        if (cell, number) in kept:
            found.setdefault(cell, []).append(kept[cell, number])
    if not found:
        raise FigureError("the time was up before the first run: allow more of it (--budget)")
    return found


def _source(request: FigureRequest) -> Source:
    return Source(seed=request.seed, folder=request.data, users=request.users, collections=request.collections)


_Task = tuple[int, Cell]


def _made(request: FigureRequest, tasks: Sequence[_Task]) -> Iterator[tuple[int, Cell, Outcome]]:
    """Yield the runs in order, as many as are begun in time, on as many processes as asked for."""
    source = _source(request)
    if request.workers == 1:
        for number, cell in _begun(request, tasks):
            yield number, cell, source.outcome(number, cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=request.workers, mp_context=context) as pool:
        waiting: deque[tuple[int, Cell, Future[Outcome]]] = deque()
        try:
            for number, cell in _begun(request, tasks):
                waiting.append((number, cell, pool.submit(source.outcome, number, cell)))
                if len(waiting) > request.workers:
                    yield _ended(*waiting.popleft())
            while waiting:
                yield _ended(*waiting.popleft())
        finally:
            for _, _, future in waiting:
                future.cancel()


def _ended(number: int, cell: Cell, future: Future[Outcome]) -> tuple[int, Cell, Outcome]:
    return number, cell, future.result()


def _begun(request: FigureRequest, tasks: Sequence[_Task]) -> Iterator[_Task]:
    """Yield the tasks until the time is up, and tell of each."""
    end_ms = math.inf if request.budget_s is None else request.clock.now_ms() + 1000 * request.budget_s
    for done, (number, cell) in enumerate(tasks):
        if request.clock.now_ms() >= end_ms:
            return
        request.progress(done, len(tasks), f"run {number + 1}: {cell.dataset} {cell.method}")
        yield number, cell


def _append(path: Path, origin: tuple[str, str], cell: Cell, number: int, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(("seed", "size", *_KEY, *_MEASURED))
        key = (cell.dataset, cell.method, cell.epsilon_micro, cell.alpha, number)
        writer.writerow((*origin, *key, *(repr(getattr(outcome, name)) for name in _MEASURED)))


def _read(path: Path, seed: str, size: str) -> dict[tuple[Cell, int], Outcome]:
    """Return the runs of this seed and size; a line cut short by a kill is passed over and made again."""
    kept: dict[tuple[Cell, int], Outcome] = {}
    if not path.exists():
        return kept
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if None in row.values() or row["seed"] != seed or row["size"] != size:
                continue
            cell = Cell(
                dataset=row["dataset"],
                method=row["method"],
                epsilon_micro=int(row["epsilon_permanent"]),
                alpha=Fraction(row["alpha"]),
            )
            kept[cell, int(row["run"])] = Outcome(**{name: float(row[name]) for name in _MEASURED})
    return kept


def summary(request: FigureRequest, found: dict[Cell, list[Outcome]]) -> Iterator[tuple[object, ...]]:
    """Yield a line of the data file for each cell."""
    source = _source(request)
    data = {name: source.dataset(name) for name in {cell.dataset for cell in found}}
    for cell, outcomes in found.items():
        measured = {name: Interval.over([getattr(each, name) for each in outcomes]) for name in _MEASURED}
        mse, loss = measured["mse"], measured["loss"]
        protocol = cell.protocol(data[cell.dataset])
        yield (
            cell.dataset,
            cell.method,
            cell.epsilon_micro / MICRO,
            float(cell.alpha) or "",
            len(outcomes),
            shown(mse.mean),
            shown(mse.half),
            shown(measured["expected_mse"].mean),
            shown(protocol.support.approximate_variance(data[cell.dataset].users)),
            shown(measured["mse_normalised"].mean),
            shown(measured["mse_normalised"].half),
            shown(loss.mean),
            shown(loss.half),
            *(shown(100 * measured[name].mean) for name in ("detected", "injective")),
        )


_SUMMARY = (
    "dataset", "method", "epsilon_permanent", "alpha", "runs", "mse", "mse_half_95", "expected_mse",
    "approximate_variance", "mse_normalised", "mse_normalised_half_95", "loss", "loss_half_95", "detected_percent",
    "injective_percent",
)  # fmt: skip


def _figure_3(request: FigureRequest) -> Made:
    return _curves(request, "mse", "loloha-3", "MSE_avg (Eq. 7)")


def _figure_4(request: FigureRequest) -> Made:
    return _curves(request, "loss", "loloha-4", "ε̌_avg (Eq. 8)")


def _curves(request: FigureRequest, what: str, name: str, label: str) -> Made:
    found = measure(request)
    table = write_table(request.out / "loloha-cells-summary.csv", _SUMMARY, summary(request, found))
    datasets = list(dict.fromkeys(cell.dataset for cell in found))
    figure, panels = grid_of_panels(len(datasets), len(ALPHAS))
    places = [(dataset, alpha) for dataset in datasets for alpha in ALPHAS]
    for (dataset, alpha), axes in zip(places, panels, strict=True):
        for index, method in enumerate(METHODS):
            mine = [
                (cell.epsilon_micro / MICRO, Interval.over([getattr(each, what) for each in outcomes]))
                for cell, outcomes in found.items()
                if (cell.dataset, cell.method) == (dataset, method) and cell.alpha in (alpha, 0)
            ]
            # Buckets are another histogram than values (§5.2): their error is in the data, not in the plot.
            if mine and not (what == "mse" and method.endswith("BitFlipPM") and dataset != "Syn"):
                means = [interval.mean for _, interval in mine]
                halves = [0.0 if math.isnan(interval.half) else interval.half for _, interval in mine]
                low = [min(half, 0.9 * mean) for half, mean in zip(halves, means, strict=True)]  # the axis has no zero
                places_x = [x for x, _ in mine]
                axes.errorbar(places_x, means, (low, halves), color=f"C{index}", marker=".", capsize=2, label=method)
        axes.set_yscale("log")
        axes.set_title(f"{dataset}, α = {float(alpha)}")
        axes.set_xlabel("ε∞")
        axes.set_ylabel(label)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS))
    lines = (*_said(found), *_printed(found, what))
    return Made(files=(table, save(figure, request.out / f"{name}.png")), lines=lines)


def _printed(found: dict[Cell, list[Outcome]], what: str) -> Iterator[str]:
    """Yield a table a data set and α: a method a line, mean ± half its interval at whole ε∞."""
    shown_micro = sorted({cell.epsilon_micro for cell in found if cell.epsilon_micro % MICRO == 0})
    for dataset in dict.fromkeys(cell.dataset for cell in found):
        for alpha in ALPHAS:
            rows = [[f"{dataset}, α = {float(alpha)}", *(f"ε∞ = {micro // MICRO}" for micro in shown_micro)]]
            for method in METHODS:
                row = [method]
                for micro in shown_micro:
                    mine = alpha if has_second_step(method) else Fraction(0)
                    outcomes = found.get(Cell(dataset=dataset, method=method, epsilon_micro=micro, alpha=mine), [])
                    row.append(str(Interval.over([getattr(each, what) for each in outcomes])) if outcomes else "")
                rows.append(row)
            yield from _aligned(rows)


def _table_2(request: FigureRequest) -> Made:
    found = measure(request)
    datasets = list(dict.fromkeys(cell.dataset for cell in found))
    methods = ("1BitFlipPM", "bBitFlipPM")
    columns = [(way, m, d) for way in ("detected", "injective") for m in methods for d in datasets]
    header = ["epsilon_permanent", *("_".join(column) for column in columns)]
    rows: list[list[object]] = []
    for micro in request.epsilons_micro or EPSILONS_MICRO:
        row: list[object] = [micro / MICRO]
        for way, method, dataset in columns:
            outcomes = found.get(Cell(dataset=dataset, method=method, epsilon_micro=micro, alpha=Fraction(0)))
            row.append(shown(100 * fmean(getattr(each, way) for each in outcomes)) if outcomes else "")
        rows.append(row)
    table = write_table(request.out / "loloha-table-2.csv", header, rows)
    return Made(files=(table,), lines=(*_said(found), "percent of users:", *_aligned([header, *rows])))


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _said(found: dict[Cell, list[Outcome]]) -> tuple[str, ...]:
    """Return how many runs there were, and how far the mean errors lie from the exact variance."""
    runs = [len(outcomes) for outcomes in found.values()]
    ratios = [
        fmean(each.mse for each in outcomes) / fmean(each.expected_mse for each in outcomes)
        for outcomes in found.values()
    ]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return (
        f"{len(found)} cells, between {min(runs)} and {max(runs)} runs each, {CONFIDENCE:.0%} intervals in the data",
        f"mean squared error over its exact expectation: {fmean(ratios):.4f} on average, {worst:.4f} at worst",
    )


FIGURES = (
    Figure(name="loloha-3", title="LOLOHA, Figure 3: error of all methods on all data sets", make=_figure_3),
    Figure(name="loloha-4", title="LOLOHA, Figure 4: privacy loss of all methods on all data sets", make=_figure_4),
    Figure(name="loloha-table-2", title="LOLOHA, Table 2: users all of whose changes show", make=_table_2),
)
