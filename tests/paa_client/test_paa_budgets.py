"""Contribution budgets: the two windows by whole minutes, names, and a million operations counted by brute force."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Auction, Browser, HistogramContribution, InterestGroup, specification
from paa_client.config import ContextType, Rules
from paa_client.effects import WorkletError
from paa_client.origins import site_of
from paa_client.reporting.budgets import Budgeter, BudgetRequest, Reservations, Usage
from paa_client.reporting.contributions import Cause

MINUTE_MS = 60_000
SITE = "https://ad.example"


def ask(
    budgeter: Budgeter, minute: int, *values: int, consume: bool = True, api: ContextType = ContextType.SHARED_STORAGE
) -> list[Cause | None]:
    requests = [BudgetRequest(HistogramContribution(1, value)) for value in values]
    return budgeter.query(requests, SITE, api, minute * MINUTE_MS, consume=consume)


def test_ten_minutes_are_the_current_minute_and_the_nine_before() -> None:
    budgeter = Budgeter(smaller_budget=1 << 16, larger_budget=1 << 20)
    assert ask(budgeter, 100, 65_535) == [None]
    assert ask(budgeter, 109, 1, 1) == [None, Cause.TEN_MINUTES]
    assert ask(budgeter, 110, 65_535, 1) == [None, Cause.TEN_MINUTES]
    assert ask(budgeter, 119, 2, 1) == [Cause.TEN_MINUTES, None]


def test_a_day_is_the_current_minute_and_the_1439_before() -> None:
    budgeter = Budgeter(smaller_budget=1 << 16, larger_budget=1 << 20)
    for step in range(16):
        assert ask(budgeter, 10 * step, 1 << 16) == [None]
    assert ask(budgeter, 1_439, 1) == [Cause.DAY]
    assert ask(budgeter, 1_440, 1 << 16) == [None]
    assert ask(budgeter, 1_449, 1) == [Cause.TEN_MINUTES]
    assert ask(budgeter, 1_450, 1) == [None]


def test_one_denied_contribution_does_not_deny_the_next_and_tests_spend_nothing() -> None:
    budgeter = Budgeter(smaller_budget=100, larger_budget=100)
    assert ask(budgeter, 0, 60, 50, 40, 1, consume=False) == [None, Cause.TEN_MINUTES, None, Cause.TEN_MINUTES]
    assert budgeter.used(SITE, ContextType.SHARED_STORAGE, 0) == (0, 0)
    assert ask(budgeter, 0, 60, 50, 40, 1) == [None, Cause.TEN_MINUTES, None, Cause.TEN_MINUTES]
    assert budgeter.used(SITE, ContextType.SHARED_STORAGE, 0) == (100, 100)
    assert ask(budgeter, 0, 100, api=ContextType.PROTECTED_AUDIENCE) == [None], "each API has its own"
    budgeter.forget(SITE)
    assert ask(budgeter, 0, 100) == [None]


@settings(max_examples=200, deadline=None)
@given(entries=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=60))
def test_usage_in_order_of_any_clock_counts_what_brute_force_counts(entries: list[tuple[int, int]]) -> None:
    """Also when the clock goes back: minutes ahead of it count, as in Chromium."""
    usage = Usage()
    seen: list[tuple[int, int]] = []
    for minute, value in entries:
        assert usage.smaller(minute) == sum(v for m, v in seen if m > minute - 10)
        usage.add(minute, value)
        seen.append((minute, value))
    by_minute: dict[int, int] = defaultdict(int)
    for minute, value in seen:
        by_minute[minute] += value
    assert usage.entries() == sorted(by_minute.items())
    assert usage.larger(60 + 1439) == sum(v for m, v in seen if m == 60)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 20 * 1_440), st.integers(0, 5)), max_size=40))
def test_a_clock_that_leaves_and_returns_counts_what_it_counted_before(steps: list[tuple[int, int]]) -> None:
    usage = Usage()
    seen: list[tuple[int, int]] = []
    for minute, value in steps:
        assert usage.larger(minute) == sum(v for m, v in seen if m > minute - 1_440)
        usage.add(minute, value)
        seen.append((minute, value))
        assert usage.smaller(minute) == sum(v for m, v in seen if m > minute - 10)


def test_a_day_in_the_future_does_not_give_the_present_its_budget_again() -> None:
    budgeter = Budgeter(smaller_budget=100, larger_budget=100)
    assert ask(budgeter, 5, 100) == [None]
    assert ask(budgeter, 5 + 10 * 1_440, 1) == [None]
    assert ask(budgeter, 5, 1) == [Cause.TEN_MINUTES]


def test_usage_is_dropped_a_month_after_it_stopped_counting() -> None:
    usage = Usage()
    for day in range(100):
        usage.larger(1_440 * day)
        usage.add(1_440 * day, 1)
    assert 30 <= len(usage.entries()) <= 64
    assert usage.larger(1_440 * 99) == 1


def test_named_budgets_are_fractions_of_both_windows_and_the_rest_is_for_the_unnamed() -> None:
    budgeter = Budgeter(smaller_budget=1000, larger_budget=2000)
    reserved = Reservations({"a": Fraction(1, 2), "b": Fraction(1, 8)})

    def use(minute: int, name: str | None, value: int, reservations: Reservations = reserved) -> Any:
        request = BudgetRequest(HistogramContribution(1, value, 0, name), reservations)
        return budgeter.query([request], SITE, ContextType.SHARED_STORAGE, minute * MINUTE_MS, consume=True)[0]

    assert use(0, "b", 126) is Cause.NAMED
    assert use(0, "b", 125) is None
    assert use(0, None, 376) is Cause.NAMED
    assert use(0, None, 375) is None
    assert use(0, "a", 500) is None
    assert use(0, "a", 1) is Cause.TEN_MINUTES
    assert use(10, "b", 125) is None, "125 again: two eighths of the ten-minute budgets, one eighth of the day's"
    assert use(20, "b", 1) is Cause.NAMED, "the day's eighth is spent"
    assert use(20, None, 1000, Reservations()) is Cause.DAY, "without reservations only the whole counts"
    assert use(20, None, 875, Reservations()) is None


def test_reservations_hold_for_one_run_and_more_than_the_whole_throws() -> None:
    clock = ManualClock()
    browser = Browser(clock=clock, bits=SeededBits(1), config=specification(keep_losses=True))
    thrown: list[str] = []

    def throws(call: Any) -> None:
        try:
            call()
        except WorkletError as error:
            thrown.append(type(error).__name__)

    def debug(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.reserve_budget("debug", 0.125)
        throws(lambda: aggregation.reserve_budget("debug", 0.1))
        throws(lambda: aggregation.reserve_budget("other", 0.876))
        throws(lambda: aggregation.reserve_budget("other", float("nan")))
        throws(lambda: aggregation.reserve_budget("other", 0))
        throws(lambda: aggregation.reserve_budget("", 0.1))
        throws(lambda: aggregation.reserve_budget("x", "half"))
        throws(lambda: aggregation.contribute_to_histogram(bucket=1, value=1, named_budget="unknown"))
        aggregation.contribute_to_histogram(bucket=1, value=8_193, named_budget="debug")
        aggregation.contribute_to_histogram(bucket=3, value=57_345)
        aggregation.contribute_to_histogram(bucket=2, value=8_192, named_budget="debug")
        aggregation.contribute_to_histogram(bucket=4, value=57_344)

    def plain(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram(bucket=5, value=65_536)

    browser.register("https://ad.example", "debug", debug)
    browser.register("https://ad.example", "plain", plain)
    browser.run("https://ad.example", "debug")
    clock.advance(10 * MINUTE_MS)
    browser.run("https://ad.example", "plain")
    clock.advance(60 * MINUTE_MS)
    reports = [delivery.report for delivery in browser.take_due()]
    assert sorted(made.bucket for report in reports for made in report.contributions) == [2, 4, 5]
    assert [loss.contribution.bucket for loss in browser.journal.losses if loss.cause is Cause.NAMED] == [1, 3]
    assert thrown == [
        "WorkletDataError",
        "WorkletRangeError",
        "WorkletRangeError",
        "WorkletRangeError",
        "WorkletTypeError",
        "WorkletTypeError",
        "WorkletDataError",
    ]


ORIGINS = [
    "https://ad.example",
    "https://sub.ad.example",
    "https://other.sub.ad.example:8443",
    "https://ad.co.uk",
    "https://www.ad.co.uk",
    "https://b.co.uk",
]


def test_origins_of_a_site_share_its_budget() -> None:
    assert [site_of(origin) for origin in ORIGINS] == [
        "https://ad.example",
        "https://ad.example",
        "https://ad.example",
        "https://ad.co.uk",
        "https://ad.co.uk",
        "https://b.co.uk",
    ]
    assert site_of("https://127.0.0.1:80") == "https://127.0.0.1"
    assert site_of("http://localhost:8000") == "http://localhost"
    assert site_of("https://co.uk") == "https://co.uk"
    assert site_of("https://[::1]:8443") == "https://[::1]"


def random_operations(count: int, rules: Rules) -> None:
    """Run random operations of several sites and both APIs over days; count reports by brute force.

    The count uses only what left the browser: report contributions, with the time of the run that made them. Runs
    come in bursts, so that both budgets are met many times; that is asserted too.
    """
    draws = np.random.Generator(np.random.PCG64(20240607 + count))
    clock = ManualClock(1_700_000_000_000)
    config = specification(rules=rules, local_testing_mode=True)
    browser = Browser(clock=clock, bits=SeededBits(f"million {count} {rules}"), config=config)

    def contribute(storage: Any, aggregation: Any, values: list[int]) -> None:
        for number, value in enumerate(values):
            aggregation.contribute_to_histogram(bucket=number % 3, value=value)

    for origin in ORIGINS:
        browser.register(origin, "contribute", contribute)
    spent: dict[tuple[str, ContextType], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    reports = 0
    which = draws.integers(0, len(ORIGINS), count)
    auctions = draws.random(count) < 0.1
    waits = np.where(draws.random(count) < 0.9, draws.integers(0, 20_000, count), draws.integers(0, 400_000, count))
    sizes = draws.integers(1, 4, count)
    values = (2.0 ** draws.uniform(0, 16.2, (count, 3))).astype(np.int64).tolist()
    for step in range(count):
        clock.advance(int(waits[step]))
        origin = ORIGINS[which[step]]
        asked = values[step][: sizes[step]]
        if auctions[step]:
            browser.run_ad_auction(
                Auction(
                    seller=origin,
                    score_ad=lambda aggregation, signals: 1.0,
                    report_result=lambda aggregation, signals, asked=asked: contribute(None, aggregation, asked),
                    interest_groups=[
                        InterestGroup(owner="https://buyer.example", name="g", generate_bid=lambda aggregation, s: 1.0)
                    ],
                )
            )
        else:
            browser.run(origin, "contribute", asked)
        for delivery in browser.take_due():
            report = delivery.report
            reports += 1
            total = sum(made.value for made in report.contributions)
            spent[site_of(report.reporting_origin), report.api][clock.now_ms() // MINUTE_MS] += total
    denied = {cause: browser.journal.count(cause=cause) for cause in (Cause.TEN_MINUTES, Cause.DAY)}
    assert reports > count // 10
    assert denied[Cause.TEN_MINUTES] > count // 100
    assert denied[Cause.DAY] > 0
    assert len(spent) == 6, "three sites, two APIs"
    fullest = {10: 0, 1440: 0}
    for by_minute in spent.values():
        first, last = min(by_minute), max(by_minute)
        column = np.zeros(last - first + 1, dtype=np.int64)
        for minute, value in by_minute.items():
            column[minute - first] = value
        sums = np.concatenate([[0], np.cumsum(column)])
        for width, before in fullest.items():
            windows = sums[width:] - sums[:-width] if len(sums) > width else sums[-1:]
            fullest[width] = max(before, int(windows.max()))
    assert fullest[10] <= 1 << 16
    assert fullest[1440] <= 1 << 20
    assert fullest[10] > (1 << 16) - 64, "the limit was met, not only kept"
    assert fullest[1440] > (1 << 20) - 64
    print(f"{count} operations ({rules}): {reports} reports, cut {denied}, fullest windows {fullest}")


@pytest.mark.parametrize("rules", list(Rules))
def test_no_window_is_ever_above_its_budget(rules: Rules) -> None:
    random_operations(25_000, rules)


@pytest.mark.soak
@pytest.mark.parametrize("rules", list(Rules))
def test_no_window_is_ever_above_its_budget_in_a_million_operations(rules: Rules) -> None:
    random_operations(1_000_000, rules)
