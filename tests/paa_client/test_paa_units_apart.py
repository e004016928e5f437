"""Units of a browser and of a fleet apart: remove one, and what others store and send is as it was.

*What a worklet finds* in Shared Storage, or in an auction, decides about no report that the page asked for.
*A reporting site*, or one API of it, decides about no other. ``tests/sensitivity`` leaves out single windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, ManualClock, SeededBits
from paa_client import Auction, Browser, Config, Fleet, InterestGroup, chromium, specification
from paa_client.config import ContextType
from paa_client.origins import site_of
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach
from paa_client.reporting.reports import QueuedReport
from stores import attributes

ORIGINS = ("https://a.one.test", "https://b.one.test", "https://two.test", "https://three.test")
MINUTE_MS = 60_000
WORLDS = 100
SMALL = {
    "smaller_budget": 8,
    "larger_budget": 24,
    "storage_bytes_per_origin": 60,
    "storage_lifetime_ms": 20 * MINUTE_MS,
    "randomized_delay_ms": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A page writes to Shared Storage."""

    origin: int
    key: str
    text: str
    append: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A page runs an operation that reads Shared Storage, writes to it, and contributes what it found."""

    origin: int
    key: str
    value: int
    debug: bool
    fails: bool
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bidding:
    """A site runs an auction in which it is seller and buyer, and contributes."""

    origin: int
    value: int
    debug: bool
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Time passes, and what is due is sent."""

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """An origin's data, or (None) everybody's, is deleted."""

    origin: int | None


Event = Write | Visit | Bidding | Wait | Clear
Numbered = tuple[int, Event]


def draw_world(rng: Random) -> list[Numbered]:
    """Draw events."""
    return [(number, _draw(rng, number)) for number in range(rng.randint(6, 30))]


def _draw(rng: Random, number: int) -> Event:
    kind = rng.choices((Write, Visit, Bidding, Wait, Clear), weights=(6, 10, 4, 5, 1))[0]
    origin = rng.choices(range(4), weights=(5, 2, 4, 2))[0]
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options = rng.choice(
            [
                {"context_id": str(number)},
                {"filtering_id_max_bytes": 2},
                {"context_id": str(number), "max_contributions": 2},
            ]
        )
    if kind is Wait:
        return Wait(by_ms=rng.choice((1_000, 6_000, MINUTE_MS, 10 * MINUTE_MS, 21 * MINUTE_MS, 60 * MINUTE_MS)))
    if kind is Clear:
        return Clear(origin=rng.choice((0, 2, None)))
    if kind is Write:
        return Write(origin=origin, key=rng.choice("xyz"), text="1" * rng.choice((1, 5, 25)), append=rng.random() < 0.5)
    if kind is Bidding:
        return Bidding(origin=origin, value=rng.choice((0, 1, 3, 8)), debug=rng.random() < 0.5, options=options)
    return Visit(
        origin=origin,
        key=rng.choice("xyz"),
        value=rng.choice((1, 3, 8)),
        debug=rng.random() < 0.5,
        fails=rng.random() < 0.2,
        options=options,
    )


def _operation(storage: Any, aggregation: Any, data: tuple[str, int, bool, bool]) -> None:
    """Report what is stored, in every way that an operation has: contents, debug key, number of calls, an error."""
    key, value, debug, fails = data
    found = storage.get(key)
    storage.append("z", "2")
    if found is None:
        return
    if debug:
        aggregation.enable_debug_mode(debug_key=len(found))
    for bucket in range(min(len(found), 3)):
        aggregation.contribute_to_histogram(bucket=bucket, value=value)
    if fails:
        raise RuntimeError


class EventBits(Bits):
    """Random bits that follow from the number of the event, so that leaving one out changes no other's."""

    private = False

    def __init__(self) -> None:
        self.start(-1)

    def start(self, number: int) -> None:
        """Begin an event."""
        self._stream = SeededBits(f"apart {number}")

    def read(self, count: int) -> bytes:
        return self._stream.read(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        return self._stream.words(count)

    def child(self, label: str) -> Bits:
        return self._stream.child(label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A browser after some events, and what it sent until an hour later."""

    browser: Browser
    stored: dict[str, dict[tuple[str, ContextType | None], list[object]]]
    sent: list[QueuedReport]


def play(events: Sequence[Numbered], config: Config) -> Played:
    """Play events on one browser."""
    clock, bits = ManualClock(1_700_000_040_000), EventBits()
    browser = Browser(clock=clock, bits=bits, config=config)
    for origin in ORIGINS:
        browser.register(origin, "operation", _operation)
    sent: list[QueuedReport] = []
    for number, event in events:
        bits.start(number)
        _act(browser, clock, event)
        sent += browser.take_due()
    contents = stored(browser)
    clock.advance(60 * MINUTE_MS)
    return Played(browser=browser, stored=contents, sent=sent + browser.take_due())


def _act(browser: Browser, clock: ManualClock, event: Event) -> None:
    match event:
        case Write():
            storage = browser.storage(ORIGINS[event.origin])
            (storage.append if event.append else storage.set)(event.key, event.text)
        case Visit():
            data = (event.key, event.value, event.debug, event.fails)
            browser.run(ORIGINS[event.origin], "operation", data, **event.options)
        case Bidding():
            browser.run_ad_auction(_auction(ORIGINS[event.origin], event))
        case Wait():
            clock.advance(event.by_ms)
        case Clear():
            browser.clear(None if event.origin is None else ORIGINS[event.origin])


def _auction(origin: str, event: Bidding) -> Auction:
    def contribute(aggregation: Any, signals: Any) -> float:
        if event.value and event.debug:
            aggregation.enable_debug_mode(debug_key=event.value)
        if event.value:
            aggregation.contribute_to_histogram(bucket=9, value=event.value)
        return 1.0

    groups = [InterestGroup(owner=origin, name="group", generate_bid=contribute)] * (event.value > 1)
    return Auction(seller=origin, score_ad=contribute, interest_groups=groups, **event.options)


def stored(browser: Browser) -> dict[str, dict[tuple[str, ContextType | None], list[object]]]:
    """Return what every store holds, by reporting site and, where it is one, API."""
    found: dict[str, dict[tuple[str, ContextType | None], list[object]]] = defaultdict(lambda: defaultdict(list))
    for origin, known in browser._origins.items():
        known.database._check()
        found["_origins"][site_of(origin), ContextType.SHARED_STORAGE].append((origin, known.database.entries()))
    for (site, api), usage in browser._budgeter._usage.items():
        found["_budgeter"][site, api].append(usage.entries())
    for (site, api, name), usage in browser._budgeter._named.items():
        found["_budgeter"][site, api].append((name, usage.entries()))
    for _, _, delivery in sorted(browser._queue, key=lambda item: item[:2]):
        found["_queue"][unit_of(delivery)].append((delivery.time_ms, delivery.report, delivery.debug_copy))
    for (origin, api, deterministic), count in (+browser._pending).items():
        found["_pending"][site_of(origin), api].append((origin, deterministic, count))
    for lost in browser.journal.losses:
        found["journal"][lost.site, lost.api].append(lost)
    for (site, api, cause), counted in browser.journal.counts().items():
        found["journal"][site, api].append((cause, counted))
    for line in browser.journal.console:
        found["journal"][site_of(line.reporting_origin), ContextType.SHARED_STORAGE].append(line)
    return {name: {unit: sorted(held, key=repr) for unit, held in units.items()} for name, units in found.items()}


def unit_of(delivery: QueuedReport) -> tuple[str, ContextType | None]:
    """Return the reporting site and API of a report."""
    return site_of(delivery.report.reporting_origin), delivery.report.api


CONFIGS = {
    "chromium": chromium(**SMALL),
    "chromium, limited": chromium(**SMALL, pending_report_limit=2),
    "chromium, errors": chromium(**SMALL, pending_report_limit=2, error_reporting=True),
    "specification": specification(**SMALL, pending_report_limit=2),
}


# What a worklet finds, and the reports that a page asked for.


def otherwise(event: Event, rng: Random) -> Event | None:
    """Return an event after which worklets find something else; the page asks for the same reports."""
    if isinstance(event, Write):
        return None if rng.random() < 0.5 else replace(event, text="1" * rng.randint(1, 9))
    return replace(event, value=rng.choice((0, 1, 8))) if isinstance(event, Bidding) else event


def shown(played: Played) -> list[object]:
    """Return the clear parts of the reports that a page asked for, but their ids."""
    seen = [
        (delivery.time_ms, delivery.url, len(report.cleartext), replace(report, report_id="", contributions=()))
        for delivery in played.sent
        if delivery.counts_as[2] and (report := delivery.report)
    ]
    return sorted(seen, key=repr)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_worklet_finds_decides_about_no_report_that_the_page_asked_for(seed: int, name: str) -> None:
    """Number, times, sizes and debug fields follow from what pages did, under every limit."""
    rng = Random(f"existence {seed} {name}")
    for _ in range(WORLDS):
        events = draw_world(rng)
        changed = [(number, other) for number, event in events if (other := otherwise(event, rng)) is not None]
        assert shown(play(events, CONFIGS[name])) == shown(play(changed, CONFIGS[name])), (events, changed)


# Reporting sites, and their APIs.


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("api", [None, *ContextType])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_reporting_site_or_one_of_its_apis_decides_about_no_other(
    name: str, api: ContextType | None, allowed: bool
) -> None:
    """Storage, budgets, pending reports, losses and reports of others are as without it, in debug mode too."""
    rng = Random(f"sites {name} {api}")
    config = replace(CONFIGS[name], debug_mode_allowed=allowed, keep_losses=True)
    site, origins = "https://one.test", (0, 1)

    def gone(unit: tuple[str, ContextType | None]) -> bool:
        return unit[0] == site and api in (None, unit[1])

    for _ in range(WORLDS // 2):
        events = draw_world(rng)
        fewer = [
            (number, event)
            for number, event in events
            if getattr(event, "origin", None) not in origins or (api is not None and _api(event) is not api)
        ]
        world, other = play(events, config), play(fewer, config)
        for store in world.stored.keys() | other.stored.keys():
            left, right = ({u: c for u, c in w.stored.get(store, {}).items() if not gone(u)} for w in (world, other))
            assert left == right, (store, events)
        sent, without = ([d for d in w.sent if not gone(unit_of(d))] for w in (world, other))
        assert sent == without, events


def _api(event: Event) -> ContextType | None:
    """Return the API that an event is about; None if it is about both."""
    if isinstance(event, Bidding):
        return ContextType.PROTECTED_AUDIENCE
    return ContextType.SHARED_STORAGE if isinstance(event, Write | Visit) else None


# Every store.

LISTED = {
    "compared by ``stored``": {
        "Browser": "_budgeter _origins _pending _queue journal",
        "Budgeter": "_named _usage",
        "Database": "_bytes _entries",
        "Journal": "_counts _values console losses",
        "Usage": "_minutes _used",
        "_Origin": "database",
    },
    "the caller's: clock, bits, keys, configuration, operations": {
        "Browser": "_bits _clock _keys config",
        "Budgeter": "_larger _smaller",
        "Database": "_clock _lifetime_ms _max_bytes",
        "Journal": "_keep",
        "_Origin": "operations",
    },
    "sums of the minutes, made to fit the time before each use": {"Usage": "_begin _first _larger"},
    "internal numbers, which nobody sees, in the order of the queue": {"Browser": "_sequence"},
}
"""The attributes of a browser, by what becomes of them."""


def test_every_attribute_of_a_browser_is_compared_or_listed() -> None:
    """Who adds a store must compare it, or say why that is not needed."""
    rng = Random("full")
    config = replace(CONFIGS["chromium, limited"], keep_losses=True)
    found: set[str] = set()
    stores: set[str] = set()
    for _ in range(20):
        played = play(draw_world(rng), config)
        found |= attributes(played.browser, "paa_client")
        stores |= {name for name, units in played.stored.items() if any(units.values())}
    assert found == {
        f"{kind}.{name}" for listed in LISTED.values() for kind, names in listed.items() for name in names.split()
    }
    assert stores == set(LISTED["compared by ``stored``"]["Browser"].split())


# Fleets, which have no context IDs and keep nothing between calls.


@pytest.mark.parametrize(
    "recipe", [Reach(cap=2), KPlusFrequency(thresholds=(1, 3), cap=2)], ids=lambda recipe: type(recipe).__name__
)
@pytest.mark.parametrize("seed", range(5))
def test_devices_of_a_fleet_are_apart(seed: int, recipe: Reach | KPlusFrequency) -> None:
    """Without one device, the others' reports have the same events, times and buckets."""
    rng = np.random.default_rng(seed)
    config = chromium(smaller_budget=1 << 16, larger_budget=1 << 17, local_testing_mode=True)
    device, name = rng.integers(0, 5, 600), rng.integers(0, 30, 600)
    time_ms = np.sort(rng.integers(0, 90 * MINUTE_MS, 600))

    def told(chosen: NDArray[np.bool_]) -> list[tuple[int, ...]]:
        rows = np.flatnonzero(chosen)
        made = Fleet(recipe=recipe, origin=ORIGINS[0], config=config).run(
            device[rows], time_ms[rows], name[rows], devices=5, bits=SeededBits("apart")
        )
        columns = rows[made.event], made.device, made.time_ms, made.bucket, made.report_time_ms
        return [row for row in zip(*(column.tolist() for column in columns), strict=True) if row[1] != 0]

    everybody = np.ones(600, dtype=np.bool_)
    assert told(everybody) == told(device != 0)
    assert len(told(everybody)) < 480
    assert attributes(Fleet(recipe=recipe, origin=ORIGINS[0]), "paa_client") == set(), "a fleet is a frozen value"
