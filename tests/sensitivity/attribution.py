"""Attribution Reporting under search: events of one browser, and the neighbouring worlds of a source or debug unit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from aggservice.mechanisms import SeededBits
from aggservice.wire import Api
from ara_client import AggregatableAttributionReport, Browser, Config, FixedChoices, Request, Response
from ara_client.reports import AggregatableDebugReport, OutgoingReport

from .climbing import Problem
from .worlds import DAY_MS, MARK, Measured, Sent, SetClock, Statement, compare, stated

LAMBDA_1 = 65_536
START_MS = 1_700_006_400_000
SHOPS = ("https://shop.test", "https://store.test")
PUBLISHERS = ("https://news.test", "https://shop.test")
REPORTERS = ("https://one.r.test", "https://two.r.test", "https://elsewhere.test")
SITE = "https://r.test"
NOWHERE = "https://nowhere.test"
BOTH = frozenset({Api.ATTRIBUTION_REPORTING, Api.ATTRIBUTION_REPORTING_DEBUG})
_VALUES = (1, 7, 10_000, 32_768, 65_535, 65_536)
_WAITS_MS = (1_000, 3_600_000, DAY_MS // 2, DAY_MS - 1, DAY_MS, 3 * DAY_MS, -3_600_000, -DAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source on a publisher's page; ``debug_value`` is what its registration contributes to a debug report."""

    publisher: int
    reporter: int
    shops: int
    priority: int
    expiry_days: int
    debug_budget: int
    debug_value: int
    named: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger on a shop's page. The clock is ``ahead_ms`` ahead when it registers, and is set back after it."""

    shop: int
    reporter: int
    keys: int
    value: int
    filtering_id: int
    debug_value: int
    context_id: bool
    named: bool
    dedup: bool
    ahead_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The clock moves, ahead or back."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """A reporter's data, or (None) everybody's, is deleted; a user may have rate limits forgotten too."""

    reporter: int | None
    rate_limits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network goes or comes back."""

    online: bool


Event = Source | Trigger | Wait | Clear | Network


def draw(rng: Random) -> Event:
    """Draw an event; sources, triggers and waits are the most frequent."""
    match rng.choices(range(5), weights=(6, 10, 6, 1, 1))[0]:
        case 0:
            return Source(
                publisher=rng.randrange(2),
                reporter=rng.choices(range(3), weights=(8, 2, 1))[0],
                shops=rng.choice((1, 1, 2, 3)),
                priority=rng.randrange(3),
                expiry_days=rng.choice((1, 7, 30)),
                debug_budget=rng.choice((0, 0, *_VALUES)),
                debug_value=rng.choice(_VALUES),
                named=rng.choice((0, 0, *_VALUES)),
            )
        case 1:
            return Trigger(
                shop=rng.choices(range(2), weights=(4, 1))[0],
                reporter=rng.choices(range(3), weights=(8, 2, 1))[0],
                keys=rng.choice((1, 1, 2, 3)),
                value=rng.choice(_VALUES),
                filtering_id=rng.choice((0, 0, 1, 255)),
                debug_value=rng.choice((0, *_VALUES)),
                context_id=rng.random() < 0.3,
                named=rng.random() < 0.2,
                dedup=rng.random() < 0.1,
                ahead_ms=rng.choice((0, 0, 0, 0, 2 * DAY_MS)),
            )
        case 2:
            return Wait(by_ms=rng.choice(_WAITS_MS))
        case 3:
            return Clear(reporter=rng.choice((0, 0, None)), rate_limits=rng.random() < 0.5)
        case _:
            return Network(online=rng.random() < 0.6)


def vary(rng: Random, event: Event) -> Event:
    """Return the event with one field drawn anew, or another event of any kind."""
    for _ in range(20):
        other = draw(rng)
        if type(other) is type(event):
            name = rng.choice(type(event).__slots__)
            return replace(event, **{name: getattr(other, name)})
    return draw(rng)


@dataclass(slots=True)
class Marking:
    """Which contributions of a world go to marked buckets, and which source's conversions find nobody."""

    source: int | None = None
    trigger_debug: Callable[[int], bool] = field(default=lambda place: False)
    source_debug: Callable[[int], bool] = field(default=lambda place: False)
    unattributed: int | None = None


def play(events: tuple[Event, ...], marking: Marking | None = None) -> tuple[list[Sent], dict[int, list[Sent]]]:
    """Run the events in a real browser; return what left it for ``SITE``, and its debug reports by event."""
    marks = Marking() if marking is None else marking
    clock = SetClock(START_MS)
    config = Config()
    browser = Browser(clock=clock, bits=SeededBits("sensitivity"), config=config, draws=FixedChoices(config))
    left: list[OutgoingReport] = []
    debug: dict[int, list[Sent]] = {}
    for place, event in enumerate(events):
        match event:
            case Source():
                fields = _source_fields(event, place, marks)
                now = browser.register(
                    Request(context=PUBLISHERS[event.publisher], eligible="navigation-source"),
                    _response(event.reporter, "Attribution-Reporting-Register-Source", fields),
                )
            case Trigger():
                fields = _trigger_fields(event, place, marks)
                clock.time_ms += event.ahead_ms
                now = browser.register(
                    Request(context=SHOPS[event.shop]),
                    _response(event.reporter, "Attribution-Reporting-Register-Trigger", fields),
                )
                clock.time_ms -= event.ahead_ms
            case Wait():
                clock.time_ms = max(START_MS - 10 * DAY_MS, clock.time_ms + event.by_ms)
                now = browser.advance()
            case Clear():
                browser.clear(
                    None if event.reporter is None else REPORTERS[event.reporter], rate_limits=event.rate_limits
                )
                now = []
            case Network():
                browser.go_online() if event.online else browser.go_offline()
                now = []
        left += now
        debug[place] = [sent for sent in map(_sent, now) if sent and sent.api is Api.ATTRIBUTION_REPORTING_DEBUG]
    reports = [sent for sent in map(_sent, [*left, *browser.pending]) if sent is not None]
    return reports, debug


def _response(reporter: int, header: str, fields: dict[str, Any]) -> Response:
    return Response(url=f"{REPORTERS[reporter]}/register", headers={header: json.dumps(fields)})


def _source_fields(event: Source, place: int, marks: Marking) -> dict[str, Any]:
    mark = MARK if marks.source == place else 0
    shops = [shop for bit, shop in enumerate(SHOPS) if event.shops >> bit & 1]
    fields: dict[str, Any] = {
        "destination": [NOWHERE] if marks.unattributed == place else shops,
        "aggregation_keys": {name: hex(mark | 1 << bit | place << 32) for bit, name in enumerate("ab")},
        "priority": str(event.priority),
        "expiry": str(event.expiry_days * 86_400),
    }
    if event.named:
        fields["named_budgets"] = {"n": event.named}
    if event.debug_budget:
        own = MARK if marks.source_debug(place) else 0
        data = {"types": ["unspecified"], "key_piece": hex(own | 1 << 8), "value": event.debug_value}
        fields["aggregatable_debug_reporting"] = {
            "budget": event.debug_budget,
            "key_piece": hex(mark | place << 40),
            "debug_data": [data],
        }
    return fields


def _trigger_fields(event: Trigger, place: int, marks: Marking) -> dict[str, Any]:
    names = [name for bit, name in enumerate("ab") if event.keys >> bit & 1]
    fields: dict[str, Any] = {
        "aggregatable_trigger_data": [{"key_piece": hex(1 << 16), "source_keys": names}],
        "aggregatable_values": {
            name: {"value": event.value, "filtering_id": str(event.filtering_id)} for name in names
        },
    }
    if event.context_id:
        fields["trigger_context_id"] = "c"
    if event.named:
        fields["named_budgets"] = [{"name": "n"}]
    if event.dedup:
        fields["aggregatable_deduplication_keys"] = [{"deduplication_key": "1"}]
    if event.debug_value:
        mark = MARK if marks.trigger_debug(place) else 0
        data = {"types": ["unspecified"], "key_piece": hex(mark | 1 << 9), "value": event.debug_value}
        fields["aggregatable_debug_reporting"] = {"key_piece": hex(place << 48), "debug_data": [data]}
    return fields


def _sent(report: OutgoingReport) -> Sent | None:
    if not isinstance(report, AggregatableAttributionReport | AggregatableDebugReport):
        return None
    if report.reporting_origin.site != SITE:
        return None
    attributed = isinstance(report, AggregatableAttributionReport)
    return Sent(
        api=Api.ATTRIBUTION_REPORTING if attributed else Api.ATTRIBUTION_REPORTING_DEBUG,
        time_ms=report.scheduled_time_ms,
        destination=report.destination,
        contributions=tuple((made.bucket, made.filtering_id, made.value) for made in report.contributions),
    )


def unit_of(events: tuple[Event, ...]) -> int | None:
    """Return the place of the source that is the privacy unit: the first that reports to ``SITE``."""
    places = (place for place, event in enumerate(events) if isinstance(event, Source) and event.reporter < 2)
    return next(places, None)


Measure = Callable[[tuple[Event, ...]], Measured]


def moved(apis: Collection[Api], statement: Statement = stated) -> Measure:
    """One source: its pairs and its debug reports move to a dummy, which has all that the source had but its keys."""

    def measure(events: tuple[Event, ...]) -> Measured:
        unit = unit_of(events)
        if unit is None:
            return Measured()
        marking = Marking(source=unit)
        return compare(play(events)[0], play(events, marking)[0], apis=apis, bounds={}, statement=statement)

    return measure


def moved_with_debug(apis: Collection[Api], statement: Statement = stated) -> Measure:
    """One source moves, and with it goes what the browser contributed to debug reports about triggers, on any day.

    This is all that one source's conversions can have contributed: with it a trigger is attributed, without it the
    trigger may contribute to a debug report instead, which no budget of the source bounds.
    """

    def measure(events: tuple[Event, ...]) -> Measured:
        marking = Marking(source=unit_of(events), trigger_debug=lambda place: True)
        return compare(play(events)[0], play(events, marking)[0], apis=apis, bounds={}, statement=statement)

    return measure


def debug_removed(apis: Collection[Api], statement: Statement = stated) -> Measure:
    """One browser's debug contributions for one context site and UTC day, those that were largest, are removed."""

    def measure(events: tuple[Event, ...]) -> Measured:
        first, debug = play(events)
        spent: Counter[tuple[str, int]] = Counter()
        units: dict[int, tuple[str, int]] = {}
        for place, reports in debug.items():
            for report in reports:
                units[place] = (_context(events[place]), report.time_ms // DAY_MS)
                spent[units[place]] += sum(value for _, _, value in report.contributions)
        if not spent:
            return Measured()
        unit = spent.most_common(1)[0][0]

        def marked(place: int) -> bool:
            return units.get(place) == unit

        second, _ = play(events, Marking(trigger_debug=marked, source_debug=marked))
        return compare(first, second, apis=apis, bounds={}, statement=statement)

    return measure


def unattributed(apis: Collection[Api], statement: Statement = stated) -> Measure:
    """One source leads elsewhere, so that its triggers find another source or none. No job states a bound for this."""

    def measure(events: tuple[Event, ...]) -> Measured:
        unit = unit_of(events)
        if unit is None:
            return Measured()
        first, second = play(events)[0], play(events, Marking(unattributed=unit))[0]
        return compare(first, second, apis=apis, bounds={}, statement=statement, same_reports=False)

    return measure


def _context(event: Event) -> str:
    if isinstance(event, Source):
        return PUBLISHERS[event.publisher]
    assert isinstance(event, Trigger)
    return SHOPS[event.shop]


def problem(measure: Measure) -> Problem[Event]:
    """Return the search over events of one browser for a kind of neighbour."""
    return Problem(draw=draw, vary=vary, measure=measure)
