"""Ratios of noisy sums: means, return on ad spend, and the lift of an experiment, with intervals for small sums too.

Fieller's method: r is in the interval if A − r·B is within the noise of A − r·B. Nothing is divided by a noisy number,
so the interval is valid for sums of any size. If the denominator may be 0, ``Interval.applies`` is False.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.intervals import LAPLACE_EXCESS, deviations, normal_quantile

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
