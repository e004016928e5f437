"""Nothing that an operation computes is visible outside a report, whatever the operation does."""

from __future__ import annotations

import base64
import json
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from aggservice import wire
from mechanisms import ManualClock, SeededBits
from paa_client import (
    AWS_COORDINATOR,
    Auction,
    Browser,
    CallError,
    Cause,
    Config,
    InterestGroup,
    Rules,
    WorkletDataError,
    WorkletError,
    WorkletNotAllowedError,
    WorkletRangeError,
    WorkletTypeError,
)

ORIGIN = "https://ad.example"
START_MS = 1_700_000_040_000
DEADLINE_MS = 1_500
CLOCK = ManualClock(START_MS)
KEYS = wire.KeySet.create(SeededBits("isolation keys"), CLOCK)

Operation = Callable[[Any, Any, Any], object]


class Sneaky(BaseException):
    """Not an ``Exception``: a plain ``except Exception`` would let it out."""

    def __str__(self) -> str:
        raise RuntimeError("even saying what it is throws")


def secret_of(storage: Any) -> str:
    return storage.get("secret") or ""


def returns(storage: Any, aggregation: Any, data: Any) -> str:
    return secret_of(storage)


def throws(storage: Any, aggregation: Any, data: Any) -> None:
    raise ValueError(secret_of(storage))


def throws_worse(storage: Any, aggregation: Any, data: Any) -> None:
    raise Sneaky if secret_of(storage) == "a" else SystemExit(3)


def mutates(storage: Any, aggregation: Any, data: Any) -> None:
    data["list"].append(secret_of(storage))
    data["leak"] = secret_of(storage)


def contributes(storage: Any, aggregation: Any, data: Any) -> None:
    for bucket in range(30 if secret_of(storage) == "a" else 0):
        aggregation.contribute_to_histogram(bucket=bucket, value=1, filtering_id=bucket)


def overspends(storage: Any, aggregation: Any, data: Any) -> None:
    aggregation.contribute_to_histogram(bucket=1, value=70_000 if secret_of(storage) == "a" else 1)


def recurses(storage: Any, aggregation: Any, data: Any) -> None:
    aggregation.contribute_to_histogram(bucket=1, value=1)
    if secret_of(storage) == "a":
        recurses(storage, aggregation, data)


def misuses(storage: Any, aggregation: Any, data: Any) -> None:
    if secret_of(storage) == "a":
        aggregation.contribute_to_histogram(bucket=-1, value=1)
    aggregation.contribute_to_histogram(bucket=2**128, value=1)


def spins(storage: Any, aggregation: Any, data: Any) -> None:
    aggregation.contribute_to_histogram(bucket=1, value=1)
    while secret_of(storage) == "a":
        pass


QUICK = [returns, throws, throws_worse, mutates, contributes, overspends, recurses, misuses]


def browser_with(operation: Operation, secret: str, deadline_ms: int | None) -> Browser:
    config = Config(operation_deadline_ms=deadline_ms, debug_mode_allowed=False)
    keys = {AWS_COORDINATOR: KEYS.public(CLOCK)}
    browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("same"), config=config, keys=keys)
    browser.storage(ORIGIN).set("secret", secret)
    browser.register(ORIGIN, "operation", operation)
    return browser


def visible(operation: Operation, secret: str, deadline_ms: int | None) -> tuple[Any, ...]:
    """Everything that a page and the reporting origin's server can observe of a run under a context ID."""
    browser = browser_with(operation, secret, deadline_ms)
    data = {"list": [1], "same": True}
    returned = browser.run(ORIGIN, "operation", data, context_id="context", filtering_id_max_bytes=2)
    clock = browser._clock
    assert isinstance(clock, ManualClock)
    before = [sent.body for sent in browser.send_due()]
    clock.advance(5_000)
    after = browser.send_due()
    clock.advance(3_600_000)
    late = browser.send_due()
    bodies = [json.loads(sent.body.to_json()) for sent in after]
    shapes = []
    for body in bodies:
        (payload,) = body["aggregation_service_payloads"]
        shapes.append((len(base64.b64decode(payload.pop("payload"))), body))
    return returned, data, before, [(sent.time_ms, sent.url) for sent in after], shapes, late


@pytest.mark.parametrize("deadline_ms", [None, 5_000])
@pytest.mark.parametrize("operation", QUICK, ids=lambda operation: operation.__name__)
def test_a_page_and_a_server_see_the_same_whatever_storage_holds(operation: Operation, deadline_ms: int | None) -> None:
    """Return value, exceptions, the data passed in, and number, time, size and cleartext fields of reports.

    The random report id is the same because the bits are the same; only the ciphertext's content may differ.
    """
    one = visible(operation, "a", deadline_ms)
    other = visible(operation, "b" * 1000, deadline_ms)
    assert one == other
    returned, data, before, times, shapes, late = one
    assert returned is None
    assert data == {"list": [1], "same": True}
    assert (before, late) == ([], [])
    assert times == [(START_MS + 5_000, f"{ORIGIN}/.well-known/private-aggregation/report-shared-storage")]
    assert shapes[0][1]["context_id"] == "context"


def test_a_runaway_loop_is_ended_and_looks_like_any_other_run() -> None:
    started = time.monotonic()
    spun = visible(spins, "a", DEADLINE_MS)
    assert time.monotonic() - started < 30
    assert spun == visible(spins, "b", DEADLINE_MS)


def test_what_a_runaway_loop_did_before_the_deadline_counts() -> None:
    """On the platform calls take effect as they are made; the timeout's own error event is triggered."""

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram_on_event("reserved.contribution-timeout-reached", bucket=9, value=9)
        aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=8, value=8)
        aggregation.contribute_to_histogram_on_event("reserved.uncaught-exception", bucket=7, value=7)
        aggregation.contribute_to_histogram(bucket=1, value=1)
        storage.set("kept", "yes")
        while True:
            pass

    browser = browser_with(operation, "", DEADLINE_MS)
    browser.register(
        ORIGIN,
        "read",
        lambda storage, aggregation, data: aggregation.contribute_to_histogram(
            bucket=2 if storage.get("kept") == "yes" else 3, value=1
        ),
    )
    browser.run(ORIGIN, "operation", context_id="c")
    browser.run(ORIGIN, "operation")
    browser.run(ORIGIN, "read", context_id="d")
    browser._clock.advance(7_200_000)  # type: ignore[attr-defined]
    made = [[(c.bucket, c.value) for c in delivery.report.contributions] for delivery in browser.take_due()]
    assert made == [[(8, 8), (9, 9), (1, 1)], [(2, 1)], [(8, 8), (1, 1)]]
    assert [line.message for line in browser.journal.console] == [f"ended at the deadline of {DEADLINE_MS} ms"] * 2


def test_a_child_that_dies_or_floods_is_contained() -> None:
    def dies(storage: Any, aggregation: Any, data: Any) -> None:
        import os

        aggregation.contribute_to_histogram(bucket=1, value=1)
        os._exit(1)

    def floods(storage: Any, aggregation: Any, data: Any) -> None:
        for bucket in range(5_000):
            aggregation.contribute_to_histogram(bucket=bucket, value=1)
            storage.set(f"key {bucket}", "x" * 50)

    browser = browser_with(dies, "", 60_000)
    browser.register(ORIGIN, "floods", floods)
    browser.run(ORIGIN, "operation", context_id="a")
    browser.run(ORIGIN, "floods", context_id="b")
    browser._clock.advance(5_000)  # type: ignore[attr-defined]
    assert [len(delivery.report.contributions) for delivery in browser.take_due()] == [1, 20]
    assert [line.message for line in browser.journal.console] == ["the worklet's process died"]
    assert browser.journal.count(cause=Cause.TOO_MANY) == 4_980


@pytest.mark.parametrize("deadline_ms", [None, 5_000])
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
        aggregation.enable_debug_mode()
        try:
            aggregation.enable_debug_mode()
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
    assert json.loads(sent.body.to_json().encode())["context_id"] == "a\ufffdb"


def test_an_interrupt_from_the_keyboard_is_the_users_and_comes_through() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        raise KeyboardInterrupt

    browser = browser_with(operation, "", None)
    with pytest.raises(KeyboardInterrupt):
        browser.run(ORIGIN, "operation")


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
    with pytest.raises(CallError, match="registered already"):
        browser.register(ORIGIN, "operation", returns)

    async def asynchronous(storage: Any, aggregation: Any, data: Any) -> None:
        """Would silently do nothing."""

    with pytest.raises(CallError, match="plain function"):
        browser.register(ORIGIN, "async", asynchronous)  # type: ignore[arg-type]
    browser.run(ORIGIN, "unknown", context_id="c")
    assert [line.message for line in browser.journal.console] == ["no operation is registered under this name"]
    browser._clock.advance(7_200_000)  # type: ignore[attr-defined]
    assert browser.take_due() == []


def test_auction_functions_that_misbehave_are_contained() -> None:
    """Throwing, spinning and nonsense in each function: the auction goes on without it."""

    def spin(aggregation: Any, signals: Any) -> float:
        aggregation.contribute_to_histogram(bucket=1, value=1)
        while True:
            pass

    def fail(aggregation: Any, signals: Any) -> float:
        aggregation.contribute_to_histogram(bucket=2, value=2)
        raise Sneaky

    def group(name: str, generate_bid: Any) -> InterestGroup:
        return InterestGroup(owner="https://buyer.example", name=name, generate_bid=generate_bid)

    def score(aggregation: Any, signals: Any) -> float:
        if signals.bid == 3:
            raise Sneaky
        return float(signals.bid)

    browser = browser_with(returns, "", DEADLINE_MS)
    groups = [
        group("spins", spin),
        group("fails", fail),
        group("nan", lambda aggregation, signals: float("nan")),
        group("negative", lambda aggregation, signals: -1),
        group("text", lambda aggregation, signals: "5"),
        group("none", lambda aggregation, signals: None),
        group("unscored", lambda aggregation, signals: 3),
        group("wins", lambda aggregation, signals: 2),
    ]
    reported: list[float] = []

    def report_result(aggregation: Any, signals: Any) -> object:
        aggregation.contribute_to_histogram(bucket=3, value=int(signals.bid))
        reported.append(signals.bid)
        return object()

    frame = browser.run_ad_auction(
        Auction(seller="https://seller.example", score_ad=score, report_result=report_result, interest_groups=groups)
    )
    assert frame is not None
    assert reported == [], "the list changed in the child only"
    browser._clock.advance(7_200_000)  # type: ignore[attr-defined]
    made = {
        delivery.report.reporting_origin: [(c.bucket, c.value) for c in delivery.report.contributions]
        for delivery in browser.take_due()
    }
    assert made == {"https://buyer.example": [(1, 1), (2, 2)], "https://seller.example": [(3, 2)]}
    assert {(line.operation, line.message) for line in browser.journal.console} == {
        ("generate-bid", f"ended at the deadline of {DEADLINE_MS} ms"),
        ("generate-bid", "Sneaky"),
        ("score-ad", "Sneaky"),
        ("report-result", "what the worklet returned is not plain values"),
    }


@pytest.mark.parametrize("deadline_ms", [None, DEADLINE_MS])
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
        clock=ManualClock(START_MS), bits=SeededBits("long"), config=Config(operation_deadline_ms=deadline_ms)
    )
    browser.register(ORIGIN, "long", operation)
    browser.run(ORIGIN, "long")
    assert browser.journal.count(cause=Cause.INVALID) == 4 and browser.budget_used(ORIGIN) == (4, 4)
    with pytest.raises(CallError, match="TypeError"):
        browser.run(ORIGIN, "long", max_contributions=1 << 20_000)


def test_a_flag_of_any_type_reaches_the_storage_from_a_child_process() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        storage.set("a", "1")
        storage.set("a", "2", ignore_if_present=1)
        storage.set("b", "1", ignore_if_present=0)

    def read(storage: Any, aggregation: Any, data: Any) -> None:
        if list(storage.entries()) == [("a", "1"), ("b", "1")]:
            aggregation.contribute_to_histogram(bucket=1, value=1)

    config = Config(operation_deadline_ms=DEADLINE_MS)
    browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("flag"), config=config)
    for name, one in (("write", operation), ("read", read)):
        browser.register(ORIGIN, name, one)
        browser.run(ORIGIN, name)
    assert browser.budget_used(ORIGIN) == (1, 1)


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


def test_a_deadline_works_with_descriptors_of_any_number() -> None:
    """select() would refuse descriptors from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1_100:
        pytest.skip("this system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_100), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_030)]
    try:
        config = Config(operation_deadline_ms=DEADLINE_MS)
        browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("many"), config=config)
        browser.register(
            ORIGIN, "one", lambda storage, aggregation, data: aggregation.contribute_to_histogram(bucket=1, value=1)
        )
        browser.run(ORIGIN, "one")
        assert browser.budget_used(ORIGIN) == (1, 1)
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_chromium_has_no_debug_mode_for_a_report_of_error_events_alone() -> None:
    """Without error reporting these do not exist, so the report is one caused by no contributions."""

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.enable_debug_mode()
        aggregation.contribute_to_histogram_on_event("reserved.report-success", bucket=1, value=1)

    for rules, debug in ((Rules.CHROMIUM, False), (Rules.SPECIFICATION, True)):
        clock = ManualClock(START_MS)
        browser = Browser(clock=clock, bits=SeededBits("debug"), config=Config(rules=rules))
        browser.register(ORIGIN, "one", operation)
        browser.run(ORIGIN, "one", context_id="c")
        clock.advance(3_600_000)
        assert {due.report.debug.enabled for due in browser.take_due()} == {debug}
