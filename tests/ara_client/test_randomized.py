"""Rates and capacities to the last bit, and draws against their law.

Every statistical test here rejects a correct sampler with probability at most 1e-7; together below 1e-6 a run.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf, log, log2, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aggservice.mechanisms import Bits, ForbiddenBits, ParameterError, SecureBits, SeededBits
from ara_client import TriggerDataSpec, channel_capacity, count_states, draw_states, response_rate
from ara_client.event_noise.response import TRUTHFUL, binary_entropy, draw_state, exact_rate, scopes_channel_capacity

FALSE_ALARM = 1e-7
NAVIGATION = [TriggerDataSpec(trigger_data=data, windows=3) for data in range(8)]
FIGURE_3 = [TriggerDataSpec(trigger_data=data, windows=2, buckets=2) for data in range(2)]


# The doubles below are those of Chromium's privacy_math_unittest.cc.
@pytest.mark.parametrize(
    ("states", "epsilon", "rate"),
    [
        (2, log(3), 0.5),
        (3, log(3), 0.6),
        (2925, 14, 0.0024263221679834087),
        (3, 14, 0.000002494582008677539),
        ((1 << 32) - 1, 14, 0.99972007548289821),
    ],
)
def test_rates_are_chromiums_doubles(states: int, epsilon: float, rate: float) -> None:
    assert response_rate(states, epsilon) == rate


@pytest.mark.parametrize(
    ("states", "rate", "capacity"),
    [
        (2, 0.0, 1.0),
        (1024, 0.0, 10.0),
        (3, 0.0, log2(3)),
        (2, response_rate(2, log(3)), 0.18872187554086717),
        (2925, response_rate(2925, 14), 11.461727965384876),
        (3, response_rate(3, 14), 1.584926511508231),
        (1, response_rate(1, 14), 0.0),
        (7, 1.0, 0.0),
    ],
)
def test_capacities_are_chromiums_doubles(states: int, rate: float, capacity: float) -> None:
    assert channel_capacity(states, rate) == capacity


@pytest.mark.parametrize(
    ("states", "event_states", "limit", "capacity"),
    [
        (2925, 5, 20, 11.560332834212442),
        (2925, 3, 1, 11.51422090935813),
        (2925, 3, 5, 11.520127550324851),
        (2925, 165, 5, 11.807757403589267),
        (300000, 2, 2, 18.194612593092849),
        (300000, 3, 3, 18.194631828770252),
        (300000, 4, 4, 18.194660681805477),
        (300000, 5, 5, 18.194699151621514),
        (1, 5, 5, 4.3923174227787607),
        (1, (1 << 32) - 1, (1 << 32) - 1, 63.999999998992287),
    ],
)
def test_scope_capacities_are_chromiums_doubles(states: int, event_states: int, limit: int, capacity: float) -> None:
    assert scopes_channel_capacity(states, event_states, limit) == capacity


def test_binary_entropy_is_chromiums() -> None:
    known = {0.0: 0.0, 0.5: 1.0, 1.0: 0.0, 0.01: 0.08079313589591118, 0.99: 0.08079313589591124}
    assert {p: binary_entropy(p) for p in known} == known


@given(st.integers(1, 1 << 40), st.fractions(0, 20, max_denominator=1000))
def test_exact_rate_is_what_the_double_approximates(states: int, epsilon: Fraction) -> None:
    assert float(exact_rate(states, epsilon)) == pytest.approx(response_rate(states, float(epsilon)), rel=1e-13)


@pytest.mark.parametrize("epsilon", [709.0, 710.0, 1e6, 1e300])
def test_a_great_epsilon_costs_nothing_and_leaves_no_noise(epsilon: float) -> None:
    """Where the browser sets no bound, a header may ask for any ε: e^ε neither overflows nor is written out."""
    assert 0 <= response_rate(2925, epsilon) < 1e-300
    assert channel_capacity(2925, response_rate(2925, epsilon)) == pytest.approx(log2(2925))
    assert (draw_states(SecureBits(), 2925, Fraction(epsilon), 100) == TRUTHFUL).all()
    assert draw_state(SecureBits(), 1 << 80, Fraction(epsilon)) is None


def test_nothing_outside_its_range_is_accepted() -> None:
    for epsilon in (-1.0, nan, inf):
        with pytest.raises(ParameterError):
            response_rate(3, epsilon)
    for rate in (-0.1, 1.1, nan):
        with pytest.raises(ParameterError):
            channel_capacity(3, rate)
        with pytest.raises(ParameterError):
            binary_entropy(rate)
    for call in (
        lambda: response_rate(0, 1),
        lambda: channel_capacity(0, 0.5),
        lambda: scopes_channel_capacity(3, 3, 0),
        lambda: exact_rate(3, Fraction(-1)),
        lambda: draw_state(SecureBits(), 0, Fraction(1)),
    ):
        with pytest.raises(ParameterError):
            call()


def test_epsilon_zero_always_sends_a_random_state() -> None:
    assert (draw_states(SecureBits(), 5, Fraction(0), 1000) != TRUTHFUL).all()


def test_a_draw_needs_randomness() -> None:
    with pytest.raises(Exception, match="must not draw randomness"):
        draw_state(ForbiddenBits(), 3, Fraction(14))


def test_one_registration_is_the_batch_kernel_of_size_one() -> None:
    single, batch = SeededBits("one"), SeededBits("one")
    for _ in range(200):
        rank = int(draw_states(batch, 27, Fraction(1), 1)[0])
        assert draw_state(single, 27, Fraction(1)) == (None if rank == TRUTHFUL else rank)


def test_states_beyond_64_bits_are_drawn_too() -> None:
    """C(180, 20) states: almost every draw is random, and its rank reaches past 2⁶³."""
    states = count_states([TriggerDataSpec(trigger_data=data, windows=5) for data in range(32)], 20)
    ranks = [draw_state(SecureBits(), states, Fraction(14)) for _ in range(50)]
    # 50 ranks all below 2^63 would have probability (2^63 / states)^50 < 1e-360.
    assert all(rank is not None and 0 <= rank < states for rank in ranks)
    assert max(rank for rank in ranks if rank is not None) >= 1 << 63


def agrees_with_its_law(bits: Bits, states: int, epsilon: Fraction, draws: int) -> int:
    """Check rate and uniformity of ``draws`` draws, each at 1e-7; return how many were random."""
    counts = np.zeros(states, dtype=np.int64)
    random = 0
    for start in range(0, draws, 1 << 22):
        ranks = draw_states(bits, states, epsilon, min(1 << 22, draws - start))
        drawn = ranks[ranks != TRUTHFUL]
        random += drawn.size
        counts += np.bincount(drawn, minlength=states)
    rate = float(exact_rate(states, epsilon))
    assert stats.binomtest(random, draws, rate).pvalue > FALSE_ALARM
    assert counts.sum() == random
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    return random


@pytest.mark.parametrize(("specs", "max_reports", "states"), [(FIGURE_3, 3, 27), (NAVIGATION, 3, 2925)])
def test_response_at_epsilon_one(specs: list[TriggerDataSpec], max_reports: int, states: int) -> None:
    assert count_states(specs, max_reports) == states
    random = agrees_with_its_law(SecureBits(), states, Fraction(1), 400 * states)
    assert random >= 300 * states


@pytest.mark.parametrize("states", [2925, 3])
def test_response_at_epsilon_fourteen(states: int) -> None:
    agrees_with_its_law(SecureBits(), states, Fraction(14), 100_000_000)
