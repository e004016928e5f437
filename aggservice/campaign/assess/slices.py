"""Compares estimates with the truth: errors, coverage and losses of each job, slice by slice.

True and noisy values meet only here, in a simulation that knows the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.job_truth import JobTruth, sums_at
from aggservice.campaign.assess.waterfall import Waterfall, waterfall_of
from aggservice.campaign.service.jobs import JobResult
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import Words
from aggservice.client import ClientError
from aggservice.client.values import SummaryHeader
from aggservice.mechanisms import DiscreteLaplace
from paa_client.recipes.estimates import half_width

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_LEVEL = Fraction(95, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One row of a table. Truth, estimate and interval are in natural units, ``sent`` is in contribution units.

    The interval is for what was sent: ``covered`` says whether it contains ``sent`` / scale.
    """

    names: Mapping[str, str]
    measure: str
    truth: float
    sent: int
    estimate: float
    low: float
    high: float
    covered: bool
    above_noise: bool

    @property
    def label(self) -> str:
        """The names, joined."""
        return " · ".join(self.names.values())

    @property
    def relative_error(self) -> float | None:
        """|estimate − truth| / truth; None if the truth is 0."""
        return abs(self.estimate - self.truth) / self.truth if self.truth else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureErrors:
    """The errors of one measure over the slices of a job.

    ``rmse`` is the root mean square of estimate − truth, in natural units; ``rmsre`` that of
    (estimate − truth) / max(truth, ``tau``), where τ is the standard deviation of the noise unless the query sets it.
    ``bias`` is the sum that was sent minus the truth, in natural units: repeating the query does not average it away.
    ``half_width`` is that of one key's stated interval, in natural units; None for event-level reports.
    """

    measure: str
    slices: int
    covered: int
    above_noise: int
    rmse: float
    rmsre: float
    tau: float
    median_relative_error: float | None
    truth: float
    estimate: float
    bias: float
    half_width: float | None = None

    @classmethod
    def over(cls, truth: Floats, estimate: Floats, *, tau: float, total: float, **given: Any) -> MeasureErrors:
        """Compute the errors over slices from their truths and estimates; ``total`` is the truth of all of them."""
        off, positive = estimate - truth, truth > 0
        relative = np.abs(off)[positive] / truth[positive]
        return cls(
            slices=truth.size,
            rmse=_root_mean_square(off),
            rmsre=_root_mean_square(off / np.maximum(truth, tau)),
            tau=tau,
            median_relative_error=float(np.median(relative)) if relative.size else None,
            truth=total,
            estimate=float(estimate.sum()),
            **given,
        )


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryScore:
    """How well discovery found keys. Precision: released keys with a true sum; recall: true keys that were released."""

    released: int
    true_keys: int
    precision: float | None
    recall: float | None
    left_out_keys: int
    left_out_share: float
    others: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A job compared with the truth. ``slices`` are the largest by truth, up to the campaign's number per measure."""

    job: str
    query: str
    batches: tuple[int, ...]
    paid: bool
    refusal: str
    statement: str
    remaining: Mapping[str, str]
    error_counts: Mapping[str, int]
    slices: tuple[Slice, ...]
    slice_count: int
    figures: tuple[MeasureErrors, ...]
    waterfalls: tuple[Waterfall, ...]
    discovery: DiscoveryScore | None

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **asdict(self),
            "waterfalls": [one.to_plain() for one in self.waterfalls],
            "slices": [{**asdict(one), "relative_error": one.relative_error} for one in self.slices],
        }


def noise_of(answer: JobResult, measure: int = 0) -> DiscreteLaplace:
    """Return the distribution of the noise on a declared key; a discovered key has the same, truncated at ±τ."""
    statement = answer.statement_of(measure)
    return DiscreteLaplace(epsilon_micro=int(Fraction(statement.epsilon) * 10**6), sensitivity=statement.l1)


def _refusal(problem: ClientError) -> str:
    """Return how many units could not pay, and why; without the file that lists them, which is after a semicolon."""
    return f"{problem.count:,} units could not pay: {problem.message.partition(';')[0]}"


def assess(campaign: Campaign, answer: JobResult, truth: JobTruth) -> Assessment:
    """Compare the summary of one job with the truth of its batches."""
    compared = Comparison(campaign, answer, truth)
    waterfalls = [
        waterfall_of(
            truth,
            compared.released if answer.paid else None,
            discovery=answer.job.query.discovery,
            place=place,
            measure=measure.name,
            metric=compared.metric,
        )
        for place, measure in enumerate(campaign.measures)
    ]
    figures = compared.figures()
    statement, reply = answer.statement, answer.reply
    return Assessment(
        job=answer.job.name,
        query=answer.job.query.name,
        batches=answer.job.batches,
        paid=answer.paid,
        refusal=_refusal(reply) if isinstance(reply, ClientError) else "",
        statement=statement.text if statement else "",
        remaining=dict(statement.remaining) if statement else {},
        error_counts=dict(reply.error_counts),
        slices=tuple(compared.slices()),
        slice_count=sum(one.slices for one in figures),
        figures=figures,
        waterfalls=tuple(waterfalls),
        discovery=compared.discovery(),
    )


def slice_names(campaign: Campaign, by: tuple[str, ...], high: Words, low: Words) -> dict[str, str]:
    """Return the values by field of one slice, from its key (columns of one row)."""
    fields = [field for field in campaign.keys.fields if field.name in by or field.origin == "measure"]
    return {field.name: field.value_of(int(field.decode(high, low)[0])) for field in fields}


class Comparison:
    """One released job beside its truth: errors over slices, and their rows."""

    def __init__(self, campaign: Campaign, answer: JobResult, truth: JobTruth) -> None:
        self.campaign, self.answer, self.truth = campaign, answer, truth
        size, slices = len(truth), truth.slice_truth.size
        self.released = np.zeros(size, dtype=np.bool_)
        self.metric = np.zeros(size, dtype=np.int64)
        if not answer.paid:
            return
        places = truth.find(answer.high, answer.low)
        self.released[places] = True
        self.metric[places] = answer.metrics
        of_rows = truth.slice_of[places]
        draws = np.ones(places.size, dtype=np.int64) if answer.draws is None else answer.draws
        self.terms = sums_at(of_rows, draws, slices)
        self.sent = sums_at(of_rows, truth.sent[places], slices)
        self.estimate = sums_at(of_rows, answer.metrics, slices)
        self.width = np.zeros(slices, dtype=np.int64)
        self.deviations = []
        for place in range(len(campaign.measures)):
            noise, stated = noise_of(answer, place), answer.statement_of(place).interval_half_width
            mine = truth.slice_measure == place
            counts = np.unique(self.terms[mine])
            widths = [half_width(noise, _LEVEL, int(n)) if n > 1 else int(n) * stated for n in counts]
            self.width[mine] = np.array(widths, dtype=np.int64)[np.searchsorted(counts, self.terms[mine])]
            self.deviations.append(float(noise.variance()) ** 0.5)
        self.covered = np.abs(self.estimate - self.sent) <= self.width
        self.above_noise = self.sent > self.width

    def shown(self, place: int) -> Ints:
        """Return the slices of a measure that the summary has at least one row of."""
        return np.flatnonzero((self.truth.slice_measure == place) & (self.terms > 0))

    def figures(self) -> tuple[MeasureErrors, ...]:
        """Return the errors of each measure; none for a job that was refused."""
        if not self.answer.paid:
            return ()
        truth, query = self.truth, self.answer.job.query
        found = []
        for place, one in enumerate(self.campaign.measures):
            mine, scale = self.shown(place), float(one.scale)
            happened = float(truth.truth[truth.measure == place].sum())
            found.append(
                MeasureErrors.over(
                    truth.slice_truth[mine].astype(np.float64),
                    self.estimate[mine] / scale,
                    measure=one.name,
                    covered=int(self.covered[mine].sum()),
                    above_noise=int(self.above_noise[mine].sum()),
                    tau=query.tau or self.deviations[place] / scale,
                    total=happened,
                    bias=float(self.sent[mine].sum() / scale) - happened,
                    half_width=self.answer.statement_of(place).interval_half_width / scale,
                )
            )
        return tuple(found)

    def largest(self, place: int) -> Ints:
        """Return the slices of a measure with the largest truths, as many as the campaign's tables have rows."""
        mine = self.shown(place)
        return mine[np.argsort(-self.truth.slice_truth[mine], kind="stable")][: self.campaign.drawing.rows]

    def names(self, at: int) -> dict[str, str]:
        """Return the values of a slice by field."""
        key = self.truth.slice_high[at : at + 1], self.truth.slice_low[at : at + 1]
        return slice_names(self.campaign, self.answer.job.query.by, *key)

    def slices(self) -> list[Slice]:
        """Return the rows of the largest slices of every measure, largest truth first."""
        if not self.answer.paid:
            return []
        rows = []
        for place, one in enumerate(self.campaign.measures):
            scale = float(one.scale)
            for at in self.largest(place).tolist():
                rows.append(
                    Slice(
                        names=self.names(at),
                        measure=one.name,
                        truth=float(self.truth.slice_truth[at]),
                        sent=int(self.sent[at]),
                        estimate=float(self.estimate[at] / scale),
                        low=float((self.estimate[at] - self.width[at]) / scale),
                        high=float((self.estimate[at] + self.width[at]) / scale),
                        covered=bool(self.covered[at]),
                        above_noise=bool(self.above_noise[at]),
                    )
                )
        return sorted(rows, key=lambda row: -row.truth)

    def discovery(self) -> DiscoveryScore | None:
        """Return the score of key discovery; None if the job did not discover keys or was refused."""
        reply, truth = self.answer.reply, self.truth.truth
        if not (isinstance(reply, SummaryHeader) and self.answer.job.query.discovery):
            return None
        true = truth > 0
        found = true & self.released
        released = int(self.released.sum())
        total = float(truth.sum())
        return DiscoveryScore(
            released=released,
            true_keys=int(true.sum()),
            precision=float(found.sum() / released) if released else None,
            recall=float(found.sum() / true.sum()) if true.any() else None,
            left_out_keys=int((true & ~self.released).sum()),
            left_out_share=float(truth[true & ~self.released].sum() / total) if total else 0.0,
            others=reply.others,
        )
