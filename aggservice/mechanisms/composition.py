"""What several releases cost together: advanced composition, as a float for people to read."""

from __future__ import annotations

from math import exp, inf, log, sqrt

from aggservice.mechanisms.errors import ParameterError


def advanced_epsilon(epsilon: float, count: int, slack: float) -> float:
    """Return ε' so that ``count`` ε-DP releases are (ε', slack)-DP together: √(2k ln(1/δ))·ε + kε(e^ε - 1).

    Dwork, Rothblum and Vadhan 2010, Theorem III.3. Never more than the plain sum, which needs no slack.
    """
    if not epsilon >= 0 or not count >= 0 or not 0 < slack < 1:
        raise ParameterError("needs ε ≥ 0, a count ≥ 0 and 0 < slack < 1")
    spread = sqrt(2 * count * log(1 / slack)) * epsilon
    drift = count * epsilon * (exp(epsilon) - 1) if epsilon < 700 else inf
    return min(count * epsilon, spread + drift)
