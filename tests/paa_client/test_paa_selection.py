"""Which contributions a report holds: the specification's order, Chromium's, and the error events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Browser, Config, chromium, specification
from paa_client.config import Rules
from paa_client.reporting.contributions import Cause

ORIGIN = "https://ad.example"
BUDGET = 1 << 16
Calls = list[tuple[Any, ...]]


def run(
    calls: Calls, config: Config | None = None, *, browser: Browser | None = None, **arguments: Any
) -> tuple[list[list[tuple[int, int]]], Browser]:
    """Make the calls in one operation: (bucket, value) or (event, bucket, value); return the reports' contents."""
    if browser is None:
        browser = Browser(clock=ManualClock(1_700_000_040_000), bits=SeededBits(1), config=config or specification())

        def operation(storage: Any, aggregation: Any, data: Calls) -> None:
            for call in data:
                if isinstance(call[0], str):
                    event, bucket, value = call
                    aggregation.contribute_to_histogram_on_event(event, bucket=bucket, value=value)
                else:
                    aggregation.contribute_to_histogram(bucket=call[0], value=call[1])

        browser.register(ORIGIN, "operation", operation)
    browser.run(ORIGIN, "operation", calls, **arguments)
    assert browser.journal.console == []
    clock = browser._clock
    assert isinstance(clock, ManualClock)
    waiting = browser._queue
    made = [[(c.bucket, c.value) for c in item[2].report.contributions] for item in sorted(waiting, key=lambda i: i[1])]
    return made, browser


def test_the_specification_drops_only_what_is_denied_then_merges_in_order_of_appearance() -> None:
    calls = [(5, 40_000), (3, 30_000), (5, 20_000), (2, 6_000), (5, 1), (4, 5_536), (9, 0)]
    made, browser = run(calls)
    assert made == [[(5, 60_001)]], "40,000 + 20,000 + 1 fit; 30,000, 6,000 and 5,536 (65,537 in all) do not"
    assert browser.journal.count(cause=Cause.TEN_MINUTES) == 3
    assert browser.journal.count(cause=Cause.ZERO_VALUE) == 1
    assert browser.budget_used(ORIGIN) == (60_001, 60_001)


def test_chromium_denies_the_whole_report_if_any_of_its_budgets_does() -> None:
    """The second name asks for more than was reserved: nothing is sent, and nothing is spent."""
    browser = Browser(clock=ManualClock(1_700_000_040_000), bits=SeededBits(1), config=chromium())

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.reserve_budget("a", 0.5)
        aggregation.reserve_budget("b", 0.25)
        aggregation.contribute_to_histogram(bucket=1, value=1, named_budget="a")
        aggregation.contribute_to_histogram(bucket=2, value=BUDGET // 4 + data, named_budget="b")

    browser.register(ORIGIN, "operation", operation)
    browser.run(ORIGIN, "operation", 1)
    assert not browser._queue and browser.budget_used(ORIGIN) == (0, 0)
    browser.run(ORIGIN, "operation", 0)
    assert len(browser._queue) == 1 and browser.budget_used(ORIGIN)[0] == BUDGET // 4 + 1


def test_chromium_approves_or_denies_the_whole_report_and_sorts_it() -> None:
    made, browser = run([(5, 40_000), (3, 20_000), (5, 1)], chromium())
    assert made == [[(3, 20_000), (5, 40_001)]]
    assert run([(7, 5_535), (8, 1)], browser=browser)[0] == made, "60,001 + 5,536 is one too many: all is dropped"
    assert browser.journal.count(cause=Cause.TEN_MINUTES) == 2
    assert run([(7, 5_535)], browser=browser)[0] == [*made, [(7, 5_535)]]
    denied, browser = run([(1, BUDGET), (2, 1)], chromium(), context_id="c")
    assert denied == [[]], "with a context ID a null report is sent instead"
    assert browser.budget_used(ORIGIN) == (0, 0)


@pytest.mark.parametrize("rules", list(Rules))
def test_the_first_distinct_keys_are_kept_and_later_values_of_them_count(rules: Rules) -> None:
    calls: Calls = [(bucket, 1) for bucket in range(25)] + [(0, 1), (24, 1), (19, 1)]
    made, browser = run(calls, specification(rules=rules))
    assert made == [[(bucket, 2 if bucket in (0, 19) else 1) for bucket in range(20)]]
    assert browser.journal.count(cause=Cause.TOO_MANY) == 6
    made, _ = run(calls, specification(rules=rules), max_contributions=3)
    assert made == [[(0, 2), (1, 1), (2, 1)]]
    made, browser = run(calls, specification(rules=rules), max_contributions=5_000)
    assert len(made[0]) == 25
    assert browser.take_due() == [] and browser._queue[0][2].report.max_contributions == 1_000


def test_what_the_budget_denies_leaves_room_for_what_comes_after_it() -> None:
    """The specification tests the budget before it counts keys: a denied key does not take a place."""
    made, _ = run([(1, 60_000), (2, 10_000), (3, 5_000)], max_contributions=2)
    assert made == [[(1, 60_000), (3, 5_000)]]
    made, _ = run([(1, 60_000), (2, 10_000), (3, 5_000)], chromium(), max_contributions=2)
    assert made == [[]]


EVENTS = [
    "report-success",
    "too-many-contributions",
    "empty-report-dropped",
    "pending-report-limit-reached",
    "insufficient-budget",
    "contribution-timeout-reached",
]
ALL: Calls = [(f"reserved.{event}", 100 + number, 1) for number, event in reversed(list(enumerate(EVENTS)))]


@pytest.mark.parametrize(
    ("calls", "config", "arguments", "expected"),
    [
        ([(1, 1)], specification(), {}, [(100, 1), (1, 1)]),
        ([], specification(), {}, [(102, 1)]),
        ([(1, 0)], specification(), {}, [(102, 1)]),
        ([], specification(), {"context_id": "c"}, [(100, 1)]),
        ([(1, BUDGET), (2, 1)], specification(), {}, [(104, 1)]),
        ([(1, BUDGET + 1)], specification(), {}, [(102, 1), (104, 1)]),
        ([(1, BUDGET - 1), (2, 2)], specification(), {}, [(104, 1), (1, BUDGET - 1)]),
        ([(1, 1), (2, 1), (3, 1)], specification(), {"max_contributions": 2}, [(101, 1), (1, 1)]),
        ([(1, 1)], specification(pending_report_limit=1), {}, [(103, 1), (1, 1)]),
        ([(1, 1)], specification(pending_report_limit=2), {}, [(100, 1), (1, 1)]),
    ],
)
def test_error_events_are_measured_first(
    calls: Calls, config: Config, arguments: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    """Their contributions stand before the others, in the order of the events, and use the same budget and room."""
    made, _ = run([*ALL, *calls], config, **arguments)
    assert made == [expected]
    assert run([*calls, *ALL], config, **arguments)[0] == [expected]


def test_error_events_can_push_others_out_of_budget_and_room() -> None:
    made, browser = run([(1, BUDGET), ("reserved.report-success", 2, 5)])
    assert made == [[(2, 5)]], "the contribution for success is approved first; then the rest no longer fits"
    assert browser.journal.count(cause=Cause.TEN_MINUTES) == 1
    made, _ = run([(1, 1), (2, 1), ("reserved.report-success", 3, 1)], max_contributions=2)
    assert made == [[(3, 1), (1, 1)]]
    # A contribution that does not fit by itself shares the key of one that waited: Chromium keeps it.
    calls: Calls = [(2, 4), (3, 5), ("reserved.too-many-contributions", 3, 1)]
    assert run(calls, chromium(error_reporting=True), max_contributions=1)[0] == [[(3, 6)]]
    assert run(calls, specification(), max_contributions=1)[0] == [[(3, 1)]]


def test_chromium_as_shipped_has_no_function_for_error_events() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram(bucket=1, value=1)
        aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=3, value=1)
        aggregation.contribute_to_histogram(bucket=2, value=1)

    for config, expected in ((chromium(), [(1, 1)]), (chromium(error_reporting=True), [(3, 1), (1, 1), (2, 1)])):
        browser = Browser(clock=ManualClock(), bits=SeededBits(1), config=config)
        browser.register(ORIGIN, "operation", operation)
        browser.run(ORIGIN, "operation")
        assert [(c.bucket, c.value) for c in browser._queue[0][2].report.contributions] == expected
        assert [line.message[:16] for line in browser.journal.console] == ["WorkletTypeError"] * (len(expected) == 1)


def test_an_exception_has_its_own_event() -> None:
    def operation(storage: Any, aggregation: Any, data: bool) -> None:
        aggregation.contribute_to_histogram_on_event("reserved.uncaught-error", bucket=9, value=1)
        aggregation.contribute_to_histogram(bucket=1, value=1)
        if data:
            raise ValueError

    for fails, expected in ((False, [(1, 1)]), (True, [(9, 1), (1, 1)])):
        browser = Browser(clock=ManualClock(), bits=SeededBits(1), config=specification())
        browser.register(ORIGIN, "operation", operation)
        browser.run(ORIGIN, "operation", fails)
        assert [(c.bucket, c.value) for c in browser._queue[0][2].report.contributions] == expected


def test_a_report_over_the_pending_limit_is_dropped_and_counted() -> None:
    made, browser = run([(1, 1)], specification(pending_report_limit=1))
    assert run([(2, 1)], browser=browser)[0] == made
    assert browser.journal.count(cause=Cause.PENDING_LIMIT) == 1
    browser._clock.advance(3_600_000)  # type: ignore[attr-defined]
    assert len(browser.take_due()) == 1
    assert run([(2, 1)], browser=browser)[0] == [[(2, 1)]]


@pytest.mark.parametrize("cleared", [False, True])
def test_the_pending_limit_counts_reports_that_a_page_asked_for_by_themselves(cleared: bool) -> None:
    """Whether earlier operations had something to report decides about no report with a context ID."""

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        if storage.get("secret") is not None:
            aggregation.contribute_to_histogram(bucket=1, value=1)

    def arrived(*, secret: bool, runs: int) -> list[str | None]:
        browser = Browser(clock=ManualClock(), bits=SeededBits(1), config=chromium(pending_report_limit=3))
        browser.register(ORIGIN, "operation", operation)
        if secret:
            browser.storage(ORIGIN).set("secret", "1")
        for _ in range(3):
            browser.run(ORIGIN, "operation")
        if cleared:
            browser.clear("https://other.example")
        for number in range(runs):
            browser.run(ORIGIN, "operation", context_id=str(number))
        browser._clock.advance(3_600_000)  # type: ignore[attr-defined]
        return [due.report.context_id for due in browser.take_due() if due.report.context_id is not None]

    for runs, expected in ((3, ["0", "1", "2"]), (5, ["0", "1", "2"])):
        assert arrived(secret=True, runs=runs) == arrived(secret=False, runs=runs) == expected


def test_a_browser_without_private_aggregation_sends_nothing() -> None:
    browser = Browser(clock=ManualClock(), bits=SeededBits(1), config=specification(private_aggregation_allowed=False))
    browser.register(
        ORIGIN, "operation", lambda storage, aggregation, data: aggregation.contribute_to_histogram(bucket=1, value=1)
    )
    browser.run(ORIGIN, "operation", context_id="c")
    assert browser.next_report_time_ms() is None
    assert "permissions policy" in browser.journal.console[0].message


CALLS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([0, 1, 2, 1_000, 20_000, 40_000, BUDGET, BUDGET + 1])), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(history=st.lists(CALLS, max_size=3), limit=st.integers(1, 8), rules=st.sampled_from(Rules))
def test_selection_is_what_a_naive_reading_selects(history: list[Calls], limit: int, rules: Rules) -> None:
    """Against a few lines that share no code: walk the calls, spend a number, keep a dictionary."""
    browser: Browser | None = None
    left = BUDGET
    for calls in history:
        kept: dict[int, int] = {}
        if rules is Rules.SPECIFICATION:
            provisional, approved = left, []
            for bucket, value in calls:
                if value <= provisional:
                    provisional -= value
                    approved += [(bucket, value)] if value else []
            for bucket, value in approved:
                if bucket in kept or len(kept) < limit:
                    kept[bucket] = kept.get(bucket, 0) + value
            expected = list(kept.items())
        else:
            for bucket, value in calls:
                if value and (bucket in kept or len(kept) < limit):
                    kept[bucket] = kept.get(bucket, 0) + value
            expected = sorted(kept.items()) if sum(kept.values()) <= left else []
        left -= sum(value for _, value in expected)
        made, browser = run(
            calls, specification(rules=rules), browser=browser, max_contributions=limit, context_id="always a report"
        )
        assert made[-1] == expected
        assert browser.budget_used(ORIGIN)[0] == BUDGET - left
