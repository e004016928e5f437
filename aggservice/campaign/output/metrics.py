"""``metrics.json``: what a run found, as values for plots, the page, sweeps, the terminal and other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from aggservice.campaign.assess.hierarchies import HierarchyErrors
from aggservice.campaign.assess.slices import Assessment, Waterfall
from aggservice.campaign.columns import Events
from aggservice.campaign.metrics import RMSRE, MeasureErrors, Metric
from aggservice.campaign.settings.campaign import Campaign, Query
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
class CollectedCounts:
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
    """The errors of one measure over the paid jobs of a query; ``values`` are those of metrics, by name.

    ``truth``, ``estimate``, ``bias`` and ``waterfall`` are totals: sums over the jobs of the query, or, if these share
    batches, those of one job (``QueryMetrics.totals_of``). Event-level reports have no waterfall.
    """

    measure: str
    scale: str
    slices: int
    tau: float | None
    truth: float
    estimate: float
    bias: float
    half_width: float | None
    waterfall: Waterfall | None
    jobs: tuple[MeasureErrors, ...] = ()
    values: Mapping[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        measure: str,
        scale: str,
        errors: Sequence[MeasureErrors],
        metrics: Iterable[Metric],
        waterfall: Waterfall | None,
        *,
        totals: Sequence[MeasureErrors] | None = None,
    ) -> MeasureMetrics:
        """Put the errors of several jobs together; truth, estimate and bias only over ``totals`` if that is given."""
        added = errors if totals is None else totals
        return cls(
            measure=measure,
            scale=scale,
            slices=sum(one.slices for one in errors),
            tau=errors[0].tau if errors else None,
            truth=sum(one.truth for one in added),
            estimate=sum(one.estimate for one in added),
            bias=sum(one.bias for one in added),
            half_width=errors[-1].half_width if errors else None,
            waterfall=waterfall,
            jobs=tuple(errors),
            values={one.in_query: one.over(errors) for one in metrics if one.in_query},
        )

    def __getitem__(self, metric: Metric) -> float | None:
        """Return the value of any metric that jobs have, also of one that ``metrics.json`` does not keep per query."""
        return self.values[metric.in_query] if metric.in_query in self.values else metric.over(self.jobs)

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for ``metrics.json``."""
        facts = ("measure", "scale", "slices", "tau", "truth", "estimate", "bias", "half_width")
        waterfall = None if self.waterfall is None else self.waterfall.to_plain()
        return {**{name: getattr(self, name) for name in facts}, "waterfall": waterfall, **self.values}


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
class RunMetrics:
    """Everything that is known about a run except its timings."""

    campaign: str
    description: str
    private: bool
    seed: str | None
    client: ClientMetrics
    start_ms: int
    events: EventCounts
    reports: CollectedCounts
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
        plain = {one.name: _plain(getattr(self, one.name)) for one in fields(self)}
        for name in ("model", "losses", "hierarchies"):
            if not getattr(self, name):
                del plain[name]
        for name in ("client", "reports"):
            plain[name] = {key: value for key, value in plain[name].items() if value is not None}
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (Assessment, HierarchyErrors, MeasureMetrics)):
        return value.to_plain()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, QueryMetrics):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def metrics_of(
    campaign: Campaign, seed: str | None, private: bool, truth: Truth, found: Sequence[Assessment]
) -> RunMetrics:
    """Return the metrics of a campaign of aggregatable reports."""
    collected, reports = truth.collected, truth.reports
    return RunMetrics(
        **_facts(campaign, seed, private, truth.events),
        reports=CollectedCounts(
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
) -> RunMetrics:
    """Return the metrics of an event-level campaign."""
    sent = int(reports.sent.sum())
    return RunMetrics(
        **_facts(campaign, seed, private, events),
        reports=CollectedCounts(
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


def with_event_level(metrics: RunMetrics, campaign: Campaign, reports: EventReports, found: Assessment) -> RunMetrics:
    """Return the metrics of a campaign whose sources send event-level reports too."""
    return replace(
        metrics,
        reports=replace(
            metrics.reports, event_level=int(reports.sent.sum()), ads_with_random_reports=int((~reports.truthful).sum())
        ),
        queries=(*metrics.queries, _event_query(campaign, found)),
        jobs=(*metrics.jobs, found),
    )


def _event_query(campaign: Campaign, found: Assessment) -> QueryMetrics:
    errors, settings = found.figures[0], campaign.client.event_level
    assert settings is not None
    measure = MeasureMetrics.of(errors.measure, "1", [errors], campaign.metrics, None)
    # One job: its own value, and not the root of its square.
    measure = replace(measure, values={**measure.values, RMSRE.in_query: errors[RMSRE]})
    return QueryMetrics(
        name=found.query,
        epsilon=f"{float(settings.epsilon):g}",
        jobs=1,
        paid=1,
        statement=found.statement,
        measures=(measure,),
    )


def _facts(campaign: Campaign, seed: str | None, private: bool, events: Events) -> dict[str, Any]:
    """Return the fields of ``RunMetrics`` that every kind of report has."""
    return {
        "campaign": campaign.name,
        "description": campaign.description,
        "private": private,
        "seed": seed,
        "client": ClientMetrics(**campaign.client.identity()),
        "start_ms": campaign.population.start_ms,
        "events": EventCounts(
            people=campaign.population.size,
            devices=events.devices,
            impressions=len(events.impressions),
            conversions=len(events.conversions),
        ),
    }


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
                campaign.metrics,
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
