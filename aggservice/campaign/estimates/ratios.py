"""Ratios of noisy sums: means, return on ad spend, and the lift of an experiment, with intervals for small sums too.

Fieller's method: r is in the interval if A − r·B is within the noise of A − r·B. Nothing is divided by a noisy number,
so the interval is valid for sums of any size. If the denominator may be 0, ``Interval.applies`` is False.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError

Floats = NDArray[np.float64]

LAPLACE_EXCESS = 3.0
"""The excess kurtosis of the Laplace law."""


@lru_cache(maxsize=64)
def normal_quantile(level: float) -> float:
    """Return u with P[|Z| ≤ u] = level for a standard normal Z."""
    if not 0 < level < 1:
        raise CampaignError(f"a level lies between 0 and 1, not {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def deviations(excess: float, level: float = 0.95) -> float:
    """Return how many standard deviations an interval extends for a symmetric law of this excess kurtosis.

    Cornish and Fisher's expansion up to the kurtosis: u + (u³ − 3u)·excess/24. At level 0.95 it covers 0.953 of a
    Laplace law, 0.95 of a normal one, and values between for sums of both.
    """
    u = normal_quantile(level)
    return u + (u**3 - 3 * u) * excess / 24


def half_widths(variances: Floats, fourth: Floats, level: float = 0.95) -> Floats:
    """Return half-widths of intervals for symmetric laws with these variances and fourth cumulants (``deviations``)."""
    none, one = deviations(0.0, level), deviations(1.0, level)
    with np.errstate(invalid="ignore"):
        excess = np.where(np.isfinite(variances), fourth / variances**2, 0.0)
    return np.sqrt(variances) * (none + (one - none) * excess)


_DOUBLINGS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySum:
    """A released sum in natural units, and the variance of its noise; 0 for a number that is known."""

    value: float
    variance: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0 <= self.variance < math.inf):
            raise CampaignError("a noisy sum needs a finite value and a variance of 0 or more")

    def __add__(self, other: NoisySum) -> NoisySum:
        return NoisySum(value=self.value + other.value, variance=self.variance + other.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate and its interval. ``applies`` is False if the data cannot bound the number; the ends are then
    infinite.
    """

    estimate: float
    low: float
    high: float
    level: float
    applies: bool = True

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def ratio(above: NoisySum, below: NoisySum, *, level: float = 0.95) -> Interval:
    """Return above / below with an interval; a mean is a sum of values over a count, ROAS is revenue over cost.

    The interval does not apply if the denominator is not above its own noise.
    """

    def width(r: float) -> float:
        variance = above.variance + r * r * below.variance
        fourth = LAPLACE_EXCESS * (above.variance**2 + (r * r * below.variance) ** 2)
        return _width(variance, fourth, level)

    return _fieller(above.value, below.value, width, _width(below.variance, 3 * below.variance**2, level), level)


def lift(
    treated: NoisySum, control: NoisySum, *, treated_people: float, control_people: float, level: float = 0.95
) -> Interval:
    """Return the relative lift of the conversion rate by a treatment: 0.1 is 10 % more. The interval allows for chance
    as well as noise: conversions are Poisson, with the rates that the tested lift implies (a score interval).

    The interval does not apply if the control group's conversions are not above noise and chance.
    """
    if not (treated_people > 0 and control_people > 0):
        raise CampaignError("an experiment needs people in both groups: give numbers above 0")
    share = treated_people / control_people

    def width(r: float) -> float:
        k = r * share
        # The control's expected conversions if the rates differ by the factor r, from both groups together.
        expected = max(0.0, (treated.value + control.value) / (1 + k)) if k > -1 else 0.0
        variance = treated.variance + k * k * control.variance + expected * k + k * k * expected
        noise = LAPLACE_EXCESS * (treated.variance**2 + (k * k * control.variance) ** 2)
        return _width(max(variance, 0.0), noise + expected * k + k**4 * expected, level) / share

    alone = _width(control.variance + max(0.0, control.value), LAPLACE_EXCESS * control.variance**2, level)
    found = _fieller(treated.value / share, control.value, width, alone, level)
    return Interval(
        estimate=found.estimate - 1, low=found.low - 1, high=found.high - 1, level=level, applies=found.applies
    )


def people_needed(*, rate: float, lift: float, noise_variance: float, level: float = 0.95, power: float = 0.8) -> int:
    """Return how many people each of two equal groups needs, so that a lift of this size is found with this power.

    ``rate`` is the control's conversions per person, ``noise_variance`` that of each group's noisy count. By the normal
    approximation: n²·d² = z²·(n·(p + q) + 2·variance) for rates p, q with d = q − p.
    """
    if not (rate > 0 and lift > -1 and lift != 0 and noise_variance >= 0 and 0 < power < 1):
        raise CampaignError("the sample size needs a rate above 0, a lift above -1 that is not 0, and a power below 1")
    z = normal_quantile(level) + normal_quantile(2 * power - 1) if power > 0.5 else normal_quantile(level)
    both, off = rate * (2 + lift), (rate * lift) ** 2
    n = (z * z * both + math.sqrt((z * z * both) ** 2 + 8 * z * z * noise_variance * off)) / (2 * off)
    return math.ceil(n)


def _width(variance: float, fourth: float, level: float) -> float:
    """Return one half-width of ``half_widths``."""
    if variance == 0:
        return 0.0
    return math.sqrt(variance) * deviations(fourth / (variance * variance), level)


def _fieller(above: float, below: float, width: Callable[[float], float], of_below: float, level: float) -> Interval:
    """Return the numbers r for which above − r·below is within width(r); the denominator must exceed its noise."""
    if not below > of_below:
        estimate = above / below if below else math.nan
        return Interval(estimate=estimate, low=-math.inf, high=math.inf, level=level, applies=False)
    middle = above / below

    def inside(r: float) -> bool:
        return abs(above - r * below) <= width(r)

    ends = []
    for sign in (-1.0, 1.0):
        step = max(abs(middle), 1e-9) * 1e-3 + width(middle) / below
        if step == 0:
            ends.append(middle)
            continue
        near, far = middle, middle + sign * step
        doublings = 0
        while inside(far) and doublings < _DOUBLINGS:
            near, far, doublings = far, middle + 2 * (far - middle), doublings + 1
        if doublings == _DOUBLINGS:
            return Interval(estimate=middle, low=-math.inf, high=math.inf, level=level, applies=False)
        for _ in range(100):
            half = (near + far) / 2
            near, far = (half, far) if inside(half) else (near, half)
        ends.append(near)
    return Interval(estimate=middle, low=ends[0], high=ends[1], level=level)


def quantile(counts: Floats, variances: Floats, p: float, *, level: float = 0.95) -> Interval:
    """Return the bucket of the p-quantile as an index, with an interval of buckets that holds it.

    The bucket b is the first with (1 − p)·(counts up to b) ≥ p·(counts above b). The law of that difference is known
    for every b; b is in the interval unless the difference at b is below, or that at b − 1 above, what noise explains,
    at half the error each (Bonferroni). The interval does not apply if the total is not above its noise.
    """
    if not (counts.shape == variances.shape and counts.ndim == 1 and counts.size):
        raise CampaignError("a histogram needs one count and one variance per bucket")
    if not (0 < p < 1 and np.all(variances >= 0) and np.all(np.isfinite(variances))):
        raise CampaignError("a quantile needs p between 0 and 1, and finite variances of 0 or more")
    total, spread = counts.sum(), variances.sum()
    fourth = LAPLACE_EXCESS * (variances**2).sum()
    if not total > (spread**0.5 * deviations(fourth / spread**2, level) if spread else 0.0):
        return Interval(estimate=np.nan, low=-np.inf, high=np.inf, level=level, applies=False)

    def both(column: Floats, power: int) -> Floats:
        """Return (1 − p)^power · (sum up to b) + p^power · (sum above b)."""
        up = np.cumsum(column)
        return (1 - p) ** power * up + p**power * (up[-1] - up)

    up = np.cumsum(counts)
    off = (1 - p) * up - p * (total - up)
    # One-sided tests at half the error each: the two-sided width of the same level is what each of them needs.
    width = np.zeros(counts.size)
    known = both(variances, 2)
    noisy = known > 0
    width[noisy] = half_widths(known[noisy], LAPLACE_EXCESS * both(variances**2, 4)[noisy], level)
    reached = off >= -width
    before = np.concatenate(([True], off[:-1] <= width[:-1]))
    inside = np.flatnonzero(reached & before)
    found = int(np.argmax(off >= 0))
    low, high = (int(inside[0]), int(inside[-1])) if inside.size else (found, found)
    return Interval(estimate=float(found), low=float(low), high=float(high), level=level)
