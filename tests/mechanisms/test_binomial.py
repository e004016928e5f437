"""Binomial masses, tails and shortfalls against sums of integers term by term, far out and for many trials."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from aggservice.mechanisms.binomial import MOST_TRIALS, RELATIVE_ERROR, Binomial, shortfalls

# What was measured is 4·10⁻¹³ at most, 36 deviations out; the tests allow that and not the 10⁻¹¹ that is promised.
MEASURED = 5e-13
DEVIATIONS = (0.0, 0.3, 1.0, 3.0, 6.0, 12.0, 36.0)


def mass(m: int, n: int, p: Fraction) -> mpmath.mpf:
    one, other = mpmath.mpf(p.numerator) / p.denominator, mpmath.mpf((1 - p).numerator) / (1 - p).denominator
    log = mpmath.loggamma(n + 1) - mpmath.loggamma(m + 1) - mpmath.loggamma(n - m + 1)
    return mpmath.exp(log + m * mpmath.log(one) + (n - m) * mpmath.log(other))


def weighted_below(m: int, n: int, p: Fraction, level: Fraction, step: int) -> mpmath.mpf:
    """Σ (level + step·(m − x))·P[X = x] over x ≤ m, by the ratio of neighbouring masses in 160-bit fixed point."""
    up, down = (1 - p).numerator * p.denominator, (1 - p).denominator * p.numerator
    term, plain, sloped, i = 1 << 160, 1 << 160, 0, 0
    while i < m and term > 1 << 70:
        term = term * ((m - i) * up) // ((n - m + 1 + i) * down)
        i += 1
        plain += term
        sloped += i * term
    total = (mpmath.mpf(level.numerator) / level.denominator * plain + step * sloped) / mpmath.mpf(2) ** 160
    return mass(m, n, p) * total


@pytest.fixture(autouse=True)
def _many_digits() -> None:
    mpmath.mp.dps = 60


@pytest.mark.parametrize("n", [1, 2, 7, 100, 3601, 10**4, 10**6, 10**8, 10**10])
def test_shortfalls_have_all_their_digits(n: int) -> None:
    """The textbook form, a difference, is off by 10⁻¹⁰ at n = 10⁴, 6·10⁻⁷ at 10⁸ and 2·10⁻⁵ at 10⁹."""
    compared = 0
    for z in DEVIATIONS:
        deficit = z * math.sqrt(n) / 2 + 0.3
        # Of the two ways to say the threshold, the smaller is exact and the other is what floats make of it.
        small = n / 2 - deficit < n / 4
        exact = Fraction(n / 2 - deficit) if small else Fraction(n, 2) - Fraction(deficit)
        if not exact > 0 or (n == 10**10 and z == 1.0):
            continue
        m = math.ceil(exact) - 1
        truth = weighted_below(m, n, Fraction(1, 2), exact - m, 1)
        found = shortfalls(np.array([n / 2 - deficit]), np.array([deficit]), np.array([float(n)]))[0]
        assert abs(float(found / truth - 1)) < MEASURED, (n, z)
        compared += 1
    assert compared >= (1 if n < 100 else 5)


def test_shortfalls_at_whole_and_half_thresholds() -> None:
    """Every threshold in quarters up to half of few trials, against fractions."""
    compared = 0
    for n in range(12):
        for quarters in range(-2, 2 * n + 1):
            t = Fraction(quarters, 4)
            truth = sum(max(t - x, Fraction(0)) * math.comb(n, x) for x in range(n + 1)) / 2**n
            found = shortfalls(np.array([float(t)]), np.array([n / 2 - float(t)]), np.array([float(n)]))[0]
            assert found == pytest.approx(float(truth), rel=1e-13, abs=0)
            compared += 1
    assert compared == sum(2 * n + 3 for n in range(12))


CHANCES = [Fraction(1, 2), Fraction(1, 8), Fraction(2, 3), Fraction(1, 1000), Fraction(999, 1000), Fraction(1e-8)]


@pytest.mark.parametrize("n", [1, 10, 3000, 10**4, 10**6, 10**8])
@pytest.mark.parametrize("p", CHANCES)
def test_tails_and_masses_have_all_their_digits(n: int, p: Fraction) -> None:
    law, mirror = Binomial(trials=n, chance=p), Binomial(trials=n, chance=1 - p)
    spread = math.sqrt(n * p * (1 - p))
    compared = 0
    for z in DEVIATIONS:
        m = math.floor(n * p - p - Fraction(z * spread))
        if m < 0:
            continue
        truth = weighted_below(m, n, p, Fraction(1), 0)
        if truth < mpmath.mpf(10) ** -290:
            continue
        edge = np.array([m + 1.0])
        assert abs(float(law.tails(edge)[0][0] / truth - 1)) < MEASURED
        assert abs(float(mirror.tails(n - edge + 1)[1][0] / truth - 1)) < MEASURED
        assert abs(float(law.tails(edge)[1][0] / (1 - truth) - 1)) < MEASURED
        assert abs(float(law.masses(m, m)[0] / mass(m, n, p) - 1)) < MEASURED
        assert abs(float(mirror.masses(n - m, n - m)[0] / mass(m, n, p) - 1)) < MEASURED
        compared += 1
    assert compared >= (n * p >= 2)


@pytest.mark.parametrize("n", [10**12, MOST_TRIALS])
@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(2, 3), Fraction(1e-6)])
def test_the_most_trials_have_all_their_digits(n: int, p: Fraction) -> None:
    """Too many to sum: two integrals in sixty digits stand for the series (checked against it above)."""
    theta = mpmath.mpf((1 - p).numerator * p.denominator) / ((1 - p).denominator * p.numerator)
    spread = math.sqrt(n * p * (1 - p))
    for z, step in itertools.product((0.3, 3.0, 12.0, 36.0), (0, 1)):
        if step and p != Fraction(1, 2):
            continue
        m = math.floor(n * p - p - Fraction(z * spread))
        above = n * p - m
        slope = mpmath.mpf(float((above - p) / p))
        length = 160 / (slope + mpmath.sqrt(slope**2 + 160 * (n - m + m * theta**2)))

        def integrand(u: mpmath.mpf, m: int = m, step: int = step) -> mpmath.mpf:
            power = (n - m - 1) * mpmath.log1p(-u) + m * mpmath.log1p(theta * u)
            return mpmath.exp(power) * (1 + step * m * theta * u / (1 + theta * u))

        truth = mass(m, n, p) * (n - m) * mpmath.quad(integrand, [length * i / 8 for i in range(9)])
        if step:  # threshold m + 1
            deficit = float(above) - 1
            found = shortfalls(np.array([n / 2 - deficit]), np.array([deficit]), np.array([float(n)]))[0]
        else:
            found = Binomial(trials=n, chance=p).tails(np.array([m + 1.0]))[0][0]
        assert abs(float(found / truth - 1)) < MEASURED


def test_what_is_promised_is_far_above_what_was_measured() -> None:
    assert RELATIVE_ERROR >= 20 * MEASURED


def test_all_of_a_law_adds_up() -> None:
    for n, p in ((0, Fraction(1, 3)), (1, Fraction(1, 3)), (5000, Fraction(1, 3)), (300, 1 - Fraction(1e-300))):
        law = Binomial(trials=n, chance=p)
        masses = law.masses(0, n)
        assert masses.sum() == pytest.approx(1, rel=1e-12)
        below, above = law.tails(np.arange(n + 2, dtype=np.float64))
        np.testing.assert_allclose(below, np.concatenate([[0], np.cumsum(masses)]), rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(above[::-1], np.concatenate([[0], np.cumsum(masses[::-1])]), rtol=1e-11, atol=1e-300)
