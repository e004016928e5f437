"""From noisy sums back to counts: estimates with the intervals that the service's noise gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from aggservice.mechanisms import DiscreteLaplace
from paa_client.errors import ConfigError

DEFAULT_LEVEL = Fraction(95, 100)
CONTRIBUTION_BUDGET = 1 << 16

Summary = Mapping[int, int]
"""A summary report: the noisy sum of each bucket of the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An unbiased estimate with its standard deviation, and an interval that holds the truth with ``level`` or more."""

    value: float
    standard_deviation: float
    low: float
    high: float
    level: Fraction

    def holds(self, truth: float) -> bool:
        """Say whether ``truth`` lies in the interval."""
        return self.low <= truth <= self.high


def service_noise(epsilon: Fraction | int, budget: int = CONTRIBUTION_BUDGET) -> DiscreteLaplace:
    """Return the noise that the service adds to each bucket at ``epsilon``: discrete Laplace with scale Λ₁/ε."""
    micro = Fraction(epsilon) * 10**6
    if micro.denominator != 1:
        raise ConfigError(f"ε = {epsilon} is not a whole number of 10⁻⁶")
    return DiscreteLaplace(epsilon_micro=int(micro), sensitivity=budget)


def half_width(noise: DiscreteLaplace, level: Fraction, terms: int = 1) -> int:
    """Return w with P[|sum of ``terms`` independent noises| ≤ w] ≥ level.

    Exact for one term. For more, Chernoff's bound with the moment generating function of the discrete Laplace law,
    (1-r)² / ((1-re^λ)(1-re^-λ)) for r = e^-a and 0 < λ < a, at the best of many λ: any of them is valid.
    """
    if not 0 < level < 1:
        raise ConfigError(f"a level lies between 0 and 1, not {level}")
    if terms < 1:
        raise ConfigError(f"a sum has at least one term, not {terms}")
    if terms == 1:
        return noise.half_width(level)
    rate = float(noise.rate)
    exponent = rate * np.linspace(0.001, 0.999, 999)
    log_mgf = (
        2 * math.log(-math.expm1(-rate)) - np.log(-np.expm1(exponent - rate)) - np.log(-np.expm1(-exponent - rate))
    )
    return math.ceil(float(np.min((terms * log_mgf + math.log(2 / float(1 - level))) / exponent)) * (1 + 1e-9)) + 1


def estimate(
    noisy: int, scale: float, noise: DiscreteLaplace, *, level: Fraction = DEFAULT_LEVEL, terms: int = 1
) -> Estimate:
    """Return the estimate of a quantity that was contributed ``scale`` times and read from a sum of ``terms`` buckets.

    The interval is about the contributions that were made; what the browser's budget cut is not in it.
    """
    if not scale > 0:
        raise ConfigError(f"a scale is positive, not {scale}")
    width = half_width(noise, level, terms)
    return Estimate(
        value=noisy / scale,
        standard_deviation=math.sqrt(terms * float(noise.variance())) / scale,
        low=(noisy - width) / scale,
        high=(noisy + width) / scale,
        level=level,
    )


def budget_share(budget: int, parts: int) -> int:
    """Return what each of ``parts`` contributions may use of the budget; it must be at least 1."""
    if not 1 <= parts <= budget:
        raise ConfigError(f"a budget of {budget} cannot be divided among {parts} contributions")
    return budget // parts
