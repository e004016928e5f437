"""Conversions with Private Aggregation: worklet code remembers the last ad and contributes at the purchase.

The recipe ``paa_client.recipes.conversions`` with a campaign's keys: the worklet attributes, so nothing but the
contribution budgets of the browser can cut a contribution. There are no null reports.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.world.attribution import MeasuredConversions, ReportColumns
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.private_aggregation import WINDOW_MS
from aggservice.campaign.world.w3c_attribution import Touches, report_ids
from aggservice.mechanisms import Bits, uniform_below_batch
from paa_client import Config
from paa_client.config import Api
from paa_client.reporting.budgets import Budgeter, BudgetRequest
from paa_client.reporting.contributions import Contribution


def convert_privately(campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
    """Run the worklets of every device; return the reports and the ground truth."""
    config = Config()
    touches = Touches(campaign, events)
    attributable, index = touches.last_touch(bits.child("worklets"))
    items = touches.measured(attributable, index)
    allowed = _within_budgets(config, events, items, attributable)
    sent = attributable[allowed]
    fate, report = items.fate.copy(), items.report.copy()
    fate[attributable] = Fate.CAPPED_L1
    fate[sent] = Fate.ON_THE_WAY
    conversion, report[sent], sizes = np.unique(items.conversion[sent], return_inverse=True, return_counts=True)
    count = conversion.size
    delay = config.minimum_delay_ms + uniform_below_batch(bits.child("delays"), config.randomized_delay_ms, count)
    time_ms = events.conversions.time_ms[conversion]
    high, low = items.true_high[sent], items.true_low[sent]
    key_high, key_low = items.key_high.copy(), items.key_low.copy()
    key_high[sent], key_low[sent] = high, low
    reports = ReportColumns(
        scheduled_ms=time_ms + delay,
        report_id=report_ids(bits.child("ids of private reports"), count),
        destination=np.zeros(count, dtype=np.int64),
        offset=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        key_high=high,
        key_low=low,
        value=items.amount[sent],
        filtering_id=np.zeros(sent.size, dtype=np.uint64),
        null=np.zeros(count, dtype=np.bool_),
        unit=events.conversions.device[conversion] << 32 | time_ms // WINDOW_MS,
    )
    return reports, replace(items, fate=fate, key_high=key_high, key_low=key_low, report=report)


def _within_budgets(
    config: Config, events: Events, items: MeasuredConversions, attributable: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which contributions the budgets of ten minutes and of a day allow; items are in order of time."""
    budgets: defaultdict[int, Budgeter] = defaultdict(
        lambda: Budgeter(smaller_budget=config.smaller_budget, larger_budget=config.larger_budget)
    )
    conversion = items.conversion[attributable]
    device, when = events.conversions.device[conversion].tolist(), events.conversions.time_ms[conversion].tolist()
    allowed = np.zeros(attributable.size, dtype=np.bool_)
    for place, value in enumerate(items.amount[attributable].tolist()):
        request = BudgetRequest(Contribution(0, value, 0))
        (denied,) = budgets[device[place]].query([request], "ad-tech", Api.SHARED_STORAGE, when[place], consume=True)
        allowed[place] = denied is None
    return allowed
