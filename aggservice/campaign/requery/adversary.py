"""The interactive adversary: it sees every answer and chooses the next events and the next query from them.

Definition 3.5 and Algorithm 5 of the Privacy Sandbox paper. A researcher writes an ``Adversary``; ``play`` is Algorithm
5; the opponent is a ``PlayedMechanism``, of which ``aggservice.campaign.requery.interactive`` has the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aggservice.job.parameters import AttributionTask
from ara_client.model import EventReport, TrigSpec
from budget import Delta, Epsilon
from w3c_client import ConversionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevel:
    """Event-level reporting of a source: ε, the most reports, and windows, in rounds after the registration."""

    epsilon: Epsilon
    max_reports: int
    specs: tuple[TrigSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSource:
    """Registers a source on a device (Attribution Reporting): its key piece and its lifetime in rounds.

    With ``event_level`` it sends event-level reports too, which the adversary gets with the answers.
    """

    device: int
    key: int
    rounds: int = 1_000_000
    filters: frozenset[str] = frozenset({"ad"})
    event_level: EventLevel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTrigger:
    """Registers a trigger on a device, which makes one report, null or not, that asks to contribute ``value``.

    ``data`` is its trigger data, for sources with event-level reports.
    """

    device: int
    key: int
    value: int
    filtering_id: int = 0
    filters: frozenset[str] = frozenset({"ad"})
    data: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOperation:
    """Runs π on a device's storage within a time window (Private Aggregation, Algorithm 3)."""

    device: int
    window: int
    pi: Callable[[Any], tuple[Any, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveImpression:
    """Saves an impression on a device after some days (W3C Attribution). No ``conversion_sites`` means all."""

    device: int
    site: str
    index: int
    conversion_sites: tuple[str, ...] = ()
    days: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConversion:
    """Measures a conversion on a device after some days (W3C Attribution), which makes one report for its site."""

    device: int
    site: str
    options: ConversionOptions
    days: int = 0


Event = AddSource | AddTrigger | RunOperation | SaveImpression | MeasureConversion


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryQuery:
    """q_t: the reports (as indexes in the order in which they were sent), the keys and the price.

    Without ``delta`` only the keys of ``domain`` are released; with it keys are discovered as well. Naming a report
    twice or reusing a job id is allowed: the service must handle it. ``job_id`` None means a new one. ``task`` makes it
    a query over W3C reports, which the conversion site asks for.
    """

    reports: tuple[int, ...]
    epsilon: Epsilon
    domain: tuple[int, ...] = ()
    delta: Delta | None = None
    others: Epsilon | None = None
    filtering_ids: tuple[int, ...] = (0,)
    caller: str = "adversary"
    job_id: str | None = None
    task: AttributionTask | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """(D_t, q_t): new events, then a query over any reports so far."""

    events: tuple[Event, ...]
    query: AdversaryQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAnswer:
    """r_t: the rows, or None and the return code of a refusal. ``reports_sent`` is the number of reports so far.

    ``event_reports`` are the event-level reports of the round.
    """

    move: Move
    job_id: str
    rows: Mapping[int, int] | None
    return_code: str
    reports_sent: int
    others: int | None = None
    event_reports: tuple[EventReport, ...] = ()


class Adversary(Protocol):
    """𝒜: chooses the next events and query from the transcript so far, or None to halt (Definition 3.5)."""

    def next_move(self, seen: Sequence[MechanismAnswer]) -> Move | None:
        """Return (D_t, q_t), or None."""


class PlayedMechanism(Protocol):
    """ℳ: keeps its own state and answers one move at a time (Definition 3.4)."""

    def respond(self, move: Move) -> MechanismAnswer:
        """Process the events, then answer the query."""


def play(mechanism: PlayedMechanism, adversary: Adversary, *, rounds: int = 1000) -> list[MechanismAnswer]:
    """Return the transcript Π of Algorithm 5, with at most ``rounds`` rounds."""
    seen: list[MechanismAnswer] = []
    while len(seen) < rounds and (move := adversary.next_move(tuple(seen))) is not None:
        seen.append(mechanism.respond(move))
    return seen
