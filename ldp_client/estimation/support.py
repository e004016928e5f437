"""From counts to frequencies: the one estimator behind every protocol, its variance and its intervals.

Each protocol makes a report support its own value with probability p and any other given value with probability q;
with n reports and C(v) that support v, f̂(v) = (C(v)/n − q)/(p − q). For two steps p − q = (p₁ − q₁)(p₂ − q₂), and
this is Eq. 3 of the LOLOHA paper; for local hashing q = 1/g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from aggservice.mechanisms import Real
from ldp_client.checks import is_chance, is_count, shown
from ldp_client.errors import ProtocolError, ReportError
from ldp_client.estimation.steps import Chain

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The chance that a report supports the value it came from (``p``) and that it supports a given other (``q``).

    ``sampled`` is the share of values on which a report speaks at all: d/b for dBitFlipPM, else 1.
    """

    p: float
    q: float
    sampled: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.q < self.p <= 1 or not 0 < self.sampled <= 1:
            raise ProtocolError(f"0 ≤ q < p ≤ 1 and 0 < sampled ≤ 1 must hold, not {shown(self)}")

    @staticmethod
    def of(chain: Chain, size: int | None = None) -> Support:
        """Return the support of a chain; with ``size``, of a hash to that many values (q₁' = 1/g, Algorithm 2)."""
        wrong = chain.mistake() if size is None else Real.of(1) / size
        return Support(p=float(chain.keep()), q=float(wrong))

    def variance(self, reports: int, frequency: Floats | float = 0.0) -> Floats:
        """Return the exact variance of f̂ where the true frequency is ``frequency``.

        Holders of the value are Bernoulli(p), the others Bernoulli(q). (The printed Eq. 4 weighs p(1 − p) as if p
        were 1 − q, which holds for symmetric steps only.) Sampling d of b bits adds f(b/d − 1)/n.
        """
        _check_reports(reports)
        f = np.asarray(frequency, dtype=np.float64)
        spread = f * self.p * (1 - self.p) + (1 - f) * self.q * (1 - self.q)
        extra = f * (1 / self.sampled - 1)
        return np.asarray((spread / (self.sampled * (self.p - self.q) ** 2) + extra) / reports)

    def approximate_variance(self, reports: int) -> float:
        """Return V*: the variance of a value nobody holds (Eq. 5)."""
        _check_reports(reports)
        return self.q * (1 - self.q) / (reports * self.sampled * (self.p - self.q) ** 2)

    def error_bound(self, reports: int, size: int, beta: float) -> float:
        """Return a bound that max |f̂ − f| over ``size`` values keeps with probability 1 − β (Proposition 3.6).

        The proposition's Chebyshev argument, with the squares that its last line loses.
        """
        _check_reports(reports)
        if not is_count(size, 1):
            raise ProtocolError(f"the bound is over at least one value, not {shown(size)}")
        if not is_chance(beta):
            raise ProtocolError(f"β must lie in (0, 1), not {shown(beta)}")
        return math.sqrt(size / (4 * reports * beta * self.sampled)) / (self.p - self.q)

    def estimate(self, counts: NDArray[np.int64], reports: int, speaking: NDArray[np.int64] | None = None) -> Estimate:
        """Return the frequencies behind ``counts`` of supporting reports.

        ``speaking`` is how many reports spoke on each value, where that is not all of them: its noise is then taken
        off as it came, and the sum is divided by the expected number (Ding, Kulkarni and Yekhanin, §3.2), which
        is unbiased.
        """
        if not reports > 0:
            raise ReportError("there are no reports to estimate from")
        heard = reports if speaking is None else speaking
        frequencies = (counts - heard * self.q) / (reports * self.sampled * (self.p - self.q))
        return Estimate(frequencies=frequencies, reports=reports, support=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Unbiased frequencies of all values; single ones may be below 0 or above 1."""

    frequencies: Floats
    reports: int
    support: Support

    def variances(self) -> Floats:
        """Return the variance of each frequency, with the estimate itself (within [0, 1]) for the truth."""
        return self.support.variance(self.reports, self.frequencies.clip(0, 1))

    def interval(self, confidence: float = 0.95, *, simultaneous: bool = False) -> tuple[Floats, Floats]:
        """Return normal intervals of each frequency, or of all of them at once (Bonferroni)."""
        if not is_chance(confidence):
            raise ProtocolError(f"confidence must lie in (0, 1), not {shown(confidence)}")
        miss = (1 - confidence) / (self.frequencies.size if simultaneous else 1)
        half = norm.isf(miss / 2) * np.sqrt(self.variances())
        return self.frequencies - half, self.frequencies + half

    def normalised(self) -> Floats:
        """Return the frequencies cut at 0 and scaled to sum to 1: a distribution, no longer unbiased."""
        kept = self.frequencies.clip(0)
        total = kept.sum()
        return kept / total if total > 0 else np.full(kept.size, 1 / kept.size)

    def mse(self, truth: Floats) -> float:
        """Return the mean squared error against true frequencies (the inner mean of Eq. 7)."""
        return float(np.mean((self.frequencies - truth) ** 2))


def _check_reports(reports: int) -> None:
    if not is_count(reports, 1):
        raise ProtocolError(f"a variance or an error is that of at least one report, not {shown(reports)}")
