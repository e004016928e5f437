"""Discrete Laplace noise: exact by enumeration, and in agreement with its law and with an independent library."""

from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from scipy.stats import chi2, dlaplace

from aggservice.mechanisms import DiscreteLaplace, ParameterError, SecureBits, TruncatedDiscreteLaplace, exp
from aggservice.mechanisms.geometric import digits_of, geometric_twin, laplace_kernel
from aggservice.mechanisms.words import FULL, TIE, Tape
from stated import FALSE_ALARM, assert_frequencies

DEPLOYED = DiscreteLaplace(epsilon_micro=10_000_000, sensitivity=1 << 16)


class _Listed(Tape):
    """A tape of given words that says when it ran out."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self.used = 0

    def word(self) -> int:
        word = self._words[self.used]
        self.used += 1
        return word


@pytest.mark.parametrize("rate", [Fraction(1, 2), Fraction(3, 7), Fraction(2)])
def test_enumerating_the_input_bits_gives_the_pmf(rate: Fraction) -> None:
    """All first words of 9 bits through the kernel, and all ties through the twin with 8 further bits.

    What the enumeration leaves undecided is at most the mass of ties that 8 bits did not settle; the probability
    of every outcome must agree with the pmf within that mass. One sample may be rejected (negative zero), so the
    enumeration is of one attempt and the pmf is scaled by the chance that an attempt is kept.
    """
    prefix, further = 8, 8
    digits = digits_of(rate, prefix, 10)
    assert digits.shifts.size == 1
    mass: dict[int, Fraction] = {}
    undecided = Fraction(0)
    for value, negative in product(range(1 << prefix), (0, 1)):
        word = (value << (64 - prefix)) | negative
        out = np.zeros(1, dtype=np.int64)
        words = np.array([word], dtype=np.uint64)
        made, used, why = laplace_kernel(
            words, digits.thresholds, digits.guide, digits.shifts, prefix, digits.guide_bits, 1 << 40, out
        )
        weight = Fraction(1, 1 << (prefix + 1))
        if why == TIE:
            for tail in range(1 << further):
                try:
                    tape = _Listed([word, tail << (64 - further)])
                    size, spare = geometric_twin(tape, digits)
                    # The same tail with all lower bits set must agree, or 8 bits did not decide.
                    other = geometric_twin(_Listed([word, ((tail + 1) << (64 - further)) - 1]), digits)
                except IndexError:
                    other = (-1, 0)
                    size, spare = 0, 0
                if other[0] != size:
                    undecided += weight / (1 << further)
                    continue
                outcome = -size if spare & 1 else size
                if not (negative and size == 0):
                    mass[outcome] = mass.get(outcome, Fraction(0)) + weight / (1 << further)
        elif why == FULL and made:
            mass[int(out[0])] = mass.get(int(out[0]), Fraction(0)) + weight
        else:
            assert negative and used == 1
    assert undecided < Fraction(1, 1 << 8)
    ratio = exp(-rate)
    kept = (1 + ratio) / 2
    for outcome in range(-6, 7):
        truth = (1 - ratio) / (1 + ratio) * exp(-rate * abs(outcome)) * kept
        assert abs(float(truth) - float(mass.get(outcome, Fraction(0)))) <= float(undecided) + 1e-12


@pytest.mark.parametrize("rate", [Fraction(1, 3), DEPLOYED.rate, Fraction(1, 10**6 << 32)])
def test_the_steps_multiply_to_the_pmf(rate: Fraction) -> None:
    """P[G = g] computed from the digits' own probabilities equals (1-r)rᵍ to 10⁻⁴⁰, and thresholds are their floors."""
    digits = digits_of(rate)
    rows = digits.shifts.size
    for g in (0, 1, 2, 1023, 1024, 65_535, 70_000, int(10 / rate)):
        chance = exp(0)
        for row in range(rows):
            digit = g >> int(digits.shifts[row])
            if row < rows - 1:
                digit &= (1 << int(digits.shifts[row + 1] - digits.shifts[row])) - 1
            here = digits.cumulative(row, digit)
            chance = chance * (here if digit == 0 else here - digits.cumulative(row, digit - 1))
        difference = chance - (1 - exp(-rate)) * exp(-rate * g)
        low, high = difference.bounds(400)
        assert max(abs(low), abs(high)) < (1 << 400) // 10**40
    with mpmath.workprec(400):
        a = mpmath.mpf(rate.numerator) / rate.denominator
        for row in range(rows):
            step = a * 2 ** int(digits.shifts[row])
            norm = 1 if row == rows - 1 else 1 - mpmath.exp(-step * 2 ** int(digits.shifts[1]))
            for digit in (0, 1, 2, 100, 200):
                if digit < digits.thresholds.shape[1] and digits.thresholds[row, digit] < 1 << 63:
                    truth = mpmath.floor((1 - mpmath.exp(-step * (digit + 1))) / norm * 2**63)
                    assert int(digits.thresholds[row, digit]) == int(truth)


def test_agrees_with_its_law_at_the_deployed_parameters() -> None:
    """Chi-square over 400 cells of 4 million samples; false-alarm rate 10⁻⁸."""
    size = 4_000_000
    samples = DEPLOYED.sample(SecureBits(), size)
    edges = np.linspace(-60_000, 60_000, 401).astype(np.int64)
    law = dlaplace(float(DEPLOYED.rate))
    chances = np.diff(np.concatenate(([0.0], law.cdf(edges), [1.0])))
    counts = np.bincount(np.searchsorted(edges, samples, side="left"), minlength=edges.size + 1)
    assert_frequencies(counts, chances * size)
    assert float(DEPLOYED.cdf(100)) == pytest.approx(law.cdf(100), rel=1e-11)


def test_agrees_with_opendp() -> None:
    """Two-sample chi-square over 100 cells with opendp's discrete Laplace; false-alarm rate 10⁻⁸."""
    dp.enable_features("contrib")
    size = 200_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    theirs = np.array((space >> dp.m.then_laplace(scale=6553.6))([0] * size))
    ours = DEPLOYED.sample(SecureBits(), size)
    edges = np.quantile(ours, np.linspace(0, 1, 101)[1:-1])
    a, b = (np.bincount(np.searchsorted(edges, x), minlength=100) for x in (ours, theirs))
    assert ((a - b) ** 2 / (a + b)).sum() < chi2.isf(FALSE_ALARM, 99)


def test_truncated_noise_never_leaves_its_window() -> None:
    """10⁸ draws at a τ that untruncated noise passes about once in 150 draws."""
    noise = TruncatedDiscreteLaplace(epsilon_micro=10_000_000, sensitivity=1 << 16, tau=5 * 6554)
    bits = SecureBits()
    largest = 0
    for _ in range(100):
        largest = max(largest, int(np.abs(noise.sample(bits, 1_000_000)).max()))
    assert 0.999 * noise.tau < largest <= noise.tau


@pytest.mark.parametrize(
    ("epsilon_micro", "sensitivity", "tau"), [(1_000_000, 1, 3), (500_000, 4, 9), (500_000, 4, 6), (1, 1, 4)]
)
def test_truncated_noise_agrees_with_its_law(epsilon_micro: int, sensitivity: int, tau: int) -> None:
    """Chi-square over the whole support, wide and narrow windows; false-alarm rate 10⁻⁸ each."""
    noise = TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity, tau=tau)
    size = 20_000 if noise.rate * tau < 1 else 500_000
    counts = np.bincount(noise.sample(SecureBits(), size) + tau, minlength=2 * tau + 1)
    chances = np.array([float(noise.pmf(x)) for x in range(-tau, tau + 1)])
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert_frequencies(counts, chances * size)
    moments = sum(x * x * chances[x + tau] for x in range(-tau, tau + 1))
    assert float(noise.variance()) == pytest.approx(moments, rel=1e-12)
    cumulative = np.cumsum(chances)
    for x in range(-tau - 1, tau + 1):
        assert float(noise.cdf(x)) == pytest.approx(cumulative[x + tau] if x >= -tau else 0, abs=1e-12)


def test_quantiles_are_the_least_that_reach() -> None:
    for noise in (DEPLOYED, TruncatedDiscreteLaplace(epsilon_micro=10**6, sensitivity=3, tau=20)):
        for p in (Fraction(1, 40), Fraction(1, 2), Fraction(39, 40), Fraction(1, 10**9)):
            x = noise.quantile(p)
            assert noise.cdf(x).compare(p) >= 0 > noise.cdf(x - 1).compare(p)


def test_small_parameters_agree_with_scipy() -> None:
    for epsilon_micro, sensitivity in ((64_000_000, 1), (1_000_000, 1), (250_000, 3)):
        noise = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity)
        law = dlaplace(float(noise.rate))
        for x in range(-5, 6):
            assert float(noise.pmf(x)) == pytest.approx(law.pmf(x), rel=1e-9)
        assert float(noise.variance()) == pytest.approx(law.var(), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon_micro", "sensitivity"),
    [(0, 1), (-1, 1), (64_000_001, 1), (1, 0), (1, (1 << 32) + 1), (float("nan"), 1), (1.5, 1), (1, float("inf"))],
)
def test_parameters_outside_the_range_are_refused(epsilon_micro: int, sensitivity: int) -> None:
    with pytest.raises(ParameterError):
        DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity)
    with pytest.raises(ParameterError):
        TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity, tau=1)


def test_the_extremes_of_the_range_sample() -> None:
    for epsilon_micro, sensitivity in ((1, 1 << 32), (64_000_000, 1), (64_000_000, 1 << 32), (1, 1)):
        noise = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity)
        spread = float(noise.variance()) ** 0.5
        samples = noise.sample(SecureBits(), 40_000).astype(float)
        # The sample's second moment has relative standard deviation sqrt(5/n) for Laplace noise; 7 of them.
        if spread > 1:
            assert abs(np.mean(samples**2) / spread**2 - 1) < 7 * (5 / 40_000) ** 0.5


@pytest.mark.parametrize("level", [Fraction(1, 100), Fraction(1, 2), Fraction(95, 100), Fraction(999, 1000)])
@pytest.mark.parametrize("epsilon_micro", [1, 100_000, 1_000_000, 30_000_000])
@pytest.mark.parametrize("tau", [None, 0, 1, 17, 1 << 40])
def test_half_width_is_the_least_that_covers(level: Fraction, epsilon_micro: int, tau: int | None) -> None:
    for sensitivity in (1, 7, 1 << 16):
        noise = (
            DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity)
            if tau is None
            else TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity, tau=tau)
        )
        width = noise.half_width(level)
        assert (noise.cdf(width) - noise.cdf(-width - 1)).compare(level) >= 0
        assert width == 0 or (noise.cdf(width - 1) - noise.cdf(-width)).compare(level) < 0
