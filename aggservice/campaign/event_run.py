"""The run of an event-level campaign: no service and no ledger, reports and labels with the browser's own noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from aggservice.campaign.assess.event_level import (
    EventReports,
    conversion_model,
    correct,
    guarantee,
    report_events,
    write_labels,
)
from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.output.metrics import event_metrics
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import Stopwatch
from aggservice.campaign.world.attribution import Items, Reports
from aggservice.campaign.world.collection import Collected
from aggservice.campaign.world.population import Events, simulate
from aggservice.mechanisms import Bits


def run_event_level(
    campaign: Campaign, out: Path, seed: str | None, bits: Bits, watch: Stopwatch
) -> tuple[Events, EventReports, Assessment, dict[str, Any]]:
    """Let ads send their reports, correct the counts, write ``labels.csv``; return what was found."""
    settings = campaign.client.event_level
    assert settings is not None
    with watch.stage("simulate"):
        events = simulate(campaign, bits.child("population"))
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
    return events, reports, found, metrics


def nothing_collected() -> tuple[Items, Reports, Collected]:
    """Return the empty truth of a campaign without aggregatable reports."""
    ints, words = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    items = Items(
        conversion=ints, measure=ints, time_ms=ints, natural=ints, asked=ints, amount=ints,
        attributable=np.empty(0, dtype=np.bool_), true_high=words, true_low=words, key_high=words, key_low=words,
        report=ints, fate=np.empty(0, dtype=np.int8),
    )  # fmt: skip
    reports = Reports(
        scheduled_ms=ints, report_id=np.empty((0, 16), dtype=np.uint8), destination=ints,
        offset=np.zeros(1, dtype=np.int64), key_high=words, key_low=words, value=ints, filtering_id=words,
        null=np.empty(0, dtype=np.bool_),
    )  # fmt: skip
    collected = Collected(batch=ints, arrival_ms=ints, rows=(), period=ints, closes_ms=(), lost=0, late=0, retried=0)
    return items, reports, collected
