"""The two windows at their exact ends, minute by minute, in a browser and in a fleet, under both sets of rules."""

from __future__ import annotations

from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Browser, Config, Fleet
from paa_client.config import Rules
from paa_client.recipes.reach import Reach

from .test_paa_fleet import ORIGIN, START_MS, by_browsers

MINUTE_MS = 60_000
LAST_MS = 59_999
START = START_MS // MINUTE_MS * MINUTE_MS
"""The first millisecond of a minute."""


def sent(times_ms: list[int], rules: Rules, *, larger: int, value: int) -> tuple[list[int], list[int]]:
    """Return which views of new slices, one device's, are reported: by browsers, and by a fleet."""
    config = Config(local_testing_mode=True, rules=rules, smaller_budget=100, larger_budget=larger)
    recipe = Reach(budget=value)
    device, slices = [0] * len(times_ms), list(range(len(times_ms)))
    browsers, _ = by_browsers(recipe, config, device, times_ms, slices)
    fleet = Fleet(recipe=recipe, origin=ORIGIN, config=config).run(
        device, times_ms, slices, devices=1, bits=SeededBits("fleet")
    )
    return [row for row, *_ in browsers], fleet.event.tolist()


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize(("minutes", "allowed"), [(0, 0), (1, 0), (8, 0), (9, 0), (10, 1), (11, 1)])
@pytest.mark.parametrize("within", [(0, 0), (LAST_MS, 0), (0, LAST_MS), (LAST_MS, LAST_MS)])
def test_ten_minutes_are_this_minute_and_the_nine_before_it(
    minutes: int, allowed: int, within: tuple[int, int], rules: Rules
) -> None:
    """The first view spends all; a later one is paid for ten minutes by the clock after it, and not a minute sooner."""
    times = sorted([START + within[0], START + minutes * MINUTE_MS + within[1]])
    expected = [0, 1][: 1 + allowed]
    assert sent(times, rules, larger=100_000, value=100) == (expected, expected)


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize(("minutes", "allowed"), [(10, 0), (1_438, 0), (1_439, 0), (1_440, 1), (1_441, 1)])
@pytest.mark.parametrize("within", [(0, 0), (LAST_MS, 0), (0, LAST_MS), (LAST_MS, LAST_MS)])
def test_a_day_is_this_minute_and_the_1439_before_it(
    minutes: int, allowed: int, within: tuple[int, int], rules: Rules
) -> None:
    times = [START + within[0], START + minutes * MINUTE_MS + within[1]]
    expected = [0, 1][: 1 + allowed]
    assert sent(times, rules, larger=100, value=100) == (expected, expected)


@pytest.mark.parametrize("rules", Rules)
def test_origins_of_one_site_spend_one_budget(rules: Rules) -> None:
    """Two origins of a site, one of another, each asking for all of Λ₁ in the same minute."""

    def ask(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram(bucket=1, value=100)

    config = Config(local_testing_mode=True, rules=rules, smaller_budget=100, larger_budget=1000)
    browser = Browser(clock=ManualClock(START), bits=SeededBits("origins"), config=config)
    for origin in ("https://a.ad.example", "https://b.ad.example", "https://other.example"):
        browser.register(origin, "ask", ask)
        browser.run(origin, "ask")
    sent = [delivery.report.reporting_origin for delivery in browser.take_due()]
    assert sent == ["https://a.ad.example", "https://other.example"]


@pytest.mark.parametrize("rules", Rules)
@pytest.mark.parametrize(("value", "fit"), [(50, 2), (34, 2), (33, 3), (100, 1), (51, 1)])
def test_a_window_is_filled_to_its_budget_and_no_further(value: int, fit: int, rules: Rules) -> None:
    times = [START + 60_000 * index for index in range(5)]
    expected = list(range(fit))
    assert sent(times, rules, larger=100_000, value=value) == (expected, expected)
    assert sent([time * 11 for time in times], rules, larger=100, value=value) == (expected, expected)
