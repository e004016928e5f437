"""A fleet sends what as many browsers send, report for report, on random histories of the subset both have."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits
from ara_client import (
    AggregatableAttributionReport,
    Browser,
    Config,
    Fleet,
    FleetRules,
    Request,
    Response,
    SourceColumns,
    TriggerColumns,
    TriggerOutcome,
    match_table,
)
from ara_client.constants import DAY_MS, HOUR_MS

PLENTY = 1 << 30
#: A browser without the limits that a fleet leaves out, and without chance: no null reports, no delay.
BARE = Config(
    max_sources_per_origin=PLENTY,
    max_aggregatable_reports_per_destination=PLENTY,
    max_event_level_reports_per_destination=PLENTY,
    max_destinations_per_source_site_and_reporting_site=PLENTY,
    max_destinations_per_window_reporting_site=PLENTY,
    max_destinations_per_window_total=PLENTY,
    max_destinations_per_day=PLENTY,
    max_source_reporting_origins=PLENTY,
    max_attribution_reporting_origins=PLENTY,
    max_attributions=PLENTY,
    max_reporting_origins_per_source_reporting_site=PLENTY,
    aggregatable_min_delay_ms=0,
    aggregatable_delay_span_ms=0,
    null_rate_excluding_source_time=0.0,
    null_rate_including_source_time=0.0,
    max_aggregatable_reports_per_source=3,
)

SOURCE_FILTERS: list[dict[str, list[str]]] = [
    {},
    {"product": ["sneakers"]},
    {"product": ["sandals"]},
    {"product": ["sneakers", "sandals"], "size": ["42"]},
]
TRIGGER_FILTERS: list[dict[str, dict[str, list[str]]]] = [
    {},
    {"filters": {"product": ["sneakers"]}},
    {"filters": {"product": ["sandals"], "size": ["42", "43"]}},
    {"not_filters": {"product": ["sneakers"]}},
    {"filters": {"size": []}},
]


def passes(source: dict[str, list[str]], trigger: dict[str, dict[str, list[str]]]) -> bool:
    """The rule for filters in its shortest form: keys that both have must meet, or under ``not_filters`` must not."""
    for which, wanted in trigger.items():
        for key, values in wanted.items():
            if key in source:
                met = bool(set(values) & set(source[key])) if values else not source[key]
                if met != (which == "filters"):
                    return False
    return True


class Event(NamedTuple):
    """One registration of a random history."""

    is_trigger: bool
    gap_ms: int
    device: int
    reporter: int
    destination: int
    filter: int
    priority: int
    expiry_ms: int
    window_ms: int
    dedup_key: int | None
    has_context_id: bool
    keys: dict[int, int]


def mostly(usual: int, other: int) -> st.SearchStrategy[int]:
    return st.sampled_from([usual, usual, usual, other])


EVENTS = st.builds(
    Event,
    is_trigger=st.booleans(),
    gap_ms=st.sampled_from([0, 1, HOUR_MS, 7 * HOUR_MS]),
    device=mostly(0, 1),
    reporter=mostly(0, 1),
    destination=mostly(0, 1),
    filter=st.integers(0, len(SOURCE_FILTERS) - 1) | st.just(0),
    priority=st.sampled_from([0, 0, 1, -(1 << 63), (1 << 63) - 1]),
    expiry_ms=st.sampled_from([DAY_MS, 2 * DAY_MS, 30 * DAY_MS]),
    window_ms=st.sampled_from([HOUR_MS, DAY_MS]),
    dedup_key=st.none() | st.sampled_from([0, 1, (1 << 64) - 1]),
    has_context_id=st.sampled_from([False, False, True]),
    keys=st.dictionaries(st.integers(0, 3), st.sampled_from([1, 5, 20_000, 65_536]), max_size=3),
)
HISTORIES = st.integers(0, 50).flatmap(lambda size: st.lists(EVENTS, min_size=size, max_size=size))

#: (trigger, (key, value, filtering ID) …), without contributions for a null report.
Sent = tuple[int, tuple[tuple[int, int, int], ...]]


def header_of(row: int, event: Event) -> dict[str, object]:
    """Write a registration as JSON. Keys tell whose they are: the source's row in the high half, the trigger's low."""
    names = {f"key{name}": item for name, item in event.keys.items()}
    if event.is_trigger:
        header: dict[str, object] = {
            "aggregatable_trigger_data": [{"key_piece": hex(row), "source_keys": sorted(names)}] if names else [],
            "aggregatable_values": {
                name: {"value": value, "filtering_id": str(100 + int(name[-1]))} for name, value in names.items()
            },
            **TRIGGER_FILTERS[event.filter],
        }
        if event.dedup_key is not None:
            header["aggregatable_deduplication_keys"] = [{"deduplication_key": str(event.dedup_key)}]
        if event.has_context_id:
            header["trigger_context_id"] = str(row)
        return header
    return {
        "destination": f"https://destination{event.destination}.example",
        "source_event_id": str(row),
        "priority": str(event.priority),
        "expiry": str(event.expiry_ms // 1000),
        "aggregatable_report_window": str(event.window_ms // 1000),
        "filter_data": SOURCE_FILTERS[event.filter],
        "aggregation_keys": {name: hex(row << 64 | 1 << 63) for name in names},
        "max_event_level_reports": 0,
    }


def sent_by_browsers(events: list[Event], config: Config) -> list[Sent]:
    browsers: dict[int, Browser] = {}
    sent: list[Sent] = []
    now = 0
    for row, event in enumerate(events):
        now += event.gap_ms
        if event.device not in browsers:
            browsers[event.device] = Browser(clock=ManualClock(now), bits=SeededBits(event.device), config=config)
        browser = browsers[event.device]
        reports = browser.advance(now)
        url = f"https://reporter{event.reporter}.example/register"
        kind = "Trigger" if event.is_trigger else "Source"
        request = (
            Request(context=f"https://destination{event.destination}.example")
            if event.is_trigger
            else Request(context="https://publisher.example", eligible="navigation-source")
        )
        text = json.dumps(header_of(row, event))
        reports += browser.register(
            request, Response(url=url, headers={f"Attribution-Reporting-Register-{kind}": text})
        )
        reports += browser.advance(now)
        for report in reports:
            assert isinstance(report, AggregatableAttributionReport)
            contributions = tuple((c.bucket, c.value, c.filtering_id) for c in report.contributions)
            assert event.is_trigger
            assert report.destination == f"https://destination{event.destination}.example"
            assert str(report.reporting_origin) == f"https://reporter{event.reporter}.example"
            assert report.scheduled_time_ms == now
            sent.append((row, () if report.is_null else contributions))
    return sent


def columns_of(events: list[Event]) -> tuple[SourceColumns, TriggerColumns]:
    times = np.cumsum([0, *(event.gap_ms for event in events)])[1:]
    s = [row for row, event in enumerate(events) if not event.is_trigger]
    t = [row for row, event in enumerate(events) if event.is_trigger]

    def named(rows: list[int]) -> list[tuple[int, int, int]]:
        return [(row, name, item) for row in rows for name, item in sorted(events[row].keys.items())]

    def column(rows: list[int], name: str) -> list[int]:
        return [getattr(events[row], name) for row in rows]

    def offsets(rows: list[int]) -> list[int]:
        return np.cumsum([0, *(len(events[row].keys) for row in rows)]).tolist()

    sources = SourceColumns.of(
        order=s,
        time_ms=times[s],
        device=column(s, "device"),
        reporter=column(s, "reporter"),
        destination=column(s, "destination"),
        priority=column(s, "priority"),
        expiry_ms=times[s] + np.array(column(s, "expiry_ms"), dtype=np.int64),
        report_until_ms=times[s] + np.array(column(s, "window_ms"), dtype=np.int64),
        filter=column(s, "filter"),
        offset=offsets(s),
        name=[name for _, name, _ in named(s)],
        key_high=[row for row, _, _ in named(s)],
        key_low=1 << 63,
    )
    triggers = TriggerColumns.of(
        order=t,
        time_ms=times[t],
        device=column(t, "device"),
        reporter=column(t, "reporter"),
        destination=column(t, "destination"),
        filter=column(t, "filter"),
        has_dedup_key=[events[row].dedup_key is not None for row in t],
        dedup_key=np.array([events[row].dedup_key or 0 for row in t], dtype=np.uint64),
        has_context_id=column(t, "has_context_id"),
        offset=offsets(t),
        name=[name for _, name, _ in named(t)],
        key_high=0,
        key_low=[row for row, _, _ in named(t)],
        value=[value for _, _, value in named(t)],
        filtering_id=[100 + name for _, name, _ in named(t)],
    )
    return sources, triggers


def sent_by_fleet(events: list[Event], config: Config) -> tuple[list[Sent], Counter[int]]:
    """Return what a fleet sends, and how often each outcome came up."""
    sources, triggers = columns_of(events)
    fleet = Fleet(
        bits=SeededBits("fleet"),
        rules=FleetRules.deployed(config),
        matches=match_table(SOURCE_FILTERS, TRIGGER_FILTERS, passes),
    )
    reports = fleet.register(sources, triggers)
    sent = [
        (int(triggers.order[reports.trigger[row]]), tuple(reports.contributions(row))) for row in range(len(reports))
    ]
    return sent, Counter(reports.outcome.tolist())


@settings(max_examples=80, deadline=None)
@given(HISTORIES)
def test_a_fleet_sends_what_its_browsers_send(events: list[Event]) -> None:
    assert sent_by_fleet(events, BARE)[0] == sent_by_browsers(events, BARE)


def test_one_long_history_meets_every_outcome() -> None:
    rng = random.Random(7)
    events = [
        Event(
            is_trigger=rng.random() < 0.8,
            gap_ms=rng.choice([1, 1, 1, HOUR_MS, 7 * HOUR_MS]),
            device=rng.choice([0, 0, 1]),
            reporter=0,
            destination=rng.choice([0, 0, 1]),
            filter=rng.choice([0, 0, 0, 1, 2, 3]),
            priority=rng.randrange(3),
            expiry_ms=rng.choice([DAY_MS, 3 * DAY_MS]),
            window_ms=rng.choice([HOUR_MS, DAY_MS, DAY_MS]),
            dedup_key=rng.choice([None, None, 1, 2]),
            has_context_id=rng.random() < 0.2,
            keys={name: rng.choice([1, 1, 1, 20_000]) for name in rng.sample(range(4), rng.choice([0, 1, 3, 4, 4]))},
        )
        for _ in range(1_500)
    ]
    sent, outcomes = sent_by_fleet(events, BARE)
    assert sent == sent_by_browsers(events, BARE)
    assert set(outcomes) == set(TriggerOutcome), outcomes


def test_rules_of_a_browser_as_shipped() -> None:
    rules = FleetRules.deployed(Config())
    assert rules == FleetRules()
    assert rules.null_rate == Fraction(1, 20)


def random_events(rng: np.random.Generator, size: int) -> list[Event]:
    """A dense history of one device: eight in ten registrations are triggers, most of them small."""
    priority, value = rng.integers(0, 2, size), rng.choice([1, 2, 9000, 1 << 15], size, p=[0.7, 0.2, 0.05, 0.05])
    return [
        Event(
            is_trigger=bool(rng.random() < 0.8),
            gap_ms=HOUR_MS // 4,
            device=0,
            reporter=0,
            destination=int(rng.integers(0, 2)),
            filter=0,
            priority=int(priority[row]),
            expiry_ms=DAY_MS,
            window_ms=DAY_MS,
            dedup_key=None,
            has_context_id=bool(rng.random() < 0.1),
            keys={0: int(value[row])},
        )
        for row in range(size)
    ]


def bounded_contributions(operations: int) -> int:
    """Run random operations on a browser; check what was sent for each source, read from its key, against both caps."""
    config = replace(BARE, max_aggregatable_reports_per_source=20)
    rng = np.random.default_rng(17)
    total: Counter[tuple[int, int]] = Counter()
    counted: Counter[tuple[int, int]] = Counter()
    sent = 0
    for part in range(0, operations, 10_000):
        events = random_events(rng, 10_000)
        for row, contributions in sent_by_browsers(events, config):
            for key, value, _ in contributions:
                total[part, key >> 64] += value
                counted[part, key >> 64] += not events[row].has_context_id
                sent += 1
    assert max(total.values()) <= 1 << 16
    assert max(counted.values()) <= 20
    assert 1 << 16 in total.values(), "the contribution budget was never spent: the test shows nothing"
    assert 20 in counted.values(), "the cap on reports was never reached: the test shows nothing"
    return sent


def test_a_browser_bounds_the_contributions_of_every_source() -> None:
    bounded_contributions(20_000)


@pytest.mark.soak
def test_a_browser_bounds_contributions_under_a_million_operations() -> None:
    sent = bounded_contributions(1_000_000)
    print(f"Browser: 1000000 operations, {sent} reports, every source within 65536 and 20 counted reports")
