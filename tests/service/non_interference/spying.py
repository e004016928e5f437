"""A second caller who measures the first: their own declared jobs, listings and errors, whatever the first one does.

Their reports are the same in both worlds, so all that they see must be the same too. Besides calls they have one more
look, at the moment that matters: a job of theirs, straight at the engine, whenever another job is about to be
committed. Then noisy rows may lie on a disk that both share, and nobody has paid for them yet.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from aggservice.engine import AvroShards
from aggservice.engine.jobs.session import Scope
from aggservice.job.errors import EngineError
from aggservice.job.request import HistogramRequest
from aggservice.job.result import Outcome
from aggservice.mechanisms import SeededBits
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.service import Service
from aggservice.service.config.callers import Caller, Role, Token, token_digest
from aggservice.wire import (
    AggregatableReport,
    Api,
    BucketRows,
    Contribution,
    ReportBatch,
    SharedInfo,
    make_report,
    write_buckets,
    write_reports,
)
from budget import LaplaceNoise
from budget.errors import BudgetError

from .in_process import Answer
from .sealed_pairs import NOW_MS, Reports, all_reports

SPY, SPY_ORIGIN = "spy", "https://spy.example"
_KEYS = 4
_AGGREGATION, _BUDGET = "/aggservice.v1.AggregationService/", "/aggservice.v1.BudgetService/"
_LEAST_EPSILON = "0.000001"


def callers(first: str) -> tuple[Caller, Caller]:
    """Return the first caller, who may do everything, and the spy, who owns one origin."""
    return (
        Caller(
            name=first,
            roles=frozenset(Role),
            origins=None,
            sites=None,
            tokens=(Token(digest=token_digest(first)),),
            folder=first,
        ),
        Caller(
            name=SPY,
            roles=frozenset({Role.ADTECH}),
            origins=frozenset({SPY_ORIGIN}),
            tokens=(Token(digest=token_digest(SPY)),),
            folder=SPY,
        ),
    )


@cache
def spy_reports() -> tuple[AggregatableReport, ...]:
    """Return the spy's own reports."""
    reports: Reports = all_reports()
    bits = SeededBits("spy")
    return tuple(
        make_report(
            [Contribution(bucket=number, value=100)],
            shared_info=SharedInfo(
                api=Api.ATTRIBUTION_REPORTING,
                report_id=str(UUID(bytes=bits.read(16), version=4)),
                reporting_origin=SPY_ORIGIN,
                scheduled_report_time_s=NOW_MS // 1000 - 600,
                attribution_destination="https://shop.example",
            ),
            keys=reports.keys.public(reports.clock),
            bits=bits,
            maximum=2,
        )
        for number in range(_KEYS)
    )


def write_spy_files(folder: Path) -> None:
    """Write the spy's reports and domain."""
    folder.mkdir()
    write_reports(folder / "reports", [ReportBatch.of(spy_reports())])
    write_buckets(folder / "domain", BucketRows.domain(np.zeros(_KEYS, np.uint64), np.arange(_KEYS, dtype=np.uint64)))


class Spy:
    """The second caller in one world."""

    def __init__(self, service: Service, outputs: Path, *, bisects: bool) -> None:
        """``bisects`` looks for the largest number of keys that still finds room, and not only for one job's."""
        self._service = service
        self._most_keys = 512 if bisects else 1
        self._outputs = outputs
        self._jobs = 0
        self._looking = False
        self.measured: list[tuple[str, ...]] = []

    def calls(self, *, all_of_them: bool) -> list[tuple[str, bytes]]:
        """Return calls to make now; without ``all_of_them``, the next one of those that can be made beside a stream."""
        self._jobs += 1
        job = f"call{self._jobs}"
        infos = [report.shared_info for report in spy_reports()]
        parameters = aggregation_pb2.JobParameters(attribution_report_to=SPY_ORIGIN, job_request_id=job)
        parameters.privacy_params.laplace_dp_params.job_epsilon = _LEAST_EPSILON
        found: list[tuple[str, Any]] = [
            (_AGGREGATION + "ListJobs", aggregation_pb2.ListJobsRequest()),
            (_BUDGET + "GetBalance", budget_pb2.GetBalanceRequest(shared_infos=infos)),
            (_BUDGET + "CheckBudget", budget_pb2.CheckBudgetRequest(job_parameters=parameters, shared_infos=infos)),
            (_BUDGET + "ListEntries", budget_pb2.ListEntriesRequest()),
            (_AGGREGATION + "GetJob", aggregation_pb2.GetJobRequest(job_request_id="a")),
        ]
        if all_of_them:
            create = aggregation_pb2.CreateJobRequest(
                job_request_id=job,
                input_data_blob_prefix="reports",
                output_domain_blob_prefix="domain",
                output_data_blob_prefix=f"to/{job}",
                job_parameters=parameters,
            )
            watch = aggregation_pb2.GetJobRequest(job_request_id=job)
            found = [(_AGGREGATION + "CreateJob", create), (_AGGREGATION + "WatchJob", watch), *found]
        else:
            found = [found[self._jobs % len(found)]]
        return [(method, request.SerializeToString()) for method, request in found]

    def look(self) -> None:
        """Run declared jobs beside one that is about to be committed, and note how each ended."""
        if self._looking:
            return
        self._looking = True
        low, high = 0, self._most_keys
        while low < high:
            middle = (low + high + 1) // 2
            self.measured.append(self._measure(middle if high > 1 else _KEYS))
            low, high = (middle, high) if self.measured[-1][0] == "released" else (low, middle - 1)
        self._looking = False

    def _measure(self, keys: int) -> tuple[str, ...]:
        """Run a job that declares so many keys; return how it ended."""
        self._jobs += 1
        request = HistogramRequest(
            job_request_id=f"look{self._jobs}",
            attribution_report_to=SPY_ORIGIN,
            mechanism=LaplaceNoise.parse(epsilon=_LEAST_EPSILON),
        )
        output = AvroShards(prefix=self._outputs / SPY / f"look{self._jobs}")
        scope = Scope(caller=SPY, origins=frozenset({SPY_ORIGIN}), sites=frozenset())
        try:
            session = self._service.engine.begin(scope, request, destination=output)
            session.declare(np.zeros(keys, np.uint64), np.arange(keys, dtype=np.uint64))
            session.add(ReportBatch.of(spy_reports()))
            ended = session.finish()
            assert isinstance(ended, Outcome)
        except (EngineError, BudgetError) as problem:
            return type(problem).__name__, str(problem)
        return "released", str(ended.header.row_count)


def without_receipts(method: str, answer: Answer) -> Answer:
    """Return the spy's answer without receipts and hashes: they chain what was released to everyone."""
    if answer.code != "OK":
        return answer
    messages = []
    for raw in answer.messages:
        if method in ("CreateJob", "WatchJob", "GetJob"):
            job = aggregation_pb2.Job.FromString(raw)
            job.summary.receipt = b""
            raw = job.SerializeToString()
        elif method == "ListJobs":
            listed = aggregation_pb2.ListJobsResponse.FromString(raw)
            for job in listed.jobs:
                job.summary.receipt = b""
            raw = listed.SerializeToString()
        elif method == "ListEntries":
            entries = budget_pb2.ListEntriesResponse.FromString(raw)
            for entry in entries.entries:
                entry.entry_hash = entry.previous_hash = entry.result_digest = b""  # of files by their whole path
            raw = entries.SerializeToString()
        messages.append(raw)
    return Answer(messages=tuple(messages), code=answer.code, text=answer.text, trailers=answer.trailers)
