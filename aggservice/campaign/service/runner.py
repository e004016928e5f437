"""Running one job over reports at hand: at a service through its client, or with an engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aggservice.client import Client, ClientError, JobParameters, Summary
from aggservice.client.errors import error_from_detail
from aggservice.engine import AvroShards, LocalEngine, Scope, Session
from aggservice.job.errors import ReturnCode
from aggservice.job.messages import header_of, outcome_header, parameters_message, request_of
from aggservice.job.result import Outcome, Rows, SummaryHeader
from aggservice.service.messages import ContentDigest, keys_of
from aggservice.service.status import KNOWN_ERRORS, detail_of, message_of
from aggservice.wire import AggregatableReport, ReportBatch

REFUSED = ReturnCode.PRIVACY_BUDGET_EXHAUSTED
Fill = Callable[[Session], bytes]
"""Gives a job its keys and reports; returns the digest of both, by which a repeated job is recognised."""


class JobEndpoint(Protocol):
    """Runs jobs: a ``Client`` or an ``EngineRunner``. Every failure is a ``ClientError``."""

    def aggregate(
        self,
        job_request_id: str,
        parameters: JobParameters,
        reports: Sequence[AggregatableReport],
        *,
        domain: Sequence[int] = (),
    ) -> Summary:
        """Return the summary of a job."""


def answer(
    runner: Client | JobEndpoint,
    job_request_id: str,
    parameters: JobParameters,
    reports: Sequence[AggregatableReport],
    *,
    domain: Sequence[int] = (),
    refusals: Iterable[str] = (REFUSED,),
) -> Summary | ClientError:
    """Return the summary of a job, or its refusal if the return code is one of ``refusals``; other errors raise."""
    try:
        return runner.aggregate(job_request_id, parameters, reports, domain=domain)
    except ClientError as problem:
        if problem.return_code not in refusals:
            raise
        return problem


@dataclass(frozen=True, kw_only=True)
class EngineRunner:
    """Runs jobs of a caller with an engine in this process; answers and errors are those of a service.

    ``told`` may replace an error before it is told.
    """

    engine: LocalEngine
    caller: str = "local"
    told: Callable[[Exception], Exception] = lambda problem: problem

    def aggregate(
        self,
        job_request_id: str,
        parameters: JobParameters,
        reports: Sequence[AggregatableReport] | ReportBatch,
        *,
        domain: Sequence[int] = (),
    ) -> Summary:
        """Return the summary of a job (see ``JobEndpoint``)."""

        def fill(session: Session) -> bytes:
            digest, raw = ContentDigest(), b"".join(key.to_bytes(16, "big") for key in domain)
            if raw:
                digest.add_domain(raw)
                session.declare(*keys_of(raw))
            batch = reports if isinstance(reports, ReportBatch) else ReportBatch.of(reports)
            digest.add_reports(batch)
            session.add(batch)
            return digest.digest()

        header, outcome = self.run(job_request_id, parameters, fill)
        rows = outcome.rows or Rows.none()
        told = {name: getattr(header, name) for name in header.__dataclass_fields__}
        return Summary(**told, high=rows.high, low=rows.low, metrics=rows.metrics, unnoised=None, annotations=None)

    def run(
        self, job_request_id: str, parameters: JobParameters, fill: Fill, *, destination: AvroShards | None = None
    ) -> tuple[SummaryHeader, Outcome]:
        """Run a job that ``fill`` gives its keys and reports; return its header as callers see it, and its outcome."""
        try:
            request = request_of(parameters_message(parameters, job_request_id))
            session = self.engine.begin(Scope(caller=self.caller), request, destination=destination)
            outcome = session.finish(content=fill(session))
        except KNOWN_ERRORS as problem:
            told = self.told(problem)
            raise error_from_detail(message_of(told), detail_of(told, job_request_id)) from problem
        return header_of(outcome_header(outcome, self.engine.ledger.filter)), outcome
