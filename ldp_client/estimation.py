"""The probabilities of each randomization step, as exact real numbers, and the estimator from counts to frequencies.

Sections and equations are those of the LOLOHA paper (Arcolezi, Palamidessi, Pinzón and Gambs, EDBT 2023). A report
supports the user's value with probability p and any given other value with probability q; with n reports, of which C(v)
support v, f̂(v) = (C(v)/n − q)/(p − q). For two steps p − q = (p₁ − q₁)(p₂ − q₂), and this is Eq. 3; for local hashing
q = 1/g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from aggservice.mechanisms import Real, exp
from ldp_client.checks import check_stream, is_chance, is_count, short_text
from ldp_client.errors import LdpParameterError, ReportError

Floats = NDArray[np.float64]
#: ``paper`` follows the printed formulas; ``exact`` has exactly the requested ε of a first report.
Calibration = Literal["paper", "exact"]

MICRO = 1_000_000
_LARGEST_MICRO = 64 * MICRO


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStep:
    """One step of randomization: ``p`` is the probability to keep the true value, ``q`` to report a given other one."""

    p: Real
    q: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseChain:
    """A permanent step and, in a protocol with two steps, the instantaneous step of each report."""

    permanent: ResponseStep
    instant: ResponseStep | None = None

    def keep(self) -> Real:
        """Return the probability that a report supports the value it was made from."""
        return _through(self.permanent.p, self.instant)

    def mistake(self) -> Real:
        """Return the probability that a report supports one given other value (or that such a bit is set)."""
        return _through(self.permanent.q, self.instant)

    def first_grr(self) -> float:
        """Return the ε of one report of a GRR chain: ln of ``keep`` over ``mistake``."""
        keep, mistake = self.keep(), self.mistake()
        return _log_one_plus((keep - mistake) / mistake)

    def first_unary(self) -> float:
        """Return the ε of one report of a unary chain: two bits differ between two values (§2.3.3)."""
        keep, mistake = self.keep(), self.mistake()
        return _log_one_plus((keep - mistake) / (mistake * (1 - keep)))


def _log_one_plus(excess: Real) -> float:
    """Return ln(1 + excess) to a few units in the last place, also for an excess close to 0."""
    above = float(excess)
    return math.log1p(above) if above < 0.25 else math.log(float(excess + 1))


def _through(reach: Real, instant: ResponseStep | None) -> Real:
    return reach if instant is None else reach * instant.p + (1 - reach) * instant.q


def epsilon(micro: int) -> Fraction:
    """Return ε from a number of millionths; LdpParameterError if it is not in (0, 64]."""
    if isinstance(micro, bool) or not isinstance(micro, int) or not 0 < micro <= _LARGEST_MICRO:
        raise LdpParameterError(
            f"ε must be above 0 and at most {_LARGEST_MICRO // MICRO} in whole millionths, not {short_text(micro)}"
        )
    return Fraction(micro, MICRO)


def epsilon_pair(permanent_micro: int, first_micro: int) -> tuple[Fraction, Fraction]:
    """Return (ε∞, ε₁); LdpParameterError unless 0 < ε₁ < ε∞ (Algorithm 1)."""
    permanent, first = epsilon(permanent_micro), epsilon(first_micro)
    if not first < permanent:
        raise LdpParameterError(
            f"the first report's ε₁ = {float(first)} must be below the limit ε∞ = {float(permanent)}: "
            "a second step can only add privacy"
        )
    return permanent, first


def check_pair(permanent: Fraction, first: Fraction) -> None:
    """Raise ``LdpParameterError`` unless 0 < ε₁ < ε∞ ≤ 64, at least a millionth apart, as the numerics need."""
    step, most = Fraction(1, MICRO), _LARGEST_MICRO // MICRO
    if not (step <= first and first + step <= permanent <= most):
        raise LdpParameterError(
            f"ε₁ and ε∞ must satisfy 0.000001 ≤ ε₁ ≤ ε∞ − 0.000001 and ε∞ ≤ {most}, not "
            f"ε₁ = {short_text(first)} and ε∞ = {short_text(permanent)}"
        )


def check_size(size: int, what: str, least: int = 2, most: int = (1 << 32) - 1) -> None:
    """Raise ``LdpParameterError`` unless ``size``, a number of values or buckets, is an integer in [least, most]."""
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= most:
        raise LdpParameterError(f"{what} must be an integer from {least} to {most}, not {short_text(size)}")


def grr(size: int, ratio: Real) -> ResponseStep:
    """Return the GRR step over ``size`` values with p/q = ``ratio`` (§2.3.1)."""
    total = ratio + (size - 1)
    return ResponseStep(p=ratio / total, q=1 / total)


def symmetric(ratio: Real) -> ResponseStep:
    """Return the bit-flipping step with p + q = 1 and p/q = ``ratio`` (SUE with ratio e^{ε/2}, §2.3.3)."""
    total = ratio + 1
    return ResponseStep(p=ratio / total, q=1 / total)


def oue(limit: Fraction) -> ResponseStep:
    """Return the optimized unary step: p = ½, q = 1/(e^ε + 1) (§2.3.3)."""
    return ResponseStep(p=Real.of(Fraction(1, 2)), q=1 / (exp(limit) + 1))


def chained_ratio(permanent: Real, first: Real) -> Real:
    """Return r with (permanent·r + 1)/(permanent + r) = ``first``: two binary symmetric steps in a row.

    This is e^{ε_IRR} of Algorithm 1, step 3; with square roots of e^ε, the odds of L-SUE's second step.
    """
    return (permanent * first - 1) / (permanent - first)


def instant_grr(size: int, permanent: Fraction, first: Fraction, calibration: Calibration) -> ResponseStep:
    """Return the second GRR step over ``size`` values for a first report of ε₁.

    ``paper`` (Theorem 3.4, §2.4.3) ignores the (size − 2)·q₁q₂ paths through a third value, so for size > 2 the first
    report is more private than requested. ``exact`` counts them:
    e^{ε_IRR} = (e^{ε₁}(e^{ε∞} + size − 2) − (size − 1)) / (e^{ε∞} − e^{ε₁}).
    """
    limit, once = exp(permanent), exp(first)
    if calibration == "paper":
        return grr(size, chained_ratio(limit, once))
    if calibration == "exact":
        return grr(size, (once * (limit + (size - 2)) - (size - 1)) / (limit - once))
    raise LdpParameterError(f"calibration must be 'paper' or 'exact', not {short_text(calibration)}")


def grr_chain(size: int, permanent_micro: int, first_micro: int | None, calibration: Calibration) -> ResponseChain:
    """Return GRR over ``size`` values, with a second step if the ε₁ of a first report is given."""
    permanent = grr(size, exp(epsilon(permanent_micro)))
    if first_micro is None:
        return ResponseChain(permanent=permanent)
    pair = epsilon_pair(permanent_micro, first_micro)
    return ResponseChain(permanent=permanent, instant=instant_grr(size, *pair, calibration))


def asked_epsilon(first_micro: int | None) -> float | None:
    """Return the requested ε₁, or None."""
    return None if first_micro is None else float(epsilon(first_micro))


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
            raise LdpParameterError(f"0 ≤ q < p ≤ 1 and 0 < sampled ≤ 1 must hold, not {short_text(self)}")

    @staticmethod
    def of(chain: ResponseChain, size: int | None = None) -> Support:
        """Return the support of a chain; with ``size``, of a hash to that many values (q₁' = 1/g, Algorithm 2)."""
        wrong = chain.mistake() if size is None else Real.of(1) / size
        return Support(p=float(chain.keep()), q=float(wrong))

    def variance(self, reports: int, frequency: Floats | float = 0.0) -> Floats:
        """Return the exact variance of f̂ for a true frequency of ``frequency``.

        Users with the value are Bernoulli(p), the others Bernoulli(q). (The printed Eq. 4 uses p(1 − p) as if p were
        1 − q, which holds only for symmetric steps.) Sampling d of b bits adds f(b/d − 1)/n.
        """
        check_stream(reports)
        f = np.asarray(frequency, dtype=np.float64)
        spread = f * self.p * (1 - self.p) + (1 - f) * self.q * (1 - self.q)
        extra = f * (1 / self.sampled - 1)
        return np.asarray((spread / (self.sampled * (self.p - self.q) ** 2) + extra) / reports)

    def approximate_variance(self, reports: int) -> float:
        """Return V*: the variance for a value with frequency 0 (Eq. 5)."""
        check_stream(reports)
        return self.q * (1 - self.q) / (reports * self.sampled * (self.p - self.q) ** 2)

    def error_bound(self, reports: int, size: int, beta: float) -> float:
        """Return a bound on max |f̂ − f| over ``size`` values that holds with probability 1 − β (Proposition 3.6).

        It follows the proposition's Chebyshev argument, with the squares that its last line omits.
        """
        check_stream(reports)
        if not is_count(size, 1):
            raise LdpParameterError(f"size must be an integer of at least 1, not {short_text(size)}")
        if not is_chance(beta):
            raise LdpParameterError(f"β must lie in (0, 1), not {short_text(beta)}")
        return math.sqrt(size / (4 * reports * beta * self.sampled)) / (self.p - self.q)

    def estimate(
        self, counts: NDArray[np.int64], reports: int, speaking: NDArray[np.int64] | None = None
    ) -> FrequencyEstimate:
        """Return the frequencies behind ``counts`` of supporting reports.

        ``speaking`` is how many reports cover each value, if not all do: then the noise of those reports is subtracted,
        and the sum is divided by their expected number (Ding, Kulkarni and Yekhanin, §3.2), which is unbiased.
        """
        if not reports > 0:
            raise ReportError("there are no reports to estimate from")
        heard = reports if speaking is None else speaking
        frequencies = (counts - heard * self.q) / (reports * self.sampled * (self.p - self.q))
        return FrequencyEstimate(frequencies=frequencies, reports=reports, support=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyEstimate:
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
        raise LdpParameterError(f"the confidence must lie in (0, 1), not {short_text(confidence)}")
    miss = (1 - confidence) / (max(1, frequencies.size) if simultaneous else 1)
    half = norm.isf(miss / 2) * deviations
    return frequencies - half, frequencies + half
