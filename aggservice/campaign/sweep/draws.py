"""Releases of one campaign from the same reports: fresh noise and a fresh ledger each, everything before it shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.assess.job_truth import job_truth
from aggservice.campaign.assess.slices import Assessment, Comparison, assess
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.event_run import release_events
from aggservice.campaign.metrics import DiscoveryScore, MeasureErrors
from aggservice.campaign.output.metrics import RunMetrics, metrics_of
from aggservice.campaign.service.config import local_engine, memory_ledger, service_config
from aggservice.campaign.service.jobs import QueryAnswer, add_up, jobs_of, windows_of
from aggservice.campaign.service.unsealed import Payers, UnsealedJobs, tally_job
from aggservice.campaign.settings.campaign import Campaign, Measure
from aggservice.campaign.stages import RunChain, RunStage
from aggservice.campaign.world.truth import COLLECT, SIMULATE, Truth, simulate_events, simulate_reports
from aggservice.mechanisms import Bits, ManualClock

_READS = ("name", "description", "population", "keys", "filters", "measures", "client", "collection")
RELEASE = RunStage(
    name="release", reads=(*_READS, "service", "queries", "drawing", "reporting_origin"), after=(COLLECT,)
)
EVENT_RELEASE = RunStage(name="release", reads=(*_READS, "drawing"), after=(SIMULATE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """The errors of one job of one release; none if it could not be paid for."""

    query: str
    paid: bool
    figures: tuple[MeasureErrors, ...]
    discovery: DiscoveryScore | None

    @classmethod
    def of(cls, found: Assessment) -> JobFigures:
        """Return the errors of an assessment."""
        return cls(query=found.query, paid=found.paid, figures=found.figures, discovery=found.discovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLaw:
    """The estimate of one slice over all releases, in natural units: its mean, its standard deviation, and the share of
    intervals that contain what was sent.
    """

    job: str
    query: str
    measure: str
    names: Mapping[str, str]
    truth: float
    sent: float
    releases: int
    mean: float
    deviation: float
    coverage: float

    @property
    def standard_error(self) -> float:
        """The standard deviation of the mean."""
        return self.deviation / self.releases**0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseDraws:
    """All releases of one campaign from one population: the metrics of the first, and the errors of each."""

    metrics: RunMetrics
    releases: tuple[tuple[JobFigures, ...], ...]
    slices: tuple[SliceLaw, ...] = ()

    @classmethod
    def of_run(cls, metrics: RunMetrics) -> NoiseDraws:
        """Return the only release of a whole run."""
        return cls(metrics=metrics, releases=(tuple(map(JobFigures.of, metrics.jobs)),))


def draw_releases(campaign: Campaign, chain: RunChain, seed: str, repetitions: int) -> NoiseDraws:
    """Release a campaign ``repetitions`` times; the first release is that of a whole run with the same seed."""
    if not campaign.client.aggregatable:
        return chain.run(
            EVENT_RELEASE, campaign, lambda seen: _event_draws(seen, chain, seed, repetitions), given=repetitions
        )
    return chain.run(RELEASE, campaign, lambda seen: _draws(seen, chain, seed, repetitions), given=repetitions)


def _bits(chain: RunChain, repetition: int) -> Bits:
    return chain.bits if repetition == 0 else chain.bits.child(f"repetition {repetition}")


def _event_draws(campaign: Campaign, chain: RunChain, seed: str, repetitions: int) -> NoiseDraws:
    events = simulate_events(campaign, chain)
    first, *others = (release_events(campaign, seed, events, _bits(chain, number))[1] for number in range(repetitions))
    return NoiseDraws(metrics=first, releases=tuple(tuple(map(JobFigures.of, one.jobs)) for one in (first, *others)))


def _draws(campaign: Campaign, chain: RunChain, seed: str, repetitions: int) -> NoiseDraws:
    truth = simulate_reports(campaign, chain)
    truths = [job_truth(campaign, chain, truth, job) for job in windows_of(campaign, truth.collected.closes_ms)]
    found: tuple[Assessment, ...] = ()
    laws: list[_Law] = []
    releases: list[tuple[JobFigures, ...]] = []
    for answers in releases_of(campaign, chain, truth, repetitions):
        compared = [Comparison(campaign, answer, by_key) for answer, by_key in zip(answers, truths, strict=True)]
        if not releases:
            found = tuple(assess(campaign, answer, by_key) for answer, by_key in zip(answers, truths, strict=True))
            laws = [_Law(one) for one in compared]
        for law, one in zip(laws, compared, strict=True):
            law.add(one)
        releases.append(tuple(map(_figures, compared)))
    return NoiseDraws(
        metrics=metrics_of(campaign, seed, chain.bits.private, truth, found),
        releases=tuple(releases),
        slices=tuple(slice_law for law in laws for slice_law in law.slices()) if repetitions > 1 else (),
    )


def _figures(compared: Comparison) -> JobFigures:
    return JobFigures(
        query=compared.answer.job.query.name,
        paid=compared.answer.paid,
        figures=compared.figures(),
        discovery=compared.discovery(),
    )


def releases_of(campaign: Campaign, chain: RunChain, truth: Truth, repetitions: int) -> Iterator[list[QueryAnswer]]:
    """Yield the answers of all windows, release by release; each release has a ledger and noise of its own."""
    if campaign.client.task_jobs:
        short = campaign.client.short
        raise CampaignError(f"every run with {short} reports seals them: sweep it with --sealed, without repetitions")
    jobs, windows = (of(campaign, truth.collected.closes_ms) for of in (jobs_of, windows_of))
    tallies = [tally_job(campaign, chain, truth, job) for job in jobs]
    by_name = {job.name: tally for job, tally in zip(jobs, tallies, strict=True)}
    payers = Payers.of(jobs, tallies)
    config = service_config(campaign, Path())
    for repetition in range(repetitions):
        clock, bits = ManualClock(campaign.population.start_ms), _bits(chain, repetition).child("service")
        ledger = memory_ledger(config.filter, config.terms, clock=clock, bits=bits)
        engine = local_engine(ledger, clock=clock, bits=bits)
        submitter = UnsealedJobs(campaign, engine, clock=clock, tally=lambda job: by_name[job.name], payers=payers)
        yield add_up(windows, [submitter.run(job) for job in jobs])


class _Law:
    """Means and deviations of the largest slices of a job; by Welford's method, for any number of releases."""

    def __init__(self, first: Comparison) -> None:
        self._first, self._measures = first, first.campaign.measures
        self._chosen = [first.largest(place) for place in range(len(self._measures))] if first.answer.paid else []
        size = sum(one.size for one in self._chosen)
        self._count = 0
        self._mean, self._squares, self._covered = (np.zeros(size) for _ in range(3))

    def _estimates(self, compared: Comparison) -> NDArray[np.float64]:
        scales = [float(one.scale) for one in self._measures]
        return np.concatenate([compared.estimate[one] / s for one, s in zip(self._chosen, scales, strict=True)])

    def add(self, compared: Comparison) -> None:
        """Add one release; a refused job adds nothing. A key that discovery left out counts as an estimate of 0."""
        if not (self._chosen and compared.answer.paid):
            return
        self._count += 1
        value = self._estimates(compared)
        off = value - self._mean
        self._mean += off / self._count
        self._squares += off * (value - self._mean)
        self._covered += compared.covered[np.concatenate(self._chosen)]

    def slices(self) -> Iterator[SliceLaw]:
        """Yield the law of each slice."""
        if self._count < 2:
            return
        place: dict[int, tuple[Measure, int]] = {}
        for measure, chosen in zip(self._measures, self._chosen, strict=True):
            for at in chosen.tolist():
                place[len(place)] = measure, at
        job = self._first.answer.job
        for number, (measure, at) in place.items():
            yield SliceLaw(
                job=job.name,
                query=job.query.name,
                measure=measure.name,
                names=self._first.names(at),
                truth=float(self._first.truth.slice_truth[at]),
                sent=float(self._first.sent[at] / float(measure.scale)),
                releases=self._count,
                mean=float(self._mean[number]),
                deviation=float((self._squares[number] / (self._count - 1)) ** 0.5),
                coverage=float(self._covered[number] / self._count),
            )
