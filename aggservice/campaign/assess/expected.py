"""The error to expect of a query before any run: from the exact law of its noise and the simulated contributions.

The sums of a job do not depend on ε: ``slice_sums`` computes them once, and ``expected_errors`` adds the law of the
noise to them, so that moving ε costs almost nothing. Errors are those of ``slices.MeasureErrors``, in expectation over
the noise: the mean square of an error is bias² + variance, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.job_truth import job_truth, sums_at
from aggservice.campaign.service.jobs import Job
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.settings.key_layout import Words
from aggservice.campaign.stages.chain import Chain
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.truth import Truth
from aggservice.mechanisms import DiscreteLaplace
from paa_client.recipes.estimates import half_width

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEVEL: Final = Fraction(95, 100)
_CAPPED: Final = (Fate.CAPPED_L1, Fate.CAPPED_L0, Fate.RATE_LIMITED)
_ATTRIBUTED: Final = tuple(fate for fate in Fate if fate > Fate.DEDUPLICATED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceSums:
    """The slices of one job for one measure: truth in natural units, and contributions sent.

    ``keys`` is how many released numbers each slice adds up, over all summaries of the job. ``high`` and ``low`` are
    the keys of the slices.

    ``capped`` and ``clipped`` are the shares of the attributable amount that caps and clipping took.
    """

    measure: str
    scale: float
    high: Words
    low: Words
    truth: Floats
    sent: Ints
    keys: Ints
    capped: float
    clipped: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedErrors:
    """What to expect of the slices of one job for one measure, in natural units.

    ``rmsre`` is the root of the expected mean square of (estimate − truth) / max(truth, ``tau``); ``tolerance`` is the
    standard deviation of that mean square over runs, relative to it. ``noise_share`` is the part of the mean square
    that is due to noise; the rest is bias. ``deviation`` and ``half_width`` are per slice.
    """

    measure: str
    slices: int
    rmse: float
    rmsre: float
    tau: float
    tolerance: float
    noise_share: float
    above_noise: float
    bias: float
    capped: float
    clipped: float
    deviation: Floats
    half_width: Floats


def slice_sums(campaign: Campaign, chain: Chain, truth: Truth, job: Job) -> list[SliceSums]:
    """Return the slices of a job with declared keys, per measure; ``job`` may add up several summaries."""
    by_key = job_truth(campaign, chain, truth, job)
    slices = by_key.slice_truth.size
    of_rows = by_key.slice_of[by_key.domain]
    keys = np.bincount(of_rows, minlength=slices)
    sent = sums_at(of_rows, by_key.sent[by_key.domain], slices)
    found = []
    for place, measure in enumerate(campaign.measures):
        shown = np.flatnonzero((by_key.slice_measure == place) & (keys > 0))
        settled = by_key.settled_asked[place]
        waiting, amount = int(by_key.waiting_asked[place].sum()), int(by_key.waiting_amount[place].sum())
        asked = waiting + int(settled[list(_ATTRIBUTED)].sum())
        found.append(
            SliceSums(
                measure=measure.name,
                scale=float(measure.scale),
                high=by_key.slice_high[shown],
                low=by_key.slice_low[shown],
                truth=by_key.slice_truth[shown].astype(np.float64),
                sent=sent[shown],
                keys=keys[shown] * job.summaries,
                capped=int(settled[list(_CAPPED)].sum()) / asked if asked else 0.0,
                clipped=(waiting - amount) / asked if asked else 0.0,
            )
        )
    return found


def expected_errors(sums: SliceSums, noise: DiscreteLaplace, tau: float = 0.0) -> ExpectedErrors:
    """Return the errors to expect of a job's slices under a noise; ``tau`` 0 stands for its standard deviation."""
    variance = float(noise.variance())
    widths = {int(count): half_width(noise, _LEVEL, int(count)) for count in np.unique(sums.keys)}
    width = np.array([widths[int(count)] for count in sums.keys], dtype=np.float64)
    bias = sums.sent / sums.scale - sums.truth
    spread = sums.keys * variance / sums.scale**2
    chosen = tau or variance**0.5 / sums.scale
    weight = np.maximum(sums.truth, chosen) ** -2.0
    square, noisy = weight * (bias**2 + spread), weight * spread
    mean = float(square.mean()) if square.size else 0.0
    # A sum of n Laplace variables of scale b has Var[S²] = (12 n + 8 n²) b⁴; odd moments are 0.
    scale2 = variance / 2 / sums.scale**2
    wander = weight**2 * ((12 * sums.keys + 8 * sums.keys**2) * scale2**2 + 4 * bias**2 * spread)
    return ExpectedErrors(
        measure=sums.measure,
        slices=sums.truth.size,
        rmse=float(np.sqrt(np.mean(bias**2 + spread))) if square.size else 0.0,
        rmsre=mean**0.5,
        tau=chosen,
        tolerance=float(np.sqrt(wander.sum())) / square.size / mean if mean else 0.0,
        noise_share=float(noisy.mean()) / mean if mean else 0.0,
        above_noise=float(np.mean(sums.sent > width)) if square.size else 0.0,
        bias=float(bias.sum()),
        capped=sums.capped,
        clipped=sums.clipped,
        deviation=np.sqrt(spread),
        half_width=width / sums.scale,
    )


def epsilon_left(campaign: Campaign, jobs: Sequence[Job]) -> Fraction:
    """Return the ε that the poorest batch has left after all jobs; below 0 if some of them will be refused."""
    spent = [Fraction(0)] * campaign.batches
    for job in jobs:
        for batch in job.batches:
            spent[batch] += Fraction(job.query.epsilon) + Fraction(job.query.others_epsilon)
    return Fraction(campaign.service.epsilon) - max(spent, default=Fraction(0))


def noise_of_query(campaign: Campaign, query: Query) -> DiscreteLaplace:
    """Return the noise on each key of a query."""
    micro = Fraction(query.epsilon) * 10**6
    return DiscreteLaplace(epsilon_micro=int(micro), sensitivity=campaign.client.l1)
