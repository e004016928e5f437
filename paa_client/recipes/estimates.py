"""Estimates of counts from noisy sums, with intervals that follow from the service's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from aggservice.mechanisms import DiscreteLaplace, NoiseLaw
from aggservice.wire.device import DeviceConfigError

DEFAULT_LEVEL = Fraction(95, 100)
CONTRIBUTION_BUDGET = 1 << 16

Summary = Mapping[int, int]
"""A summary report: the noisy sum of each bucket of the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeEstimate:
    """An unbiased estimate, its standard deviation, and an interval with the truth at probability ``level`` or more."""

    value: float
    standard_deviation: float
    low: float
    high: float
    level: Fraction

    def holds(self, truth: float) -> bool:
        """Return whether ``truth`` lies in the interval."""
        return self.low <= truth <= self.high


def service_noise(epsilon: Fraction | int, budget: int = CONTRIBUTION_BUDGET) -> DiscreteLaplace:
    """Return the noise that the service adds to each bucket at ``epsilon``: discrete Laplace with scale Λ₁/ε."""
    micro = Fraction(epsilon) * 10**6
    if micro.denominator != 1:
        raise DeviceConfigError(f"ε must have at most 6 decimal places, got {epsilon}")
    return DiscreteLaplace(epsilon_micro=int(micro), sensitivity=budget)


def half_width(noise: NoiseLaw, level: Fraction, terms: int = 1) -> int:
    """Return w with P[|sum of ``terms`` independent noises| ≤ w] ≥ level.

    Exact for one term. For more terms it is Chernoff's bound, with the moment generating function of the discrete
    Laplace law, (1-r)² / ((1-re^λ)(1-re^-λ)) for r = e^-a and 0 < λ < a. The bound holds for every λ; the best of
    many is used. Other laws have Chebyshev's bound, which is wider.
    """
    if not 0 < level < 1:
        raise DeviceConfigError(f"level must lie strictly between 0 and 1, got {level}")
    if terms < 1:
        raise DeviceConfigError(f"terms must be at least 1, got {terms}")
    if terms == 1:
        return noise.half_width(level)
    if not isinstance(noise, DiscreteLaplace):
        return math.ceil(math.sqrt(terms * float(noise.variance()) / float(1 - level)))
    rate = float(noise.rate)
    exponent = rate * np.linspace(0.001, 0.999, 999)
    log_mgf = (
        2 * math.log(-math.expm1(-rate)) - np.log(-np.expm1(exponent - rate)) - np.log(-np.expm1(-exponent - rate))
    )
    return math.ceil(float(np.min((terms * log_mgf + math.log(2 / float(1 - level))) / exponent)) * (1 + 1e-9)) + 1


def estimate(
    noisy: int, scale: float, noise: DiscreteLaplace, *, level: Fraction = DEFAULT_LEVEL, terms: int = 1
) -> RecipeEstimate:
    """Estimate a quantity from the noisy sum of ``terms`` buckets, where each unit contributed ``scale``.

    The interval covers the noise only. Contributions that the browser's budget denied are not accounted for.
    """
    if not scale > 0:
        raise DeviceConfigError(f"scale must be positive, got {scale}")
    width = half_width(noise, level, terms)
    return RecipeEstimate(
        value=noisy / scale,
        standard_deviation=math.sqrt(terms * float(noise.variance())) / scale,
        low=(noisy - width) / scale,
        high=(noisy + width) / scale,
        level=level,
    )


def budget_share(budget: int, parts: int) -> int:
    """Return the share of the budget of each of ``parts`` contributions; ``DeviceConfigError`` if it is below 1."""
    if not 1 <= parts <= budget:
        raise DeviceConfigError(
            f"a budget of {budget} cannot be divided among {parts} contributions: use 1 to {budget}"
        )
    return budget // parts


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedRecipe:
    """The base of a recipe whose contributions have equal shares of the budget; ``cap`` limits their number.

    ``cap`` is how many results (slices, contents, auctions) a device may report in ten minutes.
    """

    cap: int = 1
    budget: int = CONTRIBUTION_BUDGET
    filtering_id: int = 0

    def __post_init__(self) -> None:
        budget_share(self.budget, self.parts)

    @property
    def parts(self) -> int:
        """The number of contributions among which a device divides its budget."""
        return self.cap

    @property
    def value(self) -> int:
        """The value that a device contributes to a bucket."""
        return budget_share(self.budget, self.parts)
