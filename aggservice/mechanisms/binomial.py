"""Binomial masses, tails and shortfalls to eleven digits, for up to 2⁵⁰ trials and far from the mean.

With X ~ Bin(n, p), m ≤ (n − 1)p and θ = (1 − p)/p, the sum over x ≤ m of (a + b(m − x))·P[X = x] is

    P[X = m]·(n − m)·∫₀¹ (1 − u)^(n−m−1) (1 + θu)^m (a + b·m·θu/(1 + θu)) du

(Euler's integral of two hypergeometric series). For a = 1 and b = 0 it is P[X ≤ m]; for p = ½, a = t − m and b = 1 it
is the shortfall E(t − X)₊. All terms are positive, so no digits cancel. The textbook form of the shortfall,
t·P[X ≤ m] − (n/2)·P[X' ≤ m − 1], subtracts two numbers whose relative difference is only 1/(z√n), z deviations from
the mean.

The relative error is below ``RELATIVE_ERROR``; the tests measure it against mpmath. It consists of:

* The mass. The mean np is a fraction, and the distance from it is rounded once. The exponent of the mass is a sum of
  two non-negative terms with a relative error of about 10⁻¹⁵. It is at most 745 if the mass is not 0 as a float, so
  the mass has an error below 10⁻¹¹ (below 10⁻¹³ at δ = 10⁻¹⁸). Stirling's series ends before its first term below
  10⁻¹⁶.
* The integral, used if the variance is above ``_FEW``: the Gauss-Legendre rule with 32 points on [0, L]. L is where the
  exponent −ψ of the integrand, which is concave and decreasing, has fallen below −42; beyond L there is less than
  e^−42·L/42, because ψ is convex. On Bernstein's ellipse ρ = 3 around the interval (L/3 beyond its ends, 2L/3 to its
  sides) the integrand is below e^25 times its maximum on the interval. So the rule has an error below 10⁻¹⁸·L times
  that maximum (2.4·e^25·3^−62), and the integral is more than L/42² times it.
* The series, used otherwise: at most about 300 terms, until the rest is below 10⁻¹⁸.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RELATIVE_ERROR = 1e-11
"""The largest relative error of a mass, tail or shortfall of this module that is above 10⁻³⁰⁰."""
MOST_TRIALS = 2**50
"""Up to this number, integers, their halves and their sums are exact as floats."""

_FEW = 900.0
_POINTS, _WEIGHTS = (np.ascontiguousarray(values) for values in np.polynomial.legendre.leggauss(32))
_HALF_LOG_2PI = math.log(2 * math.pi) / 2
#: ln x! − ((x + ½) ln x − x + ½ ln 2π) for x = 0…15; the entry for 0 is not used.
_STIRLING = np.array(
    [0.0] + [math.lgamma(x + 1) - (x + 0.5) * math.log(x) + x - _HALF_LOG_2PI for x in map(float, range(1, 16))]
)


@njit(cache=True)
def _excess(y: float) -> float:
    """Return y − ln(1 + y) for y > −1, precise also near 0."""
    if abs(y) > 0.3:
        return y - math.log1p(y)
    r = y / (2 + y)
    s = r * r
    tail = 1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * (1 / 13 + s * (1 / 15 + s * (1 / 17)))))))
    return r * (y - 2 * s * (tail + s**8 / 19))


@njit(cache=True)
def _divergence(y: float) -> float:
    """Return (1 + y) ln(1 + y) − y for y > −1."""
    if abs(y) > 0.3:
        return (1 + y) * math.log1p(y) - y
    return y * y - (1 + y) * _excess(y)


@njit(cache=True)
def _stirling(x: float) -> float:
    """Return ln x! minus Stirling's formula, for integers x ≥ 1."""
    if x < 16:
        return float(_STIRLING[int(x)])
    s = 1 / (x * x)
    return (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360)))))) / x


@njit(cache=True)
def _log_mass(m: float, n: float, p: float, q: float, above: float) -> float:
    """Return ln P[X = m] for X ~ Bin(n, p), q = 1 − p, ``above`` = np − m, 0 < p < 1."""
    if m == 0:
        return n * (math.log1p(-p) if p < 0.5 else math.log(q))
    if m == n:
        return n * (math.log1p(-q) if q < 0.5 else math.log(p))
    hits, misses = n * p, n * q
    exponent = hits * _divergence(-above / hits) + misses * _divergence(above / misses)
    stirling = _stirling(n) - _stirling(m) - _stirling(n - m)
    return stirling - exponent + 0.5 * math.log(n / m / (n - m)) - _HALF_LOG_2PI


@njit(cache=True)
def _below(m: float, n: float, p: float, q: float, above: float, level: float, step: float) -> float:
    """Return the sum over x ≤ m of (level + step·(m − x))·P[Bin(n, p) = x].

    It needs 0 ≤ m ≤ (n − 1)p or, if the variance is at most ``_FEW``, 0 ≤ m ≤ n.
    """
    odds = q / p
    if n * p * q <= _FEW:
        term, total, i = 1.0, level, 0.0
        while i < m:
            term *= (m - i) * odds / (n - m + 1 + i)
            i += 1
            part = term * (level + step * i)
            total += part
            if part < 1e-22 * total:
                break
    else:
        slope = (above - p) / p
        bend = (n - m - 1) + 0.7 * m * odds * odds
        length = 84 / (slope + math.sqrt(slope * slope + 84 * bend))
        total = 0.0
        for i in range(_POINTS.size):
            u = length / 2 * (1 + _POINTS[i])
            y = odds * u
            psi = slope * u + (n - m - 1) * _excess(-u) + m * _excess(y)
            total += _WEIGHTS[i] * math.exp(-psi) * (level + step * m * y / (1 + y))
        total *= length / 2 * (n - m)
    if not total > 0:
        return 0.0
    return math.exp(_log_mass(m, n, p, q, above) + math.log(total))


@njit(cache=True)
def _masses(first: float, count: int, n: float, p: float, q: float, whole: float, part: float) -> Floats:
    """Return P[X = first + i] for i < count; the mean is ``whole`` + ``part``."""
    masses = np.empty(count)
    for i in range(count):
        m = first + i
        masses[i] = math.exp(_log_mass(m, n, p, q, (whole - m) + part))
    return masses


@njit(cache=True)
def _side(lower: bool, m: float, n: float, p: float, q: float, above: float) -> float:
    """Return P[X ≤ m] if ``lower``, else P[X > m]."""
    if lower:
        return float(_below(m, n, p, q, above, 1.0, 0.0))
    return float(_below(n - m - 1, n, q, p, 1 - above, 1.0, 0.0))


@njit(cache=True)
def _tails(edges: Floats, n: float, p: float, q: float, whole: float, part: float) -> Floats:
    """Return one row of P[X < edge] and one of P[X ≥ edge], for integer edges; the smaller of the two is precise."""
    tails = np.empty((2, edges.size))
    for i in range(edges.size):
        m = edges[i] - 1
        above = (whole - m) + part
        if m < 0:
            tails[0, i], tails[1, i] = 0.0, 1.0
        elif m >= n:
            tails[0, i], tails[1, i] = 1.0, 0.0
        else:
            # X ≥ edge means at most n − m − 1 misses, whose mean is n − (whole + part). The integral needs the side of
            # the mean on which ``edge`` lies; there the variance is large, and either side is at most about ½. The
            # series works on both sides, so it takes the smaller one.
            lower = above >= p
            side = _side(lower, m, n, p, q, above)
            if side > 0.5 and n * p * q <= _FEW:
                lower = not lower
                side = _side(lower, m, n, p, q, above)
            side = min(1.0, side)
            tails[0, i], tails[1, i] = (side, 1 - side) if lower else (1 - side, side)
    return tails


@njit(cache=True)
def shortfalls(threshold: Floats, deficit: Floats, trials: Floats) -> Floats:
    """Return E(t − X)₊ for X ~ Bin(trials, ½), for each threshold t ≤ trials/2.

    The threshold is given twice, as t and as ``deficit`` = trials/2 − t. The smaller of the two is used, because it has
    more digits after the point.
    """
    expected = np.empty(threshold.size)
    for i in range(threshold.size):
        n, t, d = trials[i], threshold[i], max(deficit[i], 0.0)
        if t <= 0 or n == 0:
            expected[i] = max(t, 0.0)
            continue
        if t < n / 4:
            m = math.ceil(t) - 1.0
            level = t - m
            above = n / 2 - m
        else:
            odd = n % 2
            above = odd / 2 + math.floor(d - odd / 2) + 1  # the least n/2 − m above d, for an integer m
            m = n / 2 - above
            level = above - d
        expected[i] = _below(m, n, 0.5, 0.5, above, level, 1.0) if m >= 0 else 0.0
    return expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Binomial:
    """The law of the number of hits in ``trials`` ≤ 2⁵⁰ trials, with an exact ``chance`` of a hit between 0 and 1."""

    trials: int
    chance: Fraction

    def _numbers(self) -> tuple[float, float, float, float, float]:
        mean = self.trials * self.chance
        whole = math.floor(mean)
        return float(self.trials), float(self.chance), float(1 - self.chance), float(whole), float(mean - whole)

    def masses(self, first: int, last: int) -> Floats:
        """Return P[X = x] for x = first…last, all within 0…trials."""
        masses: Floats = _masses(float(first), last - first + 1, *self._numbers())
        return masses

    def tails(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return P[X < edge] and P[X ≥ edge] for integer edges. ``RELATIVE_ERROR`` holds for the smaller of the two."""
        below, above = _tails(edges, *self._numbers())
        return below, above
