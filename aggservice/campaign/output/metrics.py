"""``metrics.json``: what a run found, as plain values that a program or a report can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aggservice.campaign.assess.event_level import EventReports
from aggservice.campaign.assess.slices import Assessment
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.truth import Truth


def metrics_of(
    campaign: Campaign, seed: str | None, private: bool, truth: Truth, found: Sequence[Assessment]
) -> dict[str, Any]:
    """Return everything that is known about a run but its timings."""
    collected, reports = truth.collected, truth.reports
    return {
        "campaign": campaign.name,
        "description": campaign.description,
        "private": private,
        "seed": seed,
        "client": {
            "kind": campaign.client.kind,
            "form": campaign.client.form,
            "l1": campaign.client.l1,
            "l0": campaign.client.l0,
        },
        "start_ms": campaign.population.start_ms,
        "events": {
            "people": campaign.population.size,
            "devices": truth.events.devices,
            "impressions": len(truth.events.impressions),
            "conversions": len(truth.events.conversions),
        },
        "reports": {
            "made": len(reports),
            "null": int(reports.null.sum()),
            "lost": collected.lost,
            "late": collected.late,
            "retried": collected.retried,
            "in_batches": collected.received,
        },
        "batches": [int(rows.size) for rows in collected.rows],
        "queries": [query_of(campaign, query.name, found) for query in campaign.queries],
        "jobs": [one.to_plain() for one in found],
        "ledger": ledger_of(campaign, found),
    }


def event_metrics(
    campaign: Campaign,
    seed: str | None,
    private: bool,
    events: Events,
    reports: EventReports,
    found: Assessment,
    model: dict[str, float | int],
) -> dict[str, Any]:
    """Return the metrics of an event-level campaign, in the same shape."""
    figures = found.figures[0]
    return {
        "campaign": campaign.name,
        "description": campaign.description,
        "private": private,
        "seed": seed,
        "client": {"kind": campaign.client.kind, "form": "paper"},
        "start_ms": campaign.population.start_ms,
        "events": {
            "people": campaign.population.size,
            "devices": events.devices,
            "impressions": len(events.impressions),
            "conversions": len(events.conversions),
        },
        "reports": {
            "made": int(reports.sent.sum()),
            "in_batches": int(reports.sent.sum()),
            "attributed": reports.attributed,
            "ads_with_random_reports": int((~reports.truthful).sum()),
        },
        "batches": [],
        "queries": [
            {
                "name": found.query,
                "jobs": 1,
                "paid": 1,
                "statement": found.statement,
                "measures": [
                    {
                        "measure": figures.measure,
                        "scale": "1",
                        "slices": figures.slices,
                        "coverage": figures.covered / figures.slices,
                        "above_noise": figures.above_noise / figures.slices,
                        "rmsre": figures.rmsre,
                        "tau": figures.tau,
                        "truth": figures.truth,
                        "estimate": figures.estimate,
                        "bias": figures.bias,
                        "waterfall": None,
                    }
                ],
            }
        ],
        "jobs": [found.to_plain()],
        "ledger": {"epsilon": "0", "delta": "0", "unit": "ad", "left": [], "refused": []},
        "model": model,
    }


def query_of(campaign: Campaign, name: str, found: Sequence[Assessment]) -> dict[str, Any]:
    """Return what the jobs of one query come to together."""
    jobs = [one for one in found if one.query == name]
    measures = []
    for place, measure in enumerate(campaign.measures):
        figures = [one.figures[place] for one in jobs if one.paid]
        total = jobs[0].waterfalls[place]
        for one in jobs[1:]:
            total = total + one.waterfalls[place]
        slices = sum(one.slices for one in figures)
        measures.append(
            {
                "measure": measure.name,
                "scale": str(measure.scale),
                "slices": slices,
                "coverage": sum(one.covered for one in figures) / slices if slices else None,
                "above_noise": sum(one.above_noise for one in figures) / slices if slices else None,
                "rmsre": (sum(one.rmsre**2 * one.slices for one in figures) / slices) ** 0.5 if slices else None,
                "tau": figures[0].tau if figures else None,
                "truth": sum(one.truth for one in figures),
                "estimate": sum(one.estimate for one in figures),
                "bias": sum(one.bias for one in figures),
                "waterfall": total.to_plain(),
            }
        )
    return {
        "name": name,
        "jobs": len(jobs),
        "paid": sum(one.paid for one in jobs),
        "statement": next((one.statement for one in jobs if one.paid), ""),
        "measures": measures,
    }


def ledger_of(campaign: Campaign, found: Sequence[Assessment]) -> dict[str, Any]:
    """Return what each paid job left in the poorest of its units, as the ledger said with the summary."""
    return {
        "epsilon": campaign.service.epsilon,
        "delta": campaign.service.delta,
        "unit": campaign.service.unit,
        "left": [{"job": one.job, **one.remaining} for one in found if one.paid],
        "refused": [one.job for one in found if not one.paid],
    }
