"""What the noise laws have in common: they are symmetric about 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction


class SymmetricNoise(ABC):
    """Integer noise whose law is symmetric about 0."""

    __slots__ = ()

    @abstractmethod
    def quantile(self, p: Fraction) -> int:
        """Return the smallest x with P[X ≤ x] ≥ p, for 0 < p < 1."""

    def half_width(self, level: Fraction = Fraction(95, 100)) -> int:
        """Return the smallest h with P[|X| ≤ h] ≥ level, for 0 < level < 1.

        By symmetry, P[|X| ≤ h] = 2·P[X ≤ h] - 1. Exact where ``quantile`` is.
        """
        return self.quantile((1 + level) / 2)
