"""Mechanism chaining: the bounds of Theorems 19 and 20, their tightness, and k mechanisms by iterating."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import ParameterError
from aggservice.mechanisms.composition import basic_chain, chain, second_step, small_chain, tight_chain
from twins.channel import channel_epsilon

EPSILON = st.floats(min_value=1e-6, max_value=30)


def binary_response(epsilon: float) -> np.ndarray:
    keep = 1 / (1 + math.exp(-epsilon))
    flip = 1 / (1 + math.exp(epsilon))
    return np.array([[keep, flip], [flip, keep]])


def printed_chain(first: float, second: float) -> float:
    """Theorem 20 as printed, in fifty digits."""
    with localcontext() as context:
        context.prec = 60
        a, b = Decimal(first), Decimal(second)
        return float((((a + b).exp() + 1) / (a.exp() + b.exp())).ln())


@given(EPSILON, EPSILON)
def test_the_tight_chain_is_the_printed_formula(first: float, second: float) -> None:
    assert tight_chain(first, second) == pytest.approx(printed_chain(first, second), rel=1e-12)
    assert tight_chain(first, second) == tight_chain(second, first)


@pytest.mark.parametrize("first, second", [(1e-4, 25.0), (0.1, 0.1), (1.0, 2.0), (30.0, 30.0)])
def test_the_bound_is_attained_by_two_binary_responses(first: float, second: float) -> None:
    chained = binary_response(first) @ binary_response(second)
    assert channel_epsilon(chained) == pytest.approx(tight_chain(first, second), rel=1e-9)


@given(st.floats(min_value=0.05, max_value=6), st.floats(min_value=0.05, max_value=6))
def test_tight_on_every_pair(first: float, second: float) -> None:
    chained = binary_response(first) @ binary_response(second)
    assert channel_epsilon(chained) == pytest.approx(tight_chain(first, second), rel=1e-11, abs=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(2, 5), st.integers(2, 4))
def test_no_chain_of_random_channels_exceeds_it(seed: int, inputs: int, middle: int, outputs: int) -> None:
    generator = np.random.default_rng(seed)
    first = generator.dirichlet(np.ones(middle), size=inputs) + 1e-3
    second = generator.dirichlet(np.ones(outputs), size=middle) + 1e-3
    first /= first.sum(axis=1, keepdims=True)
    second /= second.sum(axis=1, keepdims=True)
    one, two = channel_epsilon(first), channel_epsilon(second)
    exact = channel_epsilon(first @ second)
    assert exact <= tight_chain(one, two) + 1e-12 <= basic_chain(one, two) + 2e-12


@given(EPSILON, EPSILON)
def test_the_small_bound_lies_above(first: float, second: float) -> None:
    assert tight_chain(first, second) <= small_chain(first, second) * (1 + 1e-12)


def test_the_small_bound_is_close_where_both_are_small() -> None:
    assert tight_chain(0.1, 0.1) == pytest.approx(small_chain(0.1, 0.1), rel=2e-3)


@given(st.lists(st.floats(min_value=0.05, max_value=5), min_size=1, max_size=6))
def test_k_mechanisms_are_the_product_of_k_binary_responses(epsilons: list[float]) -> None:
    product = np.eye(2)
    for epsilon in epsilons:
        product = product @ binary_response(epsilon)
    assert chain(epsilons) == pytest.approx(channel_epsilon(product), rel=1e-10, abs=1e-12)
    for order in itertools.islice(itertools.permutations(epsilons), 8):
        assert chain(order) == pytest.approx(chain(epsilons), rel=1e-12)


def test_a_chain_of_none_protects_nothing() -> None:
    assert chain([]) == math.inf
    assert chain([0.7]) == 0.7


@given(EPSILON, st.floats(min_value=1e-3, max_value=1 - 1e-3))
def test_the_second_step_makes_the_chain_asked_for(first: float, share: float) -> None:
    total = first * share
    assert tight_chain(first, second_step(total, first)) == pytest.approx(total, rel=1e-9)


def test_the_second_step_is_lolohas() -> None:
    first, total = 2.0, 1.2
    asked = math.log((math.exp(first + total) - 1) / (math.exp(first) - math.exp(total)))
    assert second_step(total, first) == pytest.approx(asked, rel=1e-12)
    assert second_step(first, first) == math.inf


EXTREMES = (0.0, 1e-300, 1e-160, 1e-9, 1e-3, 0.5, 1.0, 5.0, 40.0, 700.0, 710.0, 1000.0, 1e308, math.inf)


def test_the_second_step_after_nothing_or_next_to_nothing() -> None:
    """A first step of a thousand, or none at all, protects nothing: the second does all of it."""
    assert second_step(5.0, 1000.0) == pytest.approx(5.0, rel=1e-15)
    assert second_step(5.0, math.inf) == 5.0
    assert second_step(1000.0, math.inf) == 1000.0
    assert second_step(0.0, 5e-324) == 0.0
    # ln((e^(a+b) − 1)/(e^a − e^b)) with a = b + 1 is b + 1 − ln(e − 1) when both are large, and ln 3 at 2x, x tiny.
    assert second_step(999.0, 1000.0) == pytest.approx(1000 - math.log(math.e - 1), rel=1e-15)
    assert second_step(1e-300, 2e-300) == pytest.approx(math.log(3), rel=1e-14)


@pytest.mark.parametrize("first, second", list(itertools.product(EXTREMES, EXTREMES)))
def test_extremes_are_answered(first: float, second: float) -> None:
    tight = tight_chain(first, second)
    assert 0 <= tight <= basic_chain(first, second)
    assert tight <= small_chain(first, second) * (1 + 1e-12)
    assert chain([first, second, math.inf]) == tight
    if math.isinf(max(first, second)):
        assert tight == min(first, second)
    if first <= second:
        step = second_step(first, second)
        assert step >= first
        assert tight_chain(second, step) == pytest.approx(first, rel=1e-12)


def test_no_bound_is_not_a_number() -> None:
    assert small_chain(0.0, math.inf) == 0.0
    assert small_chain(math.inf, 0.0) == 0.0
    assert channel_epsilon([[1.0, 1e-310], [1e-310, 1.0]]) == pytest.approx(310 * math.log(10), rel=1e-12)
    with pytest.raises(ParameterError):
        channel_epsilon(np.zeros((0, 3)))


@pytest.mark.parametrize("bad", [math.nan, -0.1])
def test_nonsense_is_refused(bad: float) -> None:
    for function in (basic_chain, tight_chain, small_chain):
        with pytest.raises(ParameterError):
            function(bad, 1.0)
        with pytest.raises(ParameterError):
            function(1.0, bad)
    with pytest.raises(ParameterError):
        second_step(bad, 1.0)
    with pytest.raises(ParameterError):
        second_step(2.0, 1.0)
    with pytest.raises(ParameterError):
        channel_epsilon([[0.5, 0.6], [0.5, 0.5]])
    assert channel_epsilon([[1.0, 0.0], [0.5, 0.5]]) == math.inf
