"""Private Aggregation under search: events of one device, and the neighbouring worlds of one window of ten minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from aggservice.mechanisms import SeededBits
from aggservice.wire import Api
from budget import Sensitivity
from paa_client import Auction, Browser, Config, FencedFrame, InterestGroup
from paa_client.config import Rules
from paa_client.origins import site_of

from .climbing import Problem
from .worlds import DAY_MS, MARK, MINUTE_MS, Measured, Sent, SetClock, Statement, compare, stated

LAMBDA_1 = 32
START_MS = 1_700_006_400_000
ORIGINS = ("https://one.r.test", "https://two.r.test", "https://elsewhere.test")
SITE = "https://r.test"
SHARED = frozenset({Api.SHARED_STORAGE})
AUCTIONS = frozenset({Api.PROTECTED_AUDIENCE})
BOTH = SHARED | AUCTIONS
BOUNDS = dict.fromkeys(BOTH, Sensitivity(l1=LAMBDA_1, l0=LAMBDA_1))
_TAG = 1 << 100
_TIMEOUT_MS = 5_000
_VALUES = (1, 2, 9, 16, 31, 32)
_WAITS_MS = (1_000, 6_000, 60_000, 300_000, 540_000, 600_000, 1_200_000, DAY_MS, -60_000, -600_000, -DAY_MS)
_ON = (None, None, None, "reserved.report-success", "reserved.insufficient-budget", "reserved.too-many-contributions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """``count`` contributions of ``value`` to as many buckets, from ``bucket`` on; ``on`` is an event they wait for."""

    bucket: int
    count: int
    value: int
    filtering_id: int
    named: bool
    on: str | None

    def make(self, aggregation: Any, mark: int) -> None:
        """Contribute."""
        name = "n" if self.named else None
        for bucket in range(self.bucket, self.bucket + self.count):
            fields = {"bucket": bucket | mark, "value": self.value, "filtering_id": self.filtering_id}
            if self.on is None:
                aggregation.contribute_to_histogram(**fields, named_budget=name)
            else:
                aggregation.contribute_to_histogram_on_event(self.on, **fields, named_budget=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A Shared Storage operation that takes ``slow_ms`` and contributes; its storage counts how often it ran.

    The clock is ``ahead_ms`` ahead while it runs, and is set back after it.
    """

    origin: int
    calls: tuple[Calls, ...]
    context_id: bool
    slow_ms: int
    ahead_ms: int
    size: int | None
    fails: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bidding:
    """A Protected Audience auction whose seller, or winning buyer, contributes for an event of the auction."""

    seller: int
    buyer: int
    selling: bool
    calls: tuple[Calls, ...]
    outcome: str | None
    context_id: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The clock moves, ahead or back."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """An origin's data, or (None) everybody's, is deleted."""

    origin: int | None


Event = Operation | Bidding | Wait | Clear


def draw(rng: Random) -> Event:
    """Draw an event; operations, auctions and waits are the most frequent."""
    match rng.choices(range(4), weights=(6, 6, 6, 2))[0]:
        case 0:
            return Operation(
                origin=rng.choices(range(3), weights=(5, 4, 1))[0],
                calls=tuple(_calls(rng) for _ in range(rng.randint(1, 2))),
                context_id=rng.random() < 0.5,
                slow_ms=rng.choice((0, 0, 0, 4_000, 6_000, 60_000)),
                ahead_ms=rng.choice((0, 0, 0, 0, DAY_MS)),
                size=rng.choice((None, None, 5, 100)),
                fails=rng.random() < 0.1,
            )
        case 1:
            return Bidding(
                seller=rng.choices(range(3), weights=(5, 4, 1))[0],
                buyer=rng.choices(range(3), weights=(5, 4, 1))[0],
                selling=rng.random() < 0.5,
                calls=tuple(_calls(rng) for _ in range(rng.randint(1, 2))),
                outcome=rng.choice((None, "reserved.win", "reserved.always", "reserved.loss", "seen")),
                context_id=rng.random() < 0.3,
            )
        case 2:
            return Wait(by_ms=rng.choice(_WAITS_MS))
        case _:
            return Clear(origin=rng.choice((0, 1, None)))


def _calls(rng: Random) -> Calls:
    return Calls(
        bucket=rng.randrange(4) * LAMBDA_1,
        count=rng.choice((1, 1, 2, 10, 32)),
        value=rng.choice(_VALUES),
        filtering_id=rng.choice((0, 0, 1)),
        named=rng.random() < 0.15,
        on=rng.choice(_ON),
    )


def vary(rng: Random, event: Event) -> Event:
    """Return the event with one field drawn anew, or another event of any kind."""
    for _ in range(20):
        other = draw(rng)
        if type(other) is type(event):
            name = rng.choice(type(event).__slots__)
            return replace(event, **{name: getattr(other, name)})
    return draw(rng)


Mark = Callable[[int, int], int | None]
"""From the place of an event and the minute that its budget is charged in to bits of its buckets; None: silent."""


def play(events: tuple[Event, ...], mark: Mark, rules: Rules) -> tuple[list[Sent], dict[int, int]]:
    """Run the events in a real browser; return what left it for ``SITE``, and when each event's budget was charged."""
    clock = SetClock(START_MS)
    config = Config(smaller_budget=LAMBDA_1, larger_budget=16 * LAMBDA_1, rules=rules)
    browser = Browser(clock=clock, bits=SeededBits("sensitivity"), config=config)
    minutes: dict[int, int] = {}
    left = []
    for place, event in enumerate(events):
        match event:
            case Operation():
                clock.time_ms += event.ahead_ms
                minutes[place] = _charged_ms(event, clock.time_ms) // MINUTE_MS
                _operate(browser, clock, place, event, mark(place, minutes[place]))
                clock.time_ms -= event.ahead_ms
            case Bidding():
                minutes[place] = clock.time_ms // MINUTE_MS
                _bid(browser, event, mark(place, minutes[place]))
            case Wait():
                clock.time_ms += event.by_ms
            case Clear():
                browser.clear(None if event.origin is None else ORIGINS[event.origin])
        left += browser.take_due()
    clock.time_ms += 1 << 40
    reports = [
        Sent(
            api=Api(delivery.report.api.value),
            time_ms=delivery.report.scheduled_report_time_ms,
            destination=None,
            contributions=tuple((made.bucket, made.filtering_id, made.value) for made in delivery.report.contributions),
        )
        for delivery in [*left, *browser.take_due()]
        if site_of(delivery.report.reporting_origin) == SITE
    ]
    return reports, minutes


def _charged_ms(event: Operation, now_ms: int) -> int:
    """Return when the budget is charged: at the end of the operation, or at its timeout if the report has one."""
    timed = event.context_id or event.size is not None
    return now_ms + (min(event.slow_ms, _TIMEOUT_MS) if timed else event.slow_ms)


def _operate(browser: Browser, clock: SetClock, place: int, event: Operation, mark: int | None) -> None:
    def operation(storage: Any, aggregation: Any, data: object) -> None:
        storage.append("runs", "x")
        aggregation.reserve_budget("n", 0.25) if any(calls.named for calls in event.calls) else None
        for calls in event.calls:
            if mark is not None:
                calls.make(aggregation, mark)
        clock.time_ms += event.slow_ms
        if event.fails:
            raise ValueError("the operation fails after its contributions")

    browser.register(ORIGINS[event.origin], f"operation {place}", operation)
    browser.run(
        ORIGINS[event.origin],
        f"operation {place}",
        context_id="c" if event.context_id else None,
        max_contributions=event.size,
    )


def _bid(browser: Browser, event: Bidding, mark: int | None) -> None:
    def contribute(aggregation: Any) -> None:
        aggregation.reserve_budget("n", 0.25) if any(calls.named for calls in event.calls) else None
        for calls in event.calls:
            if mark is not None:
                (calls if event.outcome is None else replace(calls, on=event.outcome)).make(aggregation, mark)

    def generate_bid(aggregation: Any, signals: object) -> float:
        if not event.selling:
            contribute(aggregation)
        return 1.0

    def score_ad(aggregation: Any, signals: object) -> float:
        if event.selling:
            contribute(aggregation)
        return 1.0

    group = InterestGroup(owner=ORIGINS[event.buyer], name="g", generate_bid=generate_bid)
    auction = Auction(
        seller=ORIGINS[event.seller],
        score_ad=score_ad,
        interest_groups=[group],
        context_id="c" if event.context_id else None,
    )
    frame = browser.run_ad_auction(auction)
    assert isinstance(frame, FencedFrame)
    frame.report_event("seen")


Measure = Callable[[tuple[Event, ...]], Measured]


def disabled(
    apis: Collection[Api],
    statement: Statement = stated,
    *,
    rules: Rules = Rules.SPECIFICATION,
    charged: bool = True,
) -> Measure:
    """One device, reporting site and ten minutes, those with the most: its contributions are disabled.

    ``charged`` disables what leaves in reports: storage and what is left of the budgets are as they were. Without it
    the contributions are never made, so that later ones find other budgets: no job states a bound for that.
    """

    def measure(events: tuple[Event, ...]) -> Measured:
        tagged, minutes = play(events, lambda place, minute: (place + 1) * _TAG, rules)
        first = [replace(report, contributions=tuple(map(_untagged, report.contributions))) for report in tagged]
        spent: Counter[int] = Counter()
        for report in tagged:
            if report.api in apis:
                for bucket, _, value in report.contributions:
                    minute = minutes[bucket // _TAG - 1]
                    spent.update({start: value for start in range(minute - 9, minute + 1)})
        begin = max(spent, key=lambda start: (spent[start], -start), default=0)

        def mark(place: int, minute: int) -> int | None:
            inside = begin <= minute < begin + 10
            return (MARK if charged else None) if inside else 0

        second, _ = play(events, mark, rules)
        return compare(first, second, apis=apis, bounds=BOUNDS, statement=statement, same_reports=charged)

    return measure


def _untagged(contribution: tuple[int, int, int]) -> tuple[int, int, int]:
    bucket, filtering_id, value = contribution
    return bucket % _TAG, filtering_id, value


def problem(measure: Measure) -> Problem[Event]:
    """Return the search over events of one device for a kind of neighbour."""
    return Problem(draw=draw, vary=vary, measure=measure)
