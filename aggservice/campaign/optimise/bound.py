"""A lower bound on the error of every choice of scales, clipping bounds and ε, and Noise Lab's rule.

A contribution is at most Λ₁, so a measure clipped at c has a scale of at most Λ₁/c. With more clipping the bias grows
and the noise shrinks. Between two bounds of a grid, the bias is at least that of the upper one, and the noise at least
that of the lower one: the least such sum over the grid bounds every choice from below. Caps can only add to it.

A deployed browser sends all measures of a conversion in one report, or none. Let v be the largest value that it sends:
the contributions of v fit into Λ₁, and larger values are dropped, which is worse than clipping them at v. So the
measures share Λ₁, in parts that add up to 1.

For the share of slices within x % of the truth it is the same, except that each query has all of ε. The chance that
|bias + noise| stays within a limit falls with the bias and, while the bias is within the limit, with the noise; beyond
the limit, some noise helps (``most_within``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from aggservice.campaign.assess.expected import laplace_of_query
from aggservice.campaign.assess.job_truth import job_truth, sums_at
from aggservice.campaign.columns import Fate, Floats, Ints, MeasuredConversions
from aggservice.campaign.optimise.choices import MOST_EPSILON, Choice, jobs_per_batch, round_scale, windows_from_batches
from aggservice.campaign.optimise.errors import ErrorTarget, chance_within, payable_windows
from aggservice.campaign.service.jobs import QueryJob
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import Truth, simulate_reports
from aggservice.mechanisms import DiscreteLaplace

_GRID, _PARTS = 96, 400
_PARTS_OF_SHARES = 48


def noise_lab(campaign: Campaign, chain: RunChain) -> Choice:
    """Return the choice of Noise Lab's rule: each measure gets an equal part of Λ₁, all of it for its largest value."""
    now, l1 = Choice.of(campaign), campaign.client.l1
    if not campaign.client.sums_conversions:
        return replace(now, cap=1)
    items = simulate_reports(campaign, chain).items
    share = Fraction(l1, len(campaign.measures))
    most = [largest_value(campaign, items, place) for place in range(len(campaign.measures))]
    return replace(now, scales=tuple(round_scale(share / one) for one in most), most=tuple(most))


def largest_value(campaign: Campaign, items: MeasuredConversions, place: int) -> int:
    """Return the largest value of a measure, at least 1; counts are 1."""
    return int(items.natural[items.measure == place].max(initial=1)) if campaign.measures[place].of == "value" else 1


def lower_bound(
    campaign: Campaign, chains: Sequence[RunChain], target: ErrorTarget, queries: Sequence[Query]
) -> float | None:
    """Return an error that no choice can beat, apart from rounding; None with key discovery and in the paper's form.

    In that form a conversion goes on to an older ad, so that caps may move it to another slice and not only take it
    away. Reports are lost or late as they are on these chains with the campaign's own scales. ``queries`` have the
    total ε that may be divided.
    """
    if any(query.discovery for query in campaign.queries) or not campaign.client.sums_conversions:
        return None
    if campaign.client.caps_move:
        return None
    campaign = replace(campaign, queries=tuple(queries))
    truths = [simulate_reports(campaign, chain) for chain in chains]
    measures = range(len(campaign.measures))
    grids = [_grid(max(largest_value(campaign, truth.items, place) for truth in truths)) for place in measures]
    if target.within is not None:
        return _least_missed(campaign, chains, truths, grids, target)
    bias = [np.zeros(grid.size) for grid in grids]
    noise: list[dict[str, Floats]] = [{} for _ in grids]
    fixed = [np.zeros(grid.size) for grid in grids]
    slices = 0
    for chain, truth in zip(chains, truths, strict=True):
        jobs, total = _jobs(campaign, truth)
        for job in jobs:
            variance, whole = _least_variance(campaign, job, total)
            for place in measures:
                true, terms, missing = _clipped(campaign, chain, truth, job, place, grids[place])
                tau = target.taus[job.query.name, campaign.measures[place].name]
                weight = np.maximum(true, tau) ** -2.0
                bias[place] += (weight * missing**2).sum(axis=1)
                into = (
                    fixed[place] if not whole else noise[place].setdefault(job.query.name, np.zeros(bias[place].size))
                )
                into += variance * float((weight * terms).sum()) * (grids[place] / campaign.client.l1) ** 2
                slices += true.size
    curves = [_least_by_part(*parts, campaign.client.shares_l1) for parts in zip(bias, noise, fixed, strict=True)]
    return math.sqrt(_divided(curves) / slices) if slices else 0.0


def _grid(largest: int) -> Ints:
    return np.unique(np.rint(np.geomspace(1, largest, _GRID)).astype(np.int64))


def _jobs(campaign: Campaign, truth: Truth) -> tuple[list[QueryJob], Fraction]:
    """Return the windows that can be paid for, and the total ε per report of their queries."""
    jobs = payable_windows(campaign, truth.collected.closes_ms)
    asked = {job.query.name: job.query for job in jobs}
    return jobs, sum((jobs_per_batch(query) * Fraction(query.epsilon) for query in asked.values()), Fraction(0))


def _least_missed(
    campaign: Campaign, chains: Sequence[RunChain], truths: Sequence[Truth], grids: Sequence[Ints], target: ErrorTarget
) -> float:
    """Return a share of slices that miss which no choice can beat: each query has all of ε."""
    shared = len(grids) > 1 and campaign.client.shares_l1
    parts = np.arange(1, _PARTS_OF_SHARES + 1) / _PARTS_OF_SHARES if shared else np.ones(1)
    within = [np.zeros((grid.size, parts.size)) for grid in grids]
    slices = np.zeros(len(grids))
    for chain, truth in zip(chains, truths, strict=True):
        jobs, total = _jobs(campaign, truth)
        for job in jobs:
            for place, grid in enumerate(grids):
                clipped = _clipped(campaign, chain, truth, job, place, grid)
                allowed = target.allowed(clipped[0], job.query.name, campaign.measures[place].name)
                scales = parts * campaign.client.l1 / grid[:, None]
                ways = [
                    (laplace_of_query(campaign, one), len(job.batches) if one.job_per == "batch" else 1)
                    for one in _ways_to_ask(campaign, job.query, total)
                ]
                within[place] += _most_slices(clipped, allowed, scales, ways)
                slices[place] += allowed.size
    curves = [count - one.max(axis=0) for one, count in zip(within, slices, strict=True)]
    return _divided(curves) / slices.sum() if slices.any() else 0.0


def _most_slices(
    clipped: tuple[Floats, Ints, Floats],
    allowed: Floats,
    scales: Floats,
    ways: Sequence[tuple[DiscreteLaplace, int]],
) -> Floats:
    """Return how many slices are within what is allowed at most, by clipping bound and part of Λ₁, as ``scales`` are.

    ``ways`` has the noise of each way to ask and the number of summaries that it adds up; each slice has the best way.
    """
    true, terms, missing = clipped
    found, copies = np.empty(scales.shape), scales.shape[1]
    # A bound of the grid stands for all up to the next one: the bias is at least that of the next.
    for number, upper in enumerate((*missing[1:], missing[-1])):
        best = np.zeros(copies * true.size)
        for noise, summaries in ways:
            whole, limit, off, keys = (np.tile(one, copies) for one in (true, allowed, upper, terms * summaries))
            scale, off = most_within(np.repeat(scales[number], true.size), off, limit, keys, float(noise.rate))
            chance = chance_within(scale * (whole - off), keys, limit, truth=whole, scale=scale, noise=noise)
            best = np.maximum(best, chance)
        found[number] = best.reshape(copies, true.size).sum(axis=1)
    return found


def most_within(most: Floats, off: Floats, limit: Floats, keys: Ints, rate: float) -> tuple[Floats, Floats]:
    """Return scale and bias with the largest chance to be within the limit, for scales up to ``most``.

    If the bias is within the limit, that is the largest scale. If it is m > d, the chance of one key's noise is
    proportional to e^(−rate·s·(m − d)) − e^(−rate·s·(m + d)), which is largest at s = ln((m + d)/(m − d)) / (2·rate·d).
    For several keys the bias is taken as d, which makes the chance larger.
    """
    beyond = (off > limit) & (limit > 0)
    alone = beyond & (keys == 1)
    high, low = off[alone] + limit[alone], off[alone] - limit[alone]
    scale = most.copy()
    scale[alone] = np.minimum(most[alone], np.log(high / low) / (2 * rate * limit[alone]))
    return scale, np.where(beyond & ~alone, limit, off)


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

    The shares of m measures, rounded up to whole parts, are at most m − 1 parts more than all. So indexes that add up
    to the number of parts − 1 cover every division.
    """
    best, *others = curves
    for curve in others:
        best = np.array([(best[: n + 1] + curve[n::-1]).min() for n in range(best.size)])
    return float(best[-1])


def _least_variance(campaign: Campaign, window: QueryJob, total: Fraction) -> tuple[float, bool]:
    """Return the least variance of a key of a window at a total ε per report, and whether that needs all of the ε.

    The window may have its own job, or be added up from batches. A job uses at most ε = 64.
    """
    queries = _ways_to_ask(campaign, window.query, total)
    found = [
        float(laplace_of_query(campaign, query).variance()) * (len(window.batches) if query.job_per == "batch" else 1)
        for query in queries
    ]
    return min(found), all(total / jobs_per_batch(query) <= MOST_EPSILON for query in queries)


def _ways_to_ask(campaign: Campaign, query: Query, total: Fraction) -> list[Query]:
    """Return the query with all of a total ε per report: as it is, and with windows that are added up from batches."""
    ways = [one for one in (query, windows_from_batches(campaign, query)) if one is not None]
    epsilons = [min(total / jobs_per_batch(one), MOST_EPSILON) for one in ways]
    return [replace(one, epsilon=f"{float(each):.6f}") for one, each in zip(ways, epsilons, strict=True)]


def _clipped(
    campaign: Campaign, chain: RunChain, truth: Truth, job: QueryJob, place: int, grid: Ints
) -> tuple[Floats, Ints, Floats]:
    """Return truth and number of keys of a job's slices, and what each slice misses per clipping bound (first axis).

    Reports that were lost or late are missing whole.
    """
    by_key = job_truth(campaign, chain, truth, job)
    items = truth.items
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(job.batches)] = True
    chosen = np.flatnonzero(window[truth.collected.period] & items.attributable & (items.measure == place))
    keys = KeyTable(by_key.high, by_key.low).find(items.true_high[chosen], items.true_low[chosen])
    slice_of, size = by_key.slice_of[keys], by_key.slice_truth.size
    terms = np.bincount(by_key.slice_of[by_key.domain], minlength=size)
    shown = np.flatnonzero((by_key.slice_measure == place) & (terms > 0))
    natural, sent = items.natural[chosen], ~np.isin(truth.collected.fate[chosen], (Fate.LOST, Fate.LATE))
    missing = np.empty((grid.size, shown.size))
    for number, bound in enumerate(grid.tolist()):
        missing[number] = sums_at(slice_of, natural - np.where(sent, np.minimum(natural, bound), 0), size)[shown]
    return by_key.slice_truth[shown].astype(np.float64), terms[shown], missing
