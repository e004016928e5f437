"""``metrics.json``: what a run found, as values for plots, the page, sweeps, the terminal and other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from aggservice.campaign.assess.hierarchies import HierarchyErrors
from aggservice.campaign.assess.slices import Assessment, MeasureErrors
from aggservice.campaign.assess.waterfall import Waterfall
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.truth import Truth

if TYPE_CHECKING:
    from aggservice.campaign.assess.event_level import ConversionModel, EventReports


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """Which browser ran; an event-level browser has no Λ₁ and Λ₀."""

    kind: str
    api: str
    form: str
    l1: int | None = None
    l0: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """The size of the simulated world."""

    people: int
    devices: int
    impressions: int
    conversions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCounts:
    """Reports by what happened to them; None for a count that this kind of report does not have."""

    made: int
    in_batches: int
    null: int | None = None
    lost: int | None = None
    late: int | None = None
    retried: int | None = None
    attributed: int | None = None
    ads_with_random_reports: int | None = None
    event_level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureMetrics:
    """The errors of one measure over the paid jobs of a query; None if no slice was released.

    ``truth``, ``estimate``, ``bias`` and ``waterfall`` are totals: sums over the jobs of the query, or, if these share
    batches, those of one job (``QueryMetrics.totals_of``). Event-level reports have no waterfall. ``typical_error`` is
    the median over jobs of their slices' median relative error.
    """

    measure: str
    scale: str
    slices: int
    coverage: float | None
    above_noise: float | None
    rmsre: float | None
    tau: float | None
    truth: float
    estimate: float
    bias: float
    typical_error: float | None
    half_width: float | None
    waterfall: Waterfall | None

    @classmethod
    def of(
        cls,
        measure: str,
        scale: str,
        errors: Sequence[MeasureErrors],
        waterfall: Waterfall | None,
        *,
        totals: Sequence[MeasureErrors] | None = None,
    ) -> MeasureMetrics:
        """Add up the errors of several jobs; truth, estimate and bias only over ``totals`` if that is given."""
        slices = sum(one.slices for one in errors)
        added = errors if totals is None else totals
        typical = [one.median_relative_error for one in errors if one.median_relative_error is not None]
        return cls(
            measure=measure,
            scale=scale,
            slices=slices,
            coverage=sum(one.covered for one in errors) / slices if slices else None,
            above_noise=sum(one.above_noise for one in errors) / slices if slices else None,
            rmsre=(sum(one.rmsre**2 * one.slices for one in errors) / slices) ** 0.5 if slices else None,
            tau=errors[0].tau if errors else None,
            truth=sum(one.truth for one in added),
            estimate=sum(one.estimate for one in added),
            bias=sum(one.bias for one in added),
            typical_error=median(typical) if typical else None,
            half_width=errors[-1].half_width if errors else None,
            waterfall=waterfall,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMetrics:
    """One query: how many jobs it had, how many were paid for, its guarantee, and its errors by measure.

    ``totals_of`` names the job that the totals are of if jobs share batches (rolling windows, repetitions): adding
    those up would count conversions several times. It is empty if totals add up all jobs.
    """

    name: str
    epsilon: str
    jobs: int
    paid: int
    statement: str
    measures: tuple[MeasureMetrics, ...]
    totals_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetrics:
    """The budget per unit, what each paid job left to its poorest unit, and the jobs that were refused."""

    epsilon: str
    delta: str
    unit: str
    left: tuple[Mapping[str, str], ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLosses:
    """ε and δ of the source that lost most, by event-level and by summary reports, as ``transcript.json`` has them.

    ``sources`` is the number of those that send event-level reports: each loses ``event_level``, whatever happens.
    """

    sources: int
    unit: str
    event_level: str
    summary: str
    together: str
    delta: str

    @classmethod
    def of(cls, transcript: Mapping[str, Any]) -> SourceLosses:
        """Read the plain values of a transcript whose sources send both kinds."""
        most = transcript["event_level"]["largest_loss"]
        return cls(
            sources=transcript["event_level"]["sources"],
            unit=most["unit"],
            event_level=most["event_level"]["epsilon"],
            summary=most["lost"]["epsilon"],
            together=most["together"]["epsilon"],
            delta=most["together"]["delta"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Everything that is known about a run except its timings."""

    campaign: str
    description: str
    private: bool
    seed: str | None
    client: ClientMetrics
    start_ms: int
    events: EventCounts
    reports: ReportCounts
    batches: tuple[int, ...]
    queries: tuple[QueryMetrics, ...]
    jobs: tuple[Assessment, ...]
    ledger: LedgerMetrics
    model: ConversionModel | None = None
    losses: SourceLosses | None = None
    hierarchies: tuple[HierarchyErrors, ...] = ()

    def jobs_of(self, query: str) -> list[Assessment]:
        """Return the jobs of a query, in order of time."""
        return [job for job in self.jobs if job.query == query]

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for ``metrics.json``; counts that do not apply are left out."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        for name in ("model", "losses", "hierarchies"):
            if not getattr(self, name):
                del plain[name]
        for name in ("client", "reports"):
            plain[name] = {key: value for key, value in plain[name].items() if value is not None}
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (Assessment, Waterfall, HierarchyErrors)):
        return value.to_plain()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, (MeasureMetrics, QueryMetrics)):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def metrics_of(
    campaign: Campaign, seed: str | None, private: bool, truth: Truth, found: Sequence[Assessment]
) -> Metrics:
    """Return the metrics of a campaign of aggregatable reports."""
    client, collected, reports = campaign.client, truth.collected, truth.reports
    return Metrics(
        campaign=campaign.name,
        description=campaign.description,
        private=private,
        seed=seed,
        client=ClientMetrics(kind=client.kind, api=client.api, form=client.form, l1=client.l1, l0=client.l0),
        start_ms=campaign.population.start_ms,
        events=_event_counts(campaign, truth.events),
        reports=ReportCounts(
            made=len(reports),
            null=int(reports.null.sum()),
            lost=collected.lost,
            late=collected.late,
            retried=collected.retried,
            in_batches=collected.received,
        ),
        batches=tuple(int(rows.size) for rows in collected.rows),
        queries=tuple(_query(campaign, query, found) for query in campaign.queries),
        jobs=tuple(found),
        ledger=LedgerMetrics(
            epsilon=campaign.service.epsilon,
            delta=campaign.service.delta,
            unit=campaign.service.unit,
            left=tuple({"job": one.job, **one.remaining} for one in found if one.paid),
            refused=tuple(one.job for one in found if not one.paid),
        ),
    )


def event_metrics(
    campaign: Campaign,
    seed: str | None,
    private: bool,
    events: Events,
    reports: EventReports,
    found: Assessment,
    model: ConversionModel,
) -> Metrics:
    """Return the metrics of an event-level campaign."""
    sent = int(reports.sent.sum())
    return Metrics(
        campaign=campaign.name,
        description=campaign.description,
        private=private,
        seed=seed,
        client=ClientMetrics(kind=campaign.client.kind, api=campaign.client.api, form="paper"),
        start_ms=campaign.population.start_ms,
        events=_event_counts(campaign, events),
        reports=ReportCounts(
            made=sent,
            in_batches=sent,
            attributed=reports.attributed,
            ads_with_random_reports=int((~reports.truthful).sum()),
        ),
        batches=(),
        queries=(_event_query(campaign, found),),
        jobs=(found,),
        ledger=LedgerMetrics(epsilon="0", delta="0", unit="ad"),
        model=model,
    )


def with_event_level(metrics: Metrics, campaign: Campaign, reports: EventReports, found: Assessment) -> Metrics:
    """Return the metrics of a campaign whose sources send event-level reports too."""
    return replace(
        metrics,
        reports=replace(
            metrics.reports,
            event_level=int(reports.sent.sum()),
            ads_with_random_reports=int((~reports.truthful).sum()),
        ),
        queries=(*metrics.queries, _event_query(campaign, found)),
        jobs=(*metrics.jobs, found),
    )


def _event_query(campaign: Campaign, found: Assessment) -> QueryMetrics:
    errors, settings = found.figures[0], campaign.client.event_level
    assert settings is not None
    measure = replace(MeasureMetrics.of(errors.measure, "1", [errors], None), rmsre=errors.rmsre)
    return QueryMetrics(
        name=found.query,
        epsilon=f"{float(settings.epsilon):g}",
        jobs=1,
        paid=1,
        statement=found.statement,
        measures=(measure,),
    )


def _event_counts(campaign: Campaign, events: Events) -> EventCounts:
    return EventCounts(
        people=campaign.population.size,
        devices=events.devices,
        impressions=len(events.impressions),
        conversions=len(events.conversions),
    )


def _query(campaign: Campaign, query: Query, found: Sequence[Assessment]) -> QueryMetrics:
    """Add up the jobs of one query; of jobs that share batches, only the last that was paid counts for totals."""
    jobs = [one for one in found if one.query == query.name]
    paid = [one for one in jobs if one.paid]
    batches = [batch for one in jobs for batch in one.batches]
    shared = len(set(batches)) < len(batches)
    added = [(paid or jobs)[-1]] if shared else jobs
    measures = []
    for index, measure in enumerate(campaign.measures):
        total = added[0].waterfalls[index]
        for one in added[1:]:
            total = total + one.waterfalls[index]
        measures.append(
            MeasureMetrics.of(
                measure.name,
                str(measure.scale),
                [one.figures[index] for one in paid],
                total,
                totals=[one.figures[index] for one in added if one.paid],
            )
        )
    return QueryMetrics(
        name=query.name,
        epsilon=query.epsilon,
        jobs=len(jobs),
        paid=len(paid),
        statement=next((one.statement for one in paid), ""),
        measures=tuple(measures),
        totals_of=added[0].job if shared else "",
    )
