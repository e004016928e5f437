"""Event-level reports in the interactive game: M_ER over Algorithm 4, with one response per source.

Algorithms 7 and 9 of the Privacy Sandbox paper. Each round is a step of time. At the end of a round every window that
ends in it is answered by its source's randomized response (Algorithm 8), whose truth is what Algorithm 4 would send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from operator import itemgetter
from typing import Protocol

from aggservice.campaign.requery.adversary import AddSource, AddTrigger
from aggservice.campaign.requery.sender import DESTINATION
from aggservice.mechanisms import Bits
from ara_client.model import EventClient, EventReport, EventSource, InteractiveRandomizedResponse, Trigger, outputs_of

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
