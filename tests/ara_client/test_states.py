"""Counting and numbering of states, against enumeration and against the figures others published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ParameterError
from ara_client import StateSpace, TriggerDataSpec, count_states
from ara_client.event_noise.state_space import StateReport, space_of

LISTED = 10_000


def specification(*windows_and_buckets: tuple[int, int | None]) -> list[TriggerDataSpec]:
    return [
        TriggerDataSpec(trigger_data=data, windows=windows, buckets=buckets)
        for data, (windows, buckets) in enumerate(windows_and_buckets)
    ]


def enumerated(specs: list[TriggerDataSpec], left: int) -> Iterator[list[StateReport]]:
    """List every state in the order in which they are numbered."""
    if not specs:
        yield []
        return
    first, rest = specs[0], specs[1:]
    most = left if first.buckets is None else min(left, first.buckets)
    for sent in range(most + 1):
        for windows in combinations_with_replacement(range(first.windows), sent):
            own = [StateReport(first.trigger_data, window, bucket) for bucket, window in enumerate(windows)]
            for others in enumerated(rest, left - sent):
                yield own + others


def sent_by_algorithm_4(specs: list[TriggerDataSpec], max_reports: int) -> set[frozenset[StateReport]]:
    """Run the noiseless client on every course the values of every trigger data can take, in units of buckets."""
    courses = []
    for spec in specs:
        top = max_reports if spec.buckets is None else spec.buckets
        courses.append([c for c in product(range(top + 1), repeat=spec.windows) if list(c) == sorted(c)])
    sent: set[frozenset[StateReport]] = set()
    for levels in product(*courses):
        reported = dict.fromkeys(range(len(specs)), 0)
        state: list[StateReport] = []
        for window in range(max((spec.windows for spec in specs), default=0)):
            for index, spec in enumerate(specs):
                if window < spec.windows:
                    for bucket in range(reported[index], levels[index][window]):
                        reported[index] = bucket + 1
                        if len(state) < max_reports:
                            state.append(StateReport(spec.trigger_data, window, bucket))
        sent.add(frozenset(state))
    return sent


@st.composite
def small_specifications(draw: st.DrawFn) -> tuple[list[TriggerDataSpec], int]:
    """A specification with at most 10,000 states: trigger data are added for as long as that holds."""
    max_reports = draw(st.integers(0, 8))
    chosen: list[TriggerDataSpec] = []
    data = draw(st.lists(st.integers(0, (1 << 32) - 1), unique=True, max_size=8))
    for trigger_data in data:
        windows = draw(st.integers(0, 5))
        buckets = draw(st.none() | st.integers(0, 6))
        grown = [*chosen, TriggerDataSpec(trigger_data=trigger_data, windows=windows, buckets=buckets)]
        if count_states(grown, max_reports) <= LISTED:
            chosen = grown
    return chosen, max_reports


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_specifications())
def test_count_and_numbering_equal_enumeration(case: tuple[list[TriggerDataSpec], int]) -> None:
    specs, max_reports = case
    space = StateSpace(specs, max_reports)
    listed = list(enumerated(specs, max_reports))
    assert space.count == len(listed) == len({frozenset(state) for state in listed})
    assert [space.at(rank) for rank in range(space.count)] == listed
    for rank in range(0, space.count, 1 + space.count // 200):
        assert space.rank(reversed(listed[rank])) == rank


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2)), max_size=2),
    st.integers(0, 3),
)
def test_states_are_what_the_noiseless_client_can_send(shape: list[tuple[int, int | None]], max_reports: int) -> None:
    specs = specification(*shape)
    space = StateSpace(specs, max_reports)
    assert {frozenset(space.at(rank)) for rank in range(space.count)} == sent_by_algorithm_4(specs, max_reports)


@settings(max_examples=60, deadline=None)
@given(small_specifications(), st.data())
def test_law_of_report_counts_equals_enumeration(case: tuple[list[TriggerDataSpec], int], data: st.DataObject) -> None:
    specs, max_reports = case
    space = StateSpace(specs, max_reports)
    usable = [spec for spec in specs if spec.most(max_reports) > 0]
    if not usable:
        return
    spec = data.draw(st.sampled_from(usable))
    window = data.draw(st.none() | st.integers(0, spec.windows - 1))
    bucket = data.draw(st.none() | st.integers(0, spec.most(max_reports) - 1))
    counts = Counter(
        sum(
            report.trigger_data == spec.trigger_data
            and window in (None, report.window_index)
            and bucket in (None, report.bucket_index)
            for report in state
        )
        for state in enumerated(specs, max_reports)
    )
    law = space.report_counts(spec.trigger_data, window=window, bucket=bucket)
    assert sum(law) == 1
    assert {m: mass for m, mass in enumerate(law) if mass} == {
        m: Fraction(times, space.count) for m, times in counts.items()
    }


# Chromium's own unit tests (privacy_math_unittest.cc) publish these: cap on reports, windows by trigger data, states.
@pytest.mark.parametrize(
    ("max_reports", "windows", "states"),
    [
        (3, [3] * 8, 2925),
        (1, [1, 1], 3),
        (1, [1], 2),
        (5, [1], 6),
        (2, [1, 1, 2, 2], 28),
        (3, [1, 1, 2, 2, 3, 3], 455),
        (20, [5, 5, 5], 3247943160),
        (0, [3, 3], 1),
        (3, [], 1),
    ],
)
def test_published_counts(max_reports: int, windows: list[int], states: int) -> None:
    assert count_states(specification(*((w, None) for w in windows)), max_reports) == states


def test_table_1_has_27_states() -> None:
    """Figure 3: two trigger data, two windows each, two buckets each, three reports: 6 × 6 − 9."""
    specs = specification((2, 2), (2, 2))
    assert count_states(specs[:1], 3) == 6
    assert count_states(specs, 4) == 36
    assert count_states(specs, 3) == 27
    assert space_of(tuple(specs), 3).at(0) == []


def test_counts_far_beyond_enumeration() -> None:
    """32 trigger data, 5 windows, 20 reports: C(180, 20) states, and the numbering still inverts."""
    specs = specification(*[(5, None)] * 32)
    space = StateSpace(specs, 20)
    assert space.count == 175142105857592248012292655 > 10**12
    for rank in (0, 1, 10**12, space.count // 3, space.count - 1):
        assert space.rank(space.at(rank)) == rank


def test_what_is_not_a_state_has_no_rank() -> None:
    space = StateSpace(specification((2, 2), (2, None)), 3)
    wrong: list[list[tuple[int, int, int]]] = [
        [(7, 0, 0)],
        [(0, 0, 0), (0, 1, 0)],
        [(0, 0, 1)],
        [(0, 1, 0), (0, 0, 1)],
        [(0, 2, 0)],
        [(0, 0, 0), (0, 0, 1), (0, 0, 2)],
        [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)],
    ]
    for reports in wrong:
        with pytest.raises(ParameterError):
            space.rank(reports)
    for rank in (-1, space.count):
        with pytest.raises(ParameterError):
            space.at(rank)


def test_bad_specifications_are_refused() -> None:
    with pytest.raises(ParameterError, match="twice"):
        StateSpace([TriggerDataSpec(trigger_data=1, windows=1)] * 2, 1)
    with pytest.raises(ParameterError, match="max_reports"):
        StateSpace([], -1)
    for bad in ({"trigger_data": -1, "windows": 1}, {"trigger_data": 0, "windows": -1}):
        with pytest.raises(ParameterError):
            TriggerDataSpec(**bad)
    with pytest.raises(ParameterError):
        TriggerDataSpec(trigger_data=0, windows=1, buckets=-1)
    space = StateSpace(specification((2, 2)), 1)
    for kwargs in ({"window": 2}, {"bucket": 1}):
        with pytest.raises(ParameterError):
            space.report_counts(0, **kwargs)
    with pytest.raises(ParameterError):
        space.report_counts(5)
