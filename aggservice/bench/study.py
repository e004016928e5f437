"""A study against separate runs: wall time of one run per value of ε, over the time of a study with all of them.

Every measurement is a process of its own, so that peak memory can be compared. Importing and compiling are not timed.
"""

from __future__ import annotations

import resource
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Literal

import typer

from aggservice.bench import at_once, conclude
from aggservice.bench.campaign import CAMPAIGN
from aggservice.campaign import parse_campaign, run_campaign, run_sweep
from aggservice.campaign.sweep.grid import SweepField, changed

_MIB = 1 << 20
Kind = Literal["study", "unsealed", "sealed"]


def _field(values: int) -> SweepField:
    """Return the field of the study: ε from 0.1 on, in steps of 0.1."""
    steps = range(1, values + 1)
    return SweepField(path="queries.month.epsilon", values=tuple(f"{number / 10:.1f}" for number in steps))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usages)


def _child(kind: Kind, people: int, values: int, number: int, begin: Any, out: Any) -> None:
    """Run a study, or one of its points as a run by itself; put its wall and CPU time, peak memory and row."""
    campaign = parse_campaign(CAMPAIGN.format(people=people), folder=Path())
    small = parse_campaign(CAMPAIGN.format(people=300), folder=Path())
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        folder = Path(scratch)
        run_campaign(small, folder / "warm", workers=1, draw=False, seed="warm", unsealed=kind != "sealed")
        run_sweep(small, [_field(1)], folder / "warm-study", seed="warm")
        begin.wait()
        start, cpu = time.perf_counter(), _cpu_seconds()
        if kind == "study":
            result = run_sweep(campaign, [_field(values)], folder / "out", seed="bench")
            estimate = [row["estimate"] for row in result.rows if row.point == number]
        else:
            field = _field(values)
            point = changed(campaign, {field.path: field.values[number]})
            run = run_campaign(
                point, folder / "out", workers=2, draw=False, seed="bench repetition 0", unsealed=kind == "unsealed"
            )
            estimate = [one.estimate for one in run.assessments[0].figures]
        wall = time.perf_counter() - start
        # The server that workers fork from waits for them; their time counts once it has been waited for itself.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        taken = wall, _cpu_seconds() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.put((*taken, peak, estimate))


def measure(kind: Kind, people: int, values: int, number: int) -> tuple[float, float, int, list[float]]:
    """Return wall seconds, CPU seconds, peak bytes and the estimates of point ``number``."""
    (found,) = at_once(_child, [(kind, people, values, number)])
    print(f"{kind:>9} {found[0]:8.2f} s wall, {found[1]:8.2f} s CPU, peak {found[2] / _MIB:6.0f} MiB", flush=True)
    wall, cpu, peak, estimates = found
    return wall, cpu, peak, estimates


def command(
    people: Annotated[int, typer.Option(help="Number of people; each sees 4.4 ads on average.")] = 60_000,
    values: Annotated[int, typer.Option(help="Values of ε.", min=2, max=640)] = 100,
    runs: Annotated[int, typer.Option(help="Separate unsealed runs that are timed.", min=1)] = 3,
    sealed_runs: Annotated[int, typer.Option(help="Separate sealed runs that are timed.", min=1)] = 1,
    full: Annotated[bool, typer.Option("--full", help="A million people: about 500,000 reports.")] = False,
) -> None:
    """A study: time of separate runs over its own.

    Runs are timed both unsealed and sealed.
    """
    people = 1_000_000 if full else people
    chosen = [(number * values) // max(runs, sealed_runs) for number in range(max(runs, sealed_runs))]
    first = measure("unsealed", people, values, chosen[0])
    study = measure("study", people, values, chosen[0])
    unsealed = [first, *(measure("unsealed", people, values, number) for number in chosen[1:runs])]
    sealed = [measure("sealed", people, values, number) for number in chosen[:sealed_runs]]
    assert study[3] == first[3] == sealed[0][3]  # the study released what the runs did
    memory = study[2] / max(taken[2] for taken in unsealed)
    print(f"{people:,} people, {values} values of ε")
    print(f"peak memory of the study over that of a run: {memory:.2f} (promised at most 1.3)")
    for name, separate, promised in (("sealed", sealed, 300), ("unsealed", unsealed, 30)):
        wall, cpu = mean(taken[0] for taken in separate), mean(taken[1] for taken in separate)
        print(
            f"{name}: {values} runs over the study: {values * wall / study[0]:.1f} by wall time, "
            f"{values * cpu / study[1]:.1f} by CPU time, from {len(separate)} runs (promised {promised} with --full)"
        )
    one = mean(taken[0] for taken in unsealed)
    conclude(
        values * one / study[0],
        f"time of {values} separate unsealed runs over the time of a study of all of them",
        f"{values} times {one:.1f} s, the mean of {runs}, against {study[0]:.1f} s; promised 30 with --full",
    )
