"""Key discovery: the threshold τ for (ε, δ, Λ₀, Λ₁), and the δ that truncated noise really costs.

Lemma A.1 of the Privacy Sandbox paper: with at most Λ₀ keys differing and τ ≥ Λ₁(1 + ln(Λ₀/δ)/ε), releasing only
sums above τ under noise truncated to [-τ, τ] is (ε, δ)-DP. The exact δ is the mass outside the common support of
two shifted copies; it is largest when one key moves by Λ₁, because that mass is convex in the shift.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache
from math import log

from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.laplace import MICRO, TruncatedDiscreteLaplace, check_laplace
from aggservice.mechanisms.reals import Real, exp

ATTO = 10**18


@lru_cache(maxsize=256, typed=True)
def discovery_threshold(*, epsilon_micro: int, delta_atto: int, l0: int, l1: int) -> int:
    """Return τ = ⌈Λ₁(1 + ln(Λ₀/δ)/ε)⌉, the least whole number for which Lemma A.1 holds.

    It is the least n with e^(ε(n-Λ₁)/Λ₁) ≥ Λ₀/δ, found from a floating-point guess and settled by exact
    comparisons, so that rounding can only add privacy.

    >>> discovery_threshold(epsilon_micro=10_000_000, delta_atto=10**10, l0=1, l1=65_536)
    186258
    """
    check_laplace(epsilon_micro, l1)
    if not isinstance(delta_atto, int) or not 1 <= delta_atto <= ATTO:
        raise ParameterError(f"key discovery needs 0 < δ ≤ 1 in whole 10⁻¹⁸, not {delta_atto!r}")
    if not isinstance(l0, int) or not 1 <= l0 <= l1:
        raise ParameterError(f"Λ₀ must be an integer from 1 to Λ₁ = {l1}, not {l0!r}: each contribution is at least 1")
    needed = Fraction(l0 * ATTO, delta_atto)
    rate = Fraction(epsilon_micro, MICRO * l1)

    def enough(n: int) -> bool:
        return exp(rate * (n - l1)) >= needed

    guess = max(l1, l1 + int(log(needed) / rate))
    step = max(1, guess >> 40)
    while not enough(guess):
        guess += step
    low = guess
    while low > l1 and enough(low):
        low = max(l1, low - step)
    return low + bisect_left(range(low, guess), True, key=enough)


def truncated_delta(noise: TruncatedDiscreteLaplace, shift: int, epsilon: Fraction | None = None) -> Real:
    """Return the exact δ(ε) between truncated noise and the same noise moved by ``shift``, from its pmf.

    ``epsilon`` defaults to a·shift, the noise's own ε at this shift. Then δ is the mass outside the moved support. For
    a smaller ε, the excess where the likelihood ratio is above e^ε is added.
    """
    if not shift >= 0:
        raise ParameterError(f"a shift must be at least 0, not {shift}")
    if shift > 2 * noise.tau:
        return Real.of(1)
    own = noise.rate * shift
    asked = own if epsilon is None else Fraction(epsilon)
    edge = shift - noise.tau - 1  # the last x that the moved copy cannot reach
    if asked >= own:
        return noise.cdf(edge)
    # On the common support the ratio P[x]/P[x - shift] falls from e^own; it exceeds e^asked below (shift - asked/a)/2.
    turning = (shift - asked / noise.rate) / 2
    last = max(edge, min(-(-turning.numerator // turning.denominator) - 1, noise.tau))
    return noise.cdf(last) - exp(asked) * noise.cdf(last - shift)
