"""Recipes for measurements: the operation to run on a device, the buckets to query, and how to read the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of

if TYPE_CHECKING:
    from paa_client.recipes.conversions import CrossSiteConversion
    from paa_client.recipes.demographics import UNKNOWN, Demographics
    from paa_client.recipes.estimates import RecipeEstimate, estimate, half_width, service_noise
    from paa_client.recipes.frequency import FrequencyHistogram, KPlusFrequency, mean_frequency
    from paa_client.recipes.reach import CumulativeReach, Reach
    from paa_client.recipes.sketches import ReachSketch, Readout, merge_sketches
    from paa_client.recipes.winning_bid import LossGap, WinningBidPrice
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "UNKNOWN",
    "CrossSiteConversion",
    "CumulativeReach",
    "Demographics",
    "FrequencyHistogram",
    "KPlusFrequency",
    "LossGap",
    "Reach",
    "ReachSketch",
    "Readout",
    "RecipeEstimate",
    "WinningBidPrice",
    "estimate",
    "half_width",
    "mean_frequency",
    "merge_sketches",
    "service_noise",
]
