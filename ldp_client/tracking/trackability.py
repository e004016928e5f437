"""The trackability random variable of a permanent-state client, estimated with intervals (Naor and Vexler, section 5).

τ for k reports is the largest |ln Pr[one user]/Pr[two users]| over ⌊k/2⌋ streams of two users, the i-th split after i
reports, and ⌈k/2⌉ streams of one user, all drawn independently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from aggservice.mechanisms import Bits
from ldp_client.checks import is_chance, is_count, short_text
from ldp_client.errors import ProtocolError
from ldp_client.tracking.stream_laws import StreamLaw

Floats = NDArray[np.float64]

_BATCH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """An estimated quantile of τ and its interval, which assumes nothing about the distribution of τ."""

    level: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trackability:
    """Independent draws of τ for a number of reports, in ascending order."""

    reports: int
    draws: Floats

    def percentile(self, level: float, confidence: float = 0.95) -> Percentile:
        """Return the quantile at ``level`` with an interval of at least ``confidence``.

        The number of draws below the true quantile is binomial, which gives a pair of order statistics. With too few
        draws for a bounded interval, its end is infinity (or 0, the least value of τ).
        """
        if not is_chance(level) or not is_chance(confidence):
            raise ProtocolError(
                f"level and confidence must lie in (0, 1), not {short_text(level)} and {short_text(confidence)}"
            )
        count = self.draws.size
        miss = (1 - confidence) / 2
        low = int(binom.ppf(miss, count, level)) - 1
        high = int(binom.isf(miss, count, level))
        return Percentile(
            level=level,
            value=self._quantile(level),
            low=float(self.draws[low]) if low >= 0 else 0.0,
            high=float(self.draws[high]) if high < count else float("inf"),
        )

    def _quantile(self, level: float) -> float:
        above = float(np.quantile(self.draws, level, method="higher"))
        return above if np.isinf(above) else float(np.quantile(self.draws, level))  # ∞ − ∞ has no middle


def trackability(
    law: StreamLaw, reports: int, draws: int, bits: Bits, each: Callable[[int], None] | None = None
) -> Trackability:
    """Return ``draws`` independent draws of τ for ``reports`` reports; ``each`` is called with the number done.

    The time grows with the square of the number of reports.
    """
    if not is_count(reports, 2):
        raise ProtocolError(f"tracking needs at least two reports, not {short_text(reports)}")
    if not is_count(draws, 1):
        raise ProtocolError(f"tracking needs at least one draw, not {short_text(draws)}")
    found = np.empty(draws)
    for start in range(0, draws, _BATCH):
        size = min(_BATCH, draws - start)
        worst = np.zeros(size)
        for first in range(1, reports // 2 + 1):
            worst = np.maximum(worst, gap(law, bits, first, reports - first, size, same=False))
        for first in range(1, (reports + 1) // 2 + 1):
            worst = np.maximum(worst, gap(law, bits, first, reports - first, size, same=True))
        found[start : start + size] = worst
        if each is not None:
            each(start + size)
    return Trackability(reports=reports, draws=np.sort(found))


def gap(law: StreamLaw, bits: Bits, first: int, second: int, users: int, *, same: bool) -> Floats:
    """Return C of section 5 for each of ``users`` new streams, each of one user or of two, split after ``first``."""
    one, two = law.parts(bits, first, second, users, same=same)
    together = law.log_probability(one, two)
    apart = law.log_probability(one) + law.log_probability(two)
    return np.abs(together - apart)
