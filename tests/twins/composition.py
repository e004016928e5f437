"""Conversions between notions of privacy, which tests compare with the accountant of another library."""

from __future__ import annotations

from math import exp, log, log1p

from scipy.optimize import minimize_scalar

from aggservice.mechanisms import ParameterError

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

    def bound(log_order: float) -> float:
        extra = exp(log_order)  # α - 1
        return (1 + extra) * rho + (log(1 / delta) - log1p(extra)) / extra - log1p(1 / extra)

    found = minimize_scalar(bound, bounds=(-20.0, 40.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))
