"""Epochs of a device stay apart: without the impressions of one, the others store and send what they did, or it paid.

The privacy unit is a device's impressions of one epoch. ``play`` runs a world in a browser, perhaps without a unit, and
returns what each store holds for each unit and what each conversion sent. ``difference`` compares two such worlds.
Every limit of ``Config`` is small in random worlds. Every attribute of a browser is a store in ``STORES`` or listed in
``FIXED``, which a test holds to, so that no store can be left out. A ``Fleet`` must send and keep the same.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aggservice.kits.rules import CREDITS, LISTS, columns_of, happen, random_events, site
from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from aggservice.wire import KeySet
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    CallError,
    Config,
    Conversion,
    ConversionColumns,
    Fleet,
    ImpressionColumns,
)
from w3c_client.columns import ClearColumns, FleetConversions
from w3c_client.config import DAY_MS
from w3c_client.randomness import W3cWordChoices
from w3c_client.rules import SiteBudget
from w3c_client.storage import HOUR_MS, Epochs

from .test_w3c_fleet import config_of

START_MS = 100 * 7 * DAY_MS
KEYS = KeySet.create(SecureBits(), ManualClock(START_MS)).public(ManualClock(START_MS))


class SetClock:
    """A clock that may be ahead for a moment and then go back."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


class Phased(W3cWordChoices):
    """W3cChoices of a browser whose epochs begin at a given phase, whenever the start is drawn; and when that was."""

    def __init__(self, clock: SetClock, phase_ms: int) -> None:
        super().__init__(0)
        self._clock, self._phase_ms = clock, phase_ms

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        self._offset_ms = (self._clock.time_ms - self._phase_ms) % epoch_ms
        return self._offset_ms

    @property
    def drawn_ms(self) -> int:
        return self._offset_ms


@dataclass(frozen=True, kw_only=True)
class World:
    """The events of one device, each conversion with the words of its coins, and when its epochs begin."""

    config: Config
    phase_ms: int
    events: list[dict[str, Any]]

    def unit(self, time_ms: int) -> int:
        """Return the number of the epoch at a moment: a unit."""
        return (time_ms - self.phase_ms) // self.config.epoch_ms

    @property
    def units(self) -> list[int]:
        """The units with impressions."""
        return sorted({self.unit(event["time_ms"]) for event in self.events if event["kind"] == 0})


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a call gave: what is public about it, its histogram, and what the conversion did in each unit."""

    public: tuple[Any, ...]
    histogram: tuple[int, ...] = ()
    by_unit: Mapping[int, Any]
    loss_micro_each: Fraction = Fraction(0)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Contents of each store by unit (None: of no unit in particular), what was sent, and the browser."""

    stores: Mapping[str, Mapping[int | None, Any]]
    sent: list[Sent]
    accepted: list[dict[str, Any]]
    browser: Browser
    draws: Phased


Store = Callable[[World, Browser], Mapping[int | None, Any]]


def _units_of(browser: Browser, world: World) -> Callable[[int], int]:
    """Return the unit of an epoch's number, which counts from the start that was drawn."""
    start_ms = browser.epoch_start_ms
    assert start_ms is None or (start_ms - world.phase_ms) % world.config.epoch_ms == 0
    first = 0 if start_ms is None else world.unit(start_ms)
    return lambda epoch: epoch + first


def _impressions(world: World, browser: Browser) -> dict[int | None, Any]:
    found: dict[int | None, Any] = {}
    for held in browser.impressions:
        values = tuple(getattr(held, one.name) for one in fields(held))
        found.setdefault(world.unit(held.time_ms), []).append(values)
    return found


def _budgets(world: World, browser: Browser) -> dict[int | None, Any]:
    found: dict[int | None, Any] = {}
    for one in browser.budgets:
        unit = _units_of(browser, world)(one.epoch)
        found.setdefault(unit, []).append((one.rule, one.site, one.left_micro))
    return found


def _actions(world: World, browser: Browser) -> dict[int | None, Any]:
    found: dict[int | None, Any] = {}
    for name, counted in browser._budgets._sites.items():
        for (epoch, *scope), sites in counted.items():
            found.setdefault(_units_of(browser, world)(epoch), []).append((name, scope, sorted(sites)))
    return {unit: sorted(rows) for unit, rows in found.items()}


STORES: Mapping[str, tuple[Store, tuple[str, ...]]] = {
    "impressions": (_impressions, ("_impressions._groups", "_impressions._waiting")),
    "budgets": (_budgets, ("_budgets._left",)),
    "sites of actions": (_actions, ("_budgets._sites",)),
    "start of epochs": (lambda world, browser: _units_of(browser, world) and {}, ("_epochs.start_ms",)),
    "last clear": (lambda world, browser: {None: browser._epochs.last_clear_ms}, ("_epochs.last_clear_ms",)),
    "tabs": (lambda world, browser: {None: repr(browser._activations._tabs)}, ("_activations._tabs",)),
    "past reports": (lambda world, browser: {None: browser.reports}, ("_reports",)),
    "switch": (lambda world, browser: {None: browser.enabled}, ("enabled",)),
}
"""Each store: its contents by unit, and the attributes of a browser that hold it."""
FIXED = {
    "config",
    "_clock",
    "_bits",
    "_keys",
    "_lock",
    "_epochs._length_ms",
    "_epochs._lookback_ms",
    "_epochs.draws",
    "_impressions._per_site",
    "_budgets._capacity",
    "_budgets._config",
    "_attributor._config",
    "_attributor._draws",
    "_activations._duration_ms",
    "_activations._consume",
}
"""Attributes that a browser is made with and never changes."""


def attributes(browser: Browser) -> Iterator[tuple[str, Any]]:
    """Yield every attribute of a browser and of its parts, each part once."""
    known: list[Any] = []

    def walk(path: str, part: Any) -> Iterator[tuple[str, Any]]:
        known.append(part)
        for name, value in vars(part).items():
            if any(value is one for one in known):
                continue
            ours = type(value).__module__.startswith("w3c_client") and hasattr(value, "__dict__")
            if ours and not is_dataclass(value):
                yield from walk(f"{path}{name}.", value)
            else:
                yield path + name, value

    return walk("", browser)


def play(world: World, without: int | None = None, *, called: bool = True, sealed: bool = False) -> Played:
    """Run a world; without a unit its impressions are not saved, or (``called`` false) the pages never call."""
    clock = SetClock()
    draws = Phased(clock, world.phase_ms)
    bits = SecureBits() if sealed else ForbiddenBits()
    browser = Browser(clock=clock, bits=bits, config=world.config, draws=draws, keys=KEYS if sealed else None)
    sent, accepted = [], []
    rejected: dict[int | None, Any] = {}
    for event in world.events:
        clock.time_ms = event["time_ms"]
        if event["kind"] == 0 and world.unit(event["time_ms"]) == without:
            if not called:
                continue
            event = {**event, "enabled": False}  # the page cannot tell, and nothing is saved
        if event.get("activate"):
            browser.activate(event["tab"])
        if event.get("leave"):
            browser.navigate(event["tab"])
        draws.words = iter(event.get("words", ()))
        try:
            done = happen(browser, event)
        except CallError as error:
            if event["kind"] == 1:
                sent.append(Sent(public=(event["time_ms"], error.name), by_unit={}))
            else:
                rejected.setdefault(world.unit(event["time_ms"]), []).append(error.name)
            continue
        accepted.append(event)
        if done is not None:
            sent.append(_sent(done, _units_of(browser, world)))
    browser.enabled = True
    browser.check()
    stores = {name: contents(world, browser) for name, (contents, _) in STORES.items()} | {"answers": rejected}
    return Played(stores=stores, sent=sent, accepted=accepted, browser=browser, draws=draws)


def _sent(done: Conversion, unit_of: Callable[[int], int]) -> Sent:
    """Return what a conversion sent. Only the histogram, the id and the ciphertext may depend on impressions."""
    report = done.sealed
    public: tuple[Any, ...] = (done.time_ms, done.conversion_site, done.caller, done.enabled, report is None)
    if report is not None:
        info = {**json.loads(report.shared_info), "report_id": ""}
        public += (info, [len(one.payload) for one in report.payloads])
    return Sent(
        public=public,
        histogram=done.histogram,
        by_unit={unit_of(one.epoch): (one.prices, one.impression_sites, one.refused_by) for one in done.epochs},
        loss_micro_each=Fraction(done.epsilon_micro, 2 * done.max_value),
    )


def difference(here: Played, there: Played, unit: int) -> str:
    """Return what differs in the world without a unit although that unit paid nothing for it, or an empty text."""
    for name, contents in here.stores.items():
        other = there.stores[name]
        for key in (contents.keys() | other.keys()) - {unit}:
            if contents.get(key) != other.get(key):
                return f"{name} of unit {key}: {contents.get(key)} and {other.get(key)}"
    if [one.public for one in here.sent] != [one.public for one in there.sent]:
        return "what is public about the calls"
    for number, (one, two) in enumerate(zip(here.sent, there.sent, strict=True)):
        mine = {key: what for key, what in one.by_unit.items() if key != unit}
        if mine != two.by_unit:
            return f"what other units paid for call {number}: {mine} and {two.by_unit}"
        prices, _, refused_by = one.by_unit.get(unit, (None, None, None))
        paid = prices.of(SiteBudget()) if prices is not None and refused_by is None else 0
        moved = sum(abs(a - b) for a, b in zip(one.histogram, two.histogram, strict=True))
        if moved * one.loss_micro_each > paid:
            return f"call {number}: {one.histogram} and {two.histogram}, for which the unit paid {paid}"
    return ""


def by_fleet(world: World, played: Played) -> FleetConversions:
    """Run the events that a browser accepted in a fleet of one device, with the browser's choices."""
    kinds = [[event for event in played.accepted if event["kind"] == kind] for kind in range(3)]
    rows = [
        columns_of(kind, events)
        for kind, events in zip((ImpressionColumns, ConversionColumns, ClearColumns), kinds, strict=True)
    ]
    words = [word for event in kinds[1] for word in event["words"]]
    credits = [one for one in CREDITS if len(one) <= world.config.max_credits]  # the browser rejects the longer ones
    return Fleet(bits=ForbiddenBits(), config=world.config, lists=LISTS, credits=credits).run(
        *rows,
        devices=1,
        epoch_offset_ms=np.array([played.draws.drawn_ms]),
        words=np.array(words, dtype=np.uint64),
    )


def fleet_differs(world: World, played: Played) -> str:
    """Return where a fleet sends or keeps something else than the browser did, or an empty text."""
    found = by_fleet(world, played)
    done = [one for one in played.sent if one.histogram]
    for row, one in enumerate(done):
        if found.histogram(row, len(one.histogram)) != one.histogram:
            return f"conversion {row}: {found.histogram(row, len(one.histogram))} and {one.histogram}"
    left, rules = found.budgets, world.config.rules
    kept = sorted(
        (rules[left.rule[row]].name, int(left.epoch[row]), tuple(map(site, left.scope(row))), int(left.left_micro[row]))
        for row in range(len(left))
    )
    of_browser = sorted((one.rule, one.epoch, one.scope, one.left_micro) for one in played.browser.budgets)
    return "" if kept == of_browser else f"budgets: {kept} and {of_browser}"


def random_world(draw: random.Random, *, tabs: bool = False, jumps: bool = False) -> World:
    """A world in which every limit is small, with calls that some limits reject."""
    config = config_of(draw)
    of_calls = {
        "max_conversion_sites": 1,
        "max_conversion_callers": 1,
        "max_impression_sites": 1,
        "max_impression_callers": 1,
        "max_match_values": 1,
        "max_credits": 2,
        "max_histogram_size": 4,
        "max_service_histogram_size": {DEFAULT_SERVICE: 2},
    }
    config = replace(
        config,
        max_lookback_days=config.epoch_days * draw.choice((1, 2, 4)),
        activation_duration_ms=draw.choice((HOUR_MS, 4 * DAY_MS)),
        consume_activation=draw.random() < 0.5,
        reports_kept=2,
        **{name: least for name, least in of_calls.items() if draw.random() < 0.2},
    )
    events = random_events(draw, 0)
    for event in events:
        if event["site"] >= 0 and draw.random() < 0.5:
            event["site"] %= 2
        if event["kind"] == 1:
            event["words"] = [draw.getrandbits(64) for _ in CREDITS[event["credit"]][1:]]
        if tabs and event["kind"] < 2:
            event |= {"tab": draw.choice("ab"), "activate": draw.random() < 0.4, "leave": draw.random() < 0.2}
    if jumps:
        for event in draw.sample(events, min(3, len(events))):
            event["time_ms"] += draw.choice((-40, -7, 7, 40, 400)) * DAY_MS
    return World(config=config, phase_ms=draw.randrange(config.epoch_days * 24) * HOUR_MS, events=events)


def searched(worlds: int, seed: int) -> Counter[str]:
    """Play random worlds with and without each unit; return how often what happened."""
    draw = random.Random(seed)
    seen: Counter[str] = Counter()
    for number in range(worlds):
        tabs, jumps, sealed = number % 4 == 1, number % 4 == 2, number % 40 == 0
        world = random_world(draw, tabs=tabs, jumps=jumps)
        here = play(world, sealed=sealed)
        assert jumps or not (problem := fleet_differs(world, here)), (seed, number, problem)
        seen["calls rejected"] += sum(not one.histogram for one in here.sent)
        for unit in world.units:
            there = play(world, unit, called=tabs or draw.random() < 0.5, sealed=sealed)
            problem = difference(here, there, unit)
            assert not problem, (seed, number, unit, problem)
            assert jumps or not (problem := fleet_differs(world, there)), (seed, number, unit, problem)
            moved = sum(one.histogram != two.histogram for one, two in zip(here.sent, there.sent, strict=True))
            seen["units"] += 1
            seen["units that moved a histogram"] += moved > 0
            seen["units that start epochs otherwise"] += here.browser.epoch_start_ms != there.browser.epoch_start_ms
        saved = sum(event["kind"] == 0 and event["enabled"] for event in here.accepted)
        seen["impressions that a limit or a clear dropped"] += saved - len(here.browser.impressions)
    return seen


def test_without_one_epoch_the_others_store_and_send_the_same() -> None:
    seen = searched(600, 1)
    assert len(seen) == 5 and min(seen.values()) > 100, seen


@pytest.mark.soak
def test_without_one_epoch_the_others_store_and_send_the_same_in_many_worlds() -> None:
    seen = searched(20_000, 2)
    print("20,000 random worlds:", ", ".join(f"{name} {count:,}" for name, count in seen.items()))
    assert seen["units"] > 20_000


def test_every_attribute_of_a_browser_is_a_store_or_fixed() -> None:
    """A store that is added later must be listed, and what counts as fixed must not change."""
    draw = random.Random(3)
    listed = {path for _, paths in STORES.values() for path in paths}
    for _ in range(50):
        world = random_world(draw, tabs=True)
        browser = play(world).browser
        found = dict(attributes(browser))
        assert set(found) == listed | FIXED and not listed & FIXED
        fresh = dict(attributes(Browser(clock=SetClock(), bits=ForbiddenBits(), config=world.config)))
        for path in FIXED - {"_clock", "_bits", "_lock", "_epochs.draws", "_attributor._draws"}:
            assert found[path] == fresh[path], path


def test_a_fleet_keeps_nothing_between_runs() -> None:
    """Its stores are those of one run, which ``fleet_differs`` compares with a browser's."""
    fleet = Fleet(bits=SeededBits("units"))
    given = {"config", "_bits"}  # not stores: a frozen value, and where randomness comes from
    before = deepcopy({name: value for name, value in vars(fleet).items() if name not in given})
    saved = ImpressionColumns.of(device=[0, 1], time_ms=0, site=0, histogram_index=1)
    bought = ConversionColumns.of(device=[0, 1], time_ms=1, site=1, histogram_size=2)
    first, second = (fleet.run(saved, bought) for _ in range(2))
    assert first.histogram(0, 2) == second.histogram(0, 2) == (0, 1)
    assert set(vars(fleet)) == before.keys() | given
    np.testing.assert_equal({name: vars(fleet)[name] for name in before}, before)


# An epoch that pays nothing, at the size of the limits

WEEKS = 4
SHOPS = 8


def asked(**options: Any) -> dict[str, Any]:
    return {"aggregationService": DEFAULT_SERVICE, "histogramSize": 2, **options}


def crowded_browser(shops: int, last_epoch: bool) -> tuple[list[tuple[int, ...]], dict[int, int]]:
    """Two ads in each of four epochs, that of the first publisher with priority; then four more of this publisher.

    Those of the last epoch are for a site that never converts. Each shop asks about each of the four epochs. Returns
    the histograms and, by epoch, what the global budget paid.
    """
    clock = SetClock()
    clock.time_ms = START_MS
    config = Config(impressions_per_site=WEEKS)
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=Phased(clock, START_MS))
    browser.measure_conversion("first.example", asked())
    for week in range(WEEKS):
        clock.time_ms = START_MS + week * config.epoch_ms + DAY_MS
        browser.save_impression("news.example", {"histogramIndex": 0, "matchValue": week, "priority": 1})
        browser.save_impression("blog.example", {"histogramIndex": 1, "matchValue": week})
    clock.time_ms = START_MS + WEEKS * config.epoch_ms + HOUR_MS
    for _ in range(WEEKS * last_epoch):
        browser.save_impression("news.example", {"histogramIndex": 0, "conversionSites": ["never.example"]})
    sent = [
        browser.measure_conversion(f"shop{shop}.example", asked(matchValues=[week])).histogram
        for shop in range(shops)
        for week in range(WEEKS)
    ]
    left = {one.epoch: one.left_micro for one in browser.budgets if one.rule == "global-budget"}
    return sent, {epoch: config.global_budget_micro - amount for epoch, amount in left.items()}


def crowded_fleet(shops: int, last_epoch: bool) -> tuple[list[tuple[int, ...]], dict[int, int]]:
    """The same in a fleet; publishers are 0 and 1, list 5 holds a site that never converts."""
    config = Config(impressions_per_site=WEEKS)
    lists = ((), *((week,) for week in range(WEEKS)), (99,))
    weeks = np.arange(WEEKS).repeat(2)
    last_ms, crowd = START_MS + WEEKS * config.epoch_ms + HOUR_MS, WEEKS * last_epoch
    saved = ImpressionColumns.of(
        device=np.zeros(2 * WEEKS + crowd, dtype=np.int64),
        time_ms=[*(START_MS + weeks * config.epoch_ms + DAY_MS), *[last_ms] * crowd],
        site=[*[0, 1] * WEEKS, *[0] * crowd],
        histogram_index=[*[0, 1] * WEEKS, *[0] * crowd],
        priority=[*[1, 0] * WEEKS, *[0] * crowd],
        match_value=[*weeks, *[0] * crowd],
        conversion_sites=[*[0, 0] * WEEKS, *[5] * crowd],
    )
    bought = ConversionColumns.of(
        device=0,
        time_ms=[START_MS, *[last_ms] * (shops * WEEKS)],
        site=[50, *(10 + np.arange(shops)).repeat(WEEKS)],
        histogram_size=2,
        match_values=[0, *[1, 2, 3, 4] * shops],
    )
    found = Fleet(bits=ForbiddenBits(), config=config, lists=lists).run(
        saved, bought, epoch_offset_ms=np.zeros(1, dtype=np.int64), words=np.array([], dtype=np.uint64)
    )
    left = found.budgets
    paid = {
        int(epoch): config.global_budget_micro - int(amount)
        for rule, epoch, amount in zip(left.rule, left.epoch, left.left_micro, strict=True)
        if config.rules[rule].name == "global-budget"
    }
    return [found.histogram(row, 2) for row in range(1, len(bought))], paid


@pytest.mark.parametrize("crowded", [crowded_browser, crowded_fleet])
@pytest.mark.parametrize(("shops", "each_pays"), [(1, 1), (SHOPS, 4)])
def test_an_epoch_that_paid_nothing_displaces_nothing(crowded: Any, shops: int, each_pays: int) -> None:
    """With one limit for all epochs, the unpaid one loses 4.0 to one shop (budget 1) and 16.0 to eight (quota 4)."""
    (here, paid), (there, other) = crowded(shops, True), crowded(shops, False)
    assert paid == other == {week: each_pays * 1_000_000 for week in range(WEEKS)}  # nothing in the last epoch
    moved = sum(abs(a - b) for one, two in zip(here, there, strict=True) for a, b in zip(one, two, strict=True))
    assert moved / 2 == 0  # what is lost at ε = 1 and maxValue = 1
    assert Counter(here) == Counter({(1, 0): WEEKS * each_pays, (0, 0): WEEKS * (shops - each_pays)})


@pytest.mark.parametrize("stored", [3, 1_024, 2_048])
def test_what_expires_follows_from_the_clock_alone(stored: int) -> None:
    """The clock is a year ahead for one impression, and right again: however many are stored, the ad still counts."""
    clock = SetClock()
    clock.time_ms = START_MS
    browser = Browser(clock=clock, bits=ForbiddenBits(), draws=Phased(clock, START_MS))
    browser.measure_conversion("first.example", asked())
    for _ in range(stored):
        browser.save_impression("news.example", {"histogramIndex": 0})
    clock.time_ms += 365 * DAY_MS
    browser.save_impression("blog.example", {"histogramIndex": 0})
    assert browser.measure_conversion("shop.example", asked()).histogram == (1, 0)  # the one of that moment
    for days, counts in ((30, 1), (31, 0), (29, 1)):
        clock.time_ms = START_MS + days * DAY_MS
        done = browser.measure_conversion(f"shop{days}.example", asked(impressionSites=["news.example"]))
        assert done.histogram == (counts, 0), days
    browser.check()


@pytest.mark.parametrize("epoch_days", [1, 7])
def test_when_the_start_of_epochs_is_drawn_does_not_change_its_law(epoch_days: int) -> None:
    """Whatever the moment, each hour of an epoch is as often the phase: so the moment may depend on impressions."""
    config = Config(epoch_days=epoch_days)
    hours = config.epoch_ms // HOUR_MS

    def phases(moment_ms: int, part_ms: int) -> Counter[int]:
        found: Counter[int] = Counter()
        for offset_ms in range(0, config.epoch_ms, part_ms):
            epochs = Epochs(config, W3cWordChoices(offset_ms))
            epochs.index(moment_ms)
            assert epochs.start_ms is not None
            found[epochs.start_ms % config.epoch_ms] += 1
        return found

    for moment_ms in (START_MS, START_MS + 900_000, START_MS + 5 * HOUR_MS + 1_800_000, -900_000):
        assert phases(moment_ms, 900_000) == {hour * HOUR_MS: 4 for hour in range(hours)}


def test_the_start_is_drawn_when_a_site_has_too_many_impressions_to_tell_epochs_apart() -> None:
    """Impressions that wait for the start of epochs have the same limit, and keep the order of saving."""
    clock = SetClock()
    browser = Browser(clock=clock, bits=ForbiddenBits(), draws=Phased(clock, 0), config=Config(impressions_per_site=2))
    for day, index in ((1, 0), (8, 1)):
        clock.time_ms = START_MS + day * DAY_MS
        browser.save_impression("news.example", {"histogramIndex": index})
    assert browser.epoch_start_ms is None
    for index in (2, 3):
        browser.save_impression("news.example", {"histogramIndex": index})
        browser.check()
    assert browser.epoch_start_ms == START_MS + 7 * DAY_MS
    assert [held.histogram_index for held in browser.impressions] == [0, 2, 3]  # the epoch before keeps its own
    browser.clear_impressions_for_site("other.example")
    assert [held.histogram_index for held in browser.impressions] == [0, 2, 3]


def test_impressions_before_and_after_the_start_is_drawn_keep_their_order() -> None:
    """Of impressions of one moment and priority the first wins, also if a clear draws the start between them."""
    clock = SetClock()
    clock.time_ms = START_MS
    browser = Browser(clock=clock, bits=ForbiddenBits(), draws=W3cWordChoices(0))
    browser.save_impression("news.example", {"histogramIndex": 0})
    browser.clear_site_data(["other.example"])
    browser.save_impression("news.example", {"histogramIndex": 1})
    assert browser.measure_conversion("shop.example", asked()).histogram == (1, 0)
