"""Quantiles, means, ratios and lift: intervals cover at the stated rate, small counts included, or do not apply."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.ratios import NoisySum, lift, people_needed, quantile, ratio
from aggservice.mechanisms import DiscreteLaplace, SecureBits

LAW = DiscreteLaplace(epsilon_micro=1_000_000, sensitivity=10)
VARIANCE = float(LAW.variance())
REPETITIONS = 2000
#: P[Bin(2000, 0.945) ≤ 1822] < 10⁻⁸: with a true coverage of at least 94.5 % none of the tests below fails by chance.
LEAST = 1823


def noise(*shape: int) -> np.ndarray:
    return LAW.sample(SecureBits(), math.prod(shape)).reshape(shape).astype(np.float64)


@pytest.mark.parametrize(
    ("above", "below"), [(5000.0, 1000.0), (50.0, 200.0), (0.0, 100.0), (400.0, 60.0), (30.0, 10.0), (5.0, 0.0)]
)
def test_ratios_cover(above: float, below: float) -> None:
    """The interval contains the true ratio in 95 % of 2,000 repetitions, or does not apply.

    Where it applies, coverage given that it does is that of Fieller's set, at least 94.5 %; an interval that does not
    apply is the whole line and covers. False alarms: below 10⁻⁸ each (``LEAST``).
    """
    drawn = noise(REPETITIONS, 2)
    found = [
        ratio(NoisySum(value=above + a, variance=VARIANCE), NoisySum(value=below + b, variance=VARIANCE))
        for a, b in drawn
    ]
    if below:
        assert sum((above / below) in one for one in found) >= LEAST
    applied = sum(one.applies for one in found)
    if below >= 100:
        assert applied >= 1990
    if below == 0:
        assert applied <= 200  # one side of a 95 % test: 2.5 % of them, P[Bin(2000, 0.03) > 200] < 10⁻³⁰


def test_a_known_cost_is_only_divided_by() -> None:
    found = ratio(NoisySum(value=300.0, variance=VARIANCE), NoisySum(value=100.0))
    half = 14.142 * 2.1664
    assert found.estimate == 3 and found.low == pytest.approx(3 - half / 100, rel=2e-2)
    assert found.high - 3 == pytest.approx(3 - found.low, rel=1e-6)
    exact = ratio(NoisySum(value=6.0), NoisySum(value=2.0))
    assert (exact.low, exact.estimate, exact.high) == pytest.approx((3, 3, 3), abs=1e-2)


@pytest.mark.parametrize(
    ("rate", "gain", "people"), [(0.05, 0.2, 20_000), (0.02, 0.0, 8_000), (0.01, 0.5, 4_000), (0.002, 0.0, 3000)]
)
def test_lift_covers(rate: float, gain: float, people: int) -> None:
    """The interval of the lift contains it in 95 % of 2,000 experiments with Poisson conversions and Laplace noise.

    False alarms: below 10⁻⁸ each, if the true coverage is at least 94.5 % (``LEAST``).
    """
    draws = np.random.default_rng()
    treated = draws.poisson(rate * (1 + gain) * people, REPETITIONS) + noise(REPETITIONS)
    control = draws.poisson(rate * 2 * people, REPETITIONS) + noise(REPETITIONS)
    found = [
        lift(
            NoisySum(value=t, variance=VARIANCE),
            NoisySum(value=c, variance=VARIANCE),
            treated_people=people,
            control_people=2 * people,
        )
        for t, c in zip(treated, control, strict=True)
    ]
    assert sum(gain in one for one in found) >= LEAST


def test_the_sample_size_gives_the_power() -> None:
    """With the people that ``people_needed`` names, 80 % of experiments find the lift.

    P[Bin(2000, 0.77) ≤ 1422] < 10⁻⁸: the normal approximation may miss 3 % of power. Half the people find it less.
    """
    need = people_needed(rate=0.03, lift=0.15, noise_variance=VARIANCE)
    draws = np.random.default_rng()
    shares = []
    for people in (need, need // 2):
        hits = 0
        treated = draws.poisson(0.03 * 1.15 * people, REPETITIONS) + noise(REPETITIONS)
        control = draws.poisson(0.03 * people, REPETITIONS) + noise(REPETITIONS)
        for t, c in zip(treated, control, strict=True):
            one = lift(
                NoisySum(value=t, variance=VARIANCE),
                NoisySum(value=c, variance=VARIANCE),
                treated_people=people,
                control_people=people,
            )
            hits += one.low > 0
        shares.append(hits)
    assert shares[0] >= 1423 and shares[1] < shares[0]
    assert people_needed(rate=0.03, lift=0.15, noise_variance=100 * VARIANCE) > need


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("scale", [3.0, 30.0, 3000.0])
def test_quantiles_cover(p: float, scale: float) -> None:
    """The interval of buckets holds the bucket of the true quantile in at least 95 % of 2,000 repetitions.

    Bonferroni makes coverage at least 94.5 % with the widths' error; false alarms below 10⁻⁸ each (``LEAST``).
    """
    shape = np.exp(-(((np.arange(40) - 14) / 6.0) ** 2))
    truth = np.floor(scale * shape)
    up = np.cumsum(truth)
    bucket = int(np.argmax((1 - p) * up >= p * (up[-1] - up)))
    spread = np.full(40, VARIANCE)
    found = [quantile(truth + row, spread, p) for row in noise(REPETITIONS, 40)]
    assert sum(bucket in one for one in found) >= LEAST
    applied = [one for one in found if one.applies]
    if scale >= 3000:
        assert len(applied) == REPETITIONS and np.mean([one.high - one.low for one in applied]) <= 2


def test_what_is_refused() -> None:
    with pytest.raises(CampaignError, match="people in both groups"):
        lift(NoisySum(value=1.0), NoisySum(value=1.0), treated_people=0, control_people=1)
    with pytest.raises(CampaignError, match="finite value"):
        NoisySum(value=math.nan)
    with pytest.raises(CampaignError, match="between 0 and 1"):
        quantile(np.ones(3), np.ones(3), 1.0)
    with pytest.raises(CampaignError, match="one count"):
        quantile(np.ones(3), np.ones(2), 0.5)
    with pytest.raises(CampaignError, match="sample size"):
        people_needed(rate=0.1, lift=0.0, noise_variance=1.0)
    none = quantile(np.zeros(4), np.full(4, 5.0), 0.5)
    assert not none.applies and 2 in none
    assert quantile(np.array([1.0, 5.0, 1.0]), np.zeros(3), 0.5).estimate == 1
