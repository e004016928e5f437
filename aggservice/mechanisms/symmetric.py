"""What the noise laws have in common: they are symmetric about 0, and their quantiles are found by bisection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache

from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.reals import Real


class SymmetricNoise(ABC):
    """Integer noise whose law is symmetric about 0."""

    __slots__ = ()

    @abstractmethod
    def cdf(self, x: int) -> Real | float:
        """Return P[X ≤ x]."""

    def quantile(self, p: Fraction) -> int:
        """Return the smallest x with P[X ≤ x] ≥ p, for 0 < p < 1. It is exact if ``cdf`` is."""
        if not 0 < p < 1:
            raise ParameterError(f"a quantile needs 0 < p < 1, not {p}")
        p = Fraction(p)
        low, high = -1, 1
        while not self.cdf(high) >= p:
            high *= 2
        while self.cdf(low) >= p:
            low *= 2
        return low + bisect_left(range(low, high), True, key=lambda x: self.cdf(x) >= p)

    def half_width(self, level: Fraction = Fraction(95, 100)) -> int:
        """Return the smallest h with P[|X| ≤ h] ≥ level, for 0 < level < 1.

        By symmetry, P[|X| ≤ h] = 2·P[X ≤ h] - 1. The result is exact if ``cdf`` is.
        """
        return _half_width(self, level)


@lru_cache(maxsize=1024)
def _half_width(law: SymmetricNoise, level: Fraction) -> int:
    return law.quantile((1 + level) / 2)
