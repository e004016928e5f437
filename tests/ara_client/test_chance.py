"""What chance decides in a browser: event-level noise, null reports, delays and orders."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from ara_client import Browser, Config, EventLevelReport, FixedChoices
from ara_client.constants import DAY_MS
from ara_client.event_noise.state_space import TriggerDataSpec, space_of
from ara_client.randomness import DrawnChoices
from stated import assert_frequencies

from .test_browser import EVENT, KEYED, SUMMED, Net, buy, click


def test_epsilon_without_bound_means_no_noise() -> None:
    config = Config(max_event_level_epsilon=float("inf"), max_channel_capacity_navigation=20.0)
    browser = Browser(clock=ManualClock(0), bits=SecureBits(), config=config)
    click(browser, KEYED)
    buy(browser, EVENT)
    (report,) = [report for report in browser.advance(3 * DAY_MS) if isinstance(report, EventLevelReport)]
    assert report.to_dict()["randomized_trigger_rate"] == 0


@pytest.mark.parametrize("epsilon", [800, 1e300])
def test_any_epsilon_may_be_asked_for_where_there_is_no_bound(epsilon: float) -> None:
    config = Config(max_event_level_epsilon=float("inf"), max_channel_capacity_navigation=20.0)
    browser = Browser(clock=ManualClock(0), bits=SecureBits(), config=config)
    click(browser, {**KEYED, "event_level_epsilon": epsilon})
    assert len(browser._state.sources) == 1


def test_noise_is_drawn_from_bits() -> None:
    """At ε = 0 every source is noised: 2,925 states, of which one is empty."""
    noised = {"destination": "https://shop.test", "event_level_epsilon": 0, "debug_reporting": True}
    runs = []
    for _ in range(2):
        browser = Browser(clock=ManualClock(0), bits=SeededBits("noise"))
        for place in range(30):
            (told,) = click(browser, noised, debug=True, url=f"https://r{place}.test/x")
            assert told.to_dict()[0]["type"] == "source-noised"
        runs.append(browser.pending)
    assert {report.time_ms for report in runs[0]} == {2 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS}
    assert {report.to_dict()["trigger_data"] for report in runs[0]} == set("01234567")
    assert [report.to_dict() for report in runs[0]] == [report.to_dict() for report in runs[1]]


@pytest.mark.parametrize(("includes", "rate"), [(False, Fraction(1, 20)), (True, Fraction(8, 1000))])
def test_null_reports_come_at_their_rates(includes: bool, rate: Fraction) -> None:
    """Rejects the right rate with probability 10⁻⁸ at most."""
    draws = DrawnChoices(SecureBits(), Config())
    trials = 20_000
    hits = sum(draws.null_report(day % 31, includes_source_time=includes) for day in range(trials))
    assert stats.binomtest(hits, trials, float(rate)).pvalue > 1e-8


def test_delays_and_orders_cover_their_range() -> None:
    """False-alarm rate below 10⁻⁴⁰: some of 4 values never drawn in 400, some of 6 orders never in 600."""
    draws = DrawnChoices(SecureBits(), Config(aggregatable_delay_span_ms=4, offline_delay_ms=(2, 4)))
    assert {draws.aggregatable_delay_ms() for _ in range(400)} == {0, 1, 2, 3}
    assert {draws.offline_delay_ms() for _ in range(400)} == {2, 3, 4}
    orders = set()
    for _ in range(600):
        items = [1, 2, 3]
        draws.shuffle(items)
        orders.add(tuple(items))
    assert len(orders) == 6
    assert draws.report_id()[14] == "4"


def test_every_order_is_equally_likely() -> None:
    """Chi-square over the six orders of three reports; false-alarm rate 10⁻⁸."""
    draws, counts = DrawnChoices(SecureBits(), Config()), np.zeros(27, dtype=np.int64)
    for _ in range(30_000):
        items = [0, 1, 2]
        draws.shuffle(items)
        counts[9 * items[0] + 3 * items[1] + items[2]] += 1
    assert_frequencies(counts[counts > 0], np.full(6, 5_000.0))


def test_reports_that_are_due_together_leave_in_the_order_of_a_draw() -> None:
    """Otherwise the order of arrival tells which trigger came first."""

    class Reversed(FixedChoices):
        def shuffle(self, items: list[Any]) -> None:
            items.reverse()

    sent = []
    for kind in (FixedChoices, Reversed):
        clock, net, config = ManualClock(0), Net(), Config()
        browser = Browser(clock=clock, bits=SeededBits("test"), config=config, draws=kind(config), send=net)
        for key in range(1, 4):
            click(browser, KEYED | {"source_event_id": str(key)})
            buy(browser, EVENT)
        due = browser.advance(3 * DAY_MS)
        sent.append([report.source_event_id for report in due if isinstance(report, EventLevelReport)])
    assert len(sent[0]) == 3 and sent[1] == sent[0][::-1]


@pytest.mark.parametrize(("epsilon", "draws"), [(10.0, 400), (14.0, 15_000)])
def test_a_finite_epsilon_always_has_noise(epsilon: float, draws: int) -> None:
    """2,925 states are noised with probability 0.117 and 0.0024: never in so many draws with one below 10⁻¹⁵."""
    space = space_of(tuple(TriggerDataSpec(trigger_data=data, windows=3) for data in range(8)), 3)
    assert space.count == 2925
    source = DrawnChoices(SecureBits(), Config())
    assert any(source.response(space, epsilon) is not None for _ in range(draws))


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("key", [{}, {"deduplication_key": "9"}])
def test_a_source_that_noise_silenced_sends_nothing(flexible: bool, key: dict[str, str]) -> None:
    config = replace(Config(), full_flexible_events=True)
    draws = FixedChoices(config)
    browser = Browser(clock=ManualClock(0), bits=SeededBits("test"), config=config, draws=draws)
    draws.fake_reports = []
    specs = {"trigger_specs": [{"trigger_data": [0], "summary_buckets": [1]}]} if flexible else {}
    click(browser, {"destination": "https://shop.test", **specs})
    trigger = {"event_trigger_data": [{"trigger_data": "0", **key}]}
    buy(browser, trigger)
    assert not browser.pending
    draws.fake_reports = None
    browser = Browser(clock=ManualClock(0), bits=SeededBits("test"), config=config, draws=draws)
    click(browser, {"destination": "https://shop.test", **specs})
    buy(browser, trigger)
    assert len(browser.pending) == 1


def test_a_trigger_without_a_report_makes_null_reports_at_random() -> None:
    """A rate of 1 and a rate of 0 are certain."""
    for rate, expected in ((1.0, 1), (0.0, 0)):
        config = Config(null_rate_excluding_source_time=rate, null_rate_including_source_time=rate)
        browser = Browser(clock=ManualClock(40 * DAY_MS), bits=SecureBits(), config=config)
        buy(browser, SUMMED)
        assert len(browser.pending) == expected
        buy(browser, SUMMED | {"aggregatable_source_registration_time": "include"})
        assert len(browser.pending) == expected * 32
