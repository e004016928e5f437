"""Mechanism chaining: the ε of running one local randomizer on the output of another.

Naor and Vexler, "Can Two Walk Together" (FORC 2020), section 4. All functions take and return privacy parameters as
floats. Two binary randomized responses attain the tight bound, so no function of the two parameters alone improves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from aggservice.mechanisms.errors import ParameterError


def _checked(epsilon: float) -> float:
    if not epsilon >= 0:
        raise ParameterError(f"a privacy parameter must be a number of at least 0, not {epsilon!r}")
    return epsilon


def basic_chain(first: float, second: float) -> float:
    """Return the smaller of the two parameters: a chain protects at least as well as each of its steps (Theorem 19)."""
    return min(_checked(first), _checked(second))


def tight_chain(first: float, second: float) -> float:
    """Return ln((e^(ε₁+ε₂) + 1) / (e^ε₁ + e^ε₂)), the ε of an ε₂ mechanism run on an ε₁ one's output (Theorem 20).

    Equivalently, tanh(ε/2) = tanh(ε₁/2)·tanh(ε₂/2). This form is used if one of the two is small, because the logarithm
    of a ratio close to 1 would lose all its digits.

    >>> round(tight_chain(1.0, 1.0), 12)
    0.433780830483
    """
    low, high = sorted((_checked(first), _checked(second)))
    if math.isinf(high):
        return low
    if low < 1e-8:  # low / 2 may underflow
        return low * math.tanh(high / 2)
    if low < 1:
        return min(low, 2 * math.atanh(math.tanh(low / 2) * math.tanh(high / 2)))
    # ln(e^(l+h) + 1) - ln(e^l + e^h), with l taken out of both.
    return min(low, low + math.log1p(math.exp(-low - high)) - math.log1p(math.exp(low - high)))


def small_chain(first: float, second: float) -> float:
    """Return ½ε₁ε₂, an upper bound on ``tight_chain`` that is close to it if both are small (Corollary 21)."""
    low, high = sorted((_checked(first), _checked(second)))
    return low * high / 2 if low > 0 else 0.0  # not 0·∞


def chain(epsilons: Iterable[float]) -> float:
    """Return the ε of any number of mechanisms, each run on the output of the one before.

    It applies Theorem 20 step by step, with the chain so far as the first mechanism. The order does not matter. An
    empty chain returns its input unchanged, so its ε is infinite.
    """
    total = math.inf
    for epsilon in epsilons:
        total = tight_chain(total, epsilon)
    return total


def second_step(total: float, first: float) -> float:
    """Return the ε₂ of the second step for which ``tight_chain(first, ε₂)`` equals ``total``.

    It is ln((e^(ε₁+ε) − 1) / (e^ε₁ − e^ε)), which LOLOHA calls ε_IRR. A second step cannot increase ε, so ``total``
    must be at most ``first``; if they are equal, no second step is needed and ε₂ is infinite.
    """
    if not 0 <= total <= first:
        raise ParameterError(f"a chain that begins with epsilon {first!r} cannot have {total!r}: use 0 to {first!r}")
    if total == first:
        return math.inf
    # For tiny numbers tanh(x) = x; half of the smallest float would underflow.
    ratio = total / first if first < 1e-8 else math.tanh(total / 2) / math.tanh(first / 2)
    if ratio < 0.9:
        return max(total, 2 * math.atanh(ratio))
    # A ratio close to 1 has lost digits: divide both sides of (e^(f+t) - 1) / (e^f - e^t) by e^first instead.
    return total + math.log(math.expm1(-first - total) / math.expm1(total - first))
