"""What several releases cost together, and what one notion of privacy is worth in another.

Whole-number costs that a ledger charges round up; the conversions for people to read are floats, never below the
true value by more than rounding.
"""

from __future__ import annotations

from math import exp, inf, log, log1p, sqrt

from aggservice.mechanisms.errors import ParameterError

MICRO = 10**6


def rho_of_pure(epsilon_micro: int) -> int:
    """Return the ρ, in 10⁻⁶ and rounded up, that a pure-ε release costs: ε²/2 (Bun and Steinke 2016, Proposition 1.4).

    >>> rho_of_pure(1_000_000), rho_of_pure(1)
    (500000, 1)
    """
    if not isinstance(epsilon_micro, int) or not epsilon_micro >= 1:
        raise ParameterError(f"ε in 10⁻⁶ must be a positive whole number, not {epsilon_micro!r}")
    return -(-(epsilon_micro**2) // (2 * MICRO))


def epsilon_of_zcdp(rho: float, delta: float) -> float:
    """Return an ε for which ρ-zCDP implies (ε, δ)-DP: the least over orders α of the Rényi bound.

    Canonne, Kamath and Steinke 2020, Proposition 12: ε = αρ + (ln(1/δ) + (α-1)ln(1-1/α) - ln α)/(α-1).
    """
    if not rho >= 0 or not 0 < delta < 1:
        raise ParameterError(f"needs ρ ≥ 0 and 0 < δ < 1, not ρ = {rho}, δ = {delta}")
    if rho == 0:
        return 0.0
    from scipy.optimize import minimize_scalar  # slow to import, and no worker process needs it

    def bound(log_order: float) -> float:
        extra = exp(log_order)  # α - 1
        return (1 + extra) * rho + (log(1 / delta) - log1p(extra)) / extra - log1p(1 / extra)

    found = minimize_scalar(bound, bounds=(-20.0, 40.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def advanced_epsilon(epsilon: float, count: int, slack: float) -> float:
    """Return ε' so that ``count`` ε-DP releases are (ε', slack)-DP together: √(2k ln(1/δ))·ε + kε(e^ε - 1).

    Dwork, Rothblum and Vadhan 2010, Theorem III.3. Never more than the plain sum, which needs no slack.
    """
    if not epsilon >= 0 or not count >= 0 or not 0 < slack < 1:
        raise ParameterError("needs ε ≥ 0, a count ≥ 0 and 0 < slack < 1")
    spread = sqrt(2 * count * log(1 / slack)) * epsilon
    drift = count * epsilon * (exp(epsilon) - 1) if epsilon < 700 else inf
    return min(count * epsilon, spread + drift)
