"""Binomial masses, tails and shortfalls to eleven digits, far out and for up to 2⁵⁰ trials.

With X ~ Bin(n, p), m ≤ (n − 1)p and θ = (1 − p)/p, the sum over x ≤ m of (a + b(m − x))·P[X = x] is

    P[X = m]·(n − m)·∫₀¹ (1 − u)^(n−m−1) (1 + θu)^m (a + b·m·θu/(1 + θu)) du

(Euler's integral of two hypergeometric series). a = 1, b = 0 is P[X ≤ m]; p = ½, a = t − m, b = 1 is E(t − X)₊. Every
term is positive, so nothing cancels: the textbook form of the latter, t·P[X ≤ m] − (n/2)·P[X' ≤ m − 1], subtracts two
numbers that agree in all but a 1/(z√n) of their size, z deviations out.

How much a float can be off (``RELATIVE_ERROR``, which the tests measure against mpmath):

* The mean np is a fraction, and the distance from it is rounded once. So the exponent of the mass, a sum of two
  non-negative terms computed to a few units in the last place, has a relative error of some 10⁻¹⁵; it is at most 745
  where a float is not zero, and the mass is off by less than 10⁻¹¹ (by less than 10⁻¹³ at δ = 10⁻¹⁸). Stirling's series
  is cut where its next term is below 10⁻¹⁶.
* The variance above ``_FEW``: Gauss and Legendre's rule with 32 points on [0, L], where the exponent −ψ of the
  integrand, concave and falling, has passed −42. Beyond L there is less than e^−42·L/42 (ψ is convex). On Bernstein's
  ellipse ρ = 3 around the interval (as far as L/3 beyond its ends, and 2L/3 to its sides) the integrand is below e^25
  times its largest value on it, so the rule errs by less than 10⁻¹⁸ of L times that value (2.4·e^25·3^−62), while
  the integral is more than 1/42² of it.
* Otherwise the series itself, at most some 300 terms until what is left is below 10⁻¹⁸.
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
"""No mass, tail or shortfall below is further than this from the true one, relatively, unless it is under 10⁻³⁰⁰."""
MOST_TRIALS = 2**50
"""Up to here whole numbers, their halves and their sums are floats."""

_FEW = 900.0
_POINTS, _WEIGHTS = (np.ascontiguousarray(values) for values in np.polynomial.legendre.leggauss(32))
_HALF_LOG_2PI = math.log(2 * math.pi) / 2
#: ln x! − ((x + ½) ln x − x + ½ ln 2π) for x = 0…15; the entry of zero is not used.
_STIRLING = np.array(
    [0.0] + [math.lgamma(x + 1) - (x + 0.5) * math.log(x) + x - _HALF_LOG_2PI for x in map(float, range(1, 16))]
)


@njit(cache=True)
def _excess(y: float) -> float:
    """Return y − ln(1 + y) for y > −1, without the cancellation near zero."""
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
    """Return ln x! less Stirling's formula, for whole x ≥ 1."""
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

    For 0 ≤ m ≤ (n − 1)p; where the variance is at most ``_FEW``, for any m from 0 to n.
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
    """Return P[X ≤ m] or, not ``lower``, P[X > m]."""
    if lower:
        return float(_below(m, n, p, q, above, 1.0, 0.0))
    return float(_below(n - m - 1, n, q, p, 1 - above, 1.0, 0.0))


@njit(cache=True)
def _tails(edges: Floats, n: float, p: float, q: float, whole: float, part: float) -> Floats:
    """Return P[X < edge] and P[X ≥ edge], a row each, for whole edges; the smaller of the two has all its digits."""
    tails = np.empty((2, edges.size))
    for i in range(edges.size):
        m = edges[i] - 1
        above = (whole - m) + part
        if m < 0:
            tails[0, i], tails[1, i] = 0.0, 1.0
        elif m >= n:
            tails[0, i], tails[1, i] = 1.0, 0.0
        else:
            # The mirror image of X ≥ edge: at most n − m − 1 misses, whose mean is n − (whole + part). The integral
            # needs the side of the mean that ``edge`` is on, where the variance is large and so either side is at most
            # about a half; the series does not, and takes the smaller side.
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

    The threshold is given twice, as t and as ``deficit`` = trials/2 − t: the smaller of the two is used, which has
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
            above = odd / 2 + math.floor(d - odd / 2) + 1  # the least of …, ½ or 1, 3⁄2 or 2, … that exceeds d
            m = n / 2 - above
            level = above - d
        expected[i] = _below(m, n, 0.5, 0.5, above, level, 1.0) if m >= 0 else 0.0
    return expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Binomial:
    """The law of the number of hits in ``trials`` ≤ 2⁵⁰ trials, each a hit with an exact ``chance`` between 0 and 1."""

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
        """Return P[X < edge] and P[X ≥ edge] for whole edges. ``RELATIVE_ERROR`` is of the smaller of the two."""
        below, above = _tails(edges, *self._numbers())
        return below, above
