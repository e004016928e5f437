"""Mechanism chaining: what it costs to run one local randomizer on the output of another.

Naor and Vexler, "Can Two Walk Together" (FORC 2020), section 4. All functions take and give privacy parameters as
floats; the tight bound is a property of the two numbers alone, attained by two binary randomized responses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from aggservice.mechanisms.errors import ParameterError


def _checked(epsilon: float) -> float:
    if not epsilon >= 0:
        raise ParameterError(f"a privacy parameter is a number at least 0, not {epsilon!r}")
    return epsilon


def basic_chain(first: float, second: float) -> float:
    """Return the privacy of the chain that needs no argument: the better of the two (Theorem 19)."""
    return min(_checked(first), _checked(second))


def tight_chain(first: float, second: float) -> float:
    """Return ln((e^(ε₁+ε₂) + 1) / (e^ε₁ + e^ε₂)), the privacy of an ε₂ mechanism run on an ε₁ one (Theorem 20).

    The same thing reads tanh(ε/2) = tanh(ε₁/2)·tanh(ε₂/2), which is how it is computed when one of the two is small
    (the logarithm of a ratio near one would lose every digit).

    >>> round(tight_chain(1.0, 1.0), 12)
    0.433780830483
    """
    low, high = sorted((_checked(first), _checked(second)))
    if math.isinf(high):
        return low
    if low < 1e-8:  # its half may be no float
        return low * math.tanh(high / 2)
    if low < 1:
        return min(low, 2 * math.atanh(math.tanh(low / 2) * math.tanh(high / 2)))
    # ln(e^(l+h) + 1) - ln(e^l + e^h), with l taken out of both.
    return min(low, low + math.log1p(math.exp(-low - high)) - math.log1p(math.exp(low - high)))


def small_chain(first: float, second: float) -> float:
    """Return ½ε₁ε₂, an upper bound on the tight chain that is close to it when both are small (Corollary 21)."""
    low, high = sorted((_checked(first), _checked(second)))
    return low * high / 2 if low > 0 else 0.0  # not 0·∞


def chain(epsilons: Iterable[float]) -> float:
    """Return the privacy of any number of mechanisms, each run on the output of the one before.

    It iterates Theorem 20: the chain so far is one mechanism. The order does not matter, and a chain of none is the
    identity, which protects nothing.
    """
    total = math.inf
    for epsilon in epsilons:
        total = tight_chain(total, epsilon)
    return total


def second_step(total: float, first: float) -> float:
    """Return the ε₂ for which ``tight_chain(first, ε₂)`` is ``total``: how noisy the second step has to be.

    It is ln((e^(ε₁+ε) − 1) / (e^ε₁ − e^ε)), which LOLOHA calls ε_IRR. No second step makes a chain weaker than its
    first one, so ``total`` must be below ``first``; at ``first`` itself no second step is needed and ε₂ is infinite.
    """
    if not 0 <= total <= first:
        raise ParameterError(f"a chain that starts with epsilon {first!r} cannot have epsilon {total!r}")
    if total == first:
        return math.inf
    # The hyperbolic tangent of a tiny number is the number, of which a half may be no float.
    ratio = total / first if first < 1e-8 else math.tanh(total / 2) / math.tanh(first / 2)
    if ratio < 0.9:
        return max(total, 2 * math.atanh(ratio))
    # Near one the ratio has lost what matters: take e^first out of both sides of (e^(f+t) - 1) / (e^f - e^t).
    return total + math.log(math.expm1(-first - total) / math.expm1(total - first))
