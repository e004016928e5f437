"""Bounds on tracking against exact enumeration: Theorems 12, 13, 14, 16 and 17, and Bitwise Everlasting Privacy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ldp_client import BitwiseEverlasting, permanent_untrackable
from ldp_client.errors import LdpParameterError
from ldp_client.finite_state import FiniteState
from ldp_client.tracking import (
    Bound,
    composed_untrackable,
    several_permanent_untrackable,
    several_untrackable,
    undetectable,
)

PAIRS = [(100_000, 1_000_000), (1_000_000, 1_000_000), (500_000, 2_000_000), (2_000_000, 300_000), (50_000, 4_000_000)]


def bitwise(permanent: int, report: int) -> BitwiseEverlasting:
    return BitwiseEverlasting(epsilon_permanent_micro=permanent, epsilon_report_micro=report)


@pytest.mark.parametrize("permanent, report", PAIRS)
def test_the_exact_value_lies_between_the_lower_bound_and_theorem_13(permanent: int, report: int) -> None:
    protocol = bitwise(permanent, report)
    exact = [protocol.finite_state().untrackable(k) for k in range(1, 13)]
    for k, value in enumerate(exact, 1):
        assert protocol.untrackable_at_least(k) <= value + 1e-12
        assert value <= protocol.untrackable(k) + 1e-12
    assert exact == sorted(exact)


def test_enumeration_refutes_the_printed_lower_bound() -> None:
    protocol = bitwise(100_000, 1_000_000)
    exact = protocol.finite_state().untrackable(4)
    assert exact == pytest.approx(0.866, abs=5e-4)
    printed = 4 / 2 * 1.0 - 0.1 - math.log(2)
    assert exact < printed
    assert protocol.untrackable_at_least(4) == pytest.approx(2 - 0.1 - 2 * math.log(2))


def brute_untrackable(mechanism: FiniteState, reports: int) -> float:
    """Every stream, every set of indices, every value: Definition 9 on single streams, without counting symbols."""

    def chance(value: int, stream: tuple[int, ...]) -> float:
        return sum(
            float(mechanism.states[value, state]) * math.prod(float(mechanism.symbols[state, s]) for s in stream)
            for state in range(mechanism.states.shape[1])
        )

    worst = 0.0
    for value in range(mechanism.states.shape[0]):
        for stream in itertools.product(range(mechanism.symbols.shape[1]), repeat=reports):
            for mask in range(1 << reports):
                first = tuple(s for i, s in enumerate(stream) if mask >> i & 1)
                second = tuple(s for i, s in enumerate(stream) if not mask >> i & 1)
                ratio = chance(value, stream) / (chance(value, first) * chance(value, second))
                worst = max(worst, abs(math.log(ratio)))
    return worst


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(2, 3), st.integers(2, 3), st.integers(2, 4))
def test_counting_symbols_is_enumerating_streams(seed: int, states: int, symbols: int, reports: int) -> None:
    generator = np.random.default_rng(seed)
    mechanism = FiniteState(
        states=generator.dirichlet(np.ones(states), size=2), symbols=generator.dirichlet(np.ones(symbols), size=states)
    )
    assert mechanism.untrackable(reports) == pytest.approx(brute_untrackable(mechanism, reports), rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(2, 3), st.integers(2, 5))
def test_the_theorems_hold_for_random_mechanisms(seed: int, states: int, reports: int) -> None:
    generator = np.random.default_rng(seed)
    mechanism = FiniteState(
        states=generator.dirichlet(np.full(states, 0.5), size=3),
        symbols=generator.dirichlet(np.ones(2), size=states) * 0.9 + 0.05,
    )
    gamma = mechanism.untrackable(reports)
    epsilon = mechanism.report_epsilon()
    assert gamma <= permanent_untrackable(reports, epsilon) + 1e-9
    hidden = undetectable(Bound(gamma=gamma), Bound(gamma=mechanism.everlasting(reports)))
    assert mechanism.undetectable(reports) <= hidden.gamma + 1e-9
    assert hidden.delta == 0
    for users in (2, 3, 4):
        exact = mechanism.several_untrackable(reports, users)
        assert exact <= several_untrackable(users, gamma) + 1e-9
        assert exact <= several_permanent_untrackable(users, reports, epsilon) + 1e-9
    assert mechanism.several_untrackable(reports, 2) == pytest.approx(gamma, rel=1e-9, abs=1e-12)


def test_delta_falls_to_zero_at_the_exact_gamma() -> None:
    mechanism = bitwise(500_000, 1_000_000).finite_state()
    gamma = mechanism.untrackable(6)
    deltas = [mechanism.untrackable_delta(6, share * gamma) for share in (0, 0.2, 0.5, 0.9, 1)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] > 0.05
    assert deltas[-1] == pytest.approx(0, abs=1e-12)


def test_composition_of_tracking_is_that_of_a_bit() -> None:
    each = Bound(gamma=0.05, delta=1e-9)
    total = composed_untrackable(100, each, 1e-6)
    assert total.gamma == pytest.approx(math.sqrt(200 * math.log(1e6)) * 0.05 + 100 * 0.05 * math.expm1(0.05))
    assert total.delta == pytest.approx(1e-7 + 1e-6)
    assert composed_untrackable(2, each, 1e-6) == Bound(gamma=0.1, delta=2e-9)
    assert composed_untrackable(100, each, 0) == Bound(gamma=100 * 0.05, delta=100 * 1e-9)


def test_two_mechanisms_together_are_within_the_composition() -> None:
    """A user of two independent mechanisms, exactly: the product mechanism against the plain sum of the two."""
    one, two = (bitwise(500_000, report).finite_state() for report in (700_000, 1_100_000))
    together = FiniteState(states=np.kron(one.states, two.states), symbols=np.kron(one.symbols, two.symbols))
    for reports in (2, 3, 4):
        assert together.untrackable(reports) <= one.untrackable(reports) + two.untrackable(reports) + 1e-9


def test_theorem_12_adds_the_deltas_as_printed() -> None:
    found = undetectable(Bound(gamma=0.3, delta=1e-3), Bound(gamma=0.7, delta=1e-4))
    assert found.gamma == pytest.approx(1.0)
    assert found.delta == pytest.approx(max(math.exp(0.7) * 1e-3 + 1e-4, 1e-3 + math.exp(0.3) * 1e-4))


def test_a_state_that_shows_is_tracked_for_certain() -> None:
    shown = FiniteState(states=np.full((1, 2), 0.5), symbols=np.eye(2))
    assert shown.untrackable(2) == math.inf
    assert shown.report_epsilon() == math.inf
    assert shown.several_untrackable(3, 3) == math.inf
    stateless = FiniteState(states=np.ones((1, 1)), symbols=np.full((1, 2), 0.5))
    assert stateless.untrackable(8) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_nonsense_is_refused(bad: float) -> None:
    with pytest.raises(LdpParameterError):
        permanent_untrackable(4, bad)
    with pytest.raises(LdpParameterError):
        Bound(gamma=bad)
    with pytest.raises(LdpParameterError):
        Bound(gamma=1.0, delta=bad)
    with pytest.raises(LdpParameterError):
        permanent_untrackable(0, 1.0)
    with pytest.raises(LdpParameterError):
        several_untrackable(1, 1.0)
    with pytest.raises(LdpParameterError):
        composed_untrackable(3, Bound(gamma=1.0), 1.0)
    with pytest.raises(LdpParameterError):
        FiniteState(states=np.array([[0.5, 0.6]]), symbols=np.eye(2))
    with pytest.raises(LdpParameterError):
        FiniteState(states=np.array([[0.5, 0.5]]), symbols=np.eye(3))
    wide = FiniteState(states=np.ones((1, 1)), symbols=np.full((1, 30), 1 / 30))
    with pytest.raises(LdpParameterError, match="too many"):
        wide.untrackable(10)


@pytest.mark.parametrize("reports", [2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2, 5, 10, 11])
def test_exact_values_are_the_worst_over_all_streams_and_all_ways_to_split_them(seed: int, reports: int) -> None:
    """Definitions 9, 11 and 15 word by word: every stream, every division of its reports, every value, both directions.

    Seeds whose worst cases lie in either direction and order; streams are taken one by one, and not by their counts.
    """
    rng = np.random.default_rng(seed)
    made = FiniteState(states=rng.dirichlet(np.full(2, 0.3), 2), symbols=rng.dirichlet(np.full(3, 0.3), 2))
    streams = list(itertools.product(range(3), repeat=reports))

    def chance(value: int, stream: tuple[int, ...]) -> float:
        return sum(
            float(made.states[value, state] * np.prod([made.symbols[state, one] for one in stream]))
            for state in range(2)
        )

    def worst(users: int, values: list[tuple[int, ...]]) -> list[float]:
        """Return the largest ln(one / several) and ln(several / one); the first value is that of the one user."""
        gaps = []
        for owners in itertools.product(range(users), repeat=reports):
            parts = [[at for at in range(reports) if owners[at] == user] for user in range(users)]
            for stream, held in itertools.product(streams, values):
                several = [
                    chance(held[user], tuple(stream[at] for at in part)) for user, part in enumerate(parts) if part
                ]
                gaps.append(math.log(chance(held[0], stream) / math.prod(several)))
        return [max(gaps), -min(gaps)]

    same = [(value,) * 2 for value in range(2)]
    assert made.untrackable(reports) == pytest.approx(max(worst(2, same)), rel=1e-9)
    assert made.undetectable(reports) == pytest.approx(max(worst(2, [*same, (0, 1), (1, 0)])), rel=1e-9)
    assert made.several_untrackable(reports, 3) == pytest.approx(max(worst(3, [(0,) * 3, (1,) * 3])), rel=1e-9)
    for gamma in (made.untrackable(reports) * share for share in (0.1, 0.5)):
        sums = [
            sum(max(0.0, one - math.exp(gamma) * other) for one, other in pairs)
            for size in range(1, reports // 2 + 1)
            for value in range(2)
            for joint in [[(chance(value, s), chance(value, s[:size]) * chance(value, s[size:])) for s in streams]]
            for pairs in (joint, [(b, a) for a, b in joint])
        ]
        assert made.untrackable_delta(reports, gamma) == pytest.approx(max(sums), rel=1e-9)


@pytest.mark.parametrize(
    ("kept", "sent", "reports", "gamma"),
    [
        (1, 1, 1, 0.4338),
        (1, 1, 2, 0.7353),
        (2, 0.3, 2, 0.4512),
        (2, 0.3, 4, 0.8689),
        (3, 0.1, 4, 0.3612),
        (0.5, 2, 2, None),
        (0.1, 3, 3, None),
        (1, 1, 5, None),
    ],
)
def test_undetectable_is_definition_11(kept: float, sent: float, reports: int, gamma: float | None) -> None:
    """Every stream, every pair of values and every J ⊆ [k], the empty set and [k] among them, one by one."""
    made = bitwise(int(kept * 10**6), int(sent * 10**6)).finite_state()
    stay = [math.exp(epsilon) / (math.exp(epsilon) + 1) for epsilon in (kept, sent)]

    def chance(value: int, stream: tuple[int, ...]) -> float:
        total = 0.0
        for state in (0, 1):
            term = stay[0] if state == value else 1 - stay[0]
            for symbol in stream:
                term *= stay[1] if symbol == state else 1 - stay[1]
            total += term
        return total

    worst = 0.0
    for stream in itertools.product((0, 1), repeat=reports):
        for chosen in itertools.product((True, False), repeat=reports):
            inside = tuple(one for one, kept_in in zip(stream, chosen, strict=True) if kept_in)
            outside = tuple(one for one, kept_in in zip(stream, chosen, strict=True) if not kept_in)
            for value, other in itertools.product((0, 1), repeat=2):
                ratio = chance(value, stream) / (chance(value, inside) * chance(other, outside))
                worst = max(worst, abs(math.log(ratio)))
    assert made.undetectable(reports) == pytest.approx(worst, rel=1e-9)
    if gamma is not None:
        assert worst == pytest.approx(gamma, abs=5e-5)
