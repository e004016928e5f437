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
from ara_client.delivery.assembly import Assembler
from ara_client.delivery.sending import Delivery, Send, SendResult
from ara_client.errors import ConfigurationError
from ara_client.origins import parse_suitable_origin
from ara_client.randomness import BitsDraws, Draws
from ara_client.reports import Report
from ara_client.requests import Exchange, Registrar, Request, Response
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.pending import PendingReport
from ara_client.vendor import VendorValues

_BEGINNING_MS = -(1 << 62)
_END_MS = 1 << 62


class Browser:
    """Registers sources and triggers, keeps every limit, and sends reports when their time comes.

    ``keys`` are the public keys of the aggregation coordinators, one set for all or one each; without them
    aggregatable reports are delivered unsealed. ``draws`` replaces the randomness that comes from ``bits``, ``send``
    the network, which otherwise never fails.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        bits: Bits,
        config: VendorValues | None = None,
        keys: PublicKeySet | Mapping[str, PublicKeySet] | None = None,
        draws: Draws | None = None,
        send: Send | None = None,
    ) -> None:
        self.config = VendorValues() if config is None else config
        self._clock = clock
        self._state = BrowserState(self.config, BitsDraws(bits, self.config) if draws is None else draws)
        self._registrar = Registrar(self._state)
        assembler = None if keys is None else Assembler(self._keys_by_coordinator(keys), bits)
        self._delivery = Delivery(self._state, clock, assembler, _always_sent if send is None else send)

    def register(self, request: Request, *responses: Response) -> list[Report]:
        """Process a request whose responses, a redirect chain, all arrive now; return the reports that go out at once.

        Never raises for what a response says, however malformed; raises ``RequestError`` for a request that no
        browser would make.
        """
        exchange = self._registrar.start(request)
        for response in responses:
            exchange.respond(response, self._clock.now_ms())
        exchange.finish()
        return self._delivery.flush()

    def start(self, request: Request) -> Exchange:
        """Begin a request whose responses arrive one by one; see ``respond`` and ``finish``."""
        return self._registrar.start(request)

    def respond(self, exchange: Exchange, response: Response) -> list[Report]:
        """Process one response of a request under way; return the reports that go out at once."""
        exchange.respond(response, self._clock.now_ms())
        return self._delivery.flush()

    def finish(self, exchange: Exchange) -> list[Report]:
        """End a request; return the reports that go out at once."""
        exchange.finish()
        return self._delivery.flush()

    def advance(self, until_ms: int | None = None) -> list[Report]:
        """Let time pass until ``until_ms``, sending reports as they fall due; return them in order.

        Without ``until_ms``, or with a clock that runs by itself, send what is due now.
        """
        if until_ms is None:
            return self._delivery.flush()
        clock = self._clock
        if not isinstance(clock, ManualClock):
            raise ConfigurationError("only a ManualClock can be advanced: call advance() without a time")
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
        """Stop sending: the browser is closed, or has no network at all."""
        self._delivery.online = False

    def go_online(self) -> None:
        """Resume sending; what was missed is spread over the next minute."""
        self._delivery.go_online()

    def navigate(self) -> None:
        """Note that the user went to another page, which vendors may wait for before a last attempt to send."""
        self._delivery.retry_after_navigation()

    def clear(
        self,
        origin: str | None = None,
        *,
        begin_ms: int = _BEGINNING_MS,
        end_ms: int = _END_MS,
        rate_limits: bool = False,
    ) -> None:
        """Forget the sources and reports of a reporting origin (None: of all), from a range of time, ends included.

        A report goes with its source and a source with its report, whichever of them the range holds.
        A site that clears its data keeps its rate limits, so that it cannot reset them (WICG, "clear site data"); a
        user who does may have ``rate_limits`` forgotten too. Budgets of aggregatable debug reports stay in either case:
        see ``forget_debug_budgets``.
        """
        wanted = None if origin is None else parse_suitable_origin(origin)
        state = self._state
        gone = {
            source.id: source
            for source in state.sources.between(begin_ms, end_ms)
            if wanted in (None, source.reporting_origin)
        }
        for pending in state.pending:
            # A source that gave way or expired is held no more, but its reports still tell of it.
            times = [pending.trigger_time_ms] + ([] if pending.source is None else [pending.source.time_ms])
            if wanted in (None, pending.report.reporting_origin) and any(begin_ms <= time <= end_ms for time in times):
                state.pending.remove(pending)
                if pending.source is not None:
                    gone[pending.source.id] = pending.source
        for source in gone.values():
            state.sources.remove(source)
            for pending in state.pending.of_source(source.id):
                state.pending.remove(pending)
        if rate_limits:
            state.limits.forget_sources(gone)
            state.limits.forget_range(wanted, begin_ms, end_ms)

    def forget_debug_budgets(
        self, origin: str | None = None, *, begin_ms: int = _BEGINNING_MS, end_ms: int = _END_MS
    ) -> None:
        """Forget what a reporting origin (None: all) spent on aggregatable debug reports: new privacy units begin.

        After it Λ₁ may be contributed again for the same context site, reporting site and day, so no bound of the
        service holds across the call. Only a user who deletes all internal data of the browser causes it; no page or
        response header can.
        """
        wanted = None if origin is None else parse_suitable_origin(origin)
        self._state.debug_budgets.forget(wanted, begin_ms, end_ms)

    @property
    def pending(self) -> list[Report]:
        """The reports that wait, earliest first, each with the time it is due as its ``time_ms``."""
        return [_as_due(pending) for pending in self._state.pending]

    @property
    def source_count(self) -> int:
        """How many sources are held; those that have expired since the last registration still count."""
        return len(self._state.sources)

    def check(self) -> None:
        """Assert every invariant of what is stored."""
        self._state.sources._check()
        self._state.pending._check()

    def _keys_by_coordinator(self, keys: PublicKeySet | Mapping[str, PublicKeySet]) -> dict[Origin, PublicKeySet]:
        if isinstance(keys, PublicKeySet):
            return dict.fromkeys(self.config.aggregation_coordinators, keys)
        return {parse_suitable_origin(url): own for url, own in keys.items()}


def _always_sent(report: Report) -> SendResult:
    return SendResult.SENT


def _as_due(pending: PendingReport) -> Report:
    return replace(pending.report, time_ms=pending.due_ms)
