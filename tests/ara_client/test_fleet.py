"""Fleets against their plain twin and against the paper's Algorithm 2."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggservice.mechanisms import ForbiddenBits, ParameterError, SecureBits, SeededBits
from ara_client import Fleet, FleetReports, FleetRules, SourceColumns, TriggerColumns, TriggerOutcome, match_table
from ara_client.fleet.fleet import NO_FILTERS
from ara_client.model import Source, SummaryClient
from twins.ara_fleet import Twin

FALSE_ALARM = 1e-7
BUDGET = 20


class Event(NamedTuple):
    """One registration of a random history."""

    is_trigger: bool
    gap_ms: int
    device: int
    reporter: int
    destination: int
    filter: int
    # Of a source.
    priority: int
    expiry_ms: int
    window_ms: int
    # Of a trigger.
    dedup_key: int | None
    has_context_id: bool
    # Names of keys with the piece of the key (source) or the value (trigger).
    keys: dict[int, int]


EVENTS = st.builds(
    Event,
    is_trigger=st.booleans(),
    gap_ms=st.integers(0, 5),
    device=st.sampled_from([0, 0, 0, 1]),
    reporter=st.sampled_from([0, 0, 0, 1]),
    destination=st.sampled_from([-1, -1, -1, 0]),
    filter=st.integers(0, 2),
    priority=st.integers(-1, 1),
    expiry_ms=st.integers(1, 60),
    window_ms=st.integers(0, 60),
    dedup_key=st.none() | st.sampled_from([0, 1, (1 << 64) - 1]),
    has_context_id=st.booleans(),
    keys=st.dictionaries(st.integers(0, 3), st.integers(1, 12), max_size=3),
)
#: Long histories are as likely as short ones: caps are only met in long ones.
HISTORIES = st.integers(0, 60).flatmap(lambda size: st.lists(EVENTS, min_size=size, max_size=size))
TABLES = st.lists(st.lists(st.sampled_from([True, True, True, False]), min_size=3, max_size=3), min_size=3, max_size=3)


def columns_of(events: list[Event], *, order: int = 0, now: int = 0) -> tuple[SourceColumns, TriggerColumns]:
    """Lay out a history in columns. Keys tell whose piece they are: sources in the high half, triggers in the low."""
    times = now + np.cumsum([0, *(event.gap_ms for event in events)])[1:]
    rows = {kind: [i for i, event in enumerate(events) if event.is_trigger is kind] for kind in (False, True)}

    def common(kind: bool) -> dict[str, list[int]]:
        picked = [events[i] for i in rows[kind]]
        named = [(name, item) for event in picked for name, item in sorted(event.keys.items())]
        return {
            "order": [order + i for i in rows[kind]],
            "time_ms": [int(times[i]) for i in rows[kind]],
            "device": [event.device for event in picked],
            "reporter": [event.reporter for event in picked],
            "destination": [event.destination for event in picked],
            "filter": [event.filter for event in picked],
            "offset": np.cumsum([0, *(len(event.keys) for event in picked)]).tolist(),
            "name": [name for name, _ in named],
            ("value" if kind else "key_high"): [item for _, item in named],
            "key_low": [i for i in rows[kind] for _ in events[i].keys] if kind else 0,
        }  # type: ignore[return-value]

    sources = SourceColumns.of(
        **common(False),
        priority=[events[i].priority for i in rows[False]],
        expiry_ms=[int(times[i]) + events[i].expiry_ms for i in rows[False]],
        report_until_ms=[int(times[i]) + events[i].window_ms for i in rows[False]],
    )
    triggers = TriggerColumns.of(
        **common(True),
        key_high=0,
        has_dedup_key=[events[i].dedup_key is not None for i in rows[True]],
        dedup_key=np.array([events[i].dedup_key or 0 for i in rows[True]], dtype=np.uint64),
        has_context_id=[events[i].has_context_id for i in rows[True]],
        filtering_id=[name + 100 for i in rows[True] for name in sorted(events[i].keys)],
    )
    return sources, triggers


def rows_of(reports: FleetReports) -> list[tuple[int, int, tuple[tuple[int, int, int], ...]]]:
    return [
        (int(reports.trigger[row]), int(reports.source[row]), tuple(reports.contributions(row)))
        for row in range(len(reports))
    ]


QUIET = FleetRules(contribution_budget=BUDGET, max_reports=3, delay_span_ms=0, null_rate=Fraction(0))


@settings(max_examples=100, deadline=None)
@given(HISTORIES, st.integers(0, 60), TABLES)
def test_fleet_equals_its_twin(events: list[Event], cut: int, table: list[list[bool]]) -> None:
    """Over two batches, so that state is carried; every trigger's outcome and every report with its contributions."""
    matches = np.array(table)
    fleet = Fleet(bits=SeededBits("twin"), rules=QUIET, matches=matches)
    twin = Twin(paper=False, matches=matches, contribution_budget=BUDGET, max_reports=3)
    now = sum(event.gap_ms for event in events[:cut])
    for batch in (columns_of(events[:cut]), columns_of(events[cut:], order=cut, now=now)):
        reports = fleet.register(*batch)
        expected = twin.register(*batch)
        assert reports.outcome.tolist() == [result.outcome for result in expected]
        always_null = batch[1].has_context_id & (np.diff(batch[1].offset) > 0)
        assert rows_of(reports) == [
            (row, result.source, result.contributions)
            for row, result in enumerate(expected)
            if result.outcome == TriggerOutcome.ATTRIBUTED or always_null[row]
        ]
        assert reports.scheduled_ms.tolist() == batch[1].time_ms[reports.trigger].tolist()
    assert fleet.spent.tolist() == twin.spent
    assert fleet.counted.tolist() == twin.counted
    assert (fleet.spent <= BUDGET).all()
    assert (fleet.counted <= 3).all()


def paper_events(events: list[Event]) -> list[Event]:
    """The paper's sources have one key and its triggers one value, which may be zero.

    Values are small, so that histories meet Λ₀ as well as Λ₁; one in eight is Λ₁ itself.
    """
    sums = [sum(event.keys.values()) for event in events]
    values = [BUDGET if total % 8 == 7 else total % 8 for total in sums]
    return [event._replace(keys={0: value}, dedup_key=None) for event, value in zip(events, values, strict=True)]


@settings(max_examples=100, deadline=None)
@given(HISTORIES, TABLES)
def test_paper_fleet_equals_its_twin(events: list[Event], table: list[list[bool]]) -> None:
    rules = FleetRules.paper(contribution_budget=BUDGET, sparsity_budget=2)
    fleet = Fleet(bits=SeededBits("twin"), rules=rules, matches=np.array(table))
    twin = Twin(paper=True, matches=np.array(table), contribution_budget=BUDGET, max_reports=2)
    batch = columns_of(paper_events(events))
    reports = fleet.register(*batch)
    expected = twin.register(*batch)
    assert reports.outcome.tolist() == [result.outcome for result in expected]
    assert rows_of(reports) == [(row, result.source, result.contributions) for row, result in enumerate(expected)]


FILTERS = [frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})]


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_paper_fleet_equals_algorithm_2(events: list[Event]) -> None:
    """Report for report, null reports included: one Algorithm 2 a device and reporter."""
    events = paper_events(events)
    clients: dict[tuple[int, int], SummaryClient] = {}
    expected: list[tuple[int | None, int | None]] = []
    now = 0
    for row, event in enumerate(events):
        now += event.gap_ms
        who = (event.device, event.reporter)
        client = clients.setdefault(
            who, SummaryClient(contribution_budget=BUDGET, sparsity_budget=2, bits=SeededBits("model"))
        )
        dest, filt = str(event.destination), FILTERS[event.filter]
        if event.is_trigger:
            report = client.register_trigger(
                now, dest=dest, trig_id=row, trig_filt=filt, trig_key=row, trig_value=event.keys[0]
            )
            expected.append((report.key, report.value))
        else:
            client.register_source(
                Source(
                    src_id=row, dest=dest, exp_date=now + event.expiry_ms, src_filt=filt, src_key=event.keys[0] << 64
                )
            )
    fleet = Fleet(
        bits=SeededBits("fleet"),
        rules=FleetRules.paper(contribution_budget=BUDGET, sparsity_budget=2),
        matches=match_table(FILTERS, FILTERS, lambda source, trigger: bool(source & trigger)),
    )
    sources, triggers = columns_of(events)
    reports = fleet.register(sources, triggers)
    assert reports.trigger.tolist() == list(range(len(triggers)))
    sent = [reports.contributions(row) for row in range(len(reports))]
    assert [(row[0][0], row[0][1]) if row else (None, None) for row in sent] == expected


def test_a_million_sources_of_one_group_take_no_quadratic_time() -> None:
    """Falling priorities and short lives are the worst case for a sorted list; a heap does not mind."""
    many = 300_000
    sources = SourceColumns.of(
        order=np.arange(many),
        time_ms=np.arange(many),
        device=0,
        priority=-np.arange(many),
        expiry_ms=np.arange(many) + np.where(np.arange(many) % 2, many // 2, 2 * many),
        key_high=np.arange(many),
        key_low=0,
    )
    times = np.arange(many, 3 * many, many // 100)
    triggers = TriggerColumns.of(order=times, time_ms=times, device=0, key_high=0, key_low=0, value=1, filter=0)
    fleet = Fleet(bits=ForbiddenBits(), rules=replace(QUIET, max_reports=1000, contribution_budget=1000),
                  matches=np.zeros((1, 1), dtype=np.bool_))  # fmt: skip
    reports = fleet.register(sources, triggers)
    assert set(reports.outcome.tolist()) == {TriggerOutcome.FILTERED}


def random_batch(
    rng: np.random.Generator, rows: int, *, order: int, now: int, paper: bool
) -> tuple[SourceColumns, TriggerColumns]:
    """Random registrations dense enough that both budgets are spent; the key of a source is its own number."""
    place = np.arange(order, order + rows)
    times = now + np.cumsum(rng.integers(0, 3, rows))
    is_trigger = rng.random(rows) < 0.8
    device, destination = rng.integers(0, 400, rows), rng.integers(0, 2, rows)
    s, t = ~is_trigger, is_trigger
    sources = SourceColumns.of(
        order=place[s], time_ms=times[s], device=device[s], destination=destination[s], key_high=place[s], key_low=0,
        priority=0 if paper else rng.integers(0, 2, s.sum()), expiry_ms=times[s] + rng.integers(1, 100_000, s.sum()),
    )  # fmt: skip
    triggers = TriggerColumns.of(
        order=place[t], time_ms=times[t], device=device[t], destination=destination[t], key_high=0, key_low=place[t],
        value=rng.choice([1, 2, 1 << 15, 9000], t.sum(), p=[0.7, 0.2, 0.05, 0.05]),
        has_context_id=False if paper else rng.random(t.sum()) < 0.1,
    )  # fmt: skip
    return sources, triggers


@pytest.mark.parametrize("form", ["deployed", "paper"])
def test_contributions_are_bounded_under_a_million_operations(form: str) -> None:
    """What was sent for a source is read from the reports (its key is its number), not from the fleet's books."""
    rules = (
        FleetRules.paper(contribution_budget=1 << 16, sparsity_budget=20)
        if form == "paper"
        else replace(QUIET, contribution_budget=1 << 16, max_reports=20)
    )
    fleet = Fleet(bits=SeededBits(form), rules=rules)
    rng = np.random.default_rng(5)
    total: Counter[int] = Counter()
    counted: Counter[int] = Counter()
    order = now = 0
    for _ in range(10):
        sources, triggers = random_batch(rng, 100_000, order=order, now=now, paper=form == "paper")
        order += 100_000
        now = int(max(sources.time_ms[-1], triggers.time_ms[-1]))
        reports = fleet.register(sources, triggers)
        for row in np.flatnonzero(reports.source >= 0).tolist():
            for key, value, _ in reports.contributions(row):
                total[key >> 64] += value
                counted[key >> 64] += not triggers.has_context_id[reports.trigger[row]]
    assert order == 1_000_000
    assert max(total.values()) <= 1 << 16
    assert max(counted.values()) <= 20
    assert 1 << 16 in total.values(), "the contribution budget was never spent: the test shows nothing"
    assert 20 in counted.values(), "the cap was never reached: the test shows nothing"


def test_deployed_reports_have_ids_delays_and_nulls() -> None:
    """Null rate 1/20 and delays uniform below 10 minutes, each rejected with probability 1e-7 when right."""
    many = 100_000
    triggers = TriggerColumns.of(
        order=np.arange(many), time_ms=0, device=0, key_high=0, key_low=0, value=1, has_context_id=np.arange(many) < 10
    )
    none = SourceColumns.of(order=[], time_ms=[], device=[], expiry_ms=[], key_high=[], key_low=[])
    reports = Fleet(bits=SecureBits()).register(none, triggers)
    assert (reports.source == -1).all()
    assert reports.offset.tolist() == [0] * (len(reports) + 1)
    assert reports.trigger[:10].tolist() == list(range(10))
    assert (reports.scheduled_ms[:10] == 0).all()
    assert stats.binomtest(len(reports) - 10, many - 10, 0.05).pvalue > FALSE_ALARM
    delays = reports.scheduled_ms[10:]
    assert delays.min() >= 0
    assert delays.max() < 600_000
    assert stats.kstest(delays, stats.uniform(0, 600_000).cdf).pvalue > FALSE_ALARM
    versions = {(int(row[6]) >> 4, int(row[8]) >> 6) for row in reports.report_id}
    assert versions == {(4, 2)}
    assert len({row.tobytes() for row in reports.report_id}) == len(reports)


def test_bad_columns_are_refused() -> None:
    good = {"order": [0, 1], "time_ms": [0, 0], "device": 0, "expiry_ms": 9, "key_high": 0, "key_low": 0}
    trigger = {"order": [2], "time_ms": [0], "device": 0, "key_high": 0, "key_low": 0, "value": 1}
    for change, message in [
        ({"order": [1, 1]}, "order must increase"),
        ({"time_ms": [1, 0]}, "must not decrease"),
        ({"offset": [0, 1, 3], "name": [0, 5, 5]}, "increase within a row"),
        ({"offset": [0, 1, 2], "name": [0, -1]}, "not be negative"),
        ({"offset": [0, 21, 21]}, "0 to 20"),
        ({"offset": [1, 1, 1]}, "start at 0"),
        ({"priority": [0.5, 1.0]}, "holds floats"),
        ({"priority": ["5", "6"]}, "hold integers"),
        ({"priority": None}, "hold integers"),
        ({"priority": [1 << 63, 1 << 63]}, "range of int64"),
        ({"device": 1 << 64}, "range of int64"),
        ({"key_low": [0, -1]}, "range of uint64, 0 to"),
        ({"key_high": 1 << 64}, "range of uint64, 0 to"),
        ({"time_ms": (1 << 61) + 1}, "of the epoch"),
        ({"offset": []}, "must have 3 rows"),
        ({"offset": [0, 0, -1]}, "0 to 20"),
        ({"offset": [0, 0, 1 << 50]}, "0 to 20"),
    ]:
        with pytest.raises(ParameterError, match=message):
            SourceColumns.of(**(good | change))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="column value"):
        TriggerColumns.of(**(trigger | {"value": -1}))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="column device must have 2 rows"):
        replace(SourceColumns.of(**good), device=np.zeros(3, dtype=np.int64))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="column device must hold int64, got int32"):
        replace(SourceColumns.of(**good), device=np.zeros(2, dtype=np.int32))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="range of uint64, 0 to"):
        TriggerColumns.of(**(trigger | {"dedup_key": [-1]}))  # type: ignore[arg-type]

    sources, triggers = SourceColumns.of(**good), TriggerColumns.of(**trigger)  # type: ignore[arg-type]
    assert SourceColumns.of(**(good | {"offset": [0, 2, 3], "name": [4, 5, 0]})).name.tolist() == [4, 5, 0]  # type: ignore[arg-type]
    for bad_sources, bad_triggers, message in [
        (sources, replace(triggers, order=np.array([1])), "disagree"),
        (replace(sources, time_ms=np.array([0, 5])), triggers, "disagree"),
        (sources, replace(triggers, filter=np.array([1])), "match table"),
        (sources, replace(triggers, value=np.array([0])), "in the deployed form"),
        (sources, replace(triggers, value=np.array([65_537])), "in the deployed form"),
    ]:
        with pytest.raises(ParameterError, match=message):
            Fleet(bits=SecureBits()).register(bad_sources, bad_triggers)
    fleet = Fleet(bits=SecureBits())
    fleet.register(sources, triggers)
    with pytest.raises(ParameterError, match="begins before the previous one ends"):
        fleet.register(sources, triggers)
    paper = FleetRules.paper(contribution_budget=1, sparsity_budget=1)
    with pytest.raises(ParameterError, match="no names"):
        Fleet(bits=SecureBits(), rules=paper).register(sources, replace(triggers, has_dedup_key=np.array([True])))
    for bad in (
        {"form": "other"},
        {"max_reports": 0},
        {"contribution_budget": 0},
        {"null_rate": 2},
        {"min_delay_ms": -1},
        {"min_delay_ms": 1 << 63},
        {"contribution_budget": 65_536.5},
    ):
        with pytest.raises(ParameterError):
            FleetRules(**bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="2 dimensions"):
        Fleet(bits=SecureBits(), matches=np.ones(3, dtype=np.bool_))
    assert NO_FILTERS.shape == (1, 1)
