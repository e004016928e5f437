"""The total privacy cost of several releases, or of several privacy units of one person, as floats for display."""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import exp, expm1, inf, log, sqrt

from aggservice.mechanisms.errors import ParameterError


def advanced_epsilon(epsilon: float, count: int, slack: float) -> float:
    """Return an ε' for which k = ``count`` ε-DP releases together are (ε', δ)-DP, with δ = ``slack``.

    It is √(2k ln(1/δ))·ε + kε(e^ε - 1) (Dwork, Rothblum and Vadhan 2010, Theorem III.3), or kε if that is smaller.
    """
    if not epsilon >= 0 or not count >= 0 or not 0 < slack < 1:
        raise ParameterError(
            f"advanced composition needs ε ≥ 0, a count ≥ 0 and 0 < slack < 1, not {epsilon!r}, {count!r} and {slack!r}"
        )
    spread = sqrt(2 * count * log(1 / slack)) * epsilon
    drift = count * epsilon * (exp(epsilon) - 1) if epsilon < 700 else inf
    return min(count * epsilon, spread + drift)


def group_privacy(epsilon: float, delta: float, steps: int) -> tuple[float, float]:
    """Return (ε', δ') between the two ends of a chain of k = ``steps`` steps, each (ε, δ)-indistinguishable.

    ε' = kε and δ' = δ(e^(kε) - 1)/(e^ε - 1), or kδ for ε = 0 (the Privacy Sandbox paper, Fact 4.7). A δ' of 1
    or more guarantees nothing and raises ``ParameterError``.

    >>> group_privacy(1.0, 0.0, 144)
    (144.0, 0.0)
    """
    if not 0 <= epsilon < inf or not 0 <= delta <= 1 or not steps >= 0:
        raise ParameterError(
            f"group privacy needs ε ≥ 0, 0 ≤ δ ≤ 1 and a number of steps ≥ 0, not {epsilon!r}, {delta!r} and {steps!r}"
        )
    if steps == 0 or delta == 0:
        return steps * epsilon, 0.0
    if _log_sum(epsilon, steps) + log(delta) >= 0:
        few = _most_steps(epsilon, delta)
        raise ParameterError(
            f"{steps} steps of ε = {epsilon:g} and δ = {delta:g} have no guarantee, because δ' would be 1 or more: "
            f"give at most {few} steps, or a smaller δ"
        )
    return steps * epsilon, exp(_log_sum(epsilon, steps) + log(delta))


def gradual_expiration(epsilon: float, delta: float, *, first: int, last: int) -> tuple[float, float]:
    """Return the (ε', δ') of Definition 4.8 of the Privacy Sandbox paper, for windows ``first`` < ``last``.

    It compares a device whose storage is disabled after the window ``first`` with one whose storage is disabled after
    ``last``. Storage carries over from window to window, so this does not protect all that a device did in them.
    """
    if not first < last:
        raise ParameterError(f"the first window must come before the last, not {first} and {last}")
    return group_privacy(epsilon, delta, last - first)


def _log_sum(epsilon: float, steps: int) -> float:
    """Return ln(1 + e^ε + … + e^((k-1)ε)) for k ≥ 1."""
    if epsilon == 0:
        return log(steps)
    return (steps - 1) * epsilon + log(-expm1(-steps * epsilon)) - log(-expm1(-epsilon))


def _most_steps(epsilon: float, delta: float) -> int:
    """Return the largest number of steps whose δ' is below 1."""
    few = 0
    while few < 10**6 and _log_sum(epsilon, few + 1) + log(delta) < 0:
        few += 1
    return few


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
