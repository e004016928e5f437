"""The runs behind Figures 3 and 4 and Table 2 of the LOLOHA paper: all methods on all data sets, over the whole grid.

The three share their runs, which are kept in one file a folder (``loloha-cells.csv``) as they are made: a figure asked
for again, or after its time was up, goes on where the last one stopped. Runs are the outer loop, so that wherever it
stops cells differ by one run at most. Each run draws from a seed of its own, so any number of worker processes makes
the same file to the byte. ``loloha_results`` shows what they found.
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
from ldp_client.experiments.datasets import NAMES, Dataset, load
from ldp_client.experiments.figures.kinds import FigureRequest
from ldp_client.experiments.figures.loloha import EPSILONS_MICRO, first_micro
from ldp_client.experiments.run import Outcome, run
from ldp_client.protocols.interface import FrequencyProtocol
from ldp_client.protocols.methods import PAPER_METHODS, build, has_second_step

ALPHAS = (Fraction(4, 10), Fraction(5, 10), Fraction(6, 10))
METHODS = (*PAPER_METHODS, "OLOLOHA-exact")
#: As many runs as the paper. One sampled bit a user that never changes leaves the error of one run of 1BitFlipPM
#: uncertain by 7 %, where other methods' is by 1 %: three times the runs leave its mean uncertain by 1 % too.
RUNS = 20
RUNS_OF = {"1BitFlipPM": 60}
CONFIDENCE = 0.95

_KEY = ("dataset", "method", "epsilon_permanent", "alpha", "run")
MEASURED = tuple(each.name for each in fields(Outcome))
_HEADER = ("seed", "size", *_KEY, *MEASURED)


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

    @property
    def drawn_half(self) -> float:
        """The half width as a plot shows it: none for one run."""
        return 0.0 if math.isnan(self.half) else self.half

    @staticmethod
    def over(values: Sequence[float]) -> Interval:
        """Return the mean of ``values`` and its interval at the confidence of these figures."""
        if len(values) < 2:
            return Interval(mean=values[0], half=math.nan)
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return Interval(mean=fmean(values), half=float(student.isf((1 - CONFIDENCE) / 2, len(values) - 1)) * spread)


Found = dict[Cell, list[Outcome]]


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


def measure(request: FigureRequest) -> Found:
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
    found: Found = {}
    for number, cell in wanted:
        if (cell, number) in kept:
            found.setdefault(cell, []).append(kept[cell, number])
    if not found:
        raise FigureError("the time was up before the first run: allow more of it (--budget)")
    return found


def source_of(request: FigureRequest) -> Source:
    """Return where a request's data and draws come from."""
    return Source(seed=request.seed, folder=request.data, users=request.users, collections=request.collections)


_Task = tuple[int, Cell]


def _made(request: FigureRequest, tasks: Sequence[_Task]) -> Iterator[tuple[int, Cell, Outcome]]:
    """Yield the runs in order, as many as are begun in time, on as many processes as asked for."""
    source = source_of(request)
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
    new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(_HEADER)
        key = (cell.dataset, cell.method, cell.epsilon_micro, cell.alpha, number)
        writer.writerow((*origin, *key, *(repr(getattr(outcome, name)) for name in MEASURED)))


def _read(path: Path, seed: str, size: str) -> dict[tuple[Cell, int], Outcome]:
    """Return the runs of this seed and size, after cutting off a last line that a kill left unfinished."""
    kept: dict[tuple[Cell, int], Outcome] = {}
    if not path.exists():
        return kept
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    try:
        lines = csv.reader(whole.decode().splitlines())
        if whole and tuple(next(lines)) != _HEADER:
            raise ValueError("its first line is another")
        for fields in lines:
            row = dict(zip(_HEADER, fields, strict=True))
            if row["seed"] != seed or row["size"] != size:
                continue
            cell = Cell(
                dataset=row["dataset"],
                method=row["method"],
                epsilon_micro=int(row["epsilon_permanent"]),
                alpha=Fraction(row["alpha"]),
            )
            kept[cell, int(row["run"])] = Outcome(**{name: float(row[name]) for name in MEASURED})
    except (ValueError, csv.Error) as problem:
        raise FigureError(f"{path} does not hold the runs of these figures ({problem}): name another --out") from None
    return kept
