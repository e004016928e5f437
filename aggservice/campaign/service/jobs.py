"""The jobs of a campaign: their batches, times and parameters, and submitting them to a service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import RunError
from aggservice.campaign.service.runner import REFUSED
from aggservice.campaign.settings.campaign import Campaign, Query
from aggservice.client import Client, ClientError, JobParameters, Statement
from aggservice.job.result import SummaryHeader
from aggservice.mechanisms import ManualClock
from aggservice.wire import BucketRows, ReportBatch, read_reports, read_summary, write_buckets
from aggservice.wire.avro.shards import find_shards, shard_name
from budget import LaplaceDiscovery, LaplaceNoise

Words = NDArray[np.uint64]
Columns = tuple[Words, Words, NDArray[np.int64]]
"""The rows of a summary: high and low halves of the keys, and metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJob:
    """One job of a query over some batches, submitted when the last of them has closed.

    A window that is added up from ``parts`` has the names of their jobs there, and is not submitted itself.
    """

    name: str
    query: Query
    batches: tuple[int, ...]
    time_ms: int
    parts: tuple[str, ...] = ()

    @property
    def summaries(self) -> int:
        """The number of summaries, each with its own noise, that the answer adds up."""
        return max(1, len(self.parts))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryAnswer:
    """What the service returned for a job: its rows with the header of its summary, or the error of a job that could
    not be paid for. It holds no true value.

    ``statements`` has one statement per measure if they differ; ``draws`` has the number
    of noise draws in each row; None means one each.
    """

    job: QueryJob
    high: Words
    low: Words
    metrics: NDArray[np.int64]
    reply: SummaryHeader | ClientError
    statements: tuple[Statement, ...] = ()
    draws: NDArray[np.int64] | None = None

    @property
    def paid(self) -> bool:
        """Whether there is a summary."""
        return isinstance(self.reply, SummaryHeader)

    @property
    def statement(self) -> Statement | None:
        """What the summary guarantees, if there is one."""
        return self.reply.statement if isinstance(self.reply, SummaryHeader) else None

    def statement_of(self, measure: int) -> Statement:
        """Return what the rows of a measure guarantee, in a job that was paid."""
        statement = self.statements[measure] if self.statements else self.statement
        assert statement is not None
        return statement


def jobs_of(campaign: Campaign, closes_ms: Sequence[int]) -> list[QueryJob]:
    """Return every job to submit in order of time; jobs at the same time keep the order of the file."""
    jobs = []
    for query in campaign.queries:
        if query.job_per == "window":
            jobs += _windows(campaign, query, closes_ms)
            continue
        for again in range(query.repeat):
            names = [_part_name(query, batch, again) for batch in range(campaign.batches)]
            jobs += [
                QueryJob(name=name, query=query, batches=(batch,), time_ms=closes_ms[batch])
                for batch, name in enumerate(names)
            ]
    return sorted(jobs, key=lambda job: job.time_ms)


def windows_of(campaign: Campaign, closes_ms: Sequence[int]) -> list[QueryJob]:
    """Return what the queries ask for, in order of time: a job of its own, or one that is added up from parts."""
    windows = [window for query in campaign.queries for window in _windows(campaign, query, closes_ms)]
    return sorted(windows, key=lambda job: job.time_ms)


def add_up(windows: Sequence[QueryJob], answers: Sequence[QueryAnswer]) -> list[QueryAnswer]:
    """Return the answer of each window from the answers of the jobs; it is refused if one of its parts was.

    Summaries of the same domain have the same keys in the same order, so that their rows add up one by one.
    """
    by_name = {answer.job.name: answer for answer in answers}
    found = []
    for window in windows:
        if not window.parts:
            found.append(by_name[window.name])
            continue
        parts = [by_name[name] for name in window.parts]
        refused = [part for part in parts if not part.paid]
        last = refused[0] if refused else parts[-1]
        reply, rows = last.reply, last.metrics
        if isinstance(reply, SummaryHeader):
            statement = reply.statement
            text = f"The sum of {len(parts)} summaries. Each of them: {statement.text}"
            counts = [part.reply.error_counts for part in parts]
            names = {name: sum(one.get(name, 0) for one in counts) for one in counts for name in one}
            reply = replace(reply, statement=replace(statement, text=text), error_counts=names)
            rows = np.sum([part.metrics for part in parts], axis=0, dtype=np.int64)
        draws = np.full(rows.size, len(parts), dtype=np.int64)
        found.append(QueryAnswer(job=window, high=last.high, low=last.low, metrics=rows, reply=reply, draws=draws))
    return found


def _windows(campaign: Campaign, query: Query, closes_ms: Sequence[int]) -> list[QueryJob]:
    if query.over == "all":
        windows = [tuple(range(campaign.batches))]
    elif query.over == "each":
        windows = [(number,) for number in range(campaign.batches)]
    else:
        last = range(query.window - 1, campaign.batches)
        windows = [tuple(range(number - query.window + 1, number + 1)) for number in last]
    found = []
    for window in windows:
        for again in range(query.repeat):
            span = "all" if query.over == "all" else f"{window[-1]:03d}"
            name = f"{query.label}-{span}" + (f"-again{again}" if again else "")
            parts = tuple(_part_name(query, batch, again) for batch in window) if query.job_per == "batch" else ()
            found.append(QueryJob(name=name, query=query, batches=window, time_ms=closes_ms[window[-1]], parts=parts))
    return found


def _part_name(query: Query, batch: int, again: int) -> str:
    return f"{query.label}-batch-{batch:03d}" + (f"-again{again}" if again else "")


def write_domains(campaign: Campaign, folder: Path) -> None:
    """Write the output domain of each query that declares its keys."""
    folder.mkdir(parents=True, exist_ok=True)
    for query in campaign.queries:
        if not query.discovery:
            high, low = campaign.keys.domain(query.rows)
            write_buckets(folder / f"{query.label}.avro", BucketRows.domain(high, low))


def parameters_of(campaign: Campaign, query: Query) -> JobParameters:
    """Return the job parameters of a query."""
    laplace = query.mechanism is LaplaceNoise
    return JobParameters(
        attribution_report_to=campaign.reporting_origin,
        epsilon=query.epsilon if laplace else "",
        mechanism="" if laplace else query.mechanism.name,
        mechanism_parameters={} if laplace else {"epsilon": query.epsilon},
        discovery_delta=query.delta if query.discovery else "",
        discovery_rule="" if query.rule is LaplaceDiscovery else query.rule.name,
        others_epsilon="" if query.others_epsilon == "0" else query.others_epsilon,
    )


@dataclass(eq=False)
class Jobs(ABC):
    """Runs the jobs of a campaign at their times; ``clock`` is None if the run does not control the time.

    ``prefix`` starts the id of every job.
    """

    campaign: Campaign
    _: KW_ONLY
    clock: ManualClock | None
    prefix: str = ""

    def run(self, job: QueryJob) -> QueryAnswer:
        """Run one job at its time. An exhausted budget is a result; every other failure raises ``RunError``."""
        if self.clock is not None and job.time_ms > self.clock.now_ms():
            self.clock.advance_to(job.time_ms)
        none = np.empty(0, dtype=np.uint64)
        reply: SummaryHeader | ClientError
        try:
            reply, (high, low, metrics) = self._ask(job)
        except ClientError as problem:
            if problem.return_code != REFUSED:
                raise RunError(f"job {job.name}: {problem}. {problem.remedy}") from problem
            reply, high, low, metrics = problem, none, none, none.astype(np.int64)
        return QueryAnswer(job=job, high=high, low=low, metrics=metrics, reply=reply)

    @abstractmethod
    def _ask(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        """Return the summary of a job; every failure is a ``ClientError``."""


@dataclass(eq=False)
class JobSubmitter(Jobs):
    """Runs jobs at a service: over the files in ``out`` if the service can read them, otherwise by streaming."""

    client: Client
    out: Path
    _: KW_ONLY
    files: bool

    def _ask(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        return self._over_files(job) if self.files else self._streamed(job)

    def _over_files(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        query = job.query
        every = job.batches == tuple(range(self.campaign.batches))
        prefixes = ["batches/"] if every else [f"batches/{number:03d}/" for number in job.batches]
        self.client.create_job(
            self.prefix + job.name,
            parameters_of(self.campaign, query),
            input_data_blob_prefix=prefixes,
            output_data_blob_prefix=f"summaries/{job.name}/summary.avro",
            output_domain_blob_prefix="" if query.discovery else f"domains/{query.label}.avro",
        )
        summary = self.client.watch_job(self.prefix + job.name).summary
        assert summary is not None  # watch_job raises when a job ends without one
        return summary, read_rows(summary_path(self.out, job))

    def _streamed(self, job: QueryJob) -> tuple[SummaryHeader, Columns]:
        batches = read_batches(self.out, (f"{number:03d}/" for number in job.batches))
        domain = () if job.query.discovery else self.campaign.keys.domain(job.query.rows)
        parameters = parameters_of(self.campaign, job.query)
        summary = self.client.aggregate(self.prefix + job.name, parameters, batches, domain=domain)
        rows = summary.high, summary.low, summary.metrics
        write_rows(self.out, job, rows)
        return summary, rows


def summary_path(out: Path, job: QueryJob) -> Path:
    """Return the prefix of the summary files of a job."""
    return out / "summaries" / job.name / "summary.avro"


def read_batches(out: Path, prefixes: Iterable[str]) -> list[ReportBatch]:
    """Return the sealed reports of a run in the files below ``batches`` with these prefixes."""
    shards = [path for prefix in prefixes for path in find_shards(out / "batches", prefix)]
    return [batch for path in shards for batch in read_reports(path)]


def write_rows(out: Path, job: QueryJob, rows: Columns) -> None:
    """Write the rows of a job as the one file of its summary."""
    path = summary_path(out, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_buckets(path.with_name(shard_name(path.name, 1, 1)), BucketRows.summary(*rows))


def read_rows(prefix: Path) -> Columns:
    """Return the rows of the summary files with this prefix; RunError if an earlier run put them elsewhere."""
    shards = sorted(prefix.parent.glob(f"{prefix.stem}-*.avro"))
    if not shards:
        raise RunError(
            f"job {prefix.parent.name} ran before, into another folder than {prefix.parents[2]}: use that one"
        )
    parts = [rows for path in shards for rows in read_summary(path)]
    none = np.empty(0, dtype=np.uint64)
    return (
        np.concatenate([none, *(rows.key_high for rows in parts)]),
        np.concatenate([none, *(rows.key_low for rows in parts)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(rows.metric for rows in parts)]),
    )
