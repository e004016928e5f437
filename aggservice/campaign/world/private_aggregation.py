"""Reach and frequency with Private Aggregation devices: a deployed fleet, or Algorithm 3 of the Privacy Sandbox paper.

An item is a device that should count: at its first view of a slice (reach, the paper's Figure 2), or at the view that
reaches a threshold (frequency). In the browser only the contribution budget, or the paper's Λ₀, can cut it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.attribution import MeasuredConversions, ReportColumns
from aggservice.campaign.world.events import Events, Impressions
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.w3c_attribution import report_ids
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
    slices = slice_numbers(campaign, views)
    event, level = moments(campaign, views, slices)
    high, low = _keys(campaign, views, event, level)
    if campaign.client.form == "paper":
        reports, report, fate = _sent_by_the_paper(campaign, views, event, bits)
    else:
        reports, report, fate = _sent_by_a_fleet(campaign, events, slices, event, bits)
    item_of = event_items(report, len(reports))
    reports = replace(reports, key_high=high[item_of], key_low=low[item_of])
    value = np.full(event.size, recipe_of(campaign).value, dtype=np.int64)
    return reports, MeasuredConversions(
        conversion=event,
        measure=np.zeros(event.size, dtype=np.int64),
        time_ms=views.time_ms[event],
        natural=np.ones(event.size, dtype=np.int64),
        asked=value,
        amount=value.copy(),
        attributable=np.ones(event.size, dtype=np.bool_),
        true_high=high,
        true_low=low,
        key_high=high,
        key_low=low,
        report=report,
        fate=fate.astype(np.int8),
    )


def event_items(report: Ints, reports: int) -> Ints:
    """Return the items that were sent, in the order of their reports, given the report of each item or -1."""
    found = np.full(reports, -1, dtype=np.int64)
    found[report[report >= 0]] = np.flatnonzero(report >= 0)
    return found[found >= 0]


def _sent_by_a_fleet(
    campaign: Campaign, events: Events, slices: Ints, event: Ints, bits: Bits
) -> tuple[ReportColumns, Ints, Ints]:
    """Return the reports of deployed devices, without keys, and the report (or -1) and the fate of each item."""
    views = events.impressions
    fleet = Fleet(recipe=recipe_of(campaign), origin=campaign.reporting_origin)
    made = fleet.run(views.device, views.time_ms, slices, devices=events.devices, bits=bits.child("devices"))
    report_of = np.full(len(views), -1, dtype=np.int64)
    report_of[made.event] = np.arange(len(made))
    report = report_of[event]
    cut = int((report < 0).sum())
    if cut != sum(made.cuts.values()) or len(made) != event.size - cut:
        raise RunError(
            f"of {event.size} reports, devices sent {len(made)} and cut {sum(made.cuts.values())}: some are lost"
        )
    full = np.ones(len(made), dtype=np.bool_)
    reports = _reports(made.device, made.time_ms, made.report_time_ms, made.report_id, full, made.value)
    return reports, report, np.where(report >= 0, Fate.ON_THE_WAY, Fate.CAPPED_L1)


def _sent_by_the_paper(
    campaign: Campaign, views: Impressions, event: Ints, bits: Bits
) -> tuple[ReportColumns, Ints, Ints]:
    """Return the reports of PAA-SR-Client (Algorithm 3), one per view; and for each item its report (or -1) and fate.

    All values of a run are equal, so of a device's items in a window the first min(Λ₀, ⌊Λ₁/v⌋) are sent. Every other
    view has a null report. Windows are fixed, where those of deployed devices roll.
    """
    client, value = campaign.client, recipe_of(campaign).value
    device, window = views.device[event], views.time_ms[event] // WINDOW_MS
    order = np.lexsort((np.arange(event.size), window, device))
    starts = np.ones(event.size, dtype=np.bool_)
    starts[1:] = (np.diff(device[order]) != 0) | (np.diff(window[order]) != 0)
    place = np.empty(event.size, dtype=np.int64)
    place[order] = np.arange(event.size) - np.maximum.accumulate(np.where(starts, np.arange(event.size), 0))
    room = client.l1 // value
    sent = place < min(client.l0, room)
    full = np.zeros(len(views), dtype=np.bool_)
    full[event[sent]] = True
    ids = report_ids(bits.child("ids of the paper's reports"), len(views))
    capped = Fate.CAPPED_L1 if room <= client.l0 else Fate.CAPPED_L0
    return (
        _reports(views.device, views.time_ms, views.time_ms, ids, full, value),
        np.where(sent, event, -1),
        np.where(sent, Fate.ON_THE_WAY, capped),
    )


def _reports(
    device: Ints, time_ms: Ints, scheduled_ms: Ints, report_id: NDArray[np.uint8], full: NDArray[np.bool_], value: int
) -> ReportColumns:
    """Return reports with one contribution each, or none; their keys are added later."""
    count = int(full.sum())
    none = np.zeros(0, dtype=np.uint64)
    return ReportColumns(
        scheduled_ms=scheduled_ms,
        report_id=report_id,
        destination=np.zeros(full.size, dtype=np.int64),
        offset=np.concatenate(([0], np.cumsum(full))).astype(np.int64),
        key_high=none,
        key_low=none,
        value=np.full(count, value, dtype=np.int64),
        filtering_id=np.zeros(count, dtype=np.uint64),
        null=~full,
        unit=device << 32 | time_ms // WINDOW_MS,
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
