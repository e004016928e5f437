"""``aggservice bench paa``: contributions per second of ``Fleet`` over those of ``Browser``, one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from aggservice.bench import conclude, interleaved, seconds
from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Browser, Config, Fleet
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach

ORIGIN = "https://ad.example"
START_MS = 1_700_000_040_000
VIEWS = 5
FULL_DEVICES = 2_000_000

Events = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def events_of(devices: int, seed: int) -> Events:
    """Return views in order of time: each device sees five of 20 campaigns within an hour, each for the first time.

    So every view makes a contribution, and some are cut by the ten-minute budget.
    """
    draws = np.random.Generator(np.random.PCG64(seed))
    device = np.repeat(np.arange(devices, dtype=np.int64), VIEWS)
    first = draws.integers(0, 20, devices)
    campaign = (np.repeat(first, VIEWS) + np.tile(np.arange(VIEWS) * 4, devices)) % 20
    time_ms = START_MS + draws.integers(0, 3_600_000, devices * VIEWS)
    order = np.argsort(time_ms, kind="stable")
    return device[order], time_ms[order], campaign[order]


def run_browsers(recipe: Reach | KPlusFrequency, config: Config, events: Events, devices: int) -> int:
    """Run the events with one browser per device; return the number of contributions, cut ones included."""
    clock = ManualClock(START_MS)
    bits = SeededBits("browsers")
    browsers = []
    for _ in range(devices):
        browser = Browser(clock=clock, bits=bits, config=config)
        browser.register(ORIGIN, "view", recipe.operation)
        browsers.append(browser)
    for device, time_ms, campaign in zip(*(column.tolist() for column in events), strict=True):
        clock.advance_to(time_ms)
        browsers[device].run(ORIGIN, "view", campaign)
    clock.advance(7_200_000)
    return sum(len(browser.take_due()) + browser.journal.count() for browser in browsers)


def command(
    devices: Annotated[int, typer.Option(min=1, help="Devices of the fleet.")] = 400_000,
    browsers: Annotated[int, typer.Option(min=1, help="Devices with one browser each.")] = 2_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")] = 5,
    full: Annotated[bool, typer.Option("--full", help=f"Run {FULL_DEVICES} devices.")] = False,
) -> None:
    """Private Aggregation: Fleet over Browser, contributions per s.

    Reach and K+ frequency run as columns of devices and with one browser per device, in turns, on one core.
    Both include the operation of each view, storage, budgets, report ids and report times; neither seals.
    """
    devices = FULL_DEVICES if full else devices
    config = Config()
    many, few = events_of(devices, 1), events_of(browsers, 2)
    figures: list[str] = []
    ratios: list[float] = []
    rates: list[tuple[float, float]] = []
    for recipe in (Reach(cap=2), KPlusFrequency(thresholds=(1, 2, 3), cap=2)):
        fleet = Fleet(recipe=recipe, origin=ORIGIN, config=config)

        def run_fleet(events: Events = many, size: int = devices, fleet: Fleet = fleet) -> int:
            return fleet.run(*events, devices=size, bits=SeededBits("fleet")).asked

        def run_few(recipe: Reach | KPlusFrequency = recipe) -> int:
            return run_browsers(recipe, config, few, browsers)

        made_few = run_few()
        made = run_fleet()
        if made_few != run_fleet(few, browsers):
            raise RuntimeError(
                "the fleet and the browsers disagree on how many contributions were made: the times mean nothing"
            )
        fleet_cpu_s: list[float] = []

        def timed_fleet(run: Callable[[], int] = run_fleet, into: list[float] = fleet_cpu_s) -> None:
            into.append(seconds(run, time.process_time))

        times = interleaved({"fleet": timed_fleet, "browsers": run_few}, rounds)
        rate, browser_rate = made / times["fleet"], made_few / times["browsers"]
        rates.append((rate, made / median(fleet_cpu_s)))
        ratios.append(rate / browser_rate)
        name = type(recipe).__name__
        taken = f"Fleet {made:,} contributions in {times['fleet']:.3f} s ({median(fleet_cpu_s):.3f} s of one core)"
        print(f"{name}: {taken}, Browser {made_few:,} in {times['browsers']:.3f} s")
        figures.append(f"{name} {rate:,.0f}/s over {browser_rate:,.0f}/s")
    wall, core = min(rates)
    print(f"slowest Fleet: {wall:,.0f} contributions/s, {core:,.0f} per second of one core; promised: 1,000,000")
    conclude(min(ratios), "Fleet over Browser, contributions per second, the worse of two recipes", "; ".join(figures))
