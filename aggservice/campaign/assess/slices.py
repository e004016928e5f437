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

from aggservice.campaign.assess.waterfall import Waterfall, fates_in_job, waterfall_of
from aggservice.campaign.service.jobs import JobResult
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.attribution import MeasuredConversions, ReportColumns
from aggservice.campaign.world.collection import CollectedReports
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


def noise_of(answer: JobResult) -> DiscreteLaplace:
    """Return the distribution of the noise on a declared key; a discovered key has the same, truncated at ±τ."""
    assert answer.statement is not None
    micro = Fraction(answer.statement.epsilon) * 10**6
    return DiscreteLaplace(epsilon_micro=int(micro), sensitivity=answer.statement.l1)


def assess(
    campaign: Campaign,
    answer: JobResult,
    items: MeasuredConversions,
    reports: ReportColumns,
    collected: CollectedReports,
) -> Assessment:
    """Compare the summary of one job with the truth of its batches."""
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(answer.job.batches)] = True
    inside = window[collected.period]
    fate = fates_in_job(items, inside, answer)
    sums = _Sums(campaign, answer, items, reports, inside, window, collected)
    waterfalls = []
    for place, measure in enumerate(campaign.measures):
        mine = sums.released & (sums.measure == place)
        waterfalls.append(
            waterfall_of(
                items,
                inside,
                fate,
                place=place,
                measure=measure.name,
                released=int(sums.metric[mine].sum()),
                released_sent=int(sums.sent[mine].sum()),
            )
        )
    slices, figures = sums.slices()
    statement, reply = answer.statement, answer.reply
    return Assessment(
        job=answer.job.name,
        query=answer.job.query.name,
        batches=answer.job.batches,
        paid=answer.paid,
        refusal=f"{reply.count:,} units could not pay: {reply.message}" if isinstance(reply, ClientError) else "",
        statement=statement.text if statement else "",
        remaining=dict(statement.remaining) if statement else {},
        error_counts=dict(reply.error_counts),
        slices=tuple(slices),
        slice_count=sum(one.slices for one in figures),
        figures=tuple(figures),
        waterfalls=tuple(waterfalls),
        discovery=sums.discovery() if answer.paid and answer.job.query.discovery else None,
    )


class _Sums:
    """Sums by key of one job: true, sent and released."""

    def __init__(
        self,
        campaign: Campaign,
        answer: JobResult,
        items: MeasuredConversions,
        reports: ReportColumns,
        inside: NDArray[np.bool_],
        window: NDArray[np.bool_],
        collected: CollectedReports,
    ) -> None:
        self.campaign, self.answer = campaign, answer
        true = inside & items.attributable
        member = (collected.batch >= 0) & window[np.maximum(collected.batch, 0)]
        sent = np.repeat(member, np.diff(reports.offset))
        high = np.concatenate((answer.high, items.true_high[true], reports.key_high[sent]))
        low = np.concatenate((answer.low, items.true_low[true], reports.key_low[sent]))
        self.table = KeyTable(high, low)
        size = len(self.table)
        self.truth, self.sent, self.metric = (np.zeros(size, dtype=np.int64) for _ in range(3))
        np.add.at(self.truth, self.table.find(items.true_high[true], items.true_low[true]), items.natural[true])
        np.add.at(self.sent, self.table.find(reports.key_high[sent], reports.key_low[sent]), reports.value[sent])
        self.released = np.zeros(size, dtype=np.bool_)
        places = self.table.find(answer.high, answer.low)
        self.released[places] = True
        self.metric[places] = answer.metrics
        self.measure = np.zeros(size, dtype=np.int64)
        for field in campaign.keys.fields:
            if field.origin == "measure":
                self.measure = np.minimum(field.decode(self.table.high, self.table.low), len(campaign.measures) - 1)

    def slices(self) -> tuple[list[Slice], list[MeasureErrors]]:
        """Return the rows by the query's fields, largest truth first, and the errors per measure."""
        campaign, query = self.campaign, self.answer.job.query
        if not self.answer.paid:
            return [], []
        fields = [field for field in campaign.keys.fields if field.name in query.by or field.origin == "measure"]
        codes = {field.name: field.decode(self.table.high, self.table.low) for field in fields}
        high, low = campaign.keys.keys(codes, len(self.table))
        shown = np.ones(len(self.table), dtype=np.bool_) if not query.discovery else self.released
        groups = KeyTable(high[shown], low[shown])
        place = groups.find(high, low)
        inside = place >= 0
        terms, truth, sent, metric = (np.zeros(len(groups), dtype=np.int64) for _ in range(4))
        np.add.at(terms, place[self.released], 1)
        np.add.at(truth, place[inside], self.truth[inside])
        np.add.at(sent, place[self.released], self.sent[self.released])
        np.add.at(metric, place[self.released], self.metric[self.released])
        measure = np.zeros(len(groups), dtype=np.int64)
        measure[place[inside]] = self.measure[inside]
        noise = noise_of(self.answer)
        assert self.answer.statement is not None
        stated = self.answer.statement.interval_half_width
        widths = {int(n): half_width(noise, _LEVEL, int(n)) if n > 1 else int(n) * stated for n in np.unique(terms)}
        width = np.array([widths[int(count)] for count in terms], dtype=np.int64)
        deviation = float(noise.variance()) ** 0.5
        rows: list[Slice] = []
        figures = []
        for number, one in enumerate(campaign.measures):
            mine = np.flatnonzero((measure == number) & (terms > 0))
            scale = float(one.scale)
            covered = np.abs(metric - sent)[mine] <= width[mine]
            above = sent[mine] > width[mine]
            estimate = metric[mine] / scale
            happened = float(self.truth[self.measure == number].sum())
            figures.append(
                MeasureErrors.over(
                    truth[mine].astype(np.float64),
                    estimate,
                    measure=one.name,
                    covered=int(covered.sum()),
                    above_noise=int(above.sum()),
                    tau=query.tau or deviation / scale,
                    total=happened if query.discovery else float(truth[measure == number].sum()),
                    bias=float(sent[mine].sum() / scale) - happened,
                )
            )
            best = mine[np.argsort(-truth[mine], kind="stable")][: campaign.drawing.rows]
            for at in best.tolist():
                key = groups.high[at : at + 1], groups.low[at : at + 1]
                rows.append(
                    Slice(
                        names={field.name: field.value_of(int(field.decode(*key)[0])) for field in fields},
                        measure=one.name,
                        truth=float(truth[at]),
                        sent=int(sent[at]),
                        estimate=float(metric[at] / scale),
                        low=float((metric[at] - width[at]) / scale),
                        high=float((metric[at] + width[at]) / scale),
                        covered=bool(abs(metric[at] - sent[at]) <= width[at]),
                        above_noise=bool(sent[at] > width[at]),
                    )
                )
        rows.sort(key=lambda row: -row.truth)
        return rows, figures

    def discovery(self) -> DiscoveryScore:
        """Return the score of key discovery."""
        reply = self.answer.reply
        assert isinstance(reply, SummaryHeader)
        true = self.truth > 0
        found = true & self.released
        released = int(self.released.sum())
        total = float(self.truth.sum())
        return DiscoveryScore(
            released=released,
            true_keys=int(true.sum()),
            precision=float(found.sum() / released) if released else None,
            recall=float(found.sum() / true.sum()) if true.any() else None,
            left_out_keys=int((true & ~self.released).sum()),
            left_out_share=float(self.truth[true & ~self.released].sum() / total) if total else 0.0,
            others=reply.others,
        )
