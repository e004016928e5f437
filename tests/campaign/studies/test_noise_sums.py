"""The law of a sum of discrete Laplace noises: exact convolution, the mechanism's own law, and its samples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from aggservice.campaign.estimates.noise_sums import chance_between
from aggservice.mechanisms import DiscreteGaussian, DiscreteLaplace, SeededBits


@pytest.mark.parametrize("rate", [3.0, 0.5, 0.04])
def test_the_law_is_the_convolution(rate: float) -> None:
    """Every interval from 1 to 9 terms, ends on both sides of 0; terms that are cut off weigh below 1e-16."""
    reach = int(40 / rate) + 35
    one = np.exp(-rate * np.abs(np.arange(-reach, reach + 1)))
    one /= one.sum()
    law = np.ones(1)
    noise = DiscreteLaplace(epsilon_micro=round(rate * 1_000_000), sensitivity=1)
    for terms in range(1, 10):
        law = np.convolve(law, one)
        middle, up_to = law.size // 2, np.concatenate(([0.0], np.cumsum(law)))
        low, high = (axis.reshape(-1) for axis in np.meshgrid(np.arange(-30, 31), np.arange(-30, 31)))
        wanted = np.where(high < low, 0.0, up_to[middle + high + 1] - up_to[middle + low])
        found = chance_between(noise, terms, low.astype(np.float64), high.astype(np.float64))
        assert np.abs(found - wanted).max() < 1e-12


def test_one_term_is_the_mechanisms_own_law() -> None:
    noise = DiscreteLaplace(epsilon="10", sensitivity=65536)
    for low, high in ((-9000, 5000), (-20_000, -1), (1, 70_000), (0, 0)):
        wanted = float(noise.cdf(high) - noise.cdf(low - 1))
        found = chance_between(noise, 1, np.array([float(low)]), np.array([float(high)]))
        assert abs(found[0] - wanted) < 1e-13


def test_many_terms_have_the_law_of_samples() -> None:
    """12 terms, 4,000 sums: a Kolmogorov-Smirnov test, whose p-value is below 1e-7 once in ten million runs."""
    noise = DiscreteLaplace(epsilon="2", sensitivity=65536)
    sums = noise.sample(SeededBits("sums"), 48_000).reshape(4000, 12).sum(axis=1).astype(np.float64)

    def cdf(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return chance_between(noise, 12, np.full(x.size, -np.inf), x)

    assert stats.kstest(sums, cdf).pvalue > 1e-7


def test_thousands_of_terms_are_nearly_normal() -> None:
    """The excess kurtosis of n terms is 3/n: with 5,000 terms the law is within 1e-4 of the normal law, not equal."""
    noise = DiscreteLaplace(epsilon="8", sensitivity=65536)
    deviation = (5000 * float(noise.variance())) ** 0.5
    width = np.rint(deviation * np.array([0.1, 0.5, 1.0, 2.0, 4.0]))
    found = chance_between(noise, 5000, -width, width)
    off = np.abs(found - (2 * stats.norm.cdf((width + 0.5) / deviation) - 1))
    assert 1e-7 < off.max() < 1e-4


def test_another_law_is_exact_for_one_term_and_normal_for_several() -> None:
    """A sum of discrete Gaussians is nearly normal, with a continuity correction of less than 1e-6 at σ = 20."""
    noise = DiscreteGaussian(variance_parameter=Fraction(400))
    low, high = np.array([-30.0, -np.inf, 3.0]), np.array([25.0, 7.0, 2.0])
    wanted = [float(noise.cdf(25)) - float(noise.cdf(-31)), float(noise.cdf(7)), 0.0]
    assert chance_between(noise, 1, low, high).tolist() == pytest.approx(wanted, abs=1e-12)
    four = stats.norm(scale=40)
    wanted = [four.cdf(25.5) - four.cdf(-30.5), four.cdf(7.5), 0.0]
    assert chance_between(noise, 4, low, high).tolist() == pytest.approx(wanted, abs=1e-9)
