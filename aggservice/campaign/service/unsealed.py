"""Unsealed runs: reports skip encryption and Avro, and go through the engine's own counting, charge and release.

A seeded unsealed run releases the same rows, to the byte, as the same run with sealed reports. A study charges one
privacy unit per class: a ledger treats units with the same past in the same way, so its decisions and balances over one
unit per class are those over all units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import ReportColumns
from aggservice.campaign.service.config import local_engine, memory_ledger, unit_of
from aggservice.campaign.service.jobs import Columns, Jobs, QueryJob, parameters_of, read_rows, summary_path
from aggservice.campaign.service.runner import EngineRunner
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.stages import RunChain, RunStage
from aggservice.campaign.world.truth import COLLECT, Truth
from aggservice.engine import AvroShards, LocalEngine, PrivacyUnit, Session, ledger_terms
from aggservice.engine.jobs.histogram import HistogramSession, Tally
from aggservice.engine.opening.judging import judge_columns
from aggservice.job.errors import UnpaidError
from aggservice.job.request import HistogramRequest, JobRequest, parse_discovery
from aggservice.job.result import SummaryHeader
from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.service.config.callers import local_caller
from aggservice.service.jobs.dispatch import scope_of
from aggservice.wire import UNIT_BYTES
from aggservice.wire.batch.payloads import ContributionColumns
from aggservice.wire.batch.shared_infos import ABSENT, APIS, SharedInfoColumns
from aggservice.wire.report.shared_info import LATEST_VERSION
from budget import BudgetExhaustedError, EpsilonDeltaFilter

Units = NDArray[np.uint8]

SUMS = RunStage(name="sums", reads=("population", "collection", "keys", "client", "reporting_origin"), after=(COLLECT,))
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """Everything that the sums of a job depend on. The price of the job is not part of it."""

    batches: tuple[int, ...]
    time_ms: int
    discovery: bool
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    unit: PrivacyUnit

    @classmethod
    def of(cls, campaign: Campaign, job: QueryJob) -> JobShape:
        """Return the shape of a job."""
        query = job.query
        return cls(
            batches=job.batches,
            time_ms=job.time_ms,
            discovery=query.discovery,
            rows=tuple(sorted(query.rows.items())),
            unit=unit_of(campaign),
        )


def tally_job(campaign: Campaign, chain: RunChain, truth: Truth, job: QueryJob) -> Tally:
    """Return the true sums of a job, counted once for all jobs and campaigns that differ in price only."""
    shape = JobShape.of(campaign, job)
    return chain.run(SUMS, campaign, lambda seen: _tally(seen, truth, shape), given=shape)


def _tally(campaign: Campaign, truth: Truth, shape: JobShape) -> Tally:
    clock, bits = ManualClock(shape.time_ms), SeededBits("nothing random is kept")
    terms = ledger_terms(shape.unit, campaign.client.bounds)
    ledger = memory_ledger(EpsilonDeltaFilter.parse(epsilon="64", delta="0.5"), terms, clock=clock, bits=bits)
    engine = local_engine(ledger, clock=clock, bits=bits)
    request = HistogramRequest(
        job_request_id="tally",
        attribution_report_to=campaign.reporting_origin,
        discovery=parse_discovery(delta="0.5") if shape.discovery else None,
    )
    session = _session(engine, request)
    if not shape.discovery:
        session.declare(*campaign.keys.domain(dict(shape.rows)))
    for part in _parts(campaign, truth, shape.batches):
        session.add_judged(judge_columns(session.spec, _public(campaign, part), _contributions(part)))
    return session.tally()


def _session(engine: LocalEngine, request: JobRequest, destination: AvroShards | None = None) -> HistogramSession:
    session = engine.begin(scope_of(local_caller()), request, destination=destination)
    assert isinstance(session, HistogramSession)
    return session


def _parts(campaign: Campaign, truth: Truth, batches: tuple[int, ...]) -> Iterator[ReportColumns]:
    """Yield the reports of a job in the order in which a service reads their files."""
    everything = batches == tuple(range(campaign.batches))
    for number in sorted(batches, key="{:03d}/".format) if everything else batches:
        rows = truth.collected.rows[number]
        for start in range(0, rows.size, _ROWS_AT_ONCE):
            yield truth.reports.taken(rows[start : start + _ROWS_AT_ONCE])


def _public(campaign: Campaign, reports: ReportColumns) -> SharedInfoColumns:
    """Return the columns that a service reads from the ``shared_info`` of these reports."""
    count, api = len(reports), campaign.client.wire_api
    absent = np.full(count, ABSENT, dtype=np.int64)
    return SharedInfoColumns(
        status=np.zeros(count, dtype=np.uint8),
        api=np.full(count, APIS.index(api), dtype=np.int8),
        version=np.zeros(count, dtype=np.int32),
        report_id=reports.report_id,
        origin=np.zeros(count, dtype=np.int32),
        destination=reports.destination.astype(np.int32) if api.has_destination else absent.astype(np.int32),
        scheduled_report_time_s=reports.scheduled_ms // 1000,
        source_registration_time_s=absent,
        debug_mode=np.zeros(count, dtype=np.bool_),
        histogram_size=absent,
        max_value=absent,
        epsilon_micro=absent,
        versions=(LATEST_VERSION,),
        origins=(campaign.reporting_origin,),
        destinations=campaign.population.destinations,
    )


def _contributions(reports: ReportColumns) -> ContributionColumns:
    return ContributionColumns(
        key_high=reports.key_high,
        key_low=reports.key_low,
        value=reports.value.astype(np.uint32),
        filtering_id=reports.filtering_id,
        row=np.repeat(np.arange(len(reports)), np.diff(reports.offset)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payers:
    """Per job, by name: one unit of each class in it, ascending, and the number of units of each class."""

    units: dict[str, Units]
    counts: dict[str, NDArray[np.int64]]

    @classmethod
    def of(cls, jobs: Sequence[QueryJob], tallies: Sequence[Tally]) -> Payers:
        """Find the classes: two units are in one class if the same jobs contain both."""
        distinct = {id(tally.units): tally.units for tally in tallies}
        keys = [_sortable(units) for units in distinct.values()]
        every = np.unique(np.concatenate([np.empty(0, dtype=f"S{UNIT_BYTES}"), *keys])) if len(keys) != 1 else keys[0]
        of_unit = np.zeros(every.size, dtype=np.int64)
        members = []
        for one in keys:
            inside = np.zeros(every.size, dtype=np.int64)
            place = np.searchsorted(every, one) if len(keys) != 1 else np.arange(every.size)
            inside[place] = 1
            members.append(place)
            of_unit = np.unique(2 * of_unit + inside, return_inverse=True)[1].reshape(-1)
        _, first, counts = np.unique(of_unit, return_index=True, return_counts=True)
        made = {}
        for name, units, place in zip(distinct, distinct.values(), members, strict=True):
            classes = np.unique(of_unit[place])
            order = np.argsort(first[classes])  # in ascending order of the units themselves
            rows = np.searchsorted(place, first[classes][order])
            made[name] = units[rows], counts[classes][order]
        names = [job.name for job in jobs]
        return cls(
            units={name: made[id(tally.units)][0] for name, tally in zip(names, tallies, strict=True)},
            counts={name: made[id(tally.units)][1] for name, tally in zip(names, tallies, strict=True)},
        )

    def reduced(self, job: QueryJob, tally: Tally) -> Tally:
        """Return a tally in which one unit per class pays."""
        return replace(tally, units=self.units[job.name])

    def unpaid(self, job: QueryJob, problem: UnpaidError) -> UnpaidError:
        """Return the error of a job whose units could not pay, with the numbers of all units and not of classes."""
        cause = problem.__cause__
        assert isinstance(cause, BudgetExhaustedError)
        units, counts = self.units[job.name], self.counts[job.name]
        poor = np.isin(_sortable(units), _sortable(cause.units))
        whole = BudgetExhaustedError(
            count=int(counts[poor].sum()),
            total=int(counts.sum()),
            asked=cause.asked,
            first=cause.first,
            units=cause.units,
            text=str(cause),
        )
        return UnpaidError(whole, problem.release)


def _sortable(units: Units) -> NDArray[np.bytes_]:
    """Return units as one sortable column; they all have the same length, so zero bytes at the end change nothing."""
    return np.ascontiguousarray(units).view(f"S{UNIT_BYTES}").reshape(-1)


@dataclass(eq=False)
class UnsealedJobs(Jobs):
    """Runs jobs over tallies at an engine in this process.

    ``tally`` gives the sums of a job. With ``out``, summaries go to files, as a service writes them. With ``payers``,
    one unit pays for all units of its class.
    """

    engine: LocalEngine
    _: KW_ONLY
    tally: Callable[[QueryJob], Tally]
    out: Path | None = None
    payers: Payers | None = None

    def _ask(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        def fill(session: Session) -> bytes:
            assert isinstance(session, HistogramSession)
            tally = self.tally(job)
            session.resume(tally if self.payers is None else self.payers.reduced(job, tally))
            return b""

        def told(problem: Exception) -> Exception:
            payers = self.payers
            return payers.unpaid(job, problem) if payers and isinstance(problem, UnpaidError) else problem

        path = None if self.out is None else summary_path(self.out, job)
        runner = EngineRunner(engine=self.engine, caller=local_caller().name, told=told)
        header, outcome = runner.run(
            self.prefix + job.name,
            parameters_of(self.campaign, job.query),
            fill,
            destination=None if path is None else AvroShards(prefix=path),
        )
        if path is not None:
            return header, read_rows(path)
        assert outcome.rows is not None
        return header, (outcome.rows.high, outcome.rows.low, outcome.rows.metrics)
