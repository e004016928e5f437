"""Runs an event-level campaign: the browser adds the noise, so it needs no service and no ledger."""

from __future__ import annotations

from pathlib import Path

from aggservice.campaign.assess.event_level import conversion_model, correct, guarantee, report_events, write_labels
from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.output.metrics import Metrics, event_metrics
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import Stopwatch
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.truth import simulate_events
from aggservice.mechanisms import Bits


def run_event_level(
    campaign: Campaign, out: Path, seed: str | None, bits: Bits, watch: Stopwatch
) -> tuple[Events, Assessment, Metrics]:
    """Simulate the reports of every ad, correct their counts and write ``labels.csv``; return what was found."""
    settings = campaign.client.event_level
    assert settings is not None
    with watch.stage("simulate"):
        events = simulate_events(campaign, bits.child("population"))
    with watch.stage("attribute", len(events)):
        reports = report_events(campaign, events, bits.child("browsers"))
    with watch.stage("assess"):
        rows, figures = correct(campaign, reports)
        found = Assessment(
            job="event-level",
            query="event-level",
            batches=(),
            paid=True,
            refusal="",
            statement=guarantee(settings),
            remaining={},
            error_counts={},
            slices=tuple(rows),
            slice_count=len(rows),
            figures=tuple(figures),
            waterfalls=(),
            discovery=None,
        )
        model = conversion_model(campaign, events, reports)
        metrics = event_metrics(campaign, seed, bits.private, events, reports, found, model)
        write_labels(campaign, events, reports, out / "labels.csv")
    return events, found, metrics
