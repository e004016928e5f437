"""The ground truth of a run: the stages from a population to its batches of reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from aggservice.campaign.columns import Events, MeasuredConversions, ReportColumns
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain, RunStage
from aggservice.campaign.world.collection import CollectedReports, collect

SIMULATE = RunStage(name="simulate", reads=("population", "keys"))
ATTRIBUTE = RunStage(
    name="attribute",
    reads=("population", "keys", "filters", "measures", "client", "reporting_origin"),
    after=(SIMULATE,),
)
COLLECT = RunStage(name="collect", reads=("population", "collection"), after=(ATTRIBUTE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The ground truth of a run. Only ``aggservice.campaign`` has it."""

    events: Events
    items: MeasuredConversions
    reports: ReportColumns
    collected: CollectedReports


def simulate_events(campaign: Campaign, chain: RunChain) -> Events:
    """Return the events of the campaign's population."""
    bits = chain.bits.child("population")
    return chain.run(SIMULATE, campaign, lambda seen: seen.population.model.events(seen, bits))


def simulate_reports(campaign: Campaign, chain: RunChain) -> Truth:
    """Simulate events, attribution and collection; nothing is sealed yet."""
    events, bits = simulate_events(campaign, chain), chain.bits
    reports, items = chain.run(
        ATTRIBUTE, campaign, lambda seen: seen.client.reports(seen, events, bits.child("browsers")), total=len(events)
    )
    collected = chain.run(
        COLLECT,
        campaign,
        lambda seen: collect(seen, reports, items, bits.child("collection")),
        total=len(reports),
    )
    return Truth(events=events, items=replace(items, fate=collected.fate), reports=reports, collected=collected)


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
        batch=ints, arrival_ms=ints, rows=(), period=ints, fate=items.fate, closes_ms=(), lost=0, late=0, retried=0
    )
    return Truth(events=events, items=items, reports=reports, collected=collected)
