"""Compares estimates with the truth: errors, coverage and losses of each job, slice by slice.

True and noisy values meet only here, in a simulation that knows the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from aggservice.campaign.assess.job_truth import JobTruth, sums_at
from aggservice.campaign.columns import LOSSES, Fate, Flags, Ints, Words
from aggservice.campaign.metrics import DiscoveryScore, MeasureErrors, SliceColumns
from aggservice.campaign.service.jobs import QueryAnswer
from aggservice.campaign.settings.campaign import Campaign
from aggservice.client import ClientError
from aggservice.job.result import SummaryHeader
from aggservice.mechanisms import NoiseLaw
from budget import Sensitivity
from paa_client.recipes.estimates import half_width


class WaterfallStep(NamedTuple):
    """One loss of a waterfall: its name, and the conversions and the amount that it took."""

    step: str
    conversions: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Conversions and their amounts by fate. ``clipped`` is the amount that clipping took from counted conversions;
    ``noise`` is the noise of the released rows, so that ``estimate`` = ``counted_amount`` + ``noise``.
    """

    measure: str
    happened: int
    happened_amount: int
    conversions: Mapping[Fate, int]
    amounts: Mapping[Fate, int]
    clipped: int
    counted_amount: int
    noise: int
    estimate: int

    @property
    def adds_up(self) -> bool:
        """Whether the steps account for every conversion and every unit of amount."""
        lost = sum(self.amounts[fate] for fate in LOSSES)
        return (
            sum(self.conversions.values()) == self.happened
            and lost + self.clipped + self.counted_amount == self.happened_amount
            and self.counted_amount + self.noise == self.estimate
        )

    @property
    def counted(self) -> int:
        """How many conversions a summary counts."""
        return self.conversions[Fate.COUNTED]

    @property
    def steps(self) -> list[WaterfallStep]:
        """Every loss, in order; clipping takes an amount but no conversion."""
        steps = [WaterfallStep(fate.words, self.conversions[fate], self.amounts[fate]) for fate in LOSSES]
        return [*steps, WaterfallStep("clipped", 0, self.clipped)]

    def __add__(self, other: Waterfall) -> Waterfall:
        """Add the waterfalls of two jobs of one query."""
        totals = ("happened", "happened_amount", "clipped", "counted_amount", "noise", "estimate")
        return Waterfall(
            measure=self.measure,
            conversions={fate: count + other.conversions[fate] for fate, count in self.conversions.items()},
            amounts={fate: amount + other.amounts[fate] for fate, amount in self.amounts.items()},
            **{name: getattr(self, name) + getattr(other, name) for name in totals},
        )

    def to_plain(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "happened": {"conversions": self.happened, "amount": self.happened_amount},
            "steps": [step._asdict() for step in self.steps],
            "counted": {"conversions": self.counted, "amount": self.counted_amount},
            "noise": self.noise,
            "estimate": self.estimate,
            "adds_up": self.adds_up,
        }


def waterfall_of(
    truth: JobTruth, released: Flags | None, *, discovery: bool, place: int, measure: str, metric: Ints
) -> Waterfall:
    """Return the waterfall of one measure. ``released`` says which keys have a row, and is None for a job that was
    refused; ``metric`` holds the released metrics by key, and 0 for other keys.
    """
    counts, amounts = truth.settled_count[place].copy(), truth.settled_asked[place].copy()
    counted = np.zeros(len(truth), dtype=np.bool_) if released is None else released
    left_out = Fate.OVER_BUDGET if released is None else Fate.BELOW_THRESHOLD if discovery else Fate.NOT_ASKED
    for fate, chosen in ((Fate.COUNTED, counted), (left_out, ~counted)):
        counts[fate] += truth.waiting_count[place][chosen].sum()
        amounts[fate] += truth.waiting_asked[place][chosen].sum()
    mine = counted & (truth.measure == place)
    estimate = int(metric[mine].sum())
    counted_amount = int(truth.waiting_amount[place][counted].sum())
    return Waterfall(
        measure=measure,
        happened=int(counts.sum()),
        happened_amount=int(amounts.sum()),
        conversions={one: int(counts[one]) for one in Fate},
        amounts={one: int(amounts[one]) for one in Fate},
        clipped=int(amounts[Fate.COUNTED]) - counted_amount,
        counted_amount=counted_amount,
        noise=estimate - int(truth.sent[mine].sum()),
        estimate=estimate,
    )


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
class Assessment:
    """A job compared with the truth. ``slices`` are the largest by truth, up to the campaign's number per measure."""

    job: str
    query: str
    batches: tuple[int, ...] = ()
    paid: bool
    refusal: str = ""
    statement: str
    remaining: Mapping[str, str] = field(default_factory=dict)
    error_counts: Mapping[str, int] = field(default_factory=dict)
    slices: tuple[Slice, ...]
    slice_count: int
    figures: tuple[MeasureErrors, ...]
    waterfalls: tuple[Waterfall, ...] = ()
    discovery: DiscoveryScore | None = None

    def to_plain(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "figures": [one.to_plain() for one in self.figures],
            "waterfalls": [one.to_plain() for one in self.waterfalls],
            "slices": [{**asdict(one), "relative_error": one.relative_error} for one in self.slices],
        }


def noise_of(answer: QueryAnswer, measure: int = 0) -> NoiseLaw:
    """Return the distribution of the noise on a declared key; a discovered key has the same, truncated at ±τ."""
    statement = answer.statement_of(measure)
    paid = answer.job.query.mechanism.parse(epsilon=statement.epsilon)
    return paid.noise(Sensitivity(l1=statement.l1, l0=statement.l0))


def _refusal(problem: ClientError) -> str:
    """Return how many units could not pay, and why; without the file that lists them, which is after a semicolon."""
    return f"{problem.count:,} units could not pay: {problem.message.partition(';')[0]}"


def assess(campaign: Campaign, answer: QueryAnswer, truth: JobTruth) -> Assessment:
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
    return {field.name: field.value_of(int(field.decode(high, low)[0])) for field in campaign.keys.shown(by)}


class Comparison:
    """One released job beside its truth: errors over slices, and their rows."""

    def __init__(self, campaign: Campaign, answer: QueryAnswer, truth: JobTruth) -> None:
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
            slices = SliceColumns(
                truth=truth.slice_truth[mine].astype(np.float64),
                sent=self.sent[mine] / scale,
                estimate=self.estimate[mine] / scale,
                width=self.width[mine] / scale,
                covered=self.covered[mine],
                above_noise=self.above_noise[mine],
                tau=query.tau or self.deviations[place] / scale,
            )
            found.append(
                MeasureErrors.over(
                    slices,
                    self.campaign.metrics,
                    measure=one.name,
                    truth=happened,
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
