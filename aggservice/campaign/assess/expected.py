"""The error to expect of a query before any run: from the exact law of its noise and the simulated contributions.

The sums of a job do not depend on ε: ``slice_sums`` computes them once, and ``expected_errors`` adds the law of the
noise to them, so that moving ε costs almost nothing; metrics then say what to expect of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from aggservice.campaign.assess.job_truth import job_truth, sums_at
from aggservice.campaign.columns import Fate, Floats, Ints, Words
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.noise_sums import chance_between
from aggservice.campaign.metrics import MeasureErrors, Metric, SliceLaws
from aggservice.campaign.service.jobs import QueryJob
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.stages import RunChain
from aggservice.campaign.world.truth import Truth
from aggservice.mechanisms import DiscreteLaplace, NoiseLaw
from budget import Sensitivity
from paa_client.recipes.estimates import half_width

_LEVEL: Final = Fraction(95, 100)
_ROUNDING: Final = 1e-6
"""Ends in natural units become whole contribution units again within this."""
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
    """What to expect of the slices of one job for one measure; ``laws`` are what metrics read.

    ``tolerance`` is the standard deviation over runs of the mean square in RMSRE_τ, relative to it, and
    ``noise_share`` the part of that mean square that is due to noise; the rest is bias.
    """

    measure: str
    laws: SliceLaws
    tolerance: float
    noise_share: float
    capped: float
    clipped: float

    @property
    def slices(self) -> int:
        """How many slices there are."""
        return self.laws.truth.size

    @property
    def bias(self) -> float:
        """What is sent minus the truth, in natural units."""
        return float((self.laws.sent - self.laws.truth).sum())

    def figures(self, metrics: Iterable[Metric]) -> MeasureErrors:
        """Return the metrics to expect, in the form of a job that has run."""
        return MeasureErrors(
            measure=self.measure,
            slices=self.slices,
            tau=self.laws.tau,
            truth=float(self.laws.truth.sum()),
            estimate=float(self.laws.sent.sum()),
            bias=self.bias,
            values={one.in_job: one.expected(self.laws) for one in metrics if one.in_job},
        )


def slice_sums(campaign: Campaign, chain: RunChain, truth: Truth, job: QueryJob) -> list[SliceSums]:
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


def expected_errors(sums: SliceSums, noise: NoiseLaw, tau: float = 0.0) -> ExpectedErrors:
    """Return the errors to expect of a job's slices under a noise; ``tau`` 0 stands for its standard deviation."""
    variance = float(noise.variance())
    widths = {int(count): half_width(noise, _LEVEL, int(count)) for count in np.unique(sums.keys)}
    width = np.array([widths[int(count)] for count in sums.keys], dtype=np.float64)

    def chance(low: Floats, high: Floats) -> Floats:
        found = np.empty(sums.keys.size)
        for terms in np.unique(sums.keys).tolist():
            mine = sums.keys == terms
            ends = np.ceil(low[mine] * sums.scale - _ROUNDING), np.floor(high[mine] * sums.scale + _ROUNDING)
            found[mine] = chance_between(noise, terms, *ends)
        return found

    laws = SliceLaws(
        truth=sums.truth,
        sent=sums.sent / sums.scale,
        width=width / sums.scale,
        variance=np.asarray(sums.keys * variance / sums.scale**2, dtype=np.float64),
        tau=tau or variance**0.5 / sums.scale,
        chance=chance,
    )
    bias, spread = laws.sent - laws.truth, laws.variance
    weight = np.maximum(laws.truth, laws.tau) ** -2.0
    mean = float((weight * (bias**2 + spread)).mean()) if weight.size else 0.0
    # A sum of n Laplace variables of scale b has Var[S²] = (12 n + 8 n²) b⁴; odd moments are 0.
    scale2 = variance / 2 / sums.scale**2
    wander = weight**2 * ((12 * sums.keys + 8 * sums.keys**2) * scale2**2 + 4 * bias**2 * spread)
    return ExpectedErrors(
        measure=sums.measure,
        laws=laws,
        tolerance=float(np.sqrt(wander.sum())) / weight.size / mean if mean else 0.0,
        noise_share=float((weight * spread).mean()) / mean if mean else 0.0,
        capped=sums.capped,
        clipped=sums.clipped,
    )


def epsilon_left(campaign: Campaign, jobs: Sequence[QueryJob]) -> Fraction:
    """Return the ε that the poorest batch has left after all jobs; below 0 if some of them will be refused."""
    spent = [Fraction(0)] * campaign.batches
    for job in jobs:
        for batch in job.batches:
            spent[batch] += Fraction(job.query.epsilon) + Fraction(job.query.others_epsilon)
    return Fraction(campaign.service.epsilon) - max(spent, default=Fraction(0))


def noise_of_query(campaign: Campaign, query: Query) -> NoiseLaw:
    """Return the noise on each key of a query."""
    return query.noise.noise(Sensitivity(l1=campaign.client.l1, l0=campaign.client.l0))


def laplace_of_query(campaign: Campaign, query: Query) -> DiscreteLaplace:
    """Return the noise on each key of a query for a search that knows the law of Laplace noise only."""
    noise = noise_of_query(campaign, query)
    if not isinstance(noise, DiscreteLaplace):
        raise CampaignError(
            f"query {query.name!r} has {query.mechanism.name} noise: the search knows Laplace noise only"
        )
    return noise
