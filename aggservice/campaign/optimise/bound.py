"""A lower bound on the error of every choice of scales, clipping bounds and ε, and Noise Lab's rule.

A contribution is at most Λ₁, so a measure clipped at c has a scale of at most Λ₁/c. With more clipping the bias grows
and the noise shrinks. Between two bounds of a grid, the bias is at least that of the upper one, and the noise at least
that of the lower one: the least such sum over the grid bounds every choice from below. Caps can only add to it.

A deployed browser sends all measures of a conversion in one report, or none. Let v be the largest value that it sends:
the contributions of v fit into Λ₁, and larger values are dropped, which is worse than clipping them at v. So the
measures share Λ₁, in parts that add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.expected import noise_of_query
from aggservice.campaign.assess.job_truth import job_truth, sums_at
from aggservice.campaign.optimise.choices import MOST_EPSILON, Choice, jobs_per_batch, round_scale, windows_from_batches
from aggservice.campaign.optimise.errors import Taus, payable_windows
from aggservice.campaign.service.jobs import Job
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.world.attribution import MeasuredConversions
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.truth import Truth, simulate_reports

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_GRID, _PARTS = 96, 400


def noise_lab(campaign: Campaign, chain: Chain) -> Choice:
    """Return the choice of Noise Lab's rule: each measure gets an equal part of Λ₁, all of it for its largest value."""
    now, l1 = Choice.of(campaign), campaign.client.l1
    if campaign.client.kind in ("reach", "frequency"):
        return replace(now, cap=1)
    items = simulate_reports(campaign, chain).items
    share = Fraction(l1, len(campaign.measures))
    most = [largest_value(campaign, items, place) for place in range(len(campaign.measures))]
    return replace(now, scales=tuple(round_scale(share / one) for one in most), most=tuple(most))


def largest_value(campaign: Campaign, items: MeasuredConversions, place: int) -> int:
    """Return the largest value of a measure, at least 1; counts are 1."""
    return int(items.natural[items.measure == place].max(initial=1)) if campaign.measures[place].of == "value" else 1


def lower_bound(campaign: Campaign, chains: Sequence[Chain], taus: Taus, queries: Sequence[Query]) -> float | None:
    """Return an RMSRE_τ that no choice can beat, apart from rounding; None with key discovery.

    Reports are lost or late as they are on these chains with the campaign's own scales. ``queries`` have the total ε
    that may be divided.
    """
    if any(query.discovery for query in campaign.queries) or campaign.client.kind != "attribution":
        return None
    campaign = replace(campaign, queries=tuple(queries))
    truths = [simulate_reports(campaign, chain) for chain in chains]
    measures = range(len(campaign.measures))
    grids = [_grid(max(largest_value(campaign, truth.items, place) for truth in truths)) for place in measures]
    bias = [np.zeros(grid.size) for grid in grids]
    noise: list[dict[str, Floats]] = [{} for _ in grids]
    fixed = [np.zeros(grid.size) for grid in grids]
    slices = 0
    for chain, truth in zip(chains, truths, strict=True):
        jobs = payable_windows(campaign, truth.collected.closes_ms)
        asked = {job.query.name: job.query for job in jobs}
        total = sum((jobs_per_batch(query) * Fraction(query.epsilon) for query in asked.values()), Fraction(0))
        for job in jobs:
            variance, whole = _least_variance(campaign, job, total)
            for place in measures:
                of_bias, of_noise, count = _bound_parts(campaign, chain, truth, job, place, grids[place], taus)
                bias[place] += of_bias
                into = fixed[place] if not whole else noise[place].setdefault(job.query.name, np.zeros(of_noise.size))
                into += variance * of_noise
                slices += count
    together = campaign.client.form == "deployed" and campaign.client.api == "ara"
    curves = [_least_by_part(*parts, together) for parts in zip(bias, noise, fixed, strict=True)]
    return math.sqrt(_divided(curves) / slices) if slices else 0.0


def _grid(largest: int) -> Ints:
    return np.unique(np.rint(np.geomspace(1, largest, _GRID)).astype(np.int64))


def _least_by_part(bias: Floats, noise: Mapping[str, Floats], fixed: Floats, together: bool) -> Floats:
    """Return the least squared error of a measure that gets n of ``_PARTS`` parts of Λ₁, for n = 1, 2, …

    If measures do not go ``together`` in one report, each gets all of Λ₁. The noise of a query is proportional to 1/ε²,
    so the best division of an ε over queries gives the cube of the sum of the cube roots of their noise.
    """
    divided = sum((np.cbrt(one) for one in noise.values()), np.zeros(bias.size)) ** 3 + fixed
    # A bound of the grid stands for all up to the next one; beyond the last, which is the largest value, nothing gains.
    upper = np.append(bias[1:], bias[-1])
    parts = np.arange(1, _PARTS + 1) / _PARTS if together else np.ones(_PARTS)
    return np.asarray((upper + divided / parts[:, None] ** 2).min(axis=1), dtype=np.float64)


def _divided(curves: Sequence[Floats]) -> float:
    """Return the least total over all divisions of Λ₁; ``curves[m][n]`` is the error of measure m with n + 1 parts.

    The shares of m measures, rounded up to whole parts, are at most ``_PARTS`` + m − 1 parts. So indexes that add up to
    ``_PARTS`` − 1 cover every division.
    """
    best, *others = curves
    for curve in others:
        best = np.array([(best[: n + 1] + curve[n::-1]).min() for n in range(_PARTS)])
    return float(best[-1])


def _least_variance(campaign: Campaign, window: Job, total: Fraction) -> tuple[float, bool]:
    """Return the least variance of a key of a window at a total ε per report, and whether that needs all of the ε.

    The window may have its own job, or be added up from batches. A job uses at most ε = 64.
    """
    found, whole = [], True
    for query in (window.query, windows_from_batches(campaign, window.query)):
        if query is not None:
            epsilon = total / jobs_per_batch(query)
            whole = whole and epsilon <= MOST_EPSILON
            noise = noise_of_query(campaign, replace(query, epsilon=f"{float(min(epsilon, MOST_EPSILON)):.6f}"))
            found.append(float(noise.variance()) * (len(window.batches) if query.job_per == "batch" else 1))
    return min(found), whole


def _bound_parts(
    campaign: Campaign, chain: Chain, truth: Truth, job: Job, place: int, grid: Ints, taus: Taus
) -> tuple[Floats, Floats, int]:
    """Return, per clipping bound, the squared bias and the noise of a job's slices; and the number of slices.

    The noise is for a variance of 1 and a measure that gets all of Λ₁. Reports that were lost or late count as bias.
    """
    by_key = job_truth(campaign, chain, truth, job)
    items, measure = truth.items, campaign.measures[place]
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(job.batches)] = True
    chosen = np.flatnonzero(window[truth.collected.period] & items.attributable & (items.measure == place))
    keys = KeyTable(by_key.high, by_key.low).find(items.true_high[chosen], items.true_low[chosen])
    slice_of, size = by_key.slice_of[keys], by_key.slice_truth.size
    terms = np.bincount(by_key.slice_of[by_key.domain], minlength=size)
    shown = (by_key.slice_measure == place) & (terms > 0)
    natural, sent = items.natural[chosen], ~np.isin(truth.collected.fate[chosen], (Fate.LOST, Fate.LATE))
    weight = np.maximum(by_key.slice_truth, taus[job.query.name, measure.name]).astype(np.float64) ** -2.0
    bias = np.zeros(grid.size)
    for number, bound in enumerate(grid.tolist()):
        missing = sums_at(slice_of, natural - np.where(sent, np.minimum(natural, bound), 0), size).astype(np.float64)
        bias[number] = float((weight * missing**2)[shown].sum())
    noise = float((weight * terms)[shown].sum()) * (grid / campaign.client.l1) ** 2
    return bias, noise, int(shown.sum())
