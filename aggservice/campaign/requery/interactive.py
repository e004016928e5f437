"""The interactive mechanism M_SR with real clients, sealed reports, engine and ledger.

Algorithm 6 of the Privacy Sandbox paper: phase 1 is ``ara_client.model`` or ``paa_client.model``; phases 2 and 3 are a
job of a ``JobEndpoint``: the engine in this process, or a service over gRPC. A ``TranscriptRecorder`` keeps the truth
for the experimenter; the adversary never sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from operator import itemgetter
from typing import Protocol
from uuid import UUID

from aggservice.campaign.assess.losses import (
    ContributionBounds,
    PrivacyLoss,
    QueryPrice,
    ReportTruth,
    TranscriptRecorder,
)
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.requery.adversary import (
    AddSource,
    AddTrigger,
    AdversaryQuery,
    Event,
    MeasureConversion,
    MechanismAnswer,
    Move,
    RunOperation,
    SaveImpression,
)
from aggservice.campaign.service.runner import EngineRunner, JobEndpoint, answer
from aggservice.client import ClientError, JobParameters, Summary
from aggservice.engine import InlineOpener, LocalEngine, ledger_terms
from aggservice.job.errors import ReturnCode
from aggservice.mechanisms import Bits, Clock
from aggservice.wire import AggregatableReport, Api, Contribution, KeySet, PublicKeySet, SharedInfo, make_report
from aggservice.wire.report.units import report_unit
from ara_client.model import (
    EventClient,
    EventReport,
    EventSource,
    InteractiveRandomizedResponse,
    Source,
    SummaryClient,
    Trigger,
    outputs_of,
)
from budget import Ledger, Sensitivity, Spend, Terms
from paa_client import PaaSrClient

ORIGIN = "https://adtech.example"
DESTINATION = "https://shop.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSender:
    """Seals reports of one API to the keys of a service; only ``recorder`` gets their truth."""

    api: Api
    keys: PublicKeySet
    clock: Clock
    bits: Bits
    recorder: TranscriptRecorder

    def send(self, unit: str, raw_id: bytes, contributions: Sequence[Contribution]) -> tuple[str, AggregatableReport]:
        """Return the id and the sealed report of a privacy unit; without contributions it is a null report."""
        report_id = str(UUID(bytes=raw_id, version=4))
        report = make_report(
            contributions,
            shared_info=SharedInfo(
                api=self.api,
                report_id=report_id,
                reporting_origin=ORIGIN,
                scheduled_report_time_s=self.clock.now_ms() // 1000,
                attribution_destination=DESTINATION if self.api.has_destination else None,
            ),
            keys=self.keys,
            bits=self.bits,
            maximum=1,
        )
        sent = tuple((one.filtering_id, one.value) for one in contributions)
        self.recorder.add_report(ReportTruth(report_id=report_id, unit=unit, contributions=sent))
        return report_id, report


Sent = tuple[EventReport, ...]
MICRO = 10**6


class MakeResponse(Protocol):
    """Makes the response of one source; tests replace it to try every draw."""

    def __call__(
        self, *, epsilon: Fraction, outputs: Sequence[Sequence[Sent]], bits: Bits
    ) -> InteractiveRandomizedResponse[Sent]:
        """Return a response that has answered nothing yet."""


class EventLevelReports:
    """The event-level clients of all devices. Conversions of the source ``moved`` go to a dummy, which sends nothing.

    The response of that source is drawn all the same: the existence of a source is not hidden.
    """

    def __init__(
        self, *, bits: Bits, moved: int | None = None, respond: MakeResponse = InteractiveRandomizedResponse
    ) -> None:
        self._bits = bits
        self._moved = moved
        self._respond = respond
        self._clients: dict[int, EventClient] = {}
        self._responses: list[tuple[EventClient, EventSource, InteractiveRandomizedResponse[Sent]]] = []

    def register_source(self, event: AddSource, number: int, now: int) -> None:
        """Register the source with this number, and draw its response at its first window."""
        chosen = event.event_level
        if chosen is None:
            return
        source = EventSource(
            src_id=number,
            dest=DESTINATION,
            registered=now,
            exp_date=now + event.rounds,
            src_filt=event.filters,
            max_rep=chosen.max_reports,
            trig_spec=chosen.specs,
        )
        client = self._clients.setdefault(event.device, EventClient())
        client.register_source(source)
        response = self._respond(
            epsilon=Fraction(chosen.epsilon.micro, MICRO), outputs=outputs_of(source), bits=self._bits
        )
        self._responses.append((client, source, response))

    def register_trigger(self, event: AddTrigger, now: int) -> None:
        """Add to the value of the newest source that matches; a source that moved gets nothing."""
        client = self._clients.get(event.device)
        if client is None:
            return
        before = dict(client.v)
        client.register_trigger(Trigger(now, DESTINATION, event.filters, event.data, event.value))
        for (source, data), value in before.items():
            if source.src_id == self._moved:
                client.v[source, data] = value

    def due(self, now: int) -> Sent:
        """Return what is sent at the end of this round, in order of sources and windows."""
        sent: list[EventReport] = []
        for client, source, response in self._responses:
            for end, spec in sorted(source.window_ends(), key=itemgetter(0)):
                if end == now:
                    truth: Callable[[EventClient], Sent] = lambda held, s=source, at=spec: tuple(  # type: ignore[misc]  # noqa: E731
                        held.pass_window(s, at)
                    )
                    sent += response.answer(client, truth)
        return tuple(sent)


def ask(
    runner: JobEndpoint, job_id: str, query: AdversaryQuery, reports: Sequence[AggregatableReport]
) -> Summary | ClientError:
    """Return the answer to a query. A refusal by the rules of jobs is an answer; any other error is raised.

    An engine in this process knows callers by their names; a client has one caller.
    """
    parameters = JobParameters(
        attribution_report_to="" if query.task else ORIGIN,
        reporting_site=query.task.conversion_site if query.task else "",
        attribution_task=query.task,
        epsilon=str(query.epsilon),
        discovery_delta=str(query.delta) if query.delta else "",
        others_epsilon=str(query.others) if query.others else "",
        filtering_ids=query.filtering_ids,
    )
    if isinstance(runner, EngineRunner):
        runner = replace(runner, caller=query.caller)
    refusals = (ReturnCode.PRIVACY_BUDGET_EXHAUSTED, ReturnCode.INVALID_JOB)
    return answer(runner, job_id, parameters, reports, domain=query.domain, refusals=refusals)


class Adjacency(StrEnum):
    """How the neighbouring world differs in one unit x (docs/guarantees.md says which of them are claimed).

    ``moved``: the conversions of a source belong to a dummy, which contributes nothing. ``absent``: the source is never
    registered, so that its conversions may go to another one. ``disabled``: what a device contributes in a window is
    left out, and charged all the same. ``emptied``: its storage is empty whenever an operation reads it in the window.
    ``removed``: a device's impressions of an epoch are never saved (W3C Attribution).
    The bound holds for ``moved``, ``disabled`` and ``removed``.
    """

    MOVED = "moved"
    ABSENT = "absent"
    DISABLED = "disabled"
    EMPTIED = "emptied"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """D⁻ˣ: the world without a unit: a source by number (from 1), a device and a window, or a device and an epoch.

    With ``site``, only those impressions of the epoch are removed that no other conversion site may use. No bound is
    claimed for that world: limits that sites share carry the change to other sites.
    """

    how: Adjacency
    source: int = 0
    device: int = 0
    window: int = 0
    epoch: int = 0
    site: str = ""

    @property
    def unit(self) -> str:
        """The name of the unit, as a recorder has it."""
        if self.how in (Adjacency.MOVED, Adjacency.ABSENT):
            return f"source {self.source}"
        part = f"epoch {self.epoch}" if self.how is Adjacency.REMOVED else f"window {self.window}"
        return f"device {self.device}, {part}"


class SummaryMechanism:
    """M_SR, and M_ER for sources with event-level reports, over a ledger: events make reports and queries make jobs.

    As in the paper, it has one API. Without a ``backend``, jobs run in an engine over ``ledger``; the service of a
    backend must have the same ledger, ``keys`` and bounds. With ``without`` it is the neighbouring world M⁻ˣ of the
    game (Algorithm 5): the same moves, with one unit less. ``respond`` makes event-level responses.
    """

    def __init__(
        self,
        *,
        api: Api,
        bounds: ContributionBounds,
        ledger: Ledger,
        keys: KeySet,
        clock: Clock,
        bits: Bits,
        runner: JobEndpoint | None = None,
        without: Without | None = None,
        respond: MakeResponse = InteractiveRandomizedResponse,
    ) -> None:
        if api not in (Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE):
            raise CampaignError("an interaction needs the API Attribution Reporting or Shared Storage")
        if ledger.terms != bounds_terms(api, bounds):
            raise CampaignError(f"the ledger has other terms: create it with terms=bounds_terms({api}, {bounds})")
        self.recorder = TranscriptRecorder(bounds=bounds)
        self.ledger = ledger
        self._bounds, self._bits = bounds, bits
        public = keys.public(clock)
        self._sender = ReportSender(api=api, keys=public, clock=clock, bits=bits, recorder=self.recorder)
        self._runner = runner or EngineRunner(
            engine=LocalEngine(ledger=ledger, opener=InlineOpener(keys), clock=clock, bits=bits)
        )
        self._without = without
        moved = without.source if without is not None and without.how is Adjacency.MOVED else None
        self._events = EventLevelReports(bits=bits, moved=moved, respond=respond)
        self._ara: dict[int, SummaryClient] = {}
        self._paa = PaaSrClient(lambda_1=bounds.l1, lambda_0=bounds.l0, bits=bits)
        self._round = 0
        self._sources = 0
        self._reports: list[tuple[str, AggregatableReport]] = []

    @property
    def limit(self) -> PrivacyLoss:
        """(ε*, δ*)."""
        return PrivacyLoss.of(self.ledger.filter.limit)

    def respond(self, move: Move) -> MechanismAnswer:
        """Process each event (phase 1), then run the query as a job."""
        self._round += 1
        for event in move.events:
            self._take(event)
        return self._answer(move, self._events.due(self._round))

    def _is_without(self, unit: str, how: Adjacency) -> bool:
        return self._without is not None and self._without.how is how and self._without.unit == unit

    def _take(self, event: Event) -> None:
        if isinstance(event, SaveImpression | MeasureConversion):
            raise CampaignError("impressions and conversions are of W3C Attribution: play with an AttributionMechanism")
        if isinstance(event, RunOperation):
            unit = f"device {event.device}, window {event.window}"
            if self._is_without(unit, Adjacency.EMPTIED):
                self._paa.storage[event.device] = self._paa.empty()
            report = self._paa.event(event.device, event.window, event.pi)
            key = None if report.is_null else int(report.k or 0)
            self._send(unit, key, report.v or 0, 0, report.r)
            return
        client = self._ara.setdefault(
            event.device,
            SummaryClient(contribution_budget=self._bounds.l1, sparsity_budget=self._bounds.l0, bits=self._bits),
        )
        if isinstance(event, AddSource):
            self._sources += 1
            if self._is_without(f"source {self._sources}", Adjacency.ABSENT):
                return
            if event.event_level is not None:
                self.recorder.add_event_level(f"source {self._sources}", event.event_level.epsilon)
            self._events.register_source(event, self._sources, self._round)
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
        self._events.register_trigger(event, self._round)
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
        if self._is_without(unit, Adjacency.MOVED) or self._is_without(unit, Adjacency.DISABLED):
            key = None
        made = [] if key is None else [Contribution(bucket=key, value=value, filtering_id=filtering_id)]
        self._reports.append(self._sender.send(unit, raw_id, made))

    def _answer(self, move: Move, event_reports: tuple[EventReport, ...]) -> MechanismAnswer:
        query = move.query
        job_id = query.job_id or f"job {self._round}"
        chosen = [self._reports[index] for index in query.reports]
        reply = ask(self._runner, job_id, query, [report for _, report in chosen])
        rows, others, digest = None, None, None
        if isinstance(reply, Summary):
            rows, others = reply.to_dict(), reply.others
            digest = hashlib.sha256(repr((sorted(rows.items()), others)).encode()).digest()
        self.recorder.record(
            caller=query.caller,
            job_id=job_id,
            price=QueryPrice.of(query.epsilon, query.delta, query.others, query.filtering_ids),
            reports=[name for name, _ in chosen],
            digest=digest,
            return_code=reply.return_code,
        )
        return MechanismAnswer(
            move=move,
            job_id=job_id,
            rows=rows,
            return_code=reply.return_code,
            reports_sent=len(self._reports),
            others=others,
            event_reports=event_reports,
        )

    def balances(self) -> Mapping[tuple[str, int], Spend]:
        """Return the ledger's balance for the report and filtering ID of every contribution."""
        by_report = {name: SharedInfo.parse(report.shared_info) for name, report in self._reports}
        found: dict[tuple[str, int], Spend] = {}
        for name, filtering_id in self.recorder.balance_keys():
            spent = self.ledger.balances(report_unit(by_report[name], filtering_id))
            found[name, filtering_id] = spent.of(0)
        return found


def bounds_terms(api: Api, bounds: ContributionBounds) -> Terms:
    """Return the terms of a ledger for an interaction over one API under these bounds."""
    return ledger_terms(sensitivities={api: Sensitivity(l1=bounds.l1, l0=bounds.l0)})
