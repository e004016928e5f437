"""Fleets: columns of devices equal browsers, one a device, and the kernel equals its plain twin."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice import wire
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire.device import DeviceConfigError
from paa_client import Browser, Config, Fleet
from paa_client.config import Rules
from paa_client.fleet import group_by_device, run_kernel
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach
from paa_client.reporting.contributions import Cause
from twins.paa_fleet import run_twin

ORIGIN = "https://ad.example"
START_MS = 1_700_000_040_000
MINUTE_MS = 60_000
RECIPES: list[Reach | KPlusFrequency] = [
    Reach(),
    Reach(cap=3),
    KPlusFrequency(thresholds=(1,)),
    KPlusFrequency(thresholds=(2, 3, 7), cap=2),
]

GAPS = st.sampled_from([0, 1, 1_000, MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 3_600_000, 86_400_000, 20 * 86_400_000])
EVENTS = st.lists(st.tuples(st.integers(0, 2), GAPS, st.integers(0, 3)), max_size=60)


def columns(events: list[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    """Return devices, times and slices; gaps add up to times."""
    device, slices, times, now = [], [], [], START_MS
    for owner, gap, name in events:
        now += gap
        device.append(owner)
        times.append(now)
        slices.append(name)
    return device, times, slices


@settings(max_examples=150, deadline=None)
@given(
    events=EVENTS,
    thresholds=st.sampled_from([(1,), (1, 2), (3,), (2, 5)]),
    refresh=st.booleans(),
    value=st.sampled_from([1, 30, 50, 100]),
    lifetime_ms=st.sampled_from([1, MINUTE_MS, 30 * 86_400_000]),
)
def test_the_kernel_is_its_twin(
    events: list[tuple[int, int, int]], thresholds: tuple[int, ...], refresh: bool, value: int, lifetime_ms: int
) -> None:
    device, times, slices = columns(events)
    index = np.full(thresholds[-1] + 1, -1, dtype=np.int64)
    for place, threshold in enumerate(thresholds):
        index[threshold] = place
    arrays = (np.array(column, dtype=np.int64) for column in (device, times, slices))
    order, starts, when, names = group_by_device(*arrays, 3)
    outcome, reached = np.empty(len(events), dtype=np.int8), np.empty(len(events), dtype=np.int8)
    run_kernel(starts, when, names, index, refresh, lifetime_ms, value, 100, 300, outcome, reached)
    back = np.argsort(order)
    expected = run_twin(
        device,
        times,
        slices,
        thresholds,
        refresh=refresh,
        lifetime_ms=lifetime_ms,
        value=value,
        smaller_budget=100,
        larger_budget=300,
    )
    assert (outcome[back].tolist(), reached[back].tolist()) == expected


def by_browsers(
    recipe: Reach | KPlusFrequency, config: Config, device: list[int], times: list[int], slices: list[int]
) -> tuple[list[tuple[int, int, int, int, int]], dict[Cause, int]]:
    """Run each event in its device's browser; return (row, device, bucket, value, filtering ID) of reports, cuts."""
    made = []
    clock = ManualClock(0)
    browsers: dict[int, Browser] = {}
    for row, (owner, now, name) in enumerate(zip(device, times, slices, strict=True)):
        clock.advance_to(now)
        browser = browsers.get(owner)
        if browser is None:
            browser = browsers[owner] = Browser(clock=clock, bits=SeededBits(owner), config=config)
            browser.register(ORIGIN, "view", recipe.operation)
        browser.run(ORIGIN, "view", name)
        for delivery in browser.take_due():
            for c in delivery.report.contributions:
                made.append((row, owner, c.bucket, c.value, c.filtering_id))
    cuts = {
        cause: sum(browser.journal.count(cause=cause) for browser in browsers.values())
        for cause in (Cause.TEN_MINUTES, Cause.DAY)
    }
    assert all(not browser.journal.console for browser in browsers.values())
    return made, cuts


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, recipe=st.sampled_from(RECIPES), rules=st.sampled_from(Rules))
def test_a_fleet_is_a_browser_a_device(
    events: list[tuple[int, int, int]], recipe: Reach | KPlusFrequency, rules: Rules
) -> None:
    device, times, slices = columns(events)
    config = Config(local_testing_mode=True, rules=rules, larger_budget=5 << 16)
    expected, cuts = by_browsers(recipe, config, device, times, slices)
    fleet = Fleet(recipe=recipe, origin=ORIGIN, config=config)
    made = fleet.run(device, times, slices, devices=3, bits=SeededBits("fleet"))
    rows = zip(made.event.tolist(), made.device.tolist(), made.bucket.tolist(), strict=True)
    assert [(row, owner, bucket, made.value, made.filtering_id) for row, owner, bucket in rows] == expected
    assert made.cuts == cuts
    assert made.asked + made.not_asked == len(events)
    assert made.report_time_ms.tolist() == [times[row] for row in made.event]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_larger_fleet_is_browsers_too(recipe: Reach | KPlusFrequency) -> None:
    """Random campaigns over two months for 40 devices, busy enough that every limit binds; rows in random order."""
    draws = np.random.Generator(np.random.PCG64(5))
    count = 6_000
    device = draws.integers(0, 40, count)
    times = START_MS + np.cumsum(
        np.where(draws.random(count) < 0.97, draws.integers(0, 2_000, count), draws.integers(0, 40_000_000, count))
    )
    slices = draws.integers(0, 60, count)
    config = Config(local_testing_mode=True, larger_budget=3 << 16)
    expected, cuts = by_browsers(recipe, config, device.tolist(), times.tolist(), slices.tolist())
    assert min(cuts.values()) > 0
    fleet = Fleet(recipe=recipe, origin=ORIGIN, config=config)
    shuffled = draws.permutation(count)
    narrow = (device[shuffled].astype(np.int32), times[shuffled], slices[shuffled].astype(np.uint8))
    made = fleet.run(*narrow, devices=40, bits=SeededBits(1))
    assert made.cuts == cuts
    rows = [
        (shuffled[row], owner, bucket, made.value, made.filtering_id)
        for row, owner, bucket in zip(made.event, made.device, made.bucket, strict=True)
    ]
    assert sorted(rows) == sorted(expected)


def test_reports_of_a_fleet_are_reports() -> None:
    fleet = Fleet(recipe=Reach(filtering_id=3), origin=ORIGIN + "/path")
    bits = SeededBits("reports of a fleet")
    made = fleet.run([0, 1, 0], [START_MS] * 3, [5, 5, 5], devices=2, bits=bits)
    assert made.totals() == {5: 2 << 16}
    assert len(made) == 2
    clock = ManualClock(START_MS)
    keys = wire.KeySet.create(bits, clock)
    ids = set()
    for row, report in enumerate(fleet.reports(made)):
        delay_ms = report.scheduled_report_time_ms - START_MS
        assert 600_000 <= delay_ms < 3_600_000
        assert UUID(report.report_id).version == 4
        ids.add(report.report_id)
        opened = wire.decode_payload(wire.open_report(report.seal(keys.public(clock), bits), keys))
        first = opened.contributions[0]
        assert (first.bucket, first.value, first.filtering_id, len(opened.contributions)) == (5, 1 << 16, 3, 20)
        assert wire.SharedInfo.parse(report.shared_info).reporting_origin == ORIGIN
        assert made.device[row] == row
    assert len(ids) == 2


def test_an_empty_fleet_and_one_event() -> None:
    fleet = Fleet(recipe=Reach(), origin=ORIGIN)
    assert len(fleet.run([], [], [], devices=0, bits=SeededBits(1))) == 0
    assert len(fleet.run([4], [0], [2**63 - 1], devices=5, bits=SeededBits(1))) == 1


@pytest.mark.parametrize(
    ("device", "times", "slices"),
    [
        ([5], [0], [0]),
        ([-1], [0], [0]),
        ([0], [-1], [0]),
        ([0], [2**60], [0]),
        ([0], [0], [-1]),
        ([0], [0.5], [0]),
        ([0, 1], [0], [0]),
        ([[0]], [[0]], [[0]]),
        ([0], [0], [2**64 - 1]),
    ],
)
def test_columns_out_of_range_are_refused(device: Any, times: Any, slices: Any) -> None:
    with pytest.raises(DeviceConfigError):
        Fleet(recipe=Reach(), origin=ORIGIN).run(device, times, slices, devices=5, bits=SeededBits(1))


def test_fleets_that_cannot_be_are_refused() -> None:
    with pytest.raises(DeviceConfigError, match="one level"):
        Fleet(recipe=Reach(levels=2), origin=ORIGIN)
    with pytest.raises(DeviceConfigError, match="pending"):
        Fleet(recipe=Reach(), origin=ORIGIN, config=Config(pending_report_limit=5))
    with pytest.raises(DeviceConfigError, match="127"):
        Fleet(recipe=KPlusFrequency(thresholds=(128,)), origin=ORIGIN)
    fleet = Fleet(recipe=KPlusFrequency(thresholds=(1,)), origin=ORIGIN)
    with pytest.raises(DeviceConfigError):
        fleet.run([0], [0], [2**56], devices=1, bits=SeededBits(1))


@pytest.mark.parametrize(
    ("recipe", "config", "words"),
    [
        (Reach(), Config(private_aggregation_allowed=False), "private_aggregation_allowed=False"),
        (Reach(filtering_id=256), Config(), "one byte"),
        (Reach(filtering_id=-1), Config(), "one byte"),
    ],
)
def test_a_fleet_refuses_what_its_browsers_would_not_send(recipe: Reach, config: Config, words: str) -> None:
    clock = ManualClock(1_700_000_040_000)
    browser = Browser(clock=clock, bits=SeededBits("nothing"), config=config)
    browser.register("https://ad.example", "reach", recipe.operation)
    browser.run("https://ad.example", "reach", 1)
    assert browser.next_report_time_ms() is None
    with pytest.raises(DeviceConfigError, match=words):
        Fleet(recipe=recipe, origin="https://ad.example", config=config)
