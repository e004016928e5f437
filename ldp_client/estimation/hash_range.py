"""How many values LOLOHA should hash to: Eq. 6 of its paper, and the integer of least V* by search."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

from aggservice.mechanisms import exp
from ldp_client.checks import short_text
from ldp_client.errors import ProtocolError
from ldp_client.estimation.steps import Calibration, check_pair

#: Bits after the point: e^(4·64) has 370 bits before it, and the least ε is a millionth.
_PRECISION = 512


def printed_range(permanent: Fraction, first: Fraction) -> int:
    """Return g of Eq. 6: the optimum of V* over real numbers, rounded to the nearest integer; ε∞ is at most 64.

    >>> [printed_range(Fraction(half, 2), Fraction(6, 10) * Fraction(half, 2)) for half in range(1, 11)]
    [2, 2, 3, 3, 4, 5, 7, 9, 12, 17]
    """
    check_pair(permanent, first)
    a, b = (Fraction(exp(each).floor(_PRECISION), 1 << _PRECISION) for each in (permanent, first))
    # For ε near 0 the sum is 0 up to rounding, with either sign; for a large ε the root almost equals a².
    square = a**4 - 14 * a**2 + 12 * a * b * (1 - a * b) + 12 * a**3 * b + 1
    root = Fraction(math.isqrt(max(0, math.floor(square * 4**_PRECISION))), 1 << _PRECISION)
    return 1 + max(1, round((1 - a**2 + root) / (6 * (a - b))))


def variance_over_reports(g: int, permanent: Fraction, first: Fraction, calibration: Calibration) -> float:
    """Return n·V* of LOLOHA with g hash values (Eq. 5 with Algorithm 2's parameters).

    There γ = 1/g, p₁ − 1/g = (a − 1)(1 − 1/g)/(a + g − 1), p₂ − q₂ = (r − 1)/(r + g − 1) with r = e^{ε_IRR}.
    """
    a, over_one = math.exp(permanent), math.expm1(first)
    # r = odds/(a − b), and odds − (a − b) is b − 1 times this factor; no difference of rounded numbers is taken.
    if calibration == "paper":
        factor = a + 1
    elif calibration == "exact":
        factor = a + g - 1
    else:
        raise ProtocolError(f"calibration must be 'paper' or 'exact', not {short_text(calibration)}")
    second = over_one * factor / (over_one * factor + g * math.exp(first) * math.expm1(permanent - first))
    return ((a + g - 1) / (math.expm1(permanent) * second)) ** 2 / (g - 1)


def best_range(permanent: Fraction, first: Fraction, calibration: Calibration) -> int:
    """Return the g ≥ 2 of least V*. V* decreases and then increases with g, so the search is O(log g)."""
    check_pair(permanent, first)

    def rises(g: int) -> bool:
        here = variance_over_reports(g, permanent, first, calibration)
        return variance_over_reports(g + 1, permanent, first, calibration) >= here

    high = 2
    while not rises(high):
        high *= 2
        if high >= 1 << 32:
            raise ProtocolError("the best number of hash values for this ε is above 2^32: use a smaller ε")
    low = max(2, high // 2)
    return low + bisect_left(range(low, high), True, key=rises)
