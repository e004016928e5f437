"""``Fleet`` against one ``Browser`` per device on random worlds: results, refusals, all stores, epoch starts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from w3c_client import (
    DEFAULT_SERVICE,
    Arithmetic,
    Browser,
    Config,
    Conversion,
    ConversionColumns,
    ConversionOptions,
    Design,
    Filter,
    Fleet,
    ImpressionColumns,
    ImpressionOptions,
    Page,
    SharedCost,
    design_config,
)
from w3c_client.errors import ConfigError
from w3c_client.fleet.columns import BUDGETS, ClearColumns, ClearKind, ConversionOutcome
from w3c_client.randomness import WordDraws

DAY_MS = 86_400_000
SITES = 6
LISTS = ((), (0,), (1, 2), (3, 4, 5), (0, 2, 4))
CREDITS = ((1,), (1, 1), (3, 2, 1), (0.25, 0.5, 0.125, 1), (1, 1, 1))


def site(number: int) -> str:
    return f"site{number}.example"


def sites(number: int) -> list[str]:
    return [site(one) for one in LISTS[number]]


def config_of(draw: random.Random) -> Config:
    """A configuration with small budgets, so that every filter refuses now and then."""
    filters = frozenset(name for name in Filter if draw.random() < 0.7)
    return replace(
        design_config(draw.choice(list(Design))),
        **({"filters": filters} if draw.random() < 0.5 else {}),
        max_lookback_days=draw.choice((7, 20, 30)),
        epoch_days=draw.choice((1, 7, 7)),
        site_budget_micro=draw.choice((1_000_000, 1_500_000)),
        global_budget_micro=draw.choice((1_000_000, 3_000_000)),
        impression_quota_micro=draw.choice((1_000_000, 2_000_000)),
        conversion_quota_micro=draw.choice((700_000, 2_000_000)),
        sites_per_action=draw.choice((1, 2)),
        shared_cost=draw.choice(list(SharedCost)),
        impressions_per_site=draw.choice((None, 1, 1, 2, 3)),
    )


def world_of(draw: random.Random, device: int) -> list[dict[str, Any]]:
    """The events of one device, in order of time."""
    events = []
    time_ms = 10**12 + draw.randrange(0, 20 * DAY_MS)
    for _ in range(draw.randrange(4, 24)):
        time_ms += draw.choice((0, 1, 3_600_000, DAY_MS // 2, DAY_MS, 3 * DAY_MS))
        common = {
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
            common = {"device": device, "time_ms": time_ms, "site": common["site"]}
            chosen = {"kind": 2, "clear": clear}
            common["site"] = -1 if clear is ClearKind.FORGET_ALL else common["site"]
        events.append({**common, **chosen})
    # At the same moment a fleet runs impressions, then conversions, then clears.
    return sorted(events, key=lambda event: (event["time_ms"], event["kind"]))


def done_by(browser: Browser, event: dict[str, Any]) -> Conversion | None:
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
        browser.save_impression(
            page,
            ImpressionOptions(
                conversion_sites=sites(event["conversion_sites"]),
                conversion_callers=sites(event["conversion_callers"]),
                **{name: event[name] for name in ("histogram_index", "priority", "match_value", "lifetime_days")},
            ),
        )
        return None
    return browser.measure_conversion(
        page,
        ConversionOptions(
            aggregation_service=DEFAULT_SERVICE,
            epsilon=event["epsilon_micro"] / 1_000_000,
            credit=CREDITS[event["credit"]],
            match_values=LISTS[event["match_values"]],
            impression_sites=sites(event["impression_sites"]),
            impression_callers=sites(event["impression_callers"]),
            **{name: event[name] for name in ("histogram_size", "value", "max_value", "lookback_days")},
        ),
    )


def by_browser(events: list[dict[str, Any]], config: Config, offset_ms: int, words: list[list[int]]) -> dict[str, Any]:
    """Run one world in a browser whose choices are given."""
    draws = WordDraws(offset_ms)
    clock = ManualClock(0)
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=draws)
    results = []
    for event in events:
        clock.advance_to(event["time_ms"])
        draws.words = iter(words.pop(0) if event["kind"] == 1 else ())
        done = done_by(browser, event)
        if done is None:
            continue
        paid = sum(one.refused_by is None for one in done.epochs)
        if not done.enabled:
            outcome = ConversionOutcome.OFF
        elif paid:
            outcome = ConversionOutcome.ATTRIBUTED
        else:
            outcome = ConversionOutcome.REFUSED if done.epochs else ConversionOutcome.NO_MATCH
        results.append(
            (done.histogram, outcome, done.outside, paid, len(done.epochs) - paid, done.refused_by, done.single_epoch)
        )
    browser.check()
    return {
        "results": results,
        "stores": [(one.filter, one.epoch, one.site, one.left_micro) for one in browser.budgets],
        "epoch_start_ms": browser.epoch_start_ms,
    }


def columns_of(kind: type[Any], events: list[dict[str, Any]]) -> Any:
    names = kind.__dataclass_fields__
    given = {name: [event.get(name) for event in events] for name in names if name not in ("kind",)}
    if kind is ClearColumns:
        given["kind"] = [int(event["clear"]) for event in events]
    return kind.of(**given)


def compared(worlds: int, seed: int, *, per_config: int) -> tuple[int, dict[str, int]]:
    """Compare worlds in groups of one configuration; return their number and how often each thing happened."""
    draw = random.Random(seed)
    seen: dict[str, int] = {}
    done = 0
    while done < worlds:
        count = min(per_config, worlds - done)
        config = config_of(draw)
        timelines = [world_of(draw, device) for device in range(count)]
        events = [event for world in timelines for event in world]
        kinds = [[event for event in events if event["kind"] == kind] for kind in range(3)]
        if draw.random() < 0.5:  # the fleet puts rows in order itself
            for rows in kinds:
                rows.sort(key=lambda event: event["time_ms"])
        columns = [
            columns_of(kind, rows)
            for kind, rows in zip((ImpressionColumns, ConversionColumns, ClearColumns), kinds, strict=True)
        ]
        offsets = np.array([draw.randrange(config.epoch_ms) for _ in range(count)], dtype=np.int64)
        words = [[draw.getrandbits(64) for _ in CREDITS[event["credit"]][1:]] for event in kinds[1]]
        fleet = Fleet(bits=SeededBits("unused"), config=config, lists=LISTS, credits=CREDITS)
        found = fleet.run(
            *columns,
            devices=count,
            epoch_offset_ms=offsets,
            words=np.array([word for row in words for word in row], dtype=np.uint64),
        )
        rows_of: list[list[int]] = [[] for _ in range(count)]
        for row, event in enumerate(kinds[1]):
            rows_of[event["device"]].append(row)
        stores: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
        left = found.budgets
        for device, kind, epoch, number, amount in zip(
            left.device, left.filter, left.epoch, left.site, left.left_micro, strict=True
        ):
            name = "" if number < 0 else site(int(number))
            stores[device].append((BUDGETS[kind], int(epoch), name, int(amount)))
        for device, timeline in enumerate(timelines):
            expected = by_browser(timeline, config, int(offsets[device]), [list(words[row]) for row in rows_of[device]])
            actual = []
            for row in rows_of[device]:
                outcome = ConversionOutcome(int(found.outcome[row]))
                seen[outcome.name] = seen.get(outcome.name, 0) + 1
                for name in found.refused_by(row):
                    seen[name] = seen.get(name, 0) + 1
                if outcome is ConversionOutcome.CLEARED:  # a browser has forgotten what it cleared
                    outcome = ConversionOutcome.NO_MATCH
                actual.append(
                    (
                        found.histogram(row, int(kinds[1][row]["histogram_size"])),
                        outcome,
                        int(found.outside[row]),
                        int(found.epochs_paid[row]),
                        int(found.epochs_refused[row]),
                        found.refused_by(row),
                        bool(found.single_epoch[row]),
                    )
                )
            assert actual == expected["results"], (seed, done, device)
            assert sorted(stores[device]) == sorted(expected["stores"]), (seed, done, device)
            start = int(found.epoch_start_ms[device]) if found.has_epoch_start[device] else None
            assert start == expected["epoch_start_ms"]
        done += count
    return done, seen


def test_a_fleet_equals_browsers_on_random_worlds() -> None:
    done, seen = compared(1_000, 1, per_config=50)
    assert done == 1_000
    assert set(seen) == {one.name for one in ConversionOutcome} | set(Filter) and min(seen.values()) >= 5, seen


@pytest.mark.soak
def test_a_fleet_equals_browsers_on_ten_thousand_random_worlds() -> None:
    done, seen = compared(10_000, 2, per_config=50)
    conversions = sum(seen[one.name] for one in ConversionOutcome)
    print(f"{done:,} random worlds, {conversions:,} conversions: Fleet equals Browser in results and in all stores;")
    print(", ".join(f"{name} {count:,}" for name, count in sorted(seen.items())))
    assert done == 10_000


def test_random_choices_of_a_fleet_are_uniform() -> None:
    """Three equal credits over 1: each wins a third of 30,000; a share off by 0.02 has probability below 10⁻¹¹."""
    count = 30_000
    saved = ImpressionColumns.of(
        device=np.repeat(np.arange(count), 3),
        time_ms=np.tile([0, 1, 2], count),
        site=0,
        histogram_index=np.tile([0, 1, 2], count),
    )
    bought = ConversionColumns.of(device=np.arange(count), time_ms=10, site=1, histogram_size=3)
    found = Fleet(bits=SecureBits(), credits=((1, 1, 1),)).run(saved, bought)
    shares = np.bincount(found.index, weights=found.amount, minlength=3) / count
    assert np.abs(shares - 1 / 3).max() < 0.02
    assert found.has_epoch_start.all() and np.unique(found.epoch_start_ms).size == 168


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"histogram_index": 4096}, "histogram_index"),
        ({"lifetime_days": 0}, "lifetime_days"),
        ({"site": -1}, "site"),
        ({"device": 2}, "device"),
        ({"conversion_sites": 1}, "conversion_sites"),
        ({"priority": 1 << 31}, "priority"),
        ({"histogram_index": 0.5}, "integers"),
        ({"site": [1, 2, 3]}, "different length"),
        ({"colour": 1}, "no column colour"),
    ],
)
def test_columns_that_a_browser_would_reject_are_refused(changes: dict[str, Any], words: str) -> None:
    given = {"device": [0, 1], "time_ms": 0, "site": 0, "histogram_index": 1, **changes}
    bought = ConversionColumns.of(device=0, time_ms=1, site=1, histogram_size=2)
    with pytest.raises(ConfigError, match=words):
        Fleet(bits=ForbiddenBits()).run(ImpressionColumns.of(**given), bought, devices=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": 2}, "value"),
        ({"max_value": 1 << 31}, "max_value"),
        ({"epsilon_micro": 0}, "epsilon_micro"),
        ({"lookback_days": 0}, "lookback_days"),
        ({"credit": 1}, "credit"),
        ({"histogram_size": 0}, "histogram_size"),
    ],
)
def test_conversions_that_a_browser_would_reject_are_refused(changes: dict[str, Any], words: str) -> None:
    saved = ImpressionColumns.of(device=[0], time_ms=0, site=0, histogram_index=1)
    bought = ConversionColumns.of(**{"device": [0], "time_ms": 1, "site": 1, "histogram_size": 2, **changes})
    with pytest.raises(ConfigError, match=words):
        Fleet(bits=ForbiddenBits()).run(saved, bought)


def test_a_fleet_says_what_only_a_browser_has() -> None:
    bits = ForbiddenBits()
    saved = ImpressionColumns.of(device=[0, 0], time_ms=0, site=0, histogram_index=1)
    bought = ConversionColumns.of(device=[0], time_ms=1, site=1, histogram_size=2)
    with pytest.raises(ConfigError, match="Browser"):
        Fleet(bits=bits, config=Config(arithmetic=Arithmetic.SPEC))
    with pytest.raises(ConfigError, match="Browser"):
        Fleet(bits=bits, credits=((1, 1e-10),))
    for lists, credits in ((((1,),), ((1,),)), (((), (-1,)), ((1,),)), (((),), ((),)), (((),), ((1, -1),))):
        with pytest.raises(ConfigError):
            Fleet(bits=bits, lists=lists, credits=credits)
    with pytest.raises(ConfigError, match="-1"):
        Fleet(bits=bits).run(saved, bought, ClearColumns.of(device=[0], time_ms=0, kind=3, site=2))
