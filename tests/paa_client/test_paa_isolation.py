"""Nothing that an operation computes is visible outside a report, whatever the operation does."""

from __future__ import annotations

import base64
import json
import os
import resource
import time
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from paa_client import Auction, Browser, InterestGroup, specification
from paa_client.reporting.contributions import Cause

from .worklets import AMPLE_MS, ORIGIN, START_MS, Operation, browser_with, returns, secret_of

DEADLINE_MS = 1_500


class Sneaky(BaseException):
    """Not an ``Exception``: a plain ``except Exception`` would let it out."""

    def __str__(self) -> str:
        raise RuntimeError("even saying what it is throws")


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


def visible(operation: Operation, secret: str, deadline_ms: int | None) -> tuple[Any, ...]:
    """Everything that a page and the reporting origin's server can observe of a run under a context ID."""
    browser = browser_with(operation, secret, deadline_ms)
    data = {"list": [1], "same": True}
    returned = browser.run(ORIGIN, "operation", data, context_id="context", filtering_id_max_bytes=2)
    clock = browser._clock
    assert isinstance(clock, ManualClock)
    before = [sent.sealed for sent in browser.send_due()]
    clock.advance(5_000)
    after = browser.send_due()
    clock.advance(3_600_000)
    late = browser.send_due()
    bodies = [json.loads(sent.sealed.to_json()) for sent in after]
    shapes = []
    for body in bodies:
        (payload,) = body["aggregation_service_payloads"]
        shapes.append((len(base64.b64decode(payload.pop("payload"))), body))
    return returned, data, before, [(sent.time_ms, sent.url) for sent in after], shapes, late


@pytest.mark.parametrize("deadline_ms", [None, AMPLE_MS])
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
        aggregation.contribute_to_histogram_on_event("reserved.uncaught-error", bucket=7, value=7)
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


def test_an_interrupt_from_the_keyboard_is_the_users_and_comes_through() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        raise KeyboardInterrupt

    browser = browser_with(operation, "", None)
    with pytest.raises(KeyboardInterrupt):
        browser.run(ORIGIN, "operation")


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


def test_a_flag_of_any_type_reaches_the_storage_from_a_child_process() -> None:
    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        storage.set("a", "1")
        storage.set("a", "2", ignore_if_present=1)
        storage.set("b", "1", ignore_if_present=0)

    def read(storage: Any, aggregation: Any, data: Any) -> None:
        if list(storage.entries()) == [("a", "1"), ("b", "1")]:
            aggregation.contribute_to_histogram(bucket=1, value=1)

    config = specification(operation_deadline_ms=AMPLE_MS)
    browser = Browser(clock=ManualClock(START_MS), bits=SeededBits("flag"), config=config)
    for name, one in (("write", operation), ("read", read)):
        browser.register(ORIGIN, name, one)
        browser.run(ORIGIN, name)
    assert browser.budget_used(ORIGIN) == (1, 1)


def test_a_deadline_works_with_descriptors_of_any_number() -> None:
    """select() would refuse descriptors from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1_100:
        pytest.skip("this system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_100), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_030)]
    try:
        config = specification(operation_deadline_ms=AMPLE_MS)
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
