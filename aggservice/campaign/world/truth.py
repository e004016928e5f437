"""The ground truth of a run: simulates a campaign up to its batches of reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import Stopwatch
from aggservice.campaign.world.attribution import MeasuredConversions, ReportColumns, attribute
from aggservice.campaign.world.collection import CollectedReports, collect
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.log_events import events_of_log
from aggservice.campaign.world.population import simulate
from aggservice.campaign.world.private_aggregation import aggregate_privately
from aggservice.mechanisms import Bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The ground truth of a run. Only ``aggservice.campaign`` has it."""

    events: Events
    items: MeasuredConversions
    reports: ReportColumns
    collected: CollectedReports


def simulate_events(campaign: Campaign, bits: Bits) -> Events:
    """Return the events of the campaign's log, or of a simulated population if it has no log."""
    return simulate(campaign, bits) if campaign.population.log is None else events_of_log(campaign)


def simulate_reports(campaign: Campaign, bits: Bits, watch: Stopwatch | None = None) -> Truth:
    """Simulate events, attribution and collection; nothing is sealed yet."""
    watch = watch or Stopwatch()
    with watch.stage("simulate"):
        events = simulate_events(campaign, bits.child("population"))
    with watch.stage("attribute", len(events)):
        if campaign.client.kind == "attribution":
            reports, items = attribute(campaign, events, bits.child("browsers"))
        else:
            reports, items = aggregate_privately(campaign, events, bits.child("browsers"))
    with watch.stage("collect", len(reports)):
        collected = collect(campaign, reports, items, bits.child("collection"))
    return Truth(events=events, items=items, reports=reports, collected=collected)


def truth_without_reports(events: Events) -> Truth:
    """Return the truth of a campaign that sends no aggregatable reports."""
    ints, words = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    items = MeasuredConversions(
        conversion=ints, measure=ints, time_ms=ints, natural=ints, asked=ints, amount=ints,
        attributable=np.empty(0, dtype=np.bool_), true_high=words, true_low=words, key_high=words, key_low=words,
        report=ints, fate=np.empty(0, dtype=np.int8),
    )  # fmt: skip
    reports = ReportColumns(
        scheduled_ms=ints, report_id=np.empty((0, 16), dtype=np.uint8), destination=ints,
        offset=np.zeros(1, dtype=np.int64), key_high=words, key_low=words, value=ints, filtering_id=words,
        null=np.empty(0, dtype=np.bool_),
    )  # fmt: skip
    collected = CollectedReports(
        batch=ints, arrival_ms=ints, rows=(), period=ints, closes_ms=(), lost=0, late=0, retried=0
    )
    return Truth(events=events, items=items, reports=reports, collected=collected)
