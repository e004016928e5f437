"""The total privacy cost of several releases, or of several privacy units of one person, as floats for display."""

from __future__ import annotations

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
