"""Sweeps: runs one campaign at every point of a grid of its fields, several at a time.

``queries.sales.epsilon=1,4,16`` names a field of the campaign file by its path; an element of an array of tables is
named by its name, its index, or ``*`` for all. Every point is checked before the first is run.
"""

from __future__ import annotations

import copy
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError, RunError
from aggservice.campaign.file.campaign import campaign_of
from aggservice.campaign.output.metrics import Metrics
from aggservice.campaign.run import run_campaign
from aggservice.campaign.settings.campaign import Campaign
from aggservice.client import ClientError
from aggservice.engine import EngineError
from aggservice.service import ConfigError
from budget import BudgetError

MAX_RUNS = 10_000
_AMOUNTS = ("epsilon", "delta", "others_epsilon")
_KEPT = ("metrics.json", "timings.json", "transcript.json")


class SweepError(CampaignError):
    """A sweep that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepField:
    """A field of a campaign file and the values it takes."""

    path: str
    values: tuple[Any, ...]

    @property
    def short(self) -> str:
        """The last part of the path, for headings."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point of the grid: the values of the swept fields, and the campaign that has them."""

    number: int
    values: Mapping[str, Any]
    campaign: Campaign

    @property
    def label(self) -> str:
        """The values of the point as text."""
        return ", ".join(f"{path} = {value}" for path, value in self.values.items())


def parse_field(text: str, document: Mapping[str, Any]) -> SweepField:
    """Read ``path=value,value,…``; values take the type that the field has in the document."""
    path, sign, values = text.partition("=")
    path = path.strip()
    parts = [part.strip() for part in values.split(",") if part.strip()]
    if not sign or not path or not parts:
        raise SweepError(f"{text!r} is not a sweep. Write a field and its values: queries.sales.epsilon=1,4,16")
    present = [table.get(key) for table, key in _holders(copy.deepcopy(dict(document)), path)]
    as_text = path.rpartition(".")[2] in _AMOUNTS or any(isinstance(value, str) for value in present)
    found = tuple(_value(part, as_text=as_text) for part in parts)
    if len(set(map(repr, found))) != len(found):
        raise SweepError(f"{path} has a value twice. Write each value once")
    return SweepField(path=path, values=found)


def _value(text: str, *, as_text: bool) -> Any:
    if as_text:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _holders(document: Mapping[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the tables that hold the field, created if missing, and its key."""
    parts = path.split(".")
    tables: list[Any] = [document]
    walked: list[str] = []
    for part in parts[:-1]:
        following: list[Any] = []
        for table in tables:
            if isinstance(table, list):
                following += _elements(table, part, ".".join(walked), path)
            elif isinstance(table, dict):
                following.append(table.setdefault(part, {}))
            else:
                raise _no_table(path, ".".join(walked))
        tables = following
        walked.append(part)
    for table in tables:
        if isinstance(table, list):
            names = ", ".join(_names(table))
            raise SweepError(f"{path}: {'.'.join(walked)} is an array of tables. Name an element: {names}, or *")
        if not isinstance(table, dict):
            raise _no_table(path, ".".join(walked))
    return [(table, parts[-1]) for table in tables]


def _no_table(path: str, where: str) -> SweepError:
    return SweepError(f"{path}: {where} is not a table, so it has no fields. Write {where}=…")


def _names(tables: list[Any]) -> list[str]:
    return [str(one.get("name", place)) if isinstance(one, dict) else str(place) for place, one in enumerate(tables)]


def _elements(tables: list[Any], part: str, where: str, path: str) -> list[Any]:
    names = _names(tables)
    if part == "*":
        return tables
    if part in names:
        return [tables[names.index(part)]]
    if part.isdigit() and int(part) < len(tables):
        return [tables[int(part)]]
    raise SweepError(f"{path}: {where} has no element {part!r}. Write one of {', '.join(names)}, or *")


def points_of(campaign: Campaign, fields: Sequence[SweepField]) -> list[SweepPoint]:
    """Return every point of the grid, each read and checked like a campaign file."""
    if not fields or len({field.path for field in fields}) != len(fields):
        raise SweepError("a sweep needs at least one field, each named once")
    size = 1
    for field in fields:
        size *= len(field.values)
    if size > MAX_RUNS:
        raise SweepError(f"the grid has {size:,} points. Write fewer values: at most {MAX_RUNS:,} points")
    points = []
    for number, values in enumerate(product(*(field.values for field in fields))):
        document: dict[str, Any] = copy.deepcopy(dict(campaign.document))
        chosen = dict(zip((field.path for field in fields), values, strict=True))
        for path, value in chosen.items():
            for table, key in _holders(document, path):
                table[key] = value
        label = ", ".join(f"{path} = {value}" for path, value in chosen.items())
        try:
            made = campaign_of(document, folder=campaign.folder, file=f"the campaign with {label}")
        except CampaignError as problem:
            raise SweepError(str(problem)) from None
        points.append(SweepPoint(number=number, values=chosen, campaign=made))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The errors of one query and measure over the runs of one point.

    ``rmse`` is over all slices of all runs, in natural units; for queries that declare their keys, ``relative_rmse``
    divides it by the mean truth of a slice. Both can be compared between points, unlike RMSRE_τ, whose τ differs from
    point to point. The others are means over jobs or runs.
    """

    point: int
    values: Mapping[str, Any]
    query: str
    measure: str
    runs: int
    jobs: int
    paid: int
    rmse: float | None
    relative_rmse: float | None
    median_relative_error: float | None
    coverage: float | None
    above_noise: float | None
    bias: float | None
    truth: float | None
    precision: float | None
    recall: float | None
    left_out_share: float | None

    def to_plain(self) -> dict[str, Any]:
        """Return plain values; the swept fields come first."""
        figures = {name: getattr(self, name) for name in FIGURES}
        plain = {"point": self.point, **self.values, "query": self.query, "measure": self.measure}
        return {**plain, "runs": self.runs, "jobs": self.jobs, "paid": self.paid, **figures}


FIGURES = tuple(field.name for field in fields(SweepRow) if field.type == "float | None")


def run_sweep(
    campaign: Campaign,
    fields: Sequence[SweepField],
    out: Path,
    *,
    seed: str | None = None,
    repeats: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[SweepRow]:
    """Run every point ``repeats`` times in ``out/points``; return one row per point, query and measure.

    With a seed, the n-th repetition of every point has the same seed, so that points differ only by their fields; the
    rows are then the same for any number of workers.
    """
    if not (repeats >= 1 and workers >= 1):
        raise SweepError("a sweep needs at least one repetition and one worker")
    points = points_of(campaign, fields)
    if len(points) * repeats > MAX_RUNS:
        raise SweepError(f"{len(points):,} points {repeats:,} times are too many runs: choose at most {MAX_RUNS:,}")
    seed = campaign.seed if seed is None else seed
    if (out / "sweep.json").is_file() and (out / "points").is_dir():
        shutil.rmtree(out / "points")  # a former sweep may have had more points
    tasks = []
    for point in points:
        for repeat in range(repeats):
            own = None if seed is None else f"{seed} repetition {repeat}"
            folder = out / "points" / f"{point.number:04d}-{repeat:03d}"
            tasks.append((point, folder, own))
    found: dict[int, Metrics] = {}
    for done, (place, metrics) in enumerate(_run_all(tasks, workers), 1):
        found[place] = metrics
        if progress is not None:
            progress(done, len(tasks))
    # In the order of the repetitions, because sums of floats depend on the order.
    of_point = [[found[first + repeat] for repeat in range(repeats)] for first in range(0, len(tasks), repeats)]
    return [row for point, runs in zip(points, of_point, strict=True) for row in summarise_runs(point, runs)]


_Task = tuple[SweepPoint, Path, "str | None"]


def _run_all(tasks: Sequence[_Task], workers: int) -> Iterator[tuple[int, Metrics]]:
    """Yield the metrics of each task as it ends; a failure ends the sweep and names the point."""
    if workers == 1:
        for place, task in enumerate(tasks):
            yield place, _run_one(*task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(workers, len(tasks)), mp_context=context) as pool:
        futures = {pool.submit(_run_one, *task): place for place, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


def _run_one(point: SweepPoint, folder: Path, seed: str | None) -> Metrics:
    """Run one point; keep its metrics and delete its reports."""
    try:
        metrics = run_campaign(point.campaign, folder, seed=seed, workers=1, draw=False).metrics
    except (CampaignError, ClientError, ConfigError, BudgetError, EngineError) as problem:
        raise RunError(f"{point.label}: {problem}") from None
    for path in folder.iterdir():
        if path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return metrics


def summarise_runs(point: SweepPoint, runs: Sequence[Metrics]) -> list[SweepRow]:
    """Return the rows of a point, one per query and measure, over all its runs."""
    rows = []
    for index, query in enumerate(runs[0].queries):
        jobs = [job for run in runs for job in run.jobs_of(query.name) if job.paid]
        found = [job.discovery for job in jobs if job.discovery]
        for inner, measure in enumerate(query.measures):
            figures = [run.queries[index].measures[inner] for run in runs]
            of_jobs = [job.figures[inner] for job in jobs]
            slices = sum(one.slices for one in of_jobs)
            rmse = (sum(one.rmse**2 * one.slices for one in of_jobs) / slices) ** 0.5 if slices else None
            truth = sum(one.truth for one in of_jobs) / slices if slices and not found else None
            rows.append(
                SweepRow(
                    point=point.number,
                    values=dict(point.values),
                    query=query.name,
                    measure=measure.measure,
                    runs=len(runs),
                    jobs=sum(run.queries[index].jobs for run in runs),
                    paid=sum(run.queries[index].paid for run in runs),
                    rmse=rmse,
                    relative_rmse=rmse / truth if rmse is not None and truth else None,
                    median_relative_error=_mean(one.median_relative_error for one in of_jobs),
                    coverage=_mean(one.coverage for one in figures),
                    above_noise=_mean(one.above_noise for one in figures),
                    bias=_mean(one.bias for one in figures),
                    truth=_mean(one.truth for one in figures),
                    precision=_mean(one.precision for one in found),
                    recall=_mean(one.recall for one in found),
                    left_out_share=_mean(one.left_out_share for one in found),
                )
            )
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
