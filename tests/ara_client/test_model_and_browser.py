"""The browser against the paper's Algorithms 2, 4 and 8, on what they share.

Shared with Algorithm 2: one live source a destination at a time, since the paper goes on to the next source where
Chrome stops. Shared with Algorithm 4: room for a report for every bucket, since the paper gives scarce reports to the
first window that ends and the explainer to the first trigger (Figure 3 comes out the same either way).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from ara_client import (
    AggregatableAttributionReport,
    Browser,
    Config,
    EventLevelReport,
    FixedChoices,
    Request,
    Response,
    StateSpace,
    TriggerDataSpec,
)
from ara_client.constants import DAY_MS, HOUR_MS
from ara_client.event_noise.response import exact_rate
from ara_client.model import EventClient, EventSource, Source, SummaryClient, Trigger, TrigSpec

FALSE_ALARM = 1e-7
SHOP = "https://shop{}.example"
FILTERS = [("a",), ("b",), ("a", "b")]

#: Null reports whenever there is no real one, as in the paper; at once; three reports a source; any capacity.
VENDOR = Config(
    null_rate_excluding_source_time=1.0,
    aggregatable_delay_span_ms=0,
    max_aggregatable_reports_per_source=3,
    max_sources_per_origin=1 << 20,
    max_attributions=1 << 20,
    max_channel_capacity_navigation=100.0,
    full_flexible_events=True,
)


def registered(browser: Browser, header: dict[str, Any], *, destination: int = 0, trigger: bool) -> list[Any]:
    """Register a source on the publisher's page or a trigger on a shop's."""
    request = (
        Request(context=SHOP.format(destination))
        if trigger
        else Request(context="https://blog.example", eligible="navigation-source")
    )
    name = f"Attribution-Reporting-Register-{'Trigger' if trigger else 'Source'}"
    response = Response(url="https://adtech.example/register", headers={name: json.dumps(header)})
    return list(browser.register(request, response))


HISTORY = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 6 * HOUR_MS]),
        st.booleans(),
        st.integers(0, 1),
        st.integers(0, 2),
        st.sampled_from([1, 7, 20_000, 65_536]),
        st.sampled_from([DAY_MS, 2 * DAY_MS]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(HISTORY)
def test_aggregatable_reports_are_those_of_algorithm_2(history: list[tuple[int, bool, int, int, int, int]]) -> None:
    browser = Browser(clock=ManualClock(0), bits=SeededBits("browser"), config=VENDOR)
    client = SummaryClient(contribution_budget=65_536, sparsity_budget=3, bits=SeededBits("model"))
    now = 0
    lives_until = [0, 0]
    for row, (gap, is_trigger, site, filters, value, expiry) in enumerate(history):
        now += gap
        arrived = browser.advance(now)
        filt = FILTERS[filters]
        if is_trigger:
            expected = client.register_trigger(
                now, dest=SHOP.format(site), trig_id=row, trig_filt=frozenset(filt), trig_key=row, trig_value=value
            )
            header = {
                "aggregatable_trigger_data": [{"key_piece": hex(row), "source_keys": ["k"]}],
                "aggregatable_values": {"k": value},
                "filters": {"product": filt},
            }
            arrived += registered(browser, header, destination=site, trigger=True)
            arrived += browser.advance(now)
            (report,) = arrived
            assert isinstance(report, AggregatableAttributionReport)
            sent = [(part.bucket, part.value) for part in report.contributions]
            assert report.is_null == (expected.key is None)
            assert report.is_null or sent == [(expected.key, expected.value)]
        elif lives_until[site] <= now:
            lives_until[site] = now + expiry
            client.register_source(
                Source(
                    src_id=row,
                    dest=SHOP.format(site),
                    exp_date=now + expiry,
                    src_filt=frozenset(filt),
                    src_key=row << 64,
                )
            )
            header = {
                "destination": SHOP.format(site),
                "expiry": str(expiry // 1000),
                "filter_data": {"product": filt},
                "aggregation_keys": {"k": hex(row << 64)},
                "max_event_level_reports": 0,
            }
            assert arrived + registered(browser, header, trigger=False) == []


def flexible_source(specs: tuple[TrigSpec, ...], max_rep: int, *, expiry_ms: int, epsilon: int = 14) -> dict[str, Any]:
    """Write a source of Algorithm 4 as a registration with ``trigger_specs``."""
    return {
        "destination": SHOP.format(0),
        "source_event_id": "9",
        "expiry": str(expiry_ms // 1000),
        "event_level_epsilon": epsilon,
        "max_event_level_reports": max_rep,
        "trigger_specs": [
            {
                "trigger_data": [spec.trig_data],
                "event_report_windows": {"end_times": [end // 1000 for end in spec.windows]},
                "summary_operator": "value_sum",
                "summary_buckets": list(spec.buckets),
            }
            for spec in specs
        ],
    }


def both_clients(
    specs: tuple[TrigSpec, ...],
    max_rep: int,
    expiry_ms: int,
    triggers: list[tuple[int, int, int, int]],
    config: Config = VENDOR,
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Run (time, trigger data, value, priority) through Algorithm 4, which has no priorities, and the browser.

    Return what each sends: (time, trigger data, bucket).
    """
    source = EventSource(
        src_id=9, dest=SHOP.format(0), registered=0, exp_date=expiry_ms, src_filt=frozenset("a"), max_rep=max_rep,
        trig_spec=specs,
    )  # fmt: skip
    client = EventClient()
    client.register_source(source)
    browser = Browser(clock=ManualClock(0), bits=ForbiddenBits(), config=config, draws=FixedChoices(config))
    registered(browser, flexible_source(specs, max_rep, expiry_ms=expiry_ms), trigger=False)
    model: list[tuple[int, int, int]] = []
    arrived: list[Any] = []
    before = 0
    for now, data, value, priority in [*triggers, (expiry_ms + HOUR_MS, 0, 0, 0)]:
        model += [(end, report.trig_data, report.bucket) for end, report in client.pass_windows(before, now)]
        arrived += browser.advance(now)
        before = now
        if value:
            client.register_trigger(Trigger(now, SHOP.format(0), frozenset("a"), data, value))
            header = {"event_trigger_data": [{"trigger_data": str(data), "value": value, "priority": str(priority)}]}
            arrived += registered(browser, header, trigger=True)
    sent = []
    for report in arrived:
        assert isinstance(report, EventLevelReport)
        assert report.time_ms is not None
        assert report.summary_bucket is not None
        sent.append((report.time_ms, report.trigger_data, report.summary_bucket[0]))
    return sorted(model), sorted(sent)


@st.composite
def flexible_histories(draw: st.DrawFn) -> tuple[tuple[TrigSpec, ...], list[tuple[int, int, int, int]]]:
    hours = st.integers(1, 24 * 7 - 1)
    specs = tuple(
        TrigSpec(
            data,
            tuple(hour * HOUR_MS for hour in sorted(draw(st.sets(hours, min_size=1, max_size=3)))),
            tuple(sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=3)))),
        )
        for data in range(draw(st.integers(1, 3)))
    )
    triggers = draw(
        st.lists(
            st.tuples(
                st.integers(0, 7 * DAY_MS - 1) | st.sampled_from([end for spec in specs for end in spec.windows]),
                st.integers(0, len(specs) - 1),
                st.integers(1, 30),
                st.integers(0, 3),
            ),
            max_size=12,
        )
    )
    return specs, sorted(triggers)


# Found by chance once: a later trigger of higher priority crosses the first bucket alone, and what an earlier window
# left over crosses the second. Both are reported when the later window ends.
LEFT_OVER = (
    (TrigSpec(0, (DAY_MS, 2 * DAY_MS), (5, 9, 12)),),
    [(HOUR_MS, 0, 4, 0), (DAY_MS + HOUR_MS, 0, 5, 1), (DAY_MS + 2 * HOUR_MS, 0, 3, 0)],
)


@settings(max_examples=100, deadline=None)
@given(flexible_histories())
@example(LEFT_OVER)
def test_event_level_reports_are_those_of_algorithm_4(
    case: tuple[tuple[TrigSpec, ...], list[tuple[int, int, int, int]]],
) -> None:
    """With room for all, priorities change nothing."""
    specs, triggers = case
    room = sum(len(spec.buckets) for spec in specs)
    model, browser = both_clients(specs, room, 7 * DAY_MS, triggers)
    assert browser == model


@settings(max_examples=100, deadline=None)
@given(flexible_histories(), st.integers(1, 9), st.integers(1, 4), st.booleans())
@example(LEFT_OVER, 3, 9, False)
@example(((TrigSpec(0, (DAY_MS, 2 * DAY_MS), (1, 2, 3)),), [(0, 0, 2, 0), (DAY_MS, 0, 1, 0)]), 3, 1, False)
def test_what_is_sent_is_a_state_that_noise_could_send(
    case: tuple[tuple[TrigSpec, ...], list[tuple[int, int, int, int]]], max_rep: int, limit: int, rate: bool
) -> None:
    """Whatever priorities, caps and limits bind: a report that no random state holds would be known to be true."""
    specs, triggers = case
    max_rep = max(max_rep, *(len(spec.buckets) for spec in specs), 1)
    limited = {"max_attributions" if rate else "max_event_level_reports_per_destination": limit}
    _, sent = both_clients(specs, max_rep, 7 * DAY_MS, triggers, replace(VENDOR, **limited))
    space = StateSpace(
        [
            TriggerDataSpec(trigger_data=spec.trig_data, windows=len(spec.windows), buckets=len(spec.buckets))
            for spec in specs
        ],
        max_rep,
    )
    state = [(data, specs[data].windows.index(time), specs[data].buckets.index(bucket)) for time, data, bucket in sent]
    assert sorted(space.at(space.rank(state))) == sorted(state)


FIGURE_3 = (
    TrigSpec(0, (2 * DAY_MS, 7 * DAY_MS), (20, 70)),
    TrigSpec(1, (1 * DAY_MS, 5 * DAY_MS), (10, 50)),
)


def test_the_browser_sends_figure_3_as_the_paper_tells_it() -> None:
    noon = DAY_MS // 2
    bought = [(noon, 0, 30, 0), (DAY_MS + noon, 1, 60, 0), (3 * DAY_MS + noon, 0, 65, 0), (5 * DAY_MS + noon, 0, 10, 0)]
    model, browser = both_clients(FIGURE_3, 3, 7 * DAY_MS, bought)
    assert browser == model == [(2 * DAY_MS, 0, 20), (5 * DAY_MS, 1, 10), (5 * DAY_MS, 1, 50)]


def test_the_browser_randomizes_figure_3_as_algorithm_8() -> None:
    """At ε = 1, more than 300 random draws a state, through registration and delivery: truth is to send nothing.

    A right browser is rejected with probability 1e-7.
    """
    space = StateSpace([TriggerDataSpec(trigger_data=data, windows=2, buckets=2) for data in range(2)], 3)
    header = flexible_source(FIGURE_3, 3, expiry_ms=7 * DAY_MS, epsilon=1)
    bits, draws = SecureBits(), 27 * 330
    windows = {spec.trig_data: spec.windows for spec in FIGURE_3}
    buckets = {spec.trig_data: spec.buckets for spec in FIGURE_3}
    seen: Counter[int] = Counter()
    for _ in range(draws):
        browser = Browser(clock=ManualClock(0), bits=bits, config=VENDOR)
        assert registered(browser, header, trigger=False) == []
        reports = [report for report in browser.advance(8 * DAY_MS) if isinstance(report, EventLevelReport)]
        seen[
            space.rank(
                (
                    report.trigger_data,
                    windows[report.trigger_data].index(report.time_ms or 0),
                    buckets[report.trigger_data].index((report.summary_bucket or (0, 0))[0]),
                )
                for report in reports
            )
        ] += 1
    rate = float(exact_rate(27, Fraction(1)))
    assert draws * rate > 27 * 300
    expected = [draws * (rate / 27 + (1 - rate) * (rank == 0)) for rank in range(27)]
    assert stats.chisquare([seen[rank] for rank in range(27)], expected).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("kind", "states"), [("navigation", 2925), ("event", 3)])
def test_the_browser_counts_the_default_states(kind: str, states: int) -> None:
    """The rate that reports show is that of 2,925 or 3 states at ε = 14."""
    browser = Browser(clock=ManualClock(0), bits=ForbiddenBits(), draws=FixedChoices(Config()))
    request = Request(context="https://blog.example", eligible=f"{kind}-source")
    name = "Attribution-Reporting-Register-Source"
    response = Response(url="https://adtech.example/", headers={name: json.dumps({"destination": SHOP.format(0)})})
    assert browser.register(request, response) == []
    registered(browser, {"event_trigger_data": [{"trigger_data": "0"}]}, trigger=True)
    (report,) = browser.advance(40 * DAY_MS)
    assert isinstance(report, EventLevelReport)
    assert report.response_rate == pytest.approx(float(exact_rate(states, Fraction(14))), rel=1e-14)
