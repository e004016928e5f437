"""The error to expect of a query before any run: from the exact law of its noise and the simulated contributions.

The sums of a job do not depend on ε: ``slice_sums`` computes them once, and ``expected_errors`` adds the law of the
noise to them, so that moving ε costs almost nothing. Errors are those of ``slices.MeasureErrors``, in expectation over
the noise: the mean square of an error is bias² + variance, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.service.jobs import Job
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.truth import Truth
from aggservice.mechanisms import DiscreteLaplace
from paa_client.recipes.estimates import half_width

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEVEL: Final = Fraction(95, 100)
_CAPPED: Final = (Fate.CAPPED_L1, Fate.CAPPED_L0, Fate.RATE_LIMITED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceSums:
    """The slices of one job for one measure: natural truth, contributions sent, and the keys that each adds up.

    ``capped`` and ``clipped`` are the shares of the attributable amount that caps and clipping took.
    """

    measure: str
    scale: float
    names: tuple[Mapping[str, str], ...]
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
    that noise owns; the rest is bias. ``deviation`` and ``half_width`` are per slice.
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


def slice_sums(campaign: Campaign, truth: Truth, job: Job) -> list[SliceSums]:
    """Return the slices of a job with declared keys, per measure."""
    items, reports, collected, query = truth.items, truth.reports, truth.collected, job.query
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(job.batches)] = True
    inside = window[collected.period]
    true = inside & items.attributable
    member = (collected.batch >= 0) & window[np.maximum(collected.batch, 0)]
    sent = np.repeat(member, np.diff(reports.offset))
    high, low = campaign.keys.domain(query.rows)
    fields = [field for field in campaign.keys.fields if field.name in query.by or field.origin == "measure"]

    def grouped(above: NDArray[np.uint64], below: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        return campaign.keys.keys({field.name: field.decode(above, below) for field in fields}, above.size)

    domain, groups = KeyTable(high, low), KeyTable(*grouped(high, low))
    keys = np.bincount(groups.find(*grouped(domain.high, domain.low)), minlength=len(groups))

    def summed(above: NDArray[np.uint64], below: NDArray[np.uint64], values: Ints) -> Ints:
        asked = domain.find(above, below) >= 0
        total = np.zeros(len(groups), dtype=np.int64)
        np.add.at(total, groups.find(*grouped(above[asked], below[asked])), values[asked])
        return total

    natural = summed(items.true_high[true], items.true_low[true], items.natural[true])
    released = summed(reports.key_high[sent], reports.key_low[sent], reports.value[sent])
    place = np.zeros(len(groups), dtype=np.int64)
    for field in fields:
        if field.origin == "measure":
            place = np.minimum(field.decode(groups.high, groups.low), len(campaign.measures) - 1)
    found = []
    for number, measure in enumerate(campaign.measures):
        mine, own = place == number, true & (items.measure == number)
        asked = int(items.asked[own].sum())
        stopped = own & np.isin(items.fate, _CAPPED)
        found.append(
            SliceSums(
                measure=measure.name,
                scale=float(measure.scale),
                names=tuple(
                    {field.name: field.value_of(int(field.decode(above, below)[0])) for field in fields}
                    for above, below in zip(
                        groups.high[mine].reshape(-1, 1), groups.low[mine].reshape(-1, 1), strict=True
                    )
                ),
                truth=natural[mine].astype(np.float64),
                sent=released[mine],
                keys=keys[mine],
                capped=int(items.amount[stopped].sum()) / asked if asked else 0.0,
                clipped=int((items.asked - items.amount)[own].sum()) / asked if asked else 0.0,
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
