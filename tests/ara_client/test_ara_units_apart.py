"""Units of a browser apart: remove one, and what others store and send is as it was.

Three kinds of unit. *Everything about a source* decides about no report that its trigger sends in any case. *A
reporting site* decides about no other, and *a source* that loses its keys (its conversions move to a dummy) about no
other, except through the limits that the specification lets them share: ``SHARED`` names them, and docs/limits.md has
the number of each.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire import KeySet, Origin
from aggservice.wire.device import SendResult
from ara_client import AggregatableAttributionReport, Browser, Config, FixedChoices, Request, Response
from ara_client.constants import DAY_MS, HOUR_MS, MINUTE_MS
from ara_client.event_noise.state_space import StateReport, StateSpace
from ara_client.reports import AggregatableDebugReport, OutgoingReport
from ara_client.storage.browser_state import PendingReport
from ara_client.storage.limits import RateLimitRecord
from ara_client.storage.sources import StoredSource
from stores import attributes, kept, rows

REPORTERS = ("https://a.one.test", "https://b.one.test", "https://two.test", "https://three.test")
PUBLISHERS = ("https://news.test", "https://blog.test")
SHOPS = ("https://shop.test", "https://store.test", "https://mall.test")
WORLDS = 150
PLENTY = 1 << 30

OWN = {
    "max_event_level_epsilon": 14.0,
    "max_trigger_state_cardinality": 3000,
    "max_channel_capacity_navigation": 11.5,
    "max_channel_capacity_event": 6.5,
    "max_scopes_channel_capacity_navigation": 11.55,
    "max_scopes_channel_capacity_event": 6.5,
    "max_aggregatable_reports_per_source": 2,
    "max_aggregatable_debug_reports_per_source": 2,
    "max_destinations_per_source_site_and_reporting_site": 2,
    "max_destinations_per_window_reporting_site": 3,
    "max_destinations_per_day": 3,
    "max_attributions": 1,
    "max_reporting_origins_per_source_reporting_site": 1,
}
"""Limits that count what one reporting site does, set low."""

SHARED = {
    "max_sources_per_origin": 3,
    "max_event_level_reports_per_destination": 1,
    "max_aggregatable_reports_per_destination": 1,
    "max_aggregatable_debug_budget_per_context_site": 9,
    "max_destinations_per_window_total": 2,
    "max_source_reporting_origins": 1,
    "max_attribution_reporting_origins": 1,
}
"""Limits that count what all reporting sites do, set low; they are in the specification, and in docs/limits.md."""

AMONG_SOURCES = ("max_aggregatable_reports_per_destination", "max_attribution_reporting_origins", "max_attributions")
"""Limits that count attributions, so that those of one source leave less for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ad:
    """A source registration."""

    reporter: int
    publisher: int
    fields: dict[str, Any]
    debug: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale:
    """A trigger registration; the first ``failures`` attempts to send its report fail."""

    reporter: int
    shop: int
    fields: dict[str, Any]
    debug: bool
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Time passes."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """A reporter's data, or (None) everybody's, of the last ``span_ms`` but ``since_ms`` is deleted."""

    reporter: int | None
    span_ms: int
    since_ms: int
    rate_limits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network goes or comes back."""

    online: bool


Event = Ad | Sale | Wait | Clear | Network
Numbered = tuple[int, Event]


def draw_world(rng: Random, *, linked: bool) -> list[Numbered]:
    """Draw events. With ``linked`` every trigger asks for a report in any case, and no debug reports are allowed."""
    return [(number, _draw(rng, number, linked=linked)) for number in range(rng.randint(6, 24))]


def _draw(rng: Random, number: int, *, linked: bool) -> Event:
    kind = rng.choices((Ad, Sale, Wait, Clear, Network), weights=(8, 9, 5, 2, 1) if linked else (8, 10, 6, 1, 1))[0]
    if kind is Wait:
        return Wait(by_ms=rng.choice((1_000, 5 * MINUTE_MS, 16 * MINUTE_MS, HOUR_MS, DAY_MS, 10 * DAY_MS, 21 * DAY_MS)))
    if kind is Clear:
        span = rng.choice((HOUR_MS, 2 * DAY_MS, PLENTY * 100))
        since = rng.choice((0, 0, 1, HOUR_MS))
        return Clear(
            reporter=rng.choice((0, 2, None)),
            span_ms=span,
            since_ms=since,
            rate_limits=not linked and rng.random() < 0.3,
        )
    if kind is Network:
        return Network(online=rng.random() < 0.7)
    debug = not linked and rng.random() < 0.5
    told = {"value": rng.choice((1, 5)), "key_piece": hex(number), "types": ["unspecified"]}
    common: dict[str, Any] = {"debug_key": str(number), "debug_reporting": True}
    reporter = rng.choices(range(4), weights=(8, 1, 1, 1) if linked else (5, 1, 4, 2))[0]
    if kind is Ad:
        registration = common | {
            "destination": rng.sample(SHOPS, rng.choice((1, 1, 2))),
            "source_event_id": str(number),
            "aggregation_keys": {"a": hex((number + 1) << 8), "b": "0x1"},
            "priority": str(rng.randrange(2)),
            "destination_limit_priority": str(rng.randrange(2)),
            "expiry": str(rng.choice((1, 30, 30)) * 86_400),
        }
        if not linked:
            registration["aggregatable_debug_reporting"] = {"budget": 6, "key_piece": "0x1", "debug_data": [told]}
        if rng.random() < 0.2:
            registration["attribution_scopes"] = {"limit": 2, "values": rng.sample("xyz", rng.choice((1, 2)))}
            registration["event_report_windows"] = {"end_times": [86_400]}
            registration["trigger_data"] = [0, 1]
        return Ad(reporter=reporter, publisher=rng.randrange(2), fields=registration, debug=debug)
    registration = common | {
        "event_trigger_data": [{"trigger_data": "1", "priority": str(rng.randrange(3))}],
        "aggregatable_trigger_data": [{"key_piece": hex(number << 64), "source_keys": ["a"]}],
        "aggregatable_values": {"a": rng.choice((1, 30_000, 65_000)), "b": rng.choice((1, 500))},
        "aggregatable_source_registration_time": "exclude",
        "aggregatable_deduplication_keys": [{"deduplication_key": str(rng.randrange(9))}] if rng.random() < 0.3 else [],
        "aggregatable_debug_reporting": {"key_piece": "0x2", "debug_data": [told]},
        "attribution_scopes": ["x"] if rng.random() < 0.1 else [],
    }
    if linked or rng.random() < 0.5:
        registration["trigger_context_id"] = str(number)
    return Sale(
        reporter=reporter,
        shop=rng.choices(range(3), weights=(5, 2, 1))[0],
        fields=registration,
        debug=debug,
        failures=rng.choice((0, 1, 2, 3)),
    )


class NumberedDraws(FixedChoices):
    """RandomChoices that follow from the number of the event, so that leaving one out changes no other's."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.number = -1
        self._ids: Counter[int] = Counter()

    def _rng(self, what: str) -> Random:
        return Random(f"{self.number} {what}")

    def response(self, space: StateSpace, epsilon: float) -> Sequence[StateReport] | None:
        rng = self._rng("response")
        return space.at(rng.randrange(space.count)) if rng.random() < 0.3 else None

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        return self._rng(f"null {lookback_day}").random() < 0.3

    def aggregatable_delay_ms(self) -> int:
        return self._rng("delay").randrange(10 * MINUTE_MS)

    def report_id(self) -> str:
        self._ids[self.number] += 1
        return str(UUID(int=self.number << 96 | self._ids[self.number] << 80 | 4 << 76 | 8 << 60))


@dataclass(slots=True, kw_only=True)
class Played:
    """A browser after some events, its attempts to send reports, and the ids of its sources by event."""

    browser: Browser
    clock: ManualClock
    tried: list[OutgoingReport] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)


def play(events: Sequence[Numbered], rules: Config) -> Played:
    """Play events on one browser; whether an attempt fails follows from the event alone."""
    clock, draws = ManualClock(1_700_006_400_000), NumberedDraws(rules)
    failures = {str(number): event.failures for number, event in events if isinstance(event, Sale)}
    left = Counter(failures)

    def send(report: OutgoingReport) -> SendResult:
        played.tried.append(report)
        named = getattr(report, "trigger_context_id", None)
        if named is None or left[named] <= 0:
            return SendResult.SENT
        left[named] -= 1
        return SendResult.TRANSIENT_FAILURE

    browser = Browser(clock=clock, bits=SeededBits("apart"), config=rules, draws=draws, send=send)
    played = Played(browser=browser, clock=clock)
    for number, event in events:
        draws.number = number
        played.ids[number] = browser._state._last_id + 1
        _act(browser, clock, event)
        browser.advance()  # what is due leaves now, whether or not something else happens
    browser.check()
    draws.number = -1
    browser.go_online()
    return played


def _act(browser: Browser, clock: ManualClock, event: Event) -> None:
    match event:
        case Ad() | Sale():
            source = isinstance(event, Ad)
            name = f"Attribution-Reporting-Register-{'Source' if source else 'Trigger'}"
            response = Response(
                url=REPORTERS[event.reporter], headers={name: json.dumps(event.fields)}, debug_allowed=event.debug
            )
            browser.register(
                Request(context=PUBLISHERS[event.publisher], eligible="navigation-source")
                if isinstance(event, Ad)
                else Request(context=SHOPS[event.shop]),
                response,
            )
        case Wait():
            browser.advance(clock.now_ms() + event.by_ms)
        case Clear():
            end_ms = clock.now_ms() - event.since_ms
            origin = None if event.reporter is None else REPORTERS[event.reporter]
            browser.clear(origin, begin_ms=end_ms - event.span_ms, end_ms=end_ms, rate_limits=event.rate_limits)
        case Network(online=True):
            browser.go_online()
        case Network():
            browser.go_offline()


# What is stored, and what is sent.

Row = StoredSource | PendingReport | RateLimitRecord
INTERNAL = {"id", "serial", "source_id", "report_id"}
"""Numbers of rows, counted over the whole browser: nothing orders or shows them but within one unit."""


def plain(row: object) -> object:
    """Return a row as a value that two worlds can share."""
    if type(row).__name__ not in COMPARED:
        return [plain(part) for part in row] if isinstance(row, list) else row
    shown = {name: value for name, value in kept(row).items() if name not in INTERNAL}
    if isinstance(row, PendingReport):
        shown["source"] = None if row.source is None else row.source.registration.source_event_id
    return {name: plain(value) for name, value in shown.items()}


def site_of(row: Row | tuple[int, Origin, int]) -> str:
    """Return the reporting site that a row belongs to."""
    if isinstance(row, PendingReport):
        return row.report.reporting_origin.site
    return row[1].site if isinstance(row, tuple) else row.reporting_site


def stored(played: Played, wanted: Callable[[Row], bool] = lambda row: True) -> dict[str, dict[str, list[object]]]:
    """Return the rows of every store by reporting site, after every sweep: when those run must not matter."""
    state, now_ms = played.browser._state, played.clock.now_ms()
    state.sources.expire(now_ms)
    state.limits._next_purge_ms = now_ms
    state.limits.purge(now_ms)
    for key in list(state.limits._living):
        state.limits.living(key, now_ms)
    found: dict[str, dict[str, list[object]]] = {}
    for store in (state.sources, state.pending, state.limits, state.debug_budgets):
        for name, value in kept(store).items():
            by_site = found[f"{type(store).__name__}.{name}"] = defaultdict(list)
            for row in filter(wanted, rows(value, StoredSource, PendingReport, RateLimitRecord)):
                by_site[site_of(row)].append(plain(row))
    spent = found["DebugBudgets._spending"]
    for context_site, spending in state.debug_budgets._spending.items():
        for record in spending.records:
            if record[0] > now_ms - 31 * DAY_MS:  # older ones never count again, and may be gone or not
                spent[site_of(record)].append((context_site, record))
    return {name: {site: sorted(listed, key=repr) for site, listed in by.items()} for name, by in found.items()}


def sent(played: Played) -> dict[str, list[object]]:
    """Return every attempt to send a report, until a month later, by reporting site."""
    played.browser.advance(played.clock.now_ms() + 31 * DAY_MS)
    by_site: dict[str, list[object]] = defaultdict(list)
    for report in played.tried:
        by_site[report.reporting_origin.site].append(report)
    return by_site


def seen(played: Played) -> list[object]:
    """Return what an ad tech sees of aggregatable reports without opening them: all but their ids and payloads."""
    played.browser.advance(played.clock.now_ms() + 31 * DAY_MS)
    return sorted(
        (report.url, report.time_ms, report.scheduled_time_ms, report.destination, str(report.coordinator))
        + (
            (report.trigger_context_id, report.debug_enabled)
            if isinstance(report, AggregatableAttributionReport)
            else ()
        )
        for report in played.tried
        if isinstance(report, AggregatableAttributionReport | AggregatableDebugReport)
    )


def limits(**changes: int) -> Config:
    """Return vendor values with all limits low and windows short, but for ``changes``."""
    return Config(**{"rate_limit_window_ms": DAY_MS, **OWN, **SHARED, **changes})  # type: ignore[arg-type]


# Everything about a source, and the reports that its trigger sends in any case.


def without_sources(events: Sequence[Numbered], rng: Random) -> list[Numbered]:
    """Return the events without one of the sources, or without any."""
    ads = [number for number, event in events if isinstance(event, Ad)]
    gone = set(ads if not ads or rng.random() < 0.5 else [rng.choice(ads)])
    return [(number, event) for number, event in events if number not in gone]


@pytest.mark.parametrize("seed", range(10))
def test_a_source_decides_about_no_report_that_its_trigger_sends_in_any_case(seed: int) -> None:
    """Number, times and clear parts are as if there had been no source: under every limit, failure and deletion."""
    rng = Random(f"existence {seed}")
    rules = limits(max_destinations_per_source_site_and_reporting_site=1)
    for _ in range(WORLDS):
        events = draw_world(rng, linked=True)
        assert seen(play(events, rules)) == seen(play(without_sources(events, rng), rules)), events


# Reporting sites.


def without_site(events: Sequence[Numbered], site: str) -> list[Numbered]:
    """Return the events that a reporting site did not cause."""
    gone = {index for index, reporter in enumerate(REPORTERS) if reporter.endswith(site)}
    return [(number, event) for number, event in events if getattr(event, "reporter", None) not in gone]


def apart(events: Sequence[Numbered], site: str, rules: Config) -> bool:
    """Return whether other reporting sites store and send the same without the events of ``site``."""
    both, fewer = play(events, rules), play(without_site(events, site), rules)

    def others(found: dict[str, list[object]]) -> dict[str, list[object]]:
        return {owner: listed for owner, listed in found.items() if not owner.endswith(site)}

    stores, left = stored(both), stored(fewer)
    return all(others(stores[name]) == others(left[name]) for name in stores) and others(sent(both)) == others(
        sent(fewer)
    )


@pytest.mark.parametrize("site", ["one.test", "two.test", "three.test"])
@pytest.mark.parametrize("seed", range(3))
def test_a_reporting_site_decides_about_no_other(seed: int, site: str) -> None:
    """All limits that are a reporting site's own are low, and those that sites share are out of the way."""
    rng = Random(f"sites {seed} {site}")
    rules = limits(**dict.fromkeys(SHARED, PLENTY))
    for _ in range(WORLDS):
        events = draw_world(rng, linked=False)
        assert apart(events, site, rules), events


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_limit_joins_reporting_sites(name: str) -> None:
    """Each name must be on the list: with that limit low, and no other that sites share, worlds differ."""
    rng = Random(f"shared {name}")
    rules = limits(**{**dict.fromkeys(SHARED, PLENTY), name: SHARED[name]})
    worlds = (draw_world(rng, linked=False) for _ in range(2 * WORLDS))
    assert any(not apart(events, "two.test", rules) for events in worlds)


def test_every_limit_is_somebodys_and_every_shared_one_is_in_the_limits() -> None:
    """A limit that is added later must be put on one of the two lists; the page has the numbers of the shared ones."""
    named = {one.name for one in fields(Config) if one.name.startswith("max_")}
    assert named == OWN.keys() | SHARED.keys()
    assert not OWN.keys() & SHARED.keys()
    page = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    for name in (*SHARED, *AMONG_SOURCES, "max_destinations_per_source_site_and_reporting_site"):
        assert f"| `{name}` | {getattr(Config(), name):,} |" in page, name


# Sources.


@pytest.mark.parametrize("seed", range(6))
def test_a_source_that_loses_its_keys_changes_what_was_attributed_to_it_alone(seed: int) -> None:
    """Its conversions become null reports with the same id and times. Limits on attributions are out of the way."""
    rng = Random(f"sources {seed}")
    rules = limits(**dict.fromkeys(AMONG_SOURCES, PLENTY))
    moved = 0
    for _ in range(WORLDS):
        events = [
            (number, replace(event, fields=event.fields | {"aggregatable_debug_reporting": {}}))
            if isinstance(event, Sale)
            else (number, event)
            for number, event in draw_world(rng, linked=True)
            if not isinstance(event, Clear)  # a user who deletes a report deletes its source's other reports too
        ]
        chosen = rng.choice([number for number, event in events if isinstance(event, Ad)] or [-1])
        dummy = [
            (number, replace(event, fields=event.fields | {"aggregation_keys": {"dummy": "0x1"}}))
            if isinstance(event, Ad) and number == chosen
            else (number, event)
            for number, event in events
        ]
        world, other = play(events, rules), play(dummy, rules)
        assert stored(world, _others(world, chosen)) == stored(other, _others(other, chosen)), events
        sent(world), sent(other)
        for report, instead in zip(world.tried, other.tried, strict=True):
            if _is_of(report, chosen):
                assert isinstance(report, AggregatableAttributionReport)
                assert report.as_null() == instead, events
                moved += 1
            else:
                assert report == instead, events
    assert moved > 20


def _is_of(report: object, chosen: int) -> bool:
    """Return whether an aggregatable report has contributions of a source, which its keys tell."""
    parts = report.contributions if isinstance(report, AggregatableAttributionReport) else ()
    return any(part.bucket >> 8 & 0xFF == chosen + 1 for part in parts)


def _others(played: Played, chosen: int) -> Callable[[Row], bool]:
    """Return whether a row is not about what was attributed to a source; rows have equal numbers in both worlds."""
    own = played.ids.get(chosen)

    def other(row: Row) -> bool:
        match row:
            case StoredSource():
                return row.id != own
            case RateLimitRecord():
                return (row.scope, row.source_id) != ("aggregatable", own)
            case _:
                return not isinstance(row.report, AggregatableAttributionReport)

    return other


# Every store.

ROWS = {
    "SourceStore": "_by_expiry _by_id _by_time",
    "PendingReports": "_by_due _by_source",
    "RateLimits": "_attribution_pairs _attributions _by_report _by_source _living _records _source_pairs "
    "sources_by_site sources_by_sites",
    "DebugBudgets": "_spending",
}
"""The attributes whose rows the tests above compare."""

COMPARED = ("StoredSource", "PendingReport", "RateLimitRecord", "FlexibleLedger", "AttributedTrigger")
"""The kinds of row, of which ``plain`` compares every attribute that is not a number inside the browser."""

LISTED = {
    "the caller's: clock, bits, keys, configuration, network": {
        "Assembler": "_bits _keys",
        "Browser": "_clock config",
        "BrowserState": "config draws",
        "DebugBudgets": "_config",
        "ReportPost": "_clock _send online",
        "DestinationLimits": "_config",
        "DrawnChoices": "_bits _config _null_rates",
        "RateLimits": "_config",
    },
    "parts that are on this list themselves": {
        "Browser": "_delivery _registrar _state",
        "BrowserState": "debug_budgets destinations limits pending sources",
        "ReportPost": "_assembler _state",
        "DestinationLimits": "_limits",
        "Registrar": "_state",
    },
    "requests that are open now, and reports of the call that runs now": {
        "BrowserState": "outbox",
        "Registrar": "_navigations",
        "_Navigation": "open_requests os_buffer scopes",
    },
    "internal numbers, which nobody sees, in the order of the rows": {
        "BrowserState": "_last_id",
        "RateLimits": "_by_time _serial",
        "SourceStore": "_by_target",
    },
    "rows that are compared as part of another attribute": {
        "LivingDestinations": "_by_expiry",
        "RecordIndex": "_lists",
        "_Spending": "records",
    },
    "counts and sums of rows; a limit that sites share uses them, and is in SHARED": {
        "DebugBudgets": "_totals",
        "LivingDestinations": "active known",
        "PendingReports": "_aggregatable_per_destination _event_per_destination",
        "RecordIndex": "_origins",
        "SourceStore": "_per_origin",
        "_Spending": "first",
    },
    "when old records are next deleted, on which no limit depends": {"RateLimits": "_next_purge_ms"},
}
"""The attributes that are not compared, by the reason."""


def _named(listed: Mapping[str, str]) -> set[str]:
    return {f"{kind}.{name}" for kind, names in listed.items() for name in names.split()}


def test_every_attribute_of_a_browser_is_compared_or_listed() -> None:
    """Who adds a store must compare it, or say why that is not needed."""
    browser, clock = _full_browser()
    found = attributes(browser, "ara_client")
    assert {name.partition(".")[0] for name in found} >= set(COMPARED)
    known = _named(ROWS).union(*map(_named, LISTED.values()))
    assert {name for name in found if name.partition(".")[0] not in COMPARED} == known
    contents = stored(Played(browser=browser, clock=clock))
    assert {name for name, by_site in contents.items() if any(by_site.values())} == _named(ROWS)


def _full_browser() -> tuple[Browser, ManualClock]:
    """Return a browser with something in every store."""
    clock = ManualClock(0)
    keys = KeySet.create(SeededBits("apart"), clock).public(clock)
    config = Config(full_flexible_events=True)
    browser = Browser(clock=clock, bits=SeededBits("apart"), config=config, keys=keys)
    told = {"key_piece": "0x1", "debug_data": [{"value": 1, "key_piece": "0x1", "types": ["unspecified"]}]}
    spec = {"trigger_data": [0], "event_report_windows": {"end_times": [86_400]}, "summary_buckets": [1, 2]}
    flexible = {"trigger_specs": [spec], "max_event_level_reports": 2}
    for shop, more in enumerate((flexible, {"aggregatable_debug_reporting": told | {"budget": 9}})):
        ad = {"destination": SHOPS[shop], "aggregation_keys": {"a": "0x1"}, **more}
        _act(browser, clock, Ad(reporter=0, publisher=0, fields=ad, debug=False))
        sale = {
            "event_trigger_data": [{"trigger_data": "1"}],
            "aggregatable_values": {"a": 1},
            "aggregatable_debug_reporting": told,
        }
        _act(browser, clock, Sale(reporter=0, shop=shop, fields=sale, debug=False, failures=0))
    _act(browser, clock, Sale(reporter=0, shop=2, fields=sale, debug=False, failures=0))
    browser.start(Request(context=PUBLISHERS[0], eligible="navigation-source", navigation="open"))
    return browser, clock
