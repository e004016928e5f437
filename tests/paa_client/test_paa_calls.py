"""What a call with bad arguments throws, in the worklet or at the page, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aggservice import wire
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire.device import CallError
from paa_client import Browser, specification
from paa_client.config import Rules
from paa_client.effects import (
    WorkletDataError,
    WorkletError,
    WorkletNotAllowedError,
    WorkletRangeError,
    WorkletTypeError,
)
from paa_client.reporting.contributions import Cause

from .worklets import AMPLE_MS, ORIGIN, START_MS, browser_with, returns


@pytest.mark.parametrize("deadline_ms", [None, AMPLE_MS])
def test_bad_calls_throw_in_the_worklet_what_the_specification_says(deadline_ms: int | None) -> None:
    """Each bad call throws its own error inside; what was valid is sent; the page sees nothing."""
    cases: list[tuple[dict[str, Any], type[WorkletError] | None]] = [
        ({"bucket": -1, "value": 1}, WorkletRangeError),
        ({"bucket": 2**128, "value": 1}, WorkletRangeError),
        ({"bucket": 1.5, "value": 1}, WorkletTypeError),
        ({"bucket": "1", "value": 1}, WorkletTypeError),
        ({"bucket": None, "value": 1}, WorkletTypeError),
        ({"bucket": 1, "value": -1}, WorkletRangeError),
        ({"bucket": 1, "value": 2**31}, WorkletRangeError),
        ({"bucket": 1, "value": "1"}, WorkletTypeError),
        ({"bucket": 1, "value": 1, "filtering_id": -1}, WorkletRangeError),
        ({"bucket": 1, "value": 1, "filtering_id": 256}, WorkletRangeError),
        ({"bucket": 1, "value": 1, "filtering_id": 2**64}, WorkletRangeError),
        ({"bucket": 2**128 - 1, "value": 5, "filtering_id": 255}, None),
        ({"bucket": 10, "value": 2**32 + 6}, None),
        ({"bucket": 11, "value": 7.9}, None),
        ({"bucket": 12, "value": float("nan")}, None),
        ({"bucket": 13, "value": float("inf")}, None),
        ({"bucket": 14, "value": 2**31 - 1}, None),
        ({"bucket": 15, "value": 0}, None),
        ({"bucket": 16, "value": True}, None),
    ]
    wrong = "the worklet did not see what it should"

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        for arguments, expected in cases:
            thrown: type[BaseException] | None = None
            try:
                aggregation.contribute_to_histogram(**arguments)
            except WorkletError as error:
                thrown = type(error)
            assert thrown is expected, f"{wrong}: {arguments} threw {thrown}"
        for call, error in (
            (lambda: aggregation.contribute_to_histogram_on_event("click", bucket=1, value=1), WorkletTypeError),
            (lambda: aggregation.contribute_to_histogram_on_event("reserved.x", bucket=-1, value=1), WorkletRangeError),
            (lambda: aggregation.enable_debug_mode(debug_key=2**64), WorkletDataError),
            (lambda: aggregation.enable_debug_mode(debug_key="x"), WorkletTypeError),
        ):
            try:
                call()
            except error:
                continue
            raise AssertionError(wrong)
        aggregation.contribute_to_histogram_on_event("reserved.some-future-event", bucket=1, value=1)
        try:
            aggregation.enable_debug_mode()  # the key out of range used up the one call, as in Chromium 147
        except WorkletDataError:
            return
        raise AssertionError(wrong)

    browser = browser_with(operation, "", deadline_ms)
    browser.run(ORIGIN, "operation", context_id="c")
    browser._clock.advance(5_000)  # type: ignore[attr-defined]
    assert browser.journal.console == []
    (delivery,) = browser.take_due()
    assert [(c.bucket, c.value, c.filtering_id) for c in delivery.report.contributions] == [
        (2**128 - 1, 5, 255),
        (10, 6, 0),
        (11, 7, 0),
        (16, 1, 0),
    ]
    assert browser.journal.count(cause=Cause.INVALID) == 16
    assert browser.journal.count(cause=Cause.ZERO_VALUE) == 3
    assert browser.journal.count(cause=Cause.TEN_MINUTES) == 1, "2³¹ - 1 is a value, and more than the budget"


def test_filtering_ids_fit_the_width_that_was_asked_for() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        for filtering_id in data:
            try:
                aggregation.contribute_to_histogram(bucket=1, value=1, filtering_id=filtering_id)
            except WorkletRangeError:
                storage.append("thrown", f"{filtering_id},")

    for width in range(1, 9):
        browser = browser_with(operation, "", None)
        edge = 256**width
        browser.run(ORIGIN, "operation", [0, edge - 1, edge, 2**64], filtering_id_max_bytes=width)
        clock = browser._clock
        clock.advance(7_200_000)  # type: ignore[attr-defined]
        (delivery,) = browser.take_due()
        report = delivery.report
        assert [c.filtering_id for c in report.contributions] == [0, edge - 1]
        assert wire.decode_payload(report.cleartext).filtering_id_bytes == width


def test_the_interface_ends_with_the_operation() -> None:
    kept: list[Any] = []
    browser = browser_with(lambda *arguments: kept.extend(arguments[:2]), "x", None)
    browser.run(ORIGIN, "operation")
    storage, aggregation = kept
    with pytest.raises(WorkletNotAllowedError):
        aggregation.contribute_to_histogram(bucket=1, value=1)
    with pytest.raises(WorkletNotAllowedError):
        storage.get("secret")


def test_a_context_id_is_made_of_whole_characters() -> None:
    browser = browser_with(returns, "", None)
    browser.run(ORIGIN, "operation", context_id="a\ud800b")
    browser._clock.advance(5_000)  # type: ignore[attr-defined]
    (sent,) = browser.send_due()
    assert json.loads(sent.sealed.to_json().encode())["context_id"] == "a\ufffdb"


def test_a_page_hears_of_its_own_mistakes_only() -> None:
    browser = browser_with(returns, "", None)
    bad: list[dict[str, Any]] = [
        {"context_id": "x" * 65},
        {"context_id": "😀" * 33},
        {"context_id": 5},
        {"filtering_id_max_bytes": 0},
        {"filtering_id_max_bytes": 9},
        {"max_contributions": 0},
        {"max_contributions": -1},
        {"max_contributions": 1.5},
        {"max_contributions": "5"},
        {"data": threading.Lock()},
        {"aggregation_coordinator_origin": "https://coordinator.example"},
        {"aggregation_coordinator_origin": "not a url"},
    ]
    for arguments in bad:
        with pytest.raises(CallError):
            browser.run(ORIGIN, "operation", **arguments)
    for origin in (
        "http://ad.example",
        "ftp://ad.example",
        "ad.example",
        "",
        "https://[::1",
        "https://a.example:99999",
    ):
        with pytest.raises(CallError):
            browser.run(origin, "operation")
    with pytest.raises(CallError, match="already registered"):
        browser.register(ORIGIN, "operation", returns)

    async def asynchronous(storage: Any, aggregation: Any, data: Any) -> None:
        """Would silently do nothing."""

    with pytest.raises(CallError, match="plain function"):
        browser.register(ORIGIN, "async", asynchronous)  # type: ignore[arg-type]
    browser.run(ORIGIN, "unknown", context_id="c")
    assert [line.message for line in browser.journal.console] == ["no operation is registered under this name"]
    browser._clock.advance(7_200_000)  # type: ignore[attr-defined]
    assert browser.take_due() == []


@pytest.mark.parametrize("deadline_ms", [None, AMPLE_MS])
def test_numbers_too_long_to_print_throw_what_shorter_ones_do(deadline_ms: int | None) -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        long = 1 << 20_000
        calls: list[tuple[type[WorkletError], Callable[[], None]]] = [
            (WorkletRangeError, lambda: aggregation.contribute_to_histogram(bucket=long, value=1)),
            (WorkletRangeError, lambda: aggregation.contribute_to_histogram(bucket=1, value=1, filtering_id=-long)),
            (WorkletDataError, lambda: aggregation.enable_debug_mode(debug_key=long)),
            (WorkletRangeError, lambda: aggregation.reserve_budget("a", long)),
        ]
        for error, call in calls:
            try:
                call()
            except error:
                aggregation.contribute_to_histogram(bucket=7, value=1)

    browser = Browser(
        clock=ManualClock(START_MS), bits=SeededBits("long"), config=specification(operation_deadline_ms=deadline_ms)
    )
    browser.register(ORIGIN, "long", operation)
    browser.run(ORIGIN, "long")
    assert browser.journal.count(cause=Cause.INVALID) == 4 and browser.budget_used(ORIGIN) == (4, 4)
    with pytest.raises(CallError, match="TypeError"):
        browser.run(ORIGIN, "long", max_contributions=1 << 20_000)


def test_functions_are_no_data() -> None:
    """Structured clone refuses them; called by an operation they would carry values out."""
    seen: list[str] = []
    browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("clone"))
    browser.register(ORIGIN, "call", lambda storage, aggregation, data: data("secret"))
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for data in (seen.append, [seen.append], {"a": {"b": (seen.append,)}}, {seen.append: 1}, json, nested):
        with pytest.raises(CallError, match="DataCloneError"):
            browser.run(ORIGIN, "call", data)
    assert not seen
    itself: list[Any] = []
    itself.append(itself)
    browser.run(ORIGIN, "call", itself)


def test_chromium_has_no_debug_mode_for_a_report_of_error_events_alone() -> None:
    """Without error reporting these do not exist, so the report is one caused by no contributions."""

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.enable_debug_mode()
        aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=1, value=1)

    for rules, debug in ((Rules.CHROMIUM, False), (Rules.SPECIFICATION, True)):
        clock = ManualClock(START_MS)
        config = specification(rules=rules, debug_mode_allowed=True)
        browser = Browser(clock=clock, bits=SeededBits("debug"), config=config)
        browser.register(ORIGIN, "one", operation)
        browser.run(ORIGIN, "one", context_id="c")
        clock.advance(3_600_000)
        assert {due.report.debug.enabled for due in browser.take_due()} == {debug}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (
            {"context_id": "x" * 65, "aggregation_coordinator_origin": "no URL", "filtering_id_max_bytes": -1},
            "TypeError",
        ),
        ({"context_id": "x" * 65, "aggregation_coordinator_origin": "no URL"}, "DataError"),
        ({"aggregation_coordinator_origin": "no URL", "filtering_id_max_bytes": 0}, "SyntaxError"),
        ({"aggregation_coordinator_origin": "https://other.example", "max_contributions": 0}, "DataError"),
    ],
)
def test_of_several_errors_a_page_gets_the_one_that_chromium_finds_first(arguments: dict[str, Any], name: str) -> None:
    browser = browser_with(returns, "", None)
    with pytest.raises(CallError) as caught:
        browser.run(ORIGIN, "operation", **arguments)
    assert caught.value.name == name
