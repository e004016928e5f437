"""The price of a shuffled report: an upper bound on its central ε after shuffling, in whole millionths, rounded up.

The service computes the price with this module, and auditors check it with the same code.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache

from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.shuffling import check_whole, closed_epsilon, small_epsilon

_MICRO = 10**6
_ATTO = 10**18


class AmplificationBound(StrEnum):
    """The bound used for the central ε of a shuffle; each one holds for every ε₀-LDP randomizer.

    ``numerical`` is the tightest. ``closed`` is Theorem 7 of "Amplification by Shuffling" (2019). ``small`` is its
    special case for at least 1,000 reports, ε₀ < ½ and δ < 1/100, which is also Corollary 9.
    """

    NUMERICAL = "numerical"
    CLOSED = "closed"
    SMALL = "small"

    def epsilon(self, local: float, reports: int, delta: float) -> float:
        """Return the central ε at δ; raise ``ParameterError`` with the reason if the bound does not apply."""
        match self:
            case AmplificationBound.NUMERICAL:
                from aggservice.mechanisms.clones import shuffled_epsilon  # most processes never shuffle

                return shuffled_epsilon(local, reports, delta)
            case AmplificationBound.CLOSED:
                return closed_epsilon(local, reports, delta)
            case AmplificationBound.SMALL:
                return small_epsilon(local, reports, delta)


@lru_cache(maxsize=4096, typed=True)
def amplified_micro(bound: AmplificationBound, *, local_micro: int, reports: int, delta_atto: int) -> int:
    """Return the central ε of one of ``reports`` shuffled reports, in millionths; never above ``local_micro``.

    Raises ``ParameterError`` with the reason if the bound does not apply.

    >>> amplified_micro(AmplificationBound.NUMERICAL, local_micro=300_000, reports=10_000, delta_atto=10**12)
    9878
    """
    check_whole(local_micro, "a local epsilon in millionths")
    check_whole(reports, "the number of reports")
    check_whole(delta_atto, "delta in units of 10⁻¹⁸")
    if not reports >= 2:
        raise ParameterError(f"a shuffle of {reports} reports hides nothing: use at least two reports")
    local, delta = local_micro / _MICRO, delta_atto / _ATTO
    # A float may be off by a unit in the last place, so round the local epsilon up and delta down.
    central = bound.epsilon(math.nextafter(local, math.inf), reports, math.nextafter(delta, 0))
    if not central < local:
        return local_micro
    return min(local_micro, max(1, math.ceil(central * _MICRO * (1 + 1e-12))))
