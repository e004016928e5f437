"""The runs behind Figures 3 and 4 and Table 2 of the LOLOHA paper: all methods on all data sets, over the whole grid.

The three share their runs, which are appended to one file per folder (``loloha-cells.csv``): a figure that is made
again, or was stopped by its time limit, continues with the missing runs. Runs are the outer loop, so that the number of
runs per point differs by one at most. Each run has its own seed, so any number of worker processes makes the same file
to the byte. ``ldp_client.experiments.loloha`` makes the figures from it.
"""

from __future__ import annotations

import csv
import functools
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from aggservice.mechanisms import SeededBits
from ldp_client.errors import FigureError
from ldp_client.estimation import MICRO
from ldp_client.experiments.datasets import ALL_NAMES, NAMES, Dataset, check_dataset, load_dataset
from ldp_client.experiments.figures import FigureRequest
from ldp_client.experiments.run import MethodResult, run_method
from ldp_client.protocols import build
from ldp_client.protocols.base import LocalProtocol

#: The grids of §3.4, §4 and §5.1.
EPSILONS_MICRO = tuple(range(MICRO // 2, 5 * MICRO + 1, MICRO // 2))
RUN_ALPHAS = (Fraction(4, 10), Fraction(5, 10), Fraction(6, 10))
#: The seven methods of Figures 3 and 4, by the paper's names.
PAPER_METHODS = ("RAPPOR", "L-OSUE", "L-GRR", "1BitFlipPM", "bBitFlipPM", "BiLOLOHA", "OLOLOHA")
METHODS = (*PAPER_METHODS, "OLOLOHA-exact")
#: As many runs as the paper. With one permanent bit per user, the error of one run of 1BitFlipPM varies by 7 %, that of
#: other methods by 1 %: with three times the runs, its mean varies by 1 % too.
RUNS = 20
RUNS_OF = {"1BitFlipPM": 60}
CONFIDENCE = 0.95

_KEY = ("dataset", "method", "epsilon_permanent", "alpha", "run")
MEASURED = tuple(each.name for each in fields(MethodResult))
_HEADER = ("seed", "size", *_KEY, *MEASURED)


def first_micro(epsilon_micro: int, alpha: Fraction) -> int:
    """Return ε₁ = α·ε∞ in millionths; FigureError if it is not an integer."""
    product = alpha * epsilon_micro
    if product.denominator != 1:
        raise FigureError(f"α·ε∞ = {float(product)} millionths is not an integer: give ε∞ at most five decimal places")
    return product.numerator


def has_second_step(method: str) -> bool:
    """Return whether a method's error depends on ε₁ as well as on ε∞."""
    protocol: LocalProtocol = build(method, k=2, epsilon_permanent_micro=2 * MICRO, epsilon_first_micro=MICRO)
    return protocol.describe().get("epsilon_first_micro") is not None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ExperimentPoint:
    """One point of the figures; methods without a second step have no α (0 means none)."""

    dataset: str
    method: str
    epsilon_micro: int
    alpha: Fraction

    def protocol(self, data: Dataset) -> LocalProtocol:
        """Return the method of this point for its data set."""
        alpha = self.alpha or RUN_ALPHAS[0]
        return build(
            self.method,
            k=data.k,
            epsilon_permanent_micro=self.epsilon_micro,
            epsilon_first_micro=first_micro(self.epsilon_micro, alpha),
            buckets=data.buckets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The source of data and draws that a worker process needs in addition to the point."""

    seed: str
    folder: Path | None
    users: int | None
    collections: int | None

    def dataset(self, name: str) -> Dataset:
        """Return a data set, or the requested part of it; each process loads it once."""
        return _loaded(self, name)

    def outcome(self, number: int, cell: ExperimentPoint) -> MethodResult:
        """Return the result of run ``number`` of a point, the same in every process."""
        data = self.dataset(cell.dataset)
        label = f"{cell.dataset}/{cell.method}/{cell.epsilon_micro}/{float(cell.alpha)}/{number}"
        return run_method(data, cell.protocol(data), SeededBits(self.seed).child(label))


@functools.lru_cache(maxsize=len(ALL_NAMES))
def _loaded(source: DataSource, name: str) -> Dataset:
    data = load_dataset(name, SeededBits(source.seed).child(name), source.folder)
    return data.part(source.users or data.users, source.collections or data.collections)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean over runs and half the width of its Student interval; one run has no interval (NaN)."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.3e}" if math.isnan(self.half) else f"{self.mean:.3e} ± {self.half:.0e}"

    @property
    def drawn_half(self) -> float:
        """The half width for a plot: 0 for one run."""
        return 0.0 if math.isnan(self.half) else self.half

    @staticmethod
    def over(values: Sequence[float]) -> MeanInterval:
        """Return the mean of ``values`` and its interval at the confidence of these figures."""
        if len(values) < 2:
            return MeanInterval(mean=values[0], half=math.nan)
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return MeanInterval(mean=fmean(values), half=float(student.isf((1 - CONFIDENCE) / 2, len(values) - 1)) * spread)


Found = dict[ExperimentPoint, list[MethodResult]]


def grid(request: FigureRequest) -> list[ExperimentPoint]:
    """Return the requested points, data set by data set."""
    names = request.datasets or NAMES
    unknown = [name for name in names if name not in ALL_NAMES]
    if unknown:
        raise FigureError(f"unknown data sets {', '.join(unknown)}: choose among {', '.join(ALL_NAMES)}")
    return [
        ExperimentPoint(dataset=name, method=method, epsilon_micro=micro, alpha=alpha)
        for name in names
        for micro in request.epsilons_micro or EPSILONS_MICRO
        for method in METHODS
        for alpha in (RUN_ALPHAS if has_second_step(method) else (Fraction(0),))
    ]


def run_experiments(request: FigureRequest) -> Found:
    """Return the runs of every point: those in the file, and the missing ones that fit in the time limit."""
    cells = grid(request)
    runs = {cell: request.runs if request.runs is not None else RUNS_OF.get(cell.method, RUNS) for cell in cells}
    if min(runs.values()) < 1 or request.workers < 1:
        raise FigureError(f"runs and workers must be at least 1, got {request.runs} and {request.workers}")
    path = request.out / "loloha-cells.csv"
    size = f"{request.users or 'all'}x{request.collections or 'all'}"
    kept = _read(path, request.seed, size)
    wanted = [(number, cell) for number in range(max(runs.values())) for cell in cells if number < runs[cell]]
    missing = [(number, cell) for number, cell in wanted if (cell, number) not in kept]
    for name in sorted({cell.dataset for _, cell in missing}):
        check_dataset(name, request.data)
    for number, cell, outcome in _new_runs(request, missing):
        _append(path, (request.seed, size), cell, number, outcome)
        kept[cell, number] = outcome
    found: Found = {}
    for number, cell in wanted:
        if (cell, number) in kept:
            found.setdefault(cell, []).append(kept[cell, number])
    if not found:
        raise FigureError("the time limit passed before the first run ended: allow more time (--budget)")
    return found


def source_of(request: FigureRequest) -> DataSource:
    """Return the source of a request's data and draws."""
    return DataSource(seed=request.seed, folder=request.data, users=request.users, collections=request.collections)


_Task = tuple[int, ExperimentPoint]


def _new_runs(request: FigureRequest, tasks: Sequence[_Task]) -> Iterator[tuple[int, ExperimentPoint, MethodResult]]:
    """Yield the runs that start within the time limit, in order, on the requested number of processes."""
    source = source_of(request)
    if request.workers == 1:
        for number, cell in _started(request, tasks):
            yield number, cell, source.outcome(number, cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=request.workers, mp_context=context) as pool:
        waiting: deque[tuple[int, ExperimentPoint, Future[MethodResult]]] = deque()
        try:
            for number, cell in _started(request, tasks):
                waiting.append((number, cell, pool.submit(source.outcome, number, cell)))
                if len(waiting) > request.workers:
                    first, point, future = waiting.popleft()
                    yield first, point, future.result()
            for number, cell, future in waiting:
                yield number, cell, future.result()
        finally:
            for _, _, future in waiting:
                future.cancel()  # which leaves a finished one as it is


def _started(request: FigureRequest, tasks: Sequence[_Task]) -> Iterator[_Task]:
    """Yield the tasks until the time limit passes, and report progress for each."""
    end_ms = math.inf if request.budget_s is None else request.clock.now_ms() + 1000 * request.budget_s
    for done, (number, cell) in enumerate(tasks):
        if request.clock.now_ms() >= end_ms:
            return
        request.progress(done, len(tasks), f"run {number + 1}: {cell.dataset} {cell.method}")
        yield number, cell


def _append(path: Path, origin: tuple[str, str], cell: ExperimentPoint, number: int, outcome: MethodResult) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(_HEADER)
        key = (cell.dataset, cell.method, cell.epsilon_micro, cell.alpha, number)
        writer.writerow((*origin, *key, *(repr(getattr(outcome, name)) for name in MEASURED)))


def _read(path: Path, seed: str, size: str) -> dict[tuple[ExperimentPoint, int], MethodResult]:
    """Return the runs of this seed and size, after removing an incomplete last line."""
    kept: dict[tuple[ExperimentPoint, int], MethodResult] = {}
    if not path.exists():
        return kept
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    try:
        lines = csv.reader(whole.decode().splitlines())
        if whole and tuple(next(lines)) != _HEADER:
            raise ValueError("its header differs")
        for fields in lines:
            row = dict(zip(_HEADER, fields, strict=True))
            if row["seed"] != seed or row["size"] != size:
                continue
            cell = ExperimentPoint(
                dataset=row["dataset"],
                method=row["method"],
                epsilon_micro=int(row["epsilon_permanent"]),
                alpha=Fraction(row["alpha"]),
            )
            kept[cell, int(row["run"])] = MethodResult(**{name: float(row[name]) for name in MEASURED})
    except (ValueError, csv.Error) as problem:
        raise FigureError(f"{path} does not hold the runs of these figures ({problem}): name another --out") from None
    return kept
