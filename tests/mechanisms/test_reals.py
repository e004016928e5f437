"""Reals: bounds that hold, checked against mpmath."""

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import ParameterError, Real, exp

rationals = st.fractions(min_value=-40, max_value=40, max_denominator=10**9)


def scaled(value: mpmath.mpf, precision: int) -> int:
    return int(mpmath.floor(mpmath.ldexp(value, precision)))


@given(rationals, st.integers(8, 300))
def test_exp_is_bracketed_closely(x: Fraction, precision: int) -> None:
    low, high = exp(x).bounds(precision)
    with mpmath.workprec(precision + 200):
        truth = scaled(mpmath.exp(mpmath.mpf(x.numerator) / x.denominator), precision)
    assert low <= truth <= high
    assert high - low <= 4


@given(rationals, rationals, rationals)
def test_arithmetic_is_bracketed(x: Fraction, y: Fraction, z: Fraction) -> None:
    value = (exp(x) - y) * z / (exp(y) + 1)
    low, high = value.bounds(128)
    with mpmath.workprec(600):
        a, b, c = (mpmath.mpf(v.numerator) / v.denominator for v in (x, y, z))
        truth = mpmath.ldexp((mpmath.exp(a) - b) * c / (mpmath.exp(b) + 1), 128)
        assert low <= truth <= high


@given(rationals, rationals)
def test_rationals_compare_exactly(x: Fraction, y: Fraction) -> None:
    if x != y:
        assert Real.of(x).compare(y) == (1 if x > y else -1)


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(ParameterError, match="cannot be compared"):
        exp(1).compare(exp(1))
    with pytest.raises(ParameterError, match="too close to 0"):
        (Real.of(1) / (exp(1) - exp(1))).bounds(64)


def test_equal_rationals_with_short_expansions_are_equal() -> None:
    assert Real.of(Fraction(1, 4)).compare(Fraction(1, 4)) == 0


def test_float_is_within_one_unit_of_the_last_place() -> None:
    import math

    for x in (Fraction(-1, 3), Fraction(14), Fraction(-60), Fraction(1, 10**12)):
        assert abs(float(exp(x)) - math.exp(x)) <= 2 * math.ulp(math.exp(x))
