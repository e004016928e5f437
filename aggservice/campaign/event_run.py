"""Event-level reports of a campaign, alone or beside aggregatable ones: the browser adds the noise."""

from __future__ import annotations

from pathlib import Path

from aggservice.campaign.assess.event_level import (
    EventReports,
    conversion_model,
    correct,
    guarantee,
    report_events,
    settings_of,
    write_labels,
)
from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.columns import Events
from aggservice.campaign.output.metrics import RunMetrics, event_metrics, with_event_level
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import simulate_events
from aggservice.mechanisms import Bits


def run_event_level(
    campaign: Campaign, out: Path, seed: str | None, chain: RunChain
) -> tuple[Events, Assessment, RunMetrics]:
    """Simulate the reports of every ad, correct their counts and write ``labels.csv``; return what was found."""
    events = simulate_events(campaign, chain)
    with chain.watch.stage("attribute", len(events)):
        reports, metrics = release_events(campaign, seed, events, chain.bits)
    with chain.watch.stage("assess"):
        write_labels(campaign, events, reports, out / "labels.csv")
    return events, metrics.jobs[0], metrics


def add_event_level(campaign: Campaign, out: Path, metrics: RunMetrics, events: Events, bits: Bits) -> RunMetrics:
    """Let the sources of a campaign of aggregatable reports send event-level reports too, and write ``labels.csv``.

    Returns the metrics with one more query, whose answers are the corrected counts.
    """
    reports = report_events(campaign, events, bits.child("event-level reports"))
    write_labels(campaign, events, reports, out / "labels.csv")
    return with_event_level(metrics, campaign, reports, _assessment(campaign, reports))


def release_events(campaign: Campaign, seed: str | None, events: Events, bits: Bits) -> tuple[EventReports, RunMetrics]:
    """Draw the reports of every ad; return them, and the metrics of their corrected counts."""
    reports = report_events(campaign, events, bits.child("browsers"))
    model = conversion_model(campaign, events, reports)
    found = _assessment(campaign, reports)
    return reports, event_metrics(campaign, seed, bits.private, events, reports, found, model)


def _assessment(campaign: Campaign, reports: EventReports) -> Assessment:
    """Return the corrected counts beside the truth, in the form of a job's answer."""
    rows, figures = correct(campaign, reports)
    return Assessment(
        job="event-level",
        query="event-level",
        paid=True,
        statement=guarantee(settings_of(campaign)),
        slices=tuple(rows),
        slice_count=len(rows),
        figures=tuple(figures),
    )
