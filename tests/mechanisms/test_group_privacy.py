"""Group privacy over a chain of laws (Fact 4.7 of the Privacy Sandbox paper): exact chains, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import exp, inf, nan

import pytest

from aggservice.audit.finite import least_delta
from aggservice.mechanisms import ParameterError
from aggservice.mechanisms.composition import gradual_expiration, group_privacy


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps"), [(1.0, 1e-3, 3), (0.5, 1e-4, 8), (0.0, 0.01, 7), (2.0, 1e-9, 6)]
)
def test_a_chain_reaches_exactly_what_the_fact_allows(epsilon: float, delta: float, steps: int) -> None:
    """P_k(W) = 0 and P_i(W) = e^ε·P_{i+1}(W) + δ: each step is (ε, δ), and the ends are δ' apart at kε."""
    factor, small = Fraction(exp(epsilon)), Fraction(delta)
    chances = [Fraction(0)]
    for _ in range(steps):
        chances.append(factor * chances[-1] + small)
    laws = [{"in W": chance, "out": 1 - chance} for chance in chances]
    assert all(least_delta(one, next_one, factor) == small for one, next_one in pairwise(laws))
    together = group_privacy(epsilon, delta, steps)
    assert together[0] == steps * epsilon
    assert together[1] == pytest.approx(float(least_delta(laws[0], laws[-1], factor**steps)), rel=1e-12)


def test_the_papers_windows() -> None:
    """ε* = 1 and δ* = 10⁻⁸: an hour of six windows is (6, 10⁻⁵·⁶), and a day of 144 promises nothing."""
    epsilon, delta = gradual_expiration(1.0, 1e-8, first=0, last=6)
    assert (epsilon, delta) == (6.0, pytest.approx(10**-5.63, rel=1e-3))
    assert gradual_expiration(1.0, 1e-8, first=7, last=25)[1] == pytest.approx(0.382, rel=1e-2)
    with pytest.raises(ParameterError, match="at most 18 steps"):
        gradual_expiration(1.0, 1e-8, first=0, last=144)
    with pytest.raises(ParameterError, match="at most 18 steps"):
        group_privacy(1.0, 1e-8, 19)


def test_extremes_are_answered() -> None:
    assert group_privacy(64.0, 0.0, 10**6) == (64e6, 0.0)
    assert group_privacy(3.0, 0.5, 0) == (0.0, 0.0)
    assert group_privacy(1e-300, 1e-6, 3) == (pytest.approx(3e-300), pytest.approx(3e-6))
    with pytest.raises(ParameterError, match="at most 1 steps"):
        group_privacy(700.0, 1e-9, 10**9)


@pytest.mark.parametrize(
    "given",
    [(-1.0, 0.1, 1), (nan, 0.1, 1), (inf, 0.1, 1), (1.0, -0.1, 1), (1.0, nan, 1), (1.0, 1.1, 1), (1.0, 0.1, -1)],
)
def test_nonsense_is_refused(given: tuple[float, float, int]) -> None:
    with pytest.raises(ParameterError, match="needs"):
        group_privacy(*given)


def test_windows_have_an_order() -> None:
    with pytest.raises(ParameterError, match="before the last"):
        gradual_expiration(1.0, 1e-8, first=3, last=3)
