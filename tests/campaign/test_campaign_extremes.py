"""Populations, values and delays at the ends of their ranges: exact, or refused by name, never wrapped around."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from campaign import CampaignError, Fate, parse_campaign, run_campaign
from campaign.attribution import _scaled
from campaign.run import RunResult

CAMPAIGN = """
name = "extreme"
[population]
size = 60
days = 2
conversion_rate = 1
{population}
[[keys.fields]]
name = "ad"
values = ["a", "b"]
[[measures]]
of = "value"
most = 10
scale = "0.333333333"
[[queries]]
epsilon = "10"
[collection]
{collection}
"""


def run(tmp_path: Path, population: str = "", collection: str = "") -> RunResult:
    campaign = parse_campaign(CAMPAIGN.format(population=population, collection=collection), folder=tmp_path)
    return run_campaign(campaign, tmp_path / "out", seed="extreme", workers=1, draw=False)


@pytest.mark.filterwarnings("error")
def test_values_times_scale_do_not_wrap(tmp_path: Path) -> None:
    """10¹⁵ times a scale of nine decimals is past 63 bits on the way, and not at its end."""
    result = run(tmp_path, "value = 1e15\ndelay_days = 0")
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.happened == 60 - waterfall.conversions[Fate.NOT_ATTRIBUTED] >= 50
    assert waterfall.happened_amount == waterfall.happened * 333_333_333_000_000 and waterfall.adds_up
    assert waterfall.counted_amount == 3 * waterfall.conversions[Fate.COUNTED]


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(65_536), Fraction(1, 3), Fraction(6553600001, 10**5)])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**44, 2**45 + 1])
def test_scaling_is_exact(value: int, scale: Fraction) -> None:
    values = np.array([value, 1, 0], dtype=np.int64)
    assert _scaled(values, scale).tolist() == [int(one * scale + Fraction(1, 2)) for one in (value, 1, 0)]
    with pytest.raises(CampaignError, match="make the values or the scale smaller"):
        _scaled(np.array([2**53], dtype=np.int64), Fraction(65_536))


HEAVY = "{ name = 'pareto', least = 1, alpha = 0.02 }"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("field", ["value", "impressions", "conversions", "organic", "devices"])
def test_counts_beyond_measure_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(CampaignError, match="choose a lighter tail"):
        run(tmp_path, f"{field} = {HEAVY}")


@pytest.mark.parametrize("field", ["impressions", "conversions", "organic", "devices"])
def test_more_events_than_memory_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(CampaignError, match=r"comes to 6e\+08 .*, more than 500,000,000"):
        run(tmp_path, f"{field} = 10_000_000\ndelay_days = 0")


@pytest.mark.filterwarnings("error")
def test_a_delay_beyond_measure_is_late_and_not_before_time(tmp_path: Path) -> None:
    """Cast to milliseconds, such a delay would be negative, and the purchase before its ad."""
    conversions = run(tmp_path, f"delay_days = {HEAVY}").truth.events.conversions
    assert len(conversions) == 0
    result = run(tmp_path, "delay_days = 0\nvalue = 10", f"late = 1\nlate_days = {HEAVY}")
    (waterfall,) = result.assessments[0].waterfalls
    assert waterfall.conversions[Fate.LATE] == waterfall.happened > 0 and waterfall.adds_up
