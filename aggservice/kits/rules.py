"""The kit of on-device budget rules and of attribution rules.

``check_rule`` runs a rule beside the standard ones in browsers and in a fleet over random worlds, which must agree. It
tries every coin of tiny worlds to see that what the rule charges covers what its observer learns, and that other
observers cannot change the charge. ``check_attribution`` does the same for shares of a value.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from aggservice.kits.failures import KitFailure
from aggservice.mechanisms import ForbiddenBits, ManualClock
from w3c_client.browser import Browser, Conversion
from w3c_client.columns import ClearColumns, ClearKind, ConversionColumns, ConversionOutcome, ImpressionColumns
from w3c_client.config import DAY_MS, DEFAULT_SERVICE, Config, design_config
from w3c_client.credit import AttributionRule, attribution_rule_of
from w3c_client.fleet import Fleet
from w3c_client.options import ConversionOptions, ImpressionOptions, Page
from w3c_client.randomness import W3cWordChoices
from w3c_client.rules import OnDeviceRule, ScopeColumn, rule_of

SITES = 6
LISTS = ((), (0,), (1, 2), (3, 4, 5), (0, 2, 4))
CREDITS = ((1,), (1, 1), (3, 2, 1), (0.25, 0.5, 0.125, 1), (1, 1, 1))
_START_MS = 100 * 7 * DAY_MS
_SIZE = 2
#: Ratios are computed in doubles; a micro-epsilon that is missing shows as at least 3 · 10⁻⁷.
TOLERANCE = 1e-9

Event = dict[str, Any]
Parties = dict[ScopeColumn, int | str]


def check_rule(rule: OnDeviceRule | type[OnDeviceRule] | str, *, worlds: int = 100, seed: int = 1) -> None:
    """Raise ``KitFailure`` if an on-device rule breaks what it says; ``worlds`` is how many random worlds are tried."""
    rule = rule_of(rule)
    draw = random.Random(seed)
    standard = tuple(one for one in design_config("big-bird").rules if one.name != rule.name)
    for _ in range(-(-worlds // 50)):
        beside = tuple(one for one in standard if draw.random() < 0.5)
        compare_with_fleet(replace(small_config(draw), rules=(*beside, rule)), draw, 50)
    if rule.counts_sites:
        return
    tiny = (*_TINY, *(_tiny_world(draw) for _ in range(worlds)))
    for check in (_check_key, _check_cost):
        for world in tiny:
            check(rule, world)


def check_attribution(rule: AttributionRule | type[AttributionRule] | str, *, worlds: int = 100, seed: int = 1) -> None:
    """Raise ``KitFailure`` if an attribution rule gives too much, or if browser and fleet divide differently."""
    rule = attribution_rule_of(rule)
    draw = random.Random(seed)
    for touches, credit in product(range(1, 41), CREDITS):
        most = draw.choice((4, 20))
        _check_shares(rule, touches, credit, most)
    for _ in range(-(-worlds // 50)):
        compare_with_fleet(replace(small_config(draw), attribution=rule), draw, 50)
    for touches in range(1, 6):
        for credit in CREDITS[:3]:
            _check_order(rule, touches, credit, draw)


# Browsers and fleets on random worlds


def site(number: int) -> str:
    """Return the name of a numbered site."""
    return f"site{number}.example"


def small_config(draw: random.Random) -> Config:
    """Return a configuration with small budgets, so that every rule refuses now and then."""
    return replace(
        design_config(draw.choice(("w3c", "big-bird"))),
        max_lookback_days=draw.choice((7, 20, 30)),
        epoch_days=draw.choice((1, 7, 7)),
        site_budget_micro=draw.choice((1_000_000, 1_500_000)),
        global_budget_micro=draw.choice((1_000_000, 3_000_000)),
        impression_quota_micro=draw.choice((1_000_000, 2_000_000)),
        conversion_quota_micro=draw.choice((700_000, 2_000_000)),
        sites_per_action=draw.choice((1, 2)),
        impressions_per_site=draw.choice((None, 1, 1, 2, 3)),
    )


def random_events(draw: random.Random, device: int) -> list[Event]:
    """Return impressions, conversions and clears of one device, in the order in which a fleet runs them."""
    events = []
    time_ms = 10**12 + draw.randrange(0, 20 * DAY_MS)
    for _ in range(draw.randrange(4, 24)):
        time_ms += draw.choice((0, 1, 3_600_000, DAY_MS // 2, DAY_MS, 3 * DAY_MS))
        common: Event = {
            "device": device,
            "time_ms": time_ms,
            "site": draw.randrange(SITES),
            "intermediary": draw.choice((-1, -1, draw.randrange(SITES))),
            "action": draw.choice((-1, 0, 1)),
            "enabled": draw.random() < 0.95,
        }
        kind = draw.random()
        if kind < 0.5:
            chosen = {
                "kind": 0,
                "histogram_index": draw.randrange(5),
                "priority": draw.choice((0, 0, 0, -1, 2)),
                "match_value": draw.randrange(3),
                "lifetime_days": draw.choice((1, 5, 30, 40)),
                "conversion_sites": draw.choice((0, 0, draw.randrange(len(LISTS)))),
                "conversion_callers": draw.choice((0, 0, draw.randrange(len(LISTS)))),
            }
        elif kind < 0.92:
            most = draw.choice((1, 3, 10))
            chosen = {
                "kind": 1,
                "histogram_size": draw.choice((2, 4, 5)),
                "value": draw.randint(1, most),
                "max_value": most,
                "epsilon_micro": draw.choice((1, 13_000, 333_333, 1_000_000)),
                "credit": draw.randrange(len(CREDITS)),
                "lookback_days": draw.choice((1, 6, 30, 90)),
                "match_values": draw.choice((0, 0, draw.randrange(3))),
                "impression_sites": draw.choice((0, 0, draw.randrange(len(LISTS)))),
                "impression_callers": draw.choice((0, 0, draw.randrange(len(LISTS)))),
            }
        else:
            clear = draw.choice(list(ClearKind))
            everything = clear is ClearKind.FORGET_ALL
            common = {"device": device, "time_ms": time_ms, "site": -1 if everything else common["site"]}
            chosen = {"kind": 2, "clear": clear}
        events.append({**common, **chosen})
    return sorted(events, key=lambda event: (event["time_ms"], event["kind"]))


def happen(browser: Browser, event: Event) -> Conversion | None:
    """Let one event happen in a browser; return what a conversion gave."""
    if event["kind"] == 2:
        here = [] if event["site"] < 0 else [site(event["site"])]
        if event["clear"] is ClearKind.IMPRESSIONS_FOR_SITE:
            browser.clear_impressions_for_site(here[0])
        elif event["clear"] is ClearKind.SITE_DATA:
            browser.clear_site_data(here)
        else:
            browser.forget_visits(here or None)
        return None
    browser.enabled = event["enabled"]
    page = Page(
        top_level=site(event["site"]),
        frame=None if event["intermediary"] < 0 else site(event["intermediary"]),
        tab=event.get("tab"),
        action=None if event["action"] < 0 else event["action"],
    )
    if event["kind"] == 0:
        named: Event = {name: [*map(site, LISTS[event[name]])] for name in ("conversion_sites", "conversion_callers")}
        own: Event = {name: event[name] for name in ("histogram_index", "priority", "match_value", "lifetime_days")}
        browser.save_impression(page, ImpressionOptions(**own, **named))
        return None
    named = {name: [*map(site, LISTS[event[name]])] for name in ("impression_sites", "impression_callers")}
    own = {name: event[name] for name in ("histogram_size", "value", "max_value", "lookback_days")}
    return browser.measure_conversion(
        page,
        ConversionOptions(
            aggregation_service=DEFAULT_SERVICE,
            epsilon=event["epsilon_micro"] / 1_000_000,
            credit=CREDITS[event["credit"]],
            match_values=LISTS[event["match_values"]],
            **named,
            **own,
        ),
    )


def run_in_browser(
    events: Iterable[Event], config: Config, offset_ms: int, words: Iterable[list[int]]
) -> tuple[list[Any], list[Any], int | None]:
    """Run one device whose choices are given; return its results, its budgets and the start of its epochs."""
    draws, clock, given = W3cWordChoices(offset_ms), ManualClock(0), iter(words)
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=draws)
    results = []
    for event in events:
        clock.advance_to(event["time_ms"])
        draws.words = iter(next(given) if event["kind"] == 1 else ())
        done = happen(browser, event)
        if done is not None:
            paid = sum(one.refused_by is None for one in done.epochs)
            outcome = ConversionOutcome.REFUSED if done.epochs else ConversionOutcome.NO_MATCH
            outcome = ConversionOutcome.ATTRIBUTED if paid else outcome if done.enabled else ConversionOutcome.OFF
            unpaid = len(done.epochs) - paid
            results.append((done.histogram, outcome, done.outside, paid, unpaid, done.refused_by, done.single_epoch))
    browser.check()
    left = [(one.rule, one.epoch, one.scope, one.left_micro) for one in browser.budgets]
    return results, left, browser.epoch_start_ms


def columns_of(kind: type[Any], events: Sequence[Event]) -> Any:
    """Return events of one kind as columns of a fleet."""
    given = {name: [event.get(name) for event in events] for name in kind.__dataclass_fields__ if name != "kind"}
    if kind is ClearColumns:
        given["kind"] = [int(event["clear"]) for event in events]
    return kind.of(**given)


def compare_with_fleet(config: Config, draw: random.Random, devices: int) -> Counter[str]:
    """Run random worlds in browsers and in a fleet with the same choices; count what happened, raise if they differ."""
    worlds = [random_events(draw, device) for device in range(devices)]
    kinds: list[list[Event]] = [[one for world in worlds for one in world if one["kind"] == kind] for kind in range(3)]
    if draw.random() < 0.5:  # the fleet puts rows in order itself
        for rows in kinds:
            rows.sort(key=lambda event: event["time_ms"])
    columns = [
        columns_of(kind, rows)
        for kind, rows in zip((ImpressionColumns, ConversionColumns, ClearColumns), kinds, strict=True)
    ]
    fleet = Fleet(bits=ForbiddenBits(), config=config, lists=LISTS, credits=CREDITS)
    touches = max((sum(one["kind"] == 0 for one in world) for world in worlds), default=0)
    coins = fleet.coins(touches)
    offsets = np.array([draw.randrange(config.epoch_ms) for _ in range(devices)], dtype=np.int64)
    words = [[draw.getrandbits(64) for _ in range(coins[event["credit"]])] for event in kinds[1]]
    flat = np.array([word for row in words for word in row], dtype=np.uint64)
    found = fleet.run(*columns, devices=devices, epoch_offset_ms=offsets, words=flat)
    rows_of: list[list[int]] = [[] for _ in range(devices)]
    for row, event in enumerate(kinds[1]):
        rows_of[event["device"]].append(row)
    stores: list[list[Any]] = [[] for _ in range(devices)]
    left = found.budgets
    for row, device in enumerate(left.device):
        rule = config.rules[left.rule[row]]
        scope = zip(rule.scope, left.scope(row), strict=True)
        where = tuple(value if column is ScopeColumn.ACTION else site(value) for column, value in scope)
        stores[device].append((rule.name, int(left.epoch[row]), where, int(left.left_micro[row])))
    seen: Counter[str] = Counter()
    for device, world in enumerate(worlds):
        results, budgets, start_ms = run_in_browser(
            world, config, int(offsets[device]), [words[row] for row in rows_of[device]]
        )
        actual = []
        for row in rows_of[device]:
            outcome, refused_by = ConversionOutcome(int(found.outcome[row])), found.refused_by(row)
            seen.update([outcome.name, *refused_by])
            if outcome is ConversionOutcome.CLEARED:  # a browser has forgotten what it cleared
                outcome = ConversionOutcome.NO_MATCH
            numbers = (found.outside[row], found.epochs_paid[row], found.epochs_refused[row])
            histogram = found.histogram(row, int(kinds[1][row]["histogram_size"]))
            single = bool(found.single_epoch[row])
            actual.append((histogram, outcome, *map(int, numbers), refused_by, single))
        start = int(found.epoch_start_ms[device]) if found.has_epoch_start[device] else None
        for what, one, two in (
            ("conversions", results, actual),
            ("budgets", sorted(budgets), sorted(stores[device])),
            ("starts of epochs", start_ms, start),
        ):
            if one != two:
                raise KitFailure(f"browser and fleet differ in their {what}: {one} and {two}; a rule must answer alike "
                                 "whenever it is asked")  # fmt: skip
    return seen


# Tiny worlds with every coin


class ScriptedChoices:
    """Coins that follow a path of choices, and the probability of that path. Epochs begin when they are drawn."""

    def __init__(self, path: list[bool]) -> None:
        self.path = path
        self.used = 0
        self.chance = Fraction(1)

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        """Return 0."""
        return 0

    def coin(self, favourable: int, total: int) -> bool:
        """Return the next choice of the path, True beyond its end."""
        if self.used == len(self.path):
            self.path.append(True)
        chosen = self.path[self.used]
        self.used += 1
        self.chance *= Fraction(favourable, total) if chosen else 1 - Fraction(favourable, total)
        return chosen

    def fraction(self) -> float:
        """Raise: exact arithmetic draws coins."""
        raise AssertionError("exact arithmetic draws coins")


def paths() -> Iterator[ScriptedChoices]:
    """Yield a script for every path of choices; the caller runs each before the next."""
    path: list[bool] = []
    while True:
        script = ScriptedChoices(path)
        yield script
        path = script.path[: script.used]
        while path and not path[-1]:
            path.pop()
        if not path:
            return
        path[-1] = False


def _called(page: str, frame: str, action: int, **options: Any) -> Event:
    given = {"value": 1, "maxValue": 1, "epsilon": 1.0, "lookbackDays": 14, "credit": [1], **options}
    return {"page": Page(top_level=page, frame=frame, action=action), "options": given}


def _tiny_world(draw: random.Random) -> list[Event]:
    """Return impressions of two epochs, and conversions of the second by a few observers."""
    events: list[Event] = [{"epoch": draw.randrange(2), "index": draw.randrange(3)} for _ in range(draw.randint(1, 3))]
    for _ in range(draw.randint(1, 3)):
        most = draw.choice((1, 2))
        events.append(
            _called(
                draw.choice(("shop.example", "store.example")),
                draw.choice(("tag.example", "other.example")),
                draw.choice((1, 2)),
                value=draw.randint(1, most),
                maxValue=most,
                epsilon=draw.choice((0.5, 1.0, 1.000001)),
                credit=draw.choice(([1], [1, 1], [1, 2])),
                lookbackDays=draw.choice((2, 14)),
                impressionSites=draw.choice(([], ["news.example"])),
            )
        )
    return events


_ADS: list[Event] = [{"epoch": 0, "index": 0}, {"epoch": 1, "index": 1}]
_TINY = (
    [*_ADS, _called("shop.example", "tag.example", 1)],
    [*_ADS, *(_called("shop.example", frame, 1, lookbackDays=2) for frame in ("tag.example", "other.example"))],
    [*_ADS, *(_called(page, "tag.example", 1, epsilon=0.4) for page in ("shop.example", "store.example"))],
    [*_ADS, *(_called("shop.example", "tag.example", action, epsilon=0.4) for action in (1, 2))],
)
"""Worlds in which a value moves between epochs, and in which observers differ in one column."""


def _play(
    rule: OnDeviceRule, world: list[Event], script: ScriptedChoices, without: int | None = None
) -> tuple[list[tuple[int, ...]], dict[tuple[int | str, ...], int]]:
    """Run a world in a browser that has this rule alone; return its histograms, and what each budget paid.

    Without an epoch its impressions are not saved. Those of the second epoch are of one publisher.
    """
    clock = ManualClock(_START_MS)
    config = Config(rules=(rule,))
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=script)
    unused = {"aggregationService": DEFAULT_SERVICE, "histogramSize": 1, "matchValues": [99]}
    browser.measure_conversion("first.example", unused)  # draws the start of epochs
    for epoch in range(2):
        clock.advance_to(_START_MS + epoch * config.epoch_ms + DAY_MS)
        for ad in world:
            if ad.get("epoch") == epoch != without:
                browser.save_impression(("blog.example", "news.example")[epoch], {"histogramIndex": ad["index"]})
    for ad in world:
        if ad.get("epoch") == "beside":  # another publisher's, in the second epoch
            browser.save_impression("paper.example", {"histogramIndex": 0})
    clock.advance(DAY_MS)
    histograms = []
    for call in world:
        if "page" in call:
            given = {"aggregationService": DEFAULT_SERVICE, "histogramSize": _SIZE, **call["options"]}
            histograms.append(browser.measure_conversion(call["page"], given).histogram)
    capacity = rule.capacity(config)
    left = {(one.epoch, *one.scope): one.left_micro for one in browser.budgets}
    for key, amount in left.items():
        if not 0 <= amount <= capacity:
            raise KitFailure(f"{rule.name}: the budget {key} of {capacity} paid {capacity - amount}: it went beyond")
    return histograms, {key: capacity - amount for key, amount in left.items()}


def _observer_of(rule: OnDeviceRule, call: Event) -> Parties:
    """Return who sees the report of a call, as far as the rule's observer tells calls apart."""
    page = call["page"]
    known = {
        ScopeColumn.CONVERSION_SITE: page.top_level,
        ScopeColumn.CALLER: page.frame,
        ScopeColumn.ACTION: page.action,
        ScopeColumn.IMPRESSION_SITE: "news.example",
    }
    return {column: known[column] for column in (rule.scope if rule.observer is None else rule.observer)}


def _words(observer: Parties) -> str:
    return " and ".join(f"{column.name.lower().replace('_', ' ')} {value}" for column, value in observer.items())


def _paid_for(rule: OnDeviceRule, observer: Parties, budgets: Mapping[tuple[int | str, ...], int]) -> Iterator[int]:
    """Yield what each budget of the second epoch paid that concerns an observer."""
    for (epoch, *scope), paid in budgets.items():
        if epoch == 1 and all(observer.get(*pair) == pair[1] for pair in zip(rule.scope, scope, strict=True)):
            yield paid


def _check_cost(rule: OnDeviceRule, world: list[Event]) -> None:
    """Compare, for each observer, the largest log-likelihood ratio without the second epoch with what a budget paid.

    Noise falls off by a = ε / (2 · maxValue) per step. Beyond the values that a bucket can have, every term changes by
    the same factor, so the buckets' own ranges are all that must be tried.
    """
    calls = [call for call in world if "page" in call]
    here, there = ([(script, *_play(rule, world, script, without)) for script in paths()] for without in (None, 1))
    observers = [_observer_of(rule, call) for call in calls]
    for observer in {tuple(one.items()): one for one in observers}.values():
        chosen = [number for number, one in enumerate(observers) if one == observer]
        options = [calls[number]["options"] for number in chosen]
        steps = np.array([one["epsilon"] / (2 * one["maxValue"]) for one in options]).repeat(_SIZE)
        points = np.array(list(product(*(range(one["value"] + 1) for one in options for _ in range(_SIZE)))))

        def log_density(played: list[Any], chosen: list[int] = chosen, points: Any = points, steps: Any = steps) -> Any:
            weights: Counter[tuple[int, ...]] = Counter()
            for script, histograms, _ in played:
                weights[tuple(amount for number in chosen for amount in histograms[number])] += script.chance
            terms = [np.log(float(chance)) - np.abs(points - flat) @ steps for flat, chance in weights.items()]
            return np.logaddexp.reduce(terms)

        loss = float(np.abs(log_density(here) - log_density(there)).max())
        paid = max((amount for _, _, budgets in here for amount in _paid_for(rule, observer, budgets)), default=0)
        if loss > paid / 1e6 + TOLERANCE:
            raise KitFailure(
                f"{rule.name} charges too little: {_words(observer) or 'all sites together'} can learn "
                f"{loss:.6f} about an epoch whose budget paid {paid / 1e6:.6f}"
            )


def _check_key(rule: OnDeviceRule, world: list[Event]) -> None:
    """Add a conversion of another observer, one for each column: what the first one's budgets paid must stay."""
    first = next(call for call in world if "page" in call)
    observer = _observer_of(rule, first)
    alone = [*(one for one in world if "page" not in one), {"epoch": "beside"}]
    news = {**first["options"], "impressionSites": ["news.example"]}
    for column in observer:
        page, options = first["page"], news
        if column is ScopeColumn.CONVERSION_SITE:
            page = replace(page, top_level="another.example")
        elif column is ScopeColumn.CALLER:
            page = replace(page, frame="another-tag.example")
        elif column is ScopeColumn.ACTION:
            page = replace(page, action=99)
        else:
            options = {**news, "impressionSites": ["paper.example"]}
        mine, others = {"page": first["page"], "options": news}, {"page": page, "options": options}
        for order in ([mine], [others, mine]), ([mine], [mine, others]):
            before, after = (_play(rule, [*alone, *calls], next(paths()))[1] for calls in order)
            changed = {key: (paid, after.get(key)) for key, paid in before.items() if after.get(key) != paid}
            if changed:
                key, (paid, now) = next(iter(changed.items()))
                raise KitFailure(
                    f"{rule.name} is keyed wrongly: it bounds what {_words(observer)} sees, but a conversion that "
                    f"differs in its {column.name.lower().replace('_', ' ')} changes what the budget {key} paid from "
                    f"{paid} to {now}"
                )


# Shares of a value


def _check_shares(rule: AttributionRule, touches: int, credit: tuple[float, ...], most: int) -> None:
    credit = credit[:most]
    shares = [*rule.shares(touches, credit, most)]
    what = f"{rule.name} gives {touches} touches with credits {list(credit)} the shares {[*map(str, shares)]}"
    if shares != [*rule.shares(touches, credit, most)]:
        raise KitFailure(f"{what}, and others when it is asked again")
    if not all(isinstance(share, Fraction | int) for share in shares):
        raise KitFailure(f"{what}: write fractions, which add up exactly")
    if any(share < 0 for share in shares):
        raise KitFailure(f"{what}: a share is below 0")
    if sum(shares) > 1:
        raise KitFailure(f"{what}, {sum(shares)} in all: a conversion has one unit to give")
    if len(shares) > touches or sum(share > 0 for share in shares) > most:
        raise KitFailure(f"{what}: there are {touches} touches, and room for {most} in a report")


def _check_order(rule: AttributionRule, touches: int, credit: tuple[float, ...], draw: random.Random) -> None:
    """Save touches with random priorities in any order of time; each must get its rank's share, in expectation."""
    value, config = 3, Config(rules=(), attribution=rule)
    ads = [(draw.choice((-1, 0, 0, 2)), time_ms) for time_ms in draw.sample(range(1, 100), touches)]
    ranked = sorted(range(touches), key=lambda touch: ads[touch], reverse=True)
    shares = [*rule.shares(touches, credit, config.max_credits)]
    expected = [Fraction(0)] * touches
    for script in paths():
        clock = ManualClock(_START_MS)
        browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=script)
        for touch in sorted(range(touches), key=lambda touch: ads[touch][1]):
            clock.advance_to(_START_MS + ads[touch][1])
            browser.save_impression("news.example", {"histogramIndex": touch, "priority": ads[touch][0]})
        asked = {"aggregationService": DEFAULT_SERVICE, "histogramSize": touches, "value": value, "maxValue": value}
        done = browser.measure_conversion("shop.example", {**asked, "credit": list(credit)})
        for touch, amount in enumerate(done.histogram):
            expected[touch] += script.chance * amount
    for rank, touch in enumerate(ranked):
        share = shares[rank] if rank < len(shares) else 0
        if expected[touch] != share * value:
            raise KitFailure(
                f"{rule.name}: the touch of rank {rank} of {touches} gets {expected[touch] / value} and not {share}"
            )
