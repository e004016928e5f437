"""A key discovery rule: undeclared keys get truncated staircase noise, and a threshold hides those with small sums."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from budget import Delta, DiscoveryRule, Epsilon, Mechanism, Sensitivity
from budget.errors import BudgetError
from extending_example.staircase import Staircase, StaircaseNoise

_ATTO = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class StaircaseDiscovery(DiscoveryRule):
    """Staircase noise within ±τ, and release above τ: (ε, δ)-DP for a job whose declared keys have staircase noise.

    Noise within ±τ never carries a sum of 0 above τ. A unit that adds at most Λ₁ to a key is certain to show itself
    only if the noise lies within Λ₁ of its largest value; τ is the least number with Λ₀ · P[X > τ - Λ₁] ≤ δ. Elsewhere
    each of up to Λ₀ keys loses ε/Λ₀, as without truncation. The comparison is exact.
    """

    name = "truncated_discrete_staircase"
    epsilon: Epsilon
    delta: Delta

    def __post_init__(self) -> None:
        if not self.delta.atto > 0:
            raise BudgetError("delta must be above 0 for key discovery: at delta 0 no threshold can hide a key")

    @classmethod
    def beside(cls, declared: Mechanism, delta: Delta) -> StaircaseDiscovery:
        if not isinstance(declared, StaircaseNoise):
            raise BudgetError(f"{cls.name} discovers keys beside {StaircaseNoise.name}: name that mechanism in the job")
        return cls(epsilon=declared.epsilon, delta=delta)

    def noise(self, bounds: Sensitivity) -> Staircase:
        return StaircaseNoise(epsilon=self.epsilon).noise(bounds)

    def threshold(self, bounds: Sensitivity) -> int:
        return _threshold(self.noise(bounds), Fraction(self.delta.atto, _ATTO))

    def discovered_noise(self, bounds: Sensitivity) -> Staircase:
        return replace(self.noise(bounds), tau=self.threshold(bounds))


@lru_cache(maxsize=256)
def _threshold(noise: Staircase, delta: Fraction) -> int:
    """Return the least τ ≥ Λ₁ for which Λ₀ · P[X > τ - Λ₁] ≤ δ, for the noise within ±τ."""

    def enough(tau: int) -> bool:
        above = noise.tail(tau + 1)
        return delta * (1 - 2 * above) >= noise.keys * (noise.tail(tau - noise.width + 1) - above)

    most = noise.width
    while not enough(most):
        most *= 2
    return bisect_left(range(most), True, lo=noise.width, key=enough)
