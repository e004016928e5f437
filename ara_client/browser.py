"""``Browser``: one user's Attribution Reporting, as Chromium 150 does it.

>>> from aggservice.mechanisms import ManualClock, SeededBits
>>> browser = Browser(clock=ManualClock(0), bits=SeededBits("docs"))
>>> click = Request(context="https://news.example", eligible="navigation-source")
>>> header = {"Attribution-Reporting-Register-Source": '{"destination": "https://shop.example"}'}
>>> browser.register(click, Response(url="https://adtech.example/source", headers=header))
[]
>>> visit = Request(context="https://shop.example")
>>> header = {"Attribution-Reporting-Register-Trigger": '{"event_trigger_data": [{"trigger_data": "5"}]}'}
>>> browser.register(visit, Response(url="https://adtech.example/trigger", headers=header))
[]
>>> [report.to_dict()["trigger_data"] for report in browser.advance(3 * 86_400_000)]
['5']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aggservice.mechanisms import Bits, Clock, ManualClock
from aggservice.wire import Origin, PublicKeySet
from aggservice.wire.device import DeviceConfigError, Send, always_sent
from ara_client.config import Config
from ara_client.origins import parse_suitable_origin
from ara_client.randomness import DrawnChoices, RandomChoices
from ara_client.reports import OutgoingReport
from ara_client.requests import OpenRequest, Registrar, Request, Response
from ara_client.sending import Assembler, ReportPost
from ara_client.storage.browser_state import BrowserState

_BEGINNING_MS = -(1 << 62)
_END_MS = 1 << 62


class Browser:
    """Registers sources and triggers, enforces every limit, and sends reports when they are due.

    ``keys`` are the public keys of the aggregation coordinators: one set for all of them, or one set per coordinator.
    Without keys, aggregatable reports are delivered unsealed. ``draws`` replaces the random choices that come from
    ``bits``; ``send`` replaces the network, which by default never fails.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        bits: Bits,
        config: Config | None = None,
        keys: PublicKeySet | Mapping[str, PublicKeySet] | None = None,
        draws: RandomChoices | None = None,
        send: Send | None = None,
    ) -> None:
        self.config = Config() if config is None else config
        self._clock = clock
        self._state = BrowserState(self.config, DrawnChoices(bits, self.config) if draws is None else draws)
        self._registrar = Registrar(self._state)
        assembler = None if keys is None else Assembler(self._keys_by_coordinator(keys), bits)
        self._delivery = ReportPost(self._state, clock, assembler, always_sent if send is None else send)

    def register(self, request: Request, *responses: Response) -> list[OutgoingReport]:
        """Process a request and its chain of responses, all arriving now; return the reports sent immediately.

        A malformed response never raises. A request that no browser would send raises ``RequestError``.
        """
        exchange = self._registrar.start(request)
        for response in responses:
            self._registrar.process(exchange, response, self._clock.now_ms())
        return self.finish(exchange)

    def start(self, request: Request) -> OpenRequest:
        """Start a request whose responses arrive one by one; see ``respond`` and ``finish``."""
        return self._registrar.start(request)

    def respond(self, exchange: OpenRequest, response: Response) -> list[OutgoingReport]:
        """Process one response of an open request; return the reports sent immediately."""
        self._registrar.process(exchange, response, self._clock.now_ms())
        return self._delivery.flush()

    def finish(self, exchange: OpenRequest) -> list[OutgoingReport]:
        """End a request; return the reports sent immediately."""
        self._registrar.finish(exchange)
        return self._delivery.flush()

    def advance(self, until_ms: int | None = None) -> list[OutgoingReport]:
        """Advance the clock to ``until_ms``, sending each report when it is due; return them in order.

        Without ``until_ms``, send what is due now; a clock other than ``ManualClock`` allows only that.
        """
        if until_ms is None:
            return self._delivery.flush()
        clock = self._clock
        if not isinstance(clock, ManualClock):
            raise DeviceConfigError("this clock cannot be advanced: call advance() without a time, or use ManualClock")
        arrived = self._delivery.flush()
        while self._delivery.online:
            due_ms = self._state.pending.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            clock.advance_to(max(due_ms, clock.now_ms()))
            arrived += self._delivery.send_due()
        clock.advance_to(until_ms)
        return arrived

    def go_offline(self) -> None:
        """Stop sending: the browser is closed or has no network."""
        self._delivery.online = False

    def go_online(self) -> None:
        """Resume sending; overdue reports are spread over the next minute."""
        self._delivery.go_online()

    def navigate(self) -> None:
        """Record that the user went to another page; some vendors wait for that before the last attempt to send."""
        self._delivery.retry_after_navigation()

    def clear(
        self,
        origin: str | None = None,
        *,
        begin_ms: int = _BEGINNING_MS,
        end_ms: int = _END_MS,
        rate_limits: bool = False,
    ) -> None:
        """Delete the sources and reports of a reporting origin (None: of all) in a range of time, both ends included.

        If the range holds a source or one of its reports, both are deleted; a report with a context ID whose trigger is
        outside the range becomes a null report. A site that clears its data keeps its rate limits, so it cannot reset
        them (WICG, "clear site data"); ``rate_limits`` deletes them too, for a user who asks for it. Budgets of
        aggregatable debug reports stay in both cases: see ``forget_debug_budgets``.
        """
        wanted = None if origin is None else parse_suitable_origin(origin)
        state = self._state
        gone = {
            source.id: source
            for source in state.sources.between(begin_ms, end_ms)
            if wanted in (None, source.reporting_origin)
        }
        for pending in state.pending:
            if wanted not in (None, pending.report.reporting_origin):
                continue
            triggered, source = begin_ms <= pending.trigger_time_ms <= end_ms, pending.source
            # A replaced or expired source is no longer stored, but its pending reports still refer to it.
            if source is not None and (triggered or begin_ms <= source.time_ms <= end_ms):
                gone[source.id] = source
            if triggered:
                state.pending.remove(pending)
        for source in gone.values():
            state.sources.remove(source)
            for pending in state.pending.of_source(source.id):
                state.drop_with_source(pending)
        if rate_limits:
            state.limits.forget_sources(gone)
            state.limits.forget_range(wanted, begin_ms, end_ms)

    def forget_debug_budgets(
        self, origin: str | None = None, *, begin_ms: int = _BEGINNING_MS, end_ms: int = _END_MS
    ) -> None:
        """Delete what a reporting origin (None: all) spent on aggregatable debug reports: new privacy units begin.

        After this call Λ₁ may be contributed again for the same context site, reporting site and day, so no bound of
        the service holds across it. Only a user who deletes all internal data of the browser causes this; no page and
        no response header can.
        """
        wanted = None if origin is None else parse_suitable_origin(origin)
        self._state.debug_budgets.forget(wanted, begin_ms, end_ms)

    @property
    def pending(self) -> list[OutgoingReport]:
        """The pending reports, earliest first; ``time_ms`` of each is the time it is due."""
        return [replace(pending.report, time_ms=pending.due_ms) for pending in self._state.pending]

    def check(self) -> None:
        """Assert every invariant of the stored sources and reports."""
        self._state.sources._check()
        self._state.pending._check()

    def _keys_by_coordinator(self, keys: PublicKeySet | Mapping[str, PublicKeySet]) -> dict[Origin, PublicKeySet]:
        if isinstance(keys, PublicKeySet):
            return dict.fromkeys(self.config.aggregation_coordinators, keys)
        return {parse_suitable_origin(url): own for url, own in keys.items()}
