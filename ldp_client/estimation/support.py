"""From counts to frequencies: the estimator of every protocol, its variance and its intervals.

A report supports the user's value with probability p and any given other value with probability q; with n reports, of
which C(v) support v, f̂(v) = (C(v)/n − q)/(p − q). For two steps p − q = (p₁ − q₁)(p₂ − q₂), and
this is Eq. 3 of the LOLOHA paper; for local hashing q = 1/g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from aggservice.mechanisms import Real
from ldp_client.checks import is_chance, is_count, short_text
from ldp_client.errors import ProtocolError, ReportError
from ldp_client.estimation.steps import Chain

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The probability that a report supports the user's value (``p``), and a given other value (``q``).

    ``sampled`` is the share of values that a report covers: d/b for dBitFlipPM, else 1.
    """

    p: float
    q: float
    sampled: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.q < self.p <= 1 or not 0 < self.sampled <= 1:
            raise ProtocolError(f"0 ≤ q < p ≤ 1 and 0 < sampled ≤ 1 must hold, not {short_text(self)}")

    @staticmethod
    def of(chain: Chain, size: int | None = None) -> Support:
        """Return the support of a chain; with ``size``, of a hash to that many values (q₁' = 1/g, Algorithm 2)."""
        wrong = chain.mistake() if size is None else Real.of(1) / size
        return Support(p=float(chain.keep()), q=float(wrong))

    def variance(self, reports: int, frequency: Floats | float = 0.0) -> Floats:
        """Return the exact variance of f̂ for a true frequency of ``frequency``.

        Users with the value are Bernoulli(p), the others Bernoulli(q). (The printed Eq. 4 uses p(1 − p) as if p were
        1 − q, which holds only for symmetric steps.) Sampling d of b bits adds f(b/d − 1)/n.
        """
        _check_reports(reports)
        f = np.asarray(frequency, dtype=np.float64)
        spread = f * self.p * (1 - self.p) + (1 - f) * self.q * (1 - self.q)
        extra = f * (1 / self.sampled - 1)
        return np.asarray((spread / (self.sampled * (self.p - self.q) ** 2) + extra) / reports)

    def approximate_variance(self, reports: int) -> float:
        """Return V*: the variance for a value with frequency 0 (Eq. 5)."""
        _check_reports(reports)
        return self.q * (1 - self.q) / (reports * self.sampled * (self.p - self.q) ** 2)

    def error_bound(self, reports: int, size: int, beta: float) -> float:
        """Return a bound on max |f̂ − f| over ``size`` values that holds with probability 1 − β (Proposition 3.6).

        It follows the proposition's Chebyshev argument, with the squares that its last line omits.
        """
        _check_reports(reports)
        if not is_count(size, 1):
            raise ProtocolError(f"size must be an integer of at least 1, not {short_text(size)}")
        if not is_chance(beta):
            raise ProtocolError(f"β must lie in (0, 1), not {short_text(beta)}")
        return math.sqrt(size / (4 * reports * beta * self.sampled)) / (self.p - self.q)

    def estimate(self, counts: NDArray[np.int64], reports: int, speaking: NDArray[np.int64] | None = None) -> Estimate:
        """Return the frequencies behind ``counts`` of supporting reports.

        ``speaking`` is how many reports cover each value, if not all do: then the noise of those reports is subtracted,
        and the sum is divided by their expected number (Ding, Kulkarni and Yekhanin, §3.2), which is unbiased.
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
        """Return the variance of each frequency; the estimate, clipped to [0, 1], stands for the true frequency."""
        return self.support.variance(self.reports, self.frequencies.clip(0, 1))

    def interval(self, confidence: float = 0.95, *, simultaneous: bool = False) -> tuple[Floats, Floats]:
        """Return normal intervals of each frequency, or of all of them at once (Bonferroni)."""
        return normal_intervals(self.frequencies, np.sqrt(self.variances()), confidence, simultaneous)

    def normalised(self) -> Floats:
        """Return the frequencies cut at 0 and scaled to sum to 1: a distribution, no longer unbiased."""
        kept = self.frequencies.clip(0)
        total = kept.sum()
        return kept / total if total > 0 else np.full(kept.size, 1 / kept.size)

    def mse(self, truth: Floats) -> float:
        """Return the mean squared error against true frequencies (the inner mean of Eq. 7)."""
        return float(np.mean((self.frequencies - truth) ** 2))


def normal_intervals(
    frequencies: Floats, deviations: Floats | float, confidence: float, simultaneous: bool
) -> tuple[Floats, Floats]:
    """Return the low and high ends of normal intervals: one by one, or simultaneous for all (Bonferroni)."""
    if not is_chance(confidence):
        raise ProtocolError(f"the confidence must lie in (0, 1), not {short_text(confidence)}")
    miss = (1 - confidence) / (max(1, frequencies.size) if simultaneous else 1)
    half = norm.isf(miss / 2) * deviations
    return frequencies - half, frequencies + half


def _check_reports(reports: int) -> None:
    if not is_count(reports, 1):
        raise ProtocolError(f"reports must be an integer of at least 1, not {short_text(reports)}")
