"""Sweeps: one campaign at every point of a grid, computing each stage once for all points that share its inputs.

Points are unsealed unless asked otherwise. Each is released ``repetitions`` times from each of ``populations`` drawn
populations. With a cache folder, a sweep that was stopped continues where it was.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError, RunError
from aggservice.campaign.run import run_campaign, write_json
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain, StageStore
from aggservice.campaign.sweep.draws import NoiseDraws, SliceLaw, draw_releases
from aggservice.campaign.sweep.grid import SweepError, SweepField, SweepPoint, points_of
from aggservice.campaign.world.truth import ATTRIBUTE, COLLECT, SIMULATE
from aggservice.client import ClientError
from aggservice.files.atomic import whole_file
from aggservice.job.errors import EngineError
from aggservice.mechanisms import SecureBits
from aggservice.service import ConfigError
from budget import BudgetError

MAX_RELEASES = 10_000_000
SWEEP_FILES = frozenset({"points", "plots", "sweep.json", "sweep.csv", "slices.csv"})
"""What a sweep leaves in its folder."""
_KEPT = ("metrics.json", "timings.json", "transcript.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The metrics of one query and measure over the runs of one point, by their names in sweeps; ``runs`` counts
    releases. RMSE and relative RMSE can be compared between points, unlike RMSRE_τ if its τ differs between them.
    """

    point: int
    values: Mapping[str, Any]
    query: str
    measure: str
    runs: int
    jobs: int
    paid: int
    figures: Mapping[str, float | None]

    def __getitem__(self, name: str) -> float | None:
        return self.figures[name]

    def to_plain(self) -> dict[str, Any]:
        """Return plain values; the swept fields come first."""
        plain = {"point": self.point, **self.values, "query": self.query, "measure": self.measure}
        return {**plain, "runs": self.runs, "jobs": self.jobs, "paid": self.paid, **self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A finished sweep: its rows, the law of each point's largest slices (with several repetitions), and the stages
    that were computed and read from the cache.
    """

    rows: list[SweepRow]
    slices: dict[int, tuple[SliceLaw, ...]]
    computed: tuple[tuple[str, str], ...]
    read: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One point with one population. ``folder`` gets its metrics; ``seed`` is None for a private sealed run."""

    point: SweepPoint
    folder: Path
    seed: str | None
    repetitions: int
    sealed: bool


def run_sweep(
    campaign: Campaign,
    fields: Sequence[SweepField],
    out: Path,
    *,
    seed: str | None = None,
    populations: int = 1,
    repetitions: int = 1,
    workers: int = 1,
    sealed: bool = False,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Run every point into ``out/points``; return one row per point, query and measure.

    The n-th population of every point has the same seed, so that points differ only by their fields; the rows are the
    same for any number of workers. Without a seed, one is drawn (and kept in ``cache``), because shared stages need it.
    """
    if not (populations >= 1 and repetitions >= 1 and workers >= 1):
        raise SweepError("a sweep needs at least one population, one repetition and one worker")
    if sealed and (repetitions > 1 or cache is not None):
        raise SweepError("sealed runs share no stages: leave --repetitions and --cache out, or --sealed")
    points = points_of(campaign, fields)
    if (releases := len(points) * populations * repetitions) > MAX_RELEASES:
        raise SweepError(f"the sweep has {releases:,} releases: choose at most {MAX_RELEASES:,}")
    seed = campaign.seed if seed is None else seed
    if seed is None and not sealed:
        seed = _drawn_seed(cache)
    if is_sweep_folder(out) and (out / "points").is_dir():
        shutil.rmtree(out / "points")  # a former sweep may have had more points
    tasks = [
        _Task(
            point=point,
            folder=out / "points" / f"{point.number:04d}-{number:03d}",
            seed=None if seed is None else f"{seed} repetition {number}",
            repetitions=repetitions,
            sealed=sealed,
        )
        for point in points
        for number in range(populations)
    ]
    found: dict[int, NoiseDraws] = {}
    stages: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    try:
        for place, draws in _run_all(tasks, workers, cache, stages):
            found[place] = draws
            if progress is not None:
                progress(len(found), len(tasks))
    except KeyboardInterrupt:
        raise SweepStopped(_result(points, found, populations, stages), of=len(points)) from None
    return _result(points, found, populations, stages)


def is_sweep_folder(out: Path) -> bool:
    """Whether a folder holds only files of a sweep, finished or not; True for an empty folder."""
    return out.is_dir() and {path.name for path in out.iterdir()} <= SWEEP_FILES


class SweepStopped(KeyboardInterrupt):
    """A sweep was stopped by an interrupt. ``result`` has the points that had finished, of ``of`` in all."""

    def __init__(self, result: SweepResult, *, of: int) -> None:
        self.result = result
        self.of = of
        self.finished = len({row.point for row in result.rows})
        super().__init__(f"the sweep was stopped; {self.finished} of {of} points had finished")


def _result(
    points: Sequence[SweepPoint], found: Mapping[int, NoiseDraws], populations: int, stages: tuple[list[Any], list[Any]]
) -> SweepResult:
    """Return the result of the points for which every population has finished."""
    whole = []
    for index, point in enumerate(points):
        places = range(index * populations, (index + 1) * populations)
        if all(place in found for place in places):
            # In the order of the populations, because sums of floats depend on the order.
            whole.append((point, [found[place] for place in places]))
    return SweepResult(
        rows=[row for point, runs in whole for row in summarise(point, runs)],
        slices={point.number: runs[0].slices for point, runs in whole if runs[0].slices},
        computed=tuple(stages[0]),
        read=tuple(stages[1]),
    )


def _drawn_seed(cache: Path | None) -> str:
    """Return a new seed, or the one that an earlier sweep drew and kept in the cache folder."""
    drawn = SecureBits().read(16).hex()
    if cache is None:
        return drawn
    path = cache / "seed.txt"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            with whole_file(path) as staged:
                staged.write_text(drawn + "\n", encoding="ascii")
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise RunError(f"{cache} cannot be used: {problem}: name another folder with --cache") from None


def _run_all(
    tasks: Sequence[_Task], workers: int, cache: Path | None, stages: tuple[list[Any], list[Any]]
) -> Iterator[tuple[int, NoiseDraws]]:
    """Yield the draws of each task as it ends; a failure ends the sweep and names the point.

    Tasks with the same population stay together, in one process, so that it is drawn once.
    """
    groups: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault(_order(task)[0], []).append(place)
    if workers == 1 or len(groups) == 1:
        store = StageStore(cache)
        for group in groups.values():
            for place in sorted(group, key=lambda one: _order(tasks[one])):
                yield place, _run_one(tasks[place], store)
        stages[0].extend(store.computed)
        stages[1].extend(store.read)
        return
    context = multiprocessing.get_context("spawn")
    most = min(workers, len(groups))
    with ProcessPoolExecutor(max_workers=most, mp_context=context, initializer=_end_on_interrupt) as pool:
        futures = [pool.submit(_run_group, {one: tasks[one] for one in group}, cache) for group in groups.values()]
        try:
            for future in as_completed(futures):
                draws, computed, read = future.result()
                yield from draws.items()
                stages[0].extend(computed)
                stages[1].extend(read)
        finally:
            for future in futures:
                future.cancel()


def _end_on_interrupt() -> None:
    """End this process silently on Ctrl-C, which the terminal sends to every process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _order(task: _Task) -> tuple[str, ...]:
    """Return what tasks are ordered by, so that those that share stages follow each other."""
    if task.seed is None or task.sealed:
        return (str(task.folder),)
    chain = RunChain.seeded(task.seed)
    return tuple(chain.digest(stage, task.point.campaign) for stage in (SIMULATE, ATTRIBUTE, COLLECT))


def _run_group(tasks: dict[int, _Task], cache: Path | None) -> tuple[dict[int, NoiseDraws], Any, Any]:
    store = StageStore(cache)
    draws = {place: _run_one(tasks[place], store) for place in sorted(tasks, key=lambda one: _order(tasks[one]))}
    return draws, store.computed, store.read


def _run_one(task: _Task, store: StageStore) -> NoiseDraws:
    """Run one point; keep its metrics."""
    try:
        if task.sealed or task.seed is None:
            return _run_sealed(task)
        chain = RunChain.seeded(task.seed, store=store)
        draws = draw_releases(task.point.campaign, chain, task.seed, task.repetitions)
        store.forget_unused()
    except (CampaignError, ClientError, ConfigError, BudgetError, EngineError) as problem:
        raise RunError(f"{task.point.label}: {problem}") from None
    task.folder.mkdir(parents=True, exist_ok=True)
    write_json(task.folder / "metrics.json", draws.metrics.to_plain())
    return draws


def _run_sealed(task: _Task) -> NoiseDraws:
    """Run one point through encryption and a service; delete its reports."""
    metrics = run_campaign(task.point.campaign, task.folder, seed=task.seed, workers=1, draw=False).metrics
    for path in task.folder.iterdir():
        if path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return NoiseDraws.of_run(metrics)


def summarise(point: SweepPoint, runs: Sequence[NoiseDraws]) -> list[SweepRow]:
    """Return the rows of a point, one per query and measure, over all its populations and releases."""
    rows = []
    releases = [release for run in runs for release in run.releases]
    for query in runs[0].metrics.queries:
        by_release = [[job for job in release if job.query == query.name] for release in releases]
        paid = [[job for job in release if job.paid] for release in by_release]
        found = [job.discovery for release in paid for job in release if job.discovery]
        for inner, measure in enumerate(query.measures):
            errors = [[job.figures[inner] for job in release] for release in paid]
            rows.append(
                SweepRow(
                    point=point.number,
                    values=dict(point.values),
                    query=query.name,
                    measure=measure.measure,
                    runs=len(releases),
                    jobs=sum(map(len, by_release)),
                    paid=sum(map(len, paid)),
                    figures={
                        one.in_sweep: one.over_releases(errors, found) for one in point.campaign.metrics if one.in_sweep
                    },
                )
            )
    return rows
