"""Reach and frequency with a fleet of Private Aggregation devices (Figure 2 of the Privacy Sandbox paper).

An item is a device that should count: at its first view of a slice (reach), or at the view that reaches a threshold
(frequency). In the browser only the contribution budget can cut it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.attribution import MeasuredConversions, ReportColumns
from aggservice.campaign.world.events import Events, Impressions
from aggservice.campaign.world.fates import Fate
from aggservice.mechanisms import Bits
from paa_client import Fleet
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach

Ints = NDArray[np.int64]

THRESHOLD_FIELD = "views"
_MAX_SLICES = 1 << 56
WINDOW_MS = 600_000
"""A privacy unit is a device within ten minutes."""


def recipe_of(campaign: Campaign) -> Reach | KPlusFrequency:
    """Return the recipe that every device runs at each view."""
    client = campaign.client
    if client.kind == "reach":
        return Reach(cap=client.cap, budget=client.l1)
    return KPlusFrequency(thresholds=client.thresholds, cap=client.cap, budget=client.l1)


def aggregate_privately(campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
    """Run the worklet of every device over its views; return the reports and the ground truth."""
    views = events.impressions
    recipe = recipe_of(campaign)
    fleet = Fleet(recipe=recipe, origin=campaign.reporting_origin)
    slices = slice_numbers(campaign, views)
    made = fleet.run(views.device, views.time_ms, slices, devices=events.devices, bits=bits.child("devices"))
    event, level = moments(campaign, views, slices)
    high, low = _keys(campaign, views, event, level)
    report_of = np.full(len(views), -1, dtype=np.int64)
    report_of[made.event] = np.arange(len(made))
    report = report_of[event]
    cut = int((report < 0).sum())
    if cut != sum(made.cuts.values()) or len(made) != event.size - cut:
        raise RunError(f"devices sent {len(made)} reports and cut {sum(made.cuts.values())}, of {event.size} due")
    size, count = event.size, len(made)
    item_of = np.empty(count, dtype=np.int64)
    item_of[report[report >= 0]] = np.flatnonzero(report >= 0)
    value = np.full(size, made.value, dtype=np.int64)
    reports = ReportColumns(
        scheduled_ms=made.report_time_ms,
        report_id=made.report_id,
        destination=np.zeros(count, dtype=np.int64),
        offset=np.arange(count + 1, dtype=np.int64),
        key_high=high[item_of],
        key_low=low[item_of],
        value=value[item_of],
        filtering_id=np.zeros(count, dtype=np.uint64),
        null=np.zeros(count, dtype=np.bool_),
        unit=made.device << 32 | made.time_ms // WINDOW_MS,
    )
    return reports, MeasuredConversions(
        conversion=event,
        measure=np.zeros(size, dtype=np.int64),
        time_ms=views.time_ms[event],
        natural=np.ones(size, dtype=np.int64),
        asked=value,
        amount=value.copy(),
        attributable=np.ones(size, dtype=np.bool_),
        true_high=high,
        true_low=low,
        key_high=high,
        key_low=low,
        report=report,
        fate=np.where(report >= 0, Fate.ON_THE_WAY, Fate.CAPPED_L1).astype(np.int8),
    )


def slice_numbers(campaign: Campaign, views: Impressions) -> Ints:
    """Return the slice of each view as a number: its codes in mixed radix, or its rank if slices are too many."""
    fields = [field for field in campaign.keys.fields if field.name in views.codes]
    if math.prod(len(field.values) for field in fields) > _MAX_SLICES:
        high, low = campaign.keys.keys(views.codes, len(views))
        return KeyTable(high, low).find(high, low)
    number = np.zeros(len(views), dtype=np.int64)
    for field in fields:
        number = number * len(field.values) + views.codes[field.name]
    return number


def moments(campaign: Campaign, views: Impressions, slices: Ints) -> tuple[Ints, Ints]:
    """Return the views at which a device counts, in order of time, and the index of the threshold that each reaches."""
    order = np.lexsort((np.arange(len(views)), slices, views.device))
    device, name = views.device[order], slices[order]
    starts = np.ones(len(views), dtype=np.bool_)
    starts[1:] = (device[1:] != device[:-1]) | (name[1:] != name[:-1])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(views)), 0))
    count = np.empty(len(views), dtype=np.int64)
    count[order] = np.arange(len(views)) - first + 1
    thresholds = (1,) if campaign.client.kind == "reach" else campaign.client.thresholds
    level = np.full(int(max(thresholds)) + 1, -1, dtype=np.int64)
    level[list(thresholds)] = np.arange(len(thresholds))
    reached = np.where(count <= max(thresholds), level[np.minimum(count, max(thresholds))], -1)
    event = np.flatnonzero(reached >= 0)
    return event, reached[event]


def _keys(
    campaign: Campaign, views: Impressions, event: Ints, level: Ints
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    codes = {name: column[event] for name, column in views.codes.items()}
    if campaign.client.kind == "frequency":
        codes[THRESHOLD_FIELD] = level
    return campaign.keys.keys(codes, event.size)
