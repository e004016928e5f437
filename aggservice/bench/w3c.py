"""``aggservice bench w3c``: conversions per second of ``Fleet`` over those of ``Browser``, one core."""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated

import numpy as np
import typer

from aggservice.bench import conclude, interleaved, seconds
from aggservice.mechanisms import ForbiddenBits, ManualClock, SeededBits
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    Config,
    ConversionColumns,
    ConversionOptions,
    Fleet,
    ImpressionColumns,
    ImpressionOptions,
)
from w3c_client.columns import FleetConversions
from w3c_client.randomness import W3cWordChoices

START_MS, DAY_MS = 1_700_000_000_000, 86_400_000
DAYS, SITES, SIZE = 30, 50, 8
IMPRESSIONS, CONVERSIONS = 10, 5
CREDIT = (2, 1)
FULL_DEVICES = 2_000_000
PROMISED_RATE, PROMISED_RATIO, PROMISED_STORED = 500_000, 50, 2_000
STORED = 1_000

Events = tuple[ImpressionColumns, ConversionColumns]


def events_of(devices: int, seed: int) -> Events:
    """Return 30 days of each device: ten impressions on 50 sites, and five conversions on another 50."""
    draws = np.random.Generator(np.random.PCG64(seed))

    def of(each: int) -> dict[str, np.ndarray]:
        times = np.sort(draws.integers(0, DAYS * DAY_MS, (devices, each)), axis=1).ravel()
        return {
            "device": np.repeat(np.arange(devices), each),
            "time_ms": START_MS + times,
            "site": draws.integers(0, SITES, devices * each),
        }

    saved = of(IMPRESSIONS)
    bought = of(CONVERSIONS)
    bought["site"] += SITES
    return (
        ImpressionColumns.of(**saved, histogram_index=draws.integers(0, SIZE, devices * IMPRESSIONS)),
        ConversionColumns.of(
            **bought,
            histogram_size=SIZE,
            value=draws.integers(1, 6, devices * CONVERSIONS),
            max_value=5,
            epsilon_micro=500_000,
        ),
    )


def run_browsers(events: Events, offsets: np.ndarray, words: np.ndarray) -> list[tuple[int, ...]]:
    """Run the events with one browser per device and return the histograms."""
    saved, bought = events
    clock = ManualClock(START_MS)
    histograms = []
    save = list(zip(saved.time_ms.tolist(), saved.site.tolist(), saved.histogram_index.tolist(), strict=True))
    measure = list(zip(bought.time_ms.tolist(), bought.site.tolist(), bought.value.tolist(), strict=True))
    for device, offset in enumerate(offsets.tolist()):
        draws = W3cWordChoices(offset)
        clock = ManualClock(START_MS)
        browser = Browser(clock=clock, bits=ForbiddenBits(), config=Config(), draws=draws)
        mine = save[device * IMPRESSIONS : (device + 1) * IMPRESSIONS]
        at = 0
        for row in range(device * CONVERSIONS, (device + 1) * CONVERSIONS):
            now_ms, site, value = measure[row]
            while at < IMPRESSIONS and mine[at][0] <= now_ms:
                clock.advance_to(mine[at][0])
                browser.save_impression(f"site{mine[at][1]}.example", ImpressionOptions(histogram_index=mine[at][2]))
                at += 1
            clock.advance_to(now_ms)
            draws.words = iter((int(words[row]),))
            histograms.append(browser.measure_conversion(f"site{site}.example", _options(value)).histogram)
    return histograms


def _options(value: int) -> ConversionOptions:
    return ConversionOptions(
        aggregation_service=DEFAULT_SERVICE,
        histogram_size=SIZE,
        epsilon=0.5,
        value=value,
        max_value=5,
        credit=CREDIT,
    )


def stored_rate(conversions: int) -> float:
    """Return the conversions per second of a browser that holds 1,000 impressions of the last 30 days."""
    clock = ManualClock(START_MS)
    browser = Browser(clock=clock, bits=SeededBits("stored"))
    for number in range(STORED):
        clock.advance_to(START_MS + number * (DAYS - 1) * DAY_MS // STORED)
        browser.save_impression(f"site{number % SITES}.example", ImpressionOptions(histogram_index=number % SIZE))

    def measure() -> None:
        for number in range(conversions):
            clock.advance(1_000)
            browser.measure_conversion(f"site{SITES + number % SITES}.example", _options(1 + number % 5))

    return conversions / seconds(measure, time.process_time)


def command(
    devices: Annotated[int, typer.Option(min=1, help="Devices of the fleet.")] = 300_000,
    browsers: Annotated[int, typer.Option(min=1, help="Devices with one browser each.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median counts.")] = 5,
    full: Annotated[bool, typer.Option("--full", help=f"Run {FULL_DEVICES} devices.")] = False,
) -> None:
    """W3C Attribution: Fleet over Browser, conversions per s.

    Each device has ten impressions and five conversions in 30 days, divided over two credits; budgets and quotas
    are charged. Both run in turns, timed by the time of one core, and neither seals. Their histograms must agree.
    """
    devices = FULL_DEVICES if full else devices
    many, few = events_of(devices, 1), events_of(browsers, 2)
    draws = np.random.Generator(np.random.PCG64(3))
    offsets = draws.integers(0, 7 * DAY_MS, browsers)
    words = draws.integers(0, 1 << 64, browsers * CONVERSIONS, dtype=np.uint64)
    fleet = Fleet(bits=SeededBits("fleet"), credits=(CREDIT,))

    def run_few() -> FleetConversions:
        return fleet.run(*few, epoch_offset_ms=offsets, words=words)

    found, expected = run_few(), run_browsers(few, offsets, words)
    if [found.histogram(row, SIZE) for row in range(len(found))] != expected:
        raise RuntimeError("the fleet and the browsers disagree on the histograms: the times mean nothing")
    attributed = sum(map(any, expected)) / len(expected)
    print(f"{len(expected):,} conversions by Fleet and by Browser: equal histograms, {attributed:.0%} of them not zero")
    works = {"fleet": lambda: fleet.run(*many), "browsers": lambda: run_browsers(few, offsets, words)}
    taken = interleaved(works, rounds, time.process_time)
    rate = devices * CONVERSIONS / taken["fleet"]
    one = browsers * CONVERSIONS / taken["browsers"]
    stored = median(stored_rate(2_000) for _ in range(rounds))
    print(f"Fleet: {rate:,.0f} conversions/s ({devices:,} devices); promised: {PROMISED_RATE:,}")
    print(f"Browser with {STORED:,} stored impressions: {stored:,.0f} conversions/s; promised: {PROMISED_STORED:,}")
    conclude(
        rate / one,
        f"Fleet over Browser, conversions per second, one core; promised: {PROMISED_RATIO}",
        f"{rate:,.0f}/s over {one:,.0f}/s",
    )
