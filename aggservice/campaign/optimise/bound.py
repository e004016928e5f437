"""A lower bound on the error of every choice of scales and clipping bounds, and Noise Lab's rule.

A contribution is at most Λ₁, so a measure clipped at c has a scale of at most Λ₁/c. With more clipping the bias grows
and the noise shrinks. Between two bounds of a grid, the bias is at least that of the upper one, and the noise at least
that of the lower one: the least such sum over the grid bounds every choice from below. Caps, losses and the other
measures can only add to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.expected import noise_of_query
from aggservice.campaign.assess.job_truth import job_truth, sums_at
from aggservice.campaign.optimise.choices import Choice, jobs_per_batch, windows_from_batches
from aggservice.campaign.optimise.errors import Taus, payable_windows
from aggservice.campaign.service.jobs import Job
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.world.truth import Truth, simulate_reports

Floats = NDArray[np.float64]
_GRID = 48


def noise_lab(campaign: Campaign, chain: Chain) -> Choice:
    """Return the choice of Noise Lab's rule: each measure gets an equal part of Λ₁, all of it for its largest value."""
    now, l1 = Choice.of(campaign), campaign.client.l1
    if campaign.client.kind in ("reach", "frequency"):
        return replace(now, cap=1)
    items = simulate_reports(campaign, chain).items
    share, most = l1 // len(campaign.measures), []
    for place, measure in enumerate(campaign.measures):
        natural = items.natural[items.measure == place]
        largest = int(natural.max(initial=1)) if measure.of == "value" else 1
        most.append(min(max(1, largest), share))
    return replace(now, scales=tuple(share // one for one in most), most=tuple(most))


def lower_bound(campaign: Campaign, chain: Chain, taus: Taus) -> float | None:
    """Return an RMSRE_τ that no choice can beat; None with key discovery.

    The bound lets each query use the ε of all queries together; with one query that is its own ε.
    """
    if any(query.discovery for query in campaign.queries) or campaign.client.kind != "attribution":
        return None
    truth = simulate_reports(campaign, chain)
    jobs = payable_windows(campaign, truth.collected.closes_ms)
    asked = {job.query.name: job.query for job in jobs}
    total = sum((jobs_per_batch(query) * Fraction(query.epsilon) for query in asked.values()), Fraction(0))
    squares, slices = 0.0, 0
    for place, measure in enumerate(campaign.measures):
        bias, noise = np.zeros(_GRID), np.zeros(_GRID)
        for job in jobs:
            variance = _least_variance(campaign, job, total)
            of_bias, of_noise, count = _bound_parts(campaign, chain, truth, job, place, variance, taus)
            bias, noise, slices = bias + of_bias, noise + of_noise, slices + count
        # One clipping bound serves all jobs. The last bound of the grid is the largest value: beyond it nothing gains.
        cells = np.concatenate((bias[1:] + noise[:-1], bias[-1:] + noise[-1:]))
        squares += float(cells.min()) if measure.of == "value" else float(bias[-1] + noise[0])
    return math.sqrt(squares / slices) if slices else 0.0


def _least_variance(campaign: Campaign, window: Job, total: Fraction) -> float:
    """Return the least variance of a key of a window at a total ε per report: with a job of its own or from batches."""
    found = []
    for query in (window.query, windows_from_batches(campaign, window.query)):
        if query is not None:
            epsilon = min(total / jobs_per_batch(query), Fraction(64))
            noise = noise_of_query(campaign, replace(query, epsilon=f"{float(epsilon):.6f}"))
            found.append(float(noise.variance()) * (len(window.batches) if query.job_per == "batch" else 1))
    return min(found)


def _bound_parts(
    campaign: Campaign, chain: Chain, truth: Truth, job: Job, place: int, variance: float, taus: Taus
) -> tuple[Floats, Floats, int]:
    """Return, per clipping bound, the squared bias and the noise of a job's slices, and the number of slices."""
    by_key = job_truth(campaign, chain, truth, job)
    items, measure = truth.items, campaign.measures[place]
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(job.batches)] = True
    chosen = np.flatnonzero(window[truth.collected.period] & items.attributable & (items.measure == place))
    table = KeyTable(by_key.high, by_key.low)
    keys = table.find(items.true_high[chosen], items.true_low[chosen])
    slice_of = by_key.slice_of[keys]
    declared = np.zeros(len(by_key), dtype=np.int64)
    declared[by_key.domain] = 1
    terms = sums_at(by_key.slice_of, declared, by_key.slice_truth.size)
    shown = (by_key.slice_measure == place) & (terms > 0)
    natural = items.natural[chosen]
    largest = int(items.natural[items.measure == place].max(initial=1)) if measure.of == "value" else 1
    grid = np.unique(np.rint(np.geomspace(1, largest, _GRID)).astype(np.int64)) if largest > 1 else np.array([1])
    weight = np.maximum(by_key.slice_truth, taus[job.query.name, measure.name]).astype(np.float64) ** -2.0
    bias, noise = np.zeros(_GRID), np.zeros(_GRID)
    for number in range(_GRID):
        bound = int(grid[min(number, grid.size - 1)])
        clipped = sums_at(slice_of, np.maximum(natural - bound, 0), by_key.slice_truth.size).astype(np.float64)
        bias[number] = float((weight * clipped**2)[shown].sum())
        noise[number] = float((weight * terms * variance * (bound / campaign.client.l1) ** 2)[shown].sum())
    return bias, noise, int(shown.sum())
