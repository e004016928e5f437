"""The interactive mechanism M_SR, for real: the paper's clients, sealed reports, the engine and its ledger.

Algorithm 6 of the Privacy Sandbox paper: phase 1 is ``ara_client.model`` or ``paa_client.model``, phases 2 and 3 are a
job at a ``Desk``: the engine in this process, or a service over gRPC. A ``Recorder`` keeps the truth beside it, for
whoever experiments; the adversary never sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import numpy as np

from aggservice.campaign.assess.losses import Bounds, Loss, Price, Sent
from aggservice.campaign.assess.transcript import Recorder
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.requery.adversary import AddSource, Answer, Event, Move, Query, RunOperation
from aggservice.client import Client, ClientError, JobParameters
from aggservice.engine import (
    InlineOpener,
    InvalidJobError,
    JobIdTakenError,
    JobRequest,
    LocalEngine,
    Outcome,
    ReturnCode,
    Scope,
    UnpaidError,
    ledger_terms,
)
from aggservice.engine.request import Discovery
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import AggregatableReport, Api, Contribution, KeySet, ReportBatch, SharedInfo, make_report
from aggservice.wire.report.units import report_unit
from ara_client.model import Source, SummaryClient
from budget import EpsilonDeltaFilter, Ledger, MemoryStore, Sensitivity, Signer, Spend, Terms
from paa_client import PaaSrClient

ORIGIN = "https://adtech.example"
DESTINATION = "https://shop.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a job: rows and the total of the others, or neither and the code of a refusal."""

    code: str
    rows: Mapping[int, int] | None = None
    others: int | None = None


class Desk(Protocol):
    """Where jobs are asked for."""

    def ask(self, job_id: str, query: Query, reports: Sequence[AggregatableReport]) -> Reply:
        """Ask for one job; a refusal is a reply."""


class EngineDesk:
    """Jobs of the engine in this process, each caller by its name."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def ask(self, job_id: str, query: Query, reports: Sequence[AggregatableReport]) -> Reply:
        """Ask the engine; only what it refuses by its rules is a reply."""
        try:
            outcome = self._job(job_id, query, reports)
        except (UnpaidError, InvalidJobError, JobIdTakenError) as problem:
            return Reply(code=problem.code.name)
        rows = outcome.rows.to_dict() if outcome.rows else {}
        return Reply(code=outcome.header.return_code.name, rows=rows, others=outcome.header.others)

    def _job(self, job_id: str, query: Query, reports: Sequence[AggregatableReport]) -> Outcome:
        request = JobRequest(
            job_request_id=job_id,
            attribution_report_to=ORIGIN,
            noise=query.epsilon,
            discovery=Discovery(delta=query.delta) if query.delta else None,
            others=query.others,
            filtering_ids=query.filtering_ids,
        )
        session = self._engine.begin(Scope(caller=query.caller), request)
        if query.domain:
            high = np.array([key >> 64 for key in query.domain], dtype=np.uint64)
            low = np.array([key & (1 << 64) - 1 for key in query.domain], dtype=np.uint64)
            session.declare(high, low)
        session.add(ReportBatch.of(reports))
        content = hashlib.sha256(repr((query.reports, query.domain)).encode()).digest()
        return session.finish(content=content)


class ServiceDesk:
    """Jobs of a service over gRPC, all from one connection: callers are the connection's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(self, job_id: str, query: Query, reports: Sequence[AggregatableReport]) -> Reply:
        """Stream the job; only what the service refuses by its rules is a reply."""
        parameters = JobParameters(
            attribution_report_to=ORIGIN,
            epsilon=str(query.epsilon),
            discovery_delta=str(query.delta) if query.delta else "",
            others_epsilon=str(query.others) if query.others else "",
            filtering_ids=query.filtering_ids,
        )
        try:
            summary = self._client.aggregate(job_id, parameters, list(reports), domain=list(query.domain))
        except ClientError as problem:
            if problem.return_code not in (ReturnCode.PRIVACY_BUDGET_EXHAUSTED, ReturnCode.INVALID_JOB):
                raise
            return Reply(code=problem.return_code)
        return Reply(code=summary.return_code, rows=summary.to_dict(), others=summary.others)


class SummaryReports:
    """M_SR over a ledger. Events make reports, queries make jobs; one API a mechanism, as in the paper.

    Without a ``desk`` the jobs are those of an engine over ``ledger``; a desk's service must have that ledger, the
    ``keys`` and these bounds.
    """

    def __init__(
        self,
        *,
        api: Api,
        bounds: Bounds,
        ledger: Ledger,
        keys: KeySet,
        clock: Clock,
        bits: Bits,
        desk: Desk | None = None,
    ) -> None:
        if api not in (Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE):
            raise CampaignError("an interaction is about Attribution Reporting or about Shared Storage")
        if ledger.terms != bounds_terms(api, bounds):
            raise CampaignError(f"the ledger was made with other terms: pass terms=bounds_terms({api}, {bounds})")
        self.recorder = Recorder(bounds=bounds)
        self.ledger = ledger
        self._api, self._bounds, self._clock, self._bits = api, bounds, clock, bits
        self._public = keys.public(clock)
        self._desk = desk or EngineDesk(
            LocalEngine(
                ledger=ledger,
                opener=InlineOpener(keys),
                clock=clock,
                bits=bits,
            )
        )
        self._ara: dict[int, SummaryClient] = {}
        self._paa = PaaSrClient(lambda_1=bounds.l1, lambda_0=bounds.l0, bits=bits)
        self._round = 0
        self._sources = 0
        self._reports: list[tuple[str, AggregatableReport]] = []

    @property
    def limit(self) -> Loss:
        """(ε*, δ*)."""
        return Loss.of(self.ledger.filter.limit)

    def respond(self, move: Move) -> Answer:
        """Phase 1 for each event, then the query as a job."""
        self._round += 1
        for event in move.events:
            self._take(event)
        return self._answer(move)

    def _take(self, event: Event) -> None:
        if isinstance(event, RunOperation):
            report = self._paa.event(event.device, event.window, event.pi)
            unit = f"device {event.device}, window {event.window}"
            key = None if report.is_null else int(report.k or 0)
            self._send(unit, key, report.v or 0, 0, report.r)
            return
        client = self._ara.setdefault(
            event.device,
            SummaryClient(contribution_budget=self._bounds.l1, sparsity_budget=self._bounds.l0, bits=self._bits),
        )
        if isinstance(event, AddSource):
            self._sources += 1
            client.register_source(
                Source(
                    src_id=self._sources,
                    dest=DESTINATION,
                    exp_date=self._round + event.rounds,
                    src_filt=event.filters,
                    src_key=event.key,
                )
            )
            return
        before = dict(client.l1)
        made = client.register_trigger(
            self._round,
            dest=DESTINATION,
            trig_id=self._round,
            trig_filt=event.filters,
            trig_key=event.key,
            trig_value=event.value,
        )
        charged = [source for source, spent in client.l1.items() if spent != before[source]]
        unit = f"source {charged[0].src_id}" if charged else f"no source on device {event.device}"
        self._send(unit, made.key, made.value or 0, event.filtering_id, made.report_id.to_bytes(16, "big"))

    def _send(self, unit: str, key: int | None, value: int, filtering_id: int, raw_id: bytes) -> None:
        """Seal the report and note the truth of it."""
        report_id = str(UUID(bytes=raw_id, version=4))
        made = [] if key is None else [Contribution(bucket=key, value=value, filtering_id=filtering_id)]
        report = make_report(
            made,
            shared_info=SharedInfo(
                api=self._api,
                report_id=report_id,
                reporting_origin=ORIGIN,
                scheduled_report_time_s=self._clock.now_ms() // 1000,
                attribution_destination=DESTINATION if self._api.has_destination else None,
            ),
            keys=self._public,
            bits=self._bits,
            maximum=1,
        )
        self._reports.append((report_id, report))
        contributions = ((filtering_id, value),) if made else ()
        self.recorder.add_report(Sent(report_id=report_id, unit=unit, contributions=contributions))

    def _answer(self, move: Move) -> Answer:
        query = move.query
        job_id = query.job_id or f"job {self._round}"
        chosen = [self._reports[place] for place in query.reports]
        price = Price(
            epsilon_micro=query.epsilon.micro + (query.others.micro if query.others else 0),
            delta_atto=query.delta.atto if query.delta else 0,
            filtering_ids=query.filtering_ids,
        )
        common: dict[str, Any] = {
            "caller": query.caller,
            "job_id": job_id,
            "price": price,
            "reports": [name for name, _ in chosen],
        }
        reply = self._desk.ask(job_id, query, [report for _, report in chosen])
        if reply.rows is None:
            self.recorder.refused(**common, return_code=reply.code)
        else:
            digest = hashlib.sha256(repr((sorted(reply.rows.items()), reply.others)).encode()).digest()
            self.recorder.released(**common, digest=digest)
        return Answer(
            move=move,
            job_id=job_id,
            rows=reply.rows,
            return_code=reply.code,
            reports_sent=len(self._reports),
            others=reply.others,
        )

    def balances(self) -> Mapping[tuple[str, int], Spend]:
        """Return what the ledger has for every contribution's report and filtering ID."""
        by_report = {name: SharedInfo.parse(report.shared_info) for name, report in self._reports}
        found: dict[tuple[str, int], Spend] = {}
        for name, filtering_id in self.recorder.balance_keys():
            spent = self.ledger.balances(report_unit(by_report[name], filtering_id))
            found[name, filtering_id] = spent.of(0)
        return found


def bounds_terms(api: Api, bounds: Bounds) -> Terms:
    """Return the terms of a ledger for an interaction over one API under these bounds."""
    return ledger_terms(sensitivities={api: Sensitivity(l1=bounds.l1, l0=bounds.l0)})


def memory_ledger(
    filter: EpsilonDeltaFilter, terms: Terms, *, clock: Clock, bits: Bits, kind: type[Ledger] = Ledger
) -> Ledger:
    """Return a new ledger in memory."""
    return kind.create(MemoryStore(), filter=filter, terms=terms, signer=Signer.generate(bits), clock=clock, bits=bits)
