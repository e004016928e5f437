"""Repetitions through the whole pipeline: stated intervals hold as often as they say, and means are unbiased."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from aggservice.campaign import parse_campaign
from aggservice.campaign.assess.slices import noise_of
from campaign_bench import bench

CAMPAIGN = """
name = "repeated"
[population]
size = 12
days = 1
conversion_rate = 0.8
impression_day = { name = "uniform", low = 0, high = 0.4 }
delay_days = { name = "uniform", low = 0, high = 0.5 }
value = { name = "uniform", low = 1, high = 50 }
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[keys.fields]]
name = "product"
from = "conversion"
values = ["x", "y"]
[[measures]]
of = "value"
scale = 1000
[[queries]]
epsilon = "10"
"""


def covered_and_mean(repetitions: int, tmp_path: Path) -> None:
    """Assert coverage and unbiasedness over all rows of all repetitions.

    Rows are independent: each has its own noise. Coverage is binomial with the interval's exact probability (a hair
    above 95 %), tested two-sided at 5·10⁻⁷; the mean of the noise is within 6 standard errors, which a sum of this many
    Laplace draws leaves with probability below 10⁻⁸. In all the false-alarm rate is below 10⁻⁶.
    """
    campaign = parse_campaign(CAMPAIGN, folder=tmp_path)
    held, errors, estimates, truths = 0, [], 0.0, 0.0
    with bench(campaign, tmp_path) as pipeline:
        for _ in range(repetitions):
            _, (answer,), (found,) = pipeline.run(campaign)
            assert found.paid and not found.error_counts and len(found.slices) == 4
            for row in found.slices:
                # Nothing is capped, clipped or lost here: what was sent is what happened.
                assert row.sent == round(row.truth * 1000)
                held += row.low <= row.sent / 1000 <= row.high
                errors.append(row.estimate * 1000 - row.sent)
                estimates, truths = estimates + row.estimate, truths + row.truth
            assert all(one.adds_up and one.clipped == 0 for one in found.waterfalls)
        noise = noise_of(answer)
        width = answer.statement.interval_half_width if answer.statement else 0
        assert pipeline.client.verify_ledger().ok
    rows = 4 * repetitions
    probability = float(noise.cdf(width) - noise.cdf(-width - 1))
    assert Fraction(95, 100) <= probability < 0.9501
    assert stats.binomtest(held, rows, probability).pvalue > 5e-7
    deviation = float(noise.variance()) ** 0.5
    assert abs(float(np.mean(errors))) < 6 * deviation / rows**0.5
    assert abs(float(np.std(errors)) / deviation - 1) < 6 * 5**0.5 / (2 * rows**0.5)
    print(
        f"{repetitions} repetitions, {rows} rows: {held / rows:.4f} of the stated 95 % intervals hold what was sent; "
        f"mean error {np.mean(errors) / deviation:+.4f} standard deviations; "
        f"totals {estimates:,.0f} for {truths:,.0f}"
    )


def test_intervals_cover_and_means_are_unbiased(tmp_path: Path) -> None:
    covered_and_mean(100, tmp_path)


@pytest.mark.soak
def test_intervals_cover_in_1000_repetitions(tmp_path: Path) -> None:
    covered_and_mean(1000, tmp_path)
