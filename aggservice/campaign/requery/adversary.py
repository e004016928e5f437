"""The paper's interactive adversary: it sees every answer and chooses the next events and the next query from them.

Definition 3.5 and Algorithm 5 of the Privacy Sandbox paper. ``Adversary`` is what a researcher writes, ``play`` is
Algorithm 5, and what an adversary plays against is any ``Mechanism``; ``aggservice.campaign.requery.interactive`` has
the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from budget import Delta, Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSource:
    """A source on a device (Attribution Reporting): its key piece, and for how many rounds it lasts."""

    device: int
    key: int
    rounds: int = 1_000_000
    filters: frozenset[str] = frozenset({"ad"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTrigger:
    """A trigger on a device: a report will come of it, null or not. ``value`` is the contribution it asks for."""

    device: int
    key: int
    value: int
    filtering_id: int = 0
    filters: frozenset[str] = frozenset({"ad"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOperation:
    """A Private Aggregation event: π runs on a device's storage within a time window (Algorithm 3)."""

    device: int
    window: int
    pi: Callable[[Any], tuple[Any, int, int]]


Event = AddSource | AddTrigger | RunOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """q_t: which reports (by their place in the order in which they were sent), which keys, and at what price.

    Without ``delta`` the ``domain`` is declared; with it keys are discovered as well. A report may be named twice and
    a job id used again: the service must cope. ``job_id`` None takes a fresh one.
    """

    reports: tuple[int, ...]
    epsilon: Epsilon
    domain: tuple[int, ...] = ()
    delta: Delta | None = None
    others: Epsilon | None = None
    filtering_ids: tuple[int, ...] = (0,)
    caller: str = "adversary"
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """(D_t, q_t): new events, then a query over any of the reports so far."""

    events: tuple[Event, ...]
    query: Query


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """r_t: the rows, or None and the return code of a refusal. ``reports_sent`` counts the reports there are now."""

    move: Move
    job_id: str
    rows: Mapping[int, int] | None
    return_code: str
    reports_sent: int
    others: int | None = None


class Adversary(Protocol):
    """𝒜: from the transcript so far to the next events and query, or None to halt (Definition 3.5)."""

    def next_move(self, seen: Sequence[Answer]) -> Move | None:
        """Return (D_t, q_t), or None."""


class Mechanism(Protocol):
    """ℳ: keeps its own state and answers one move at a time (Definition 3.4)."""

    def respond(self, move: Move) -> Answer:
        """Take in the events, answer the query."""


def play(mechanism: Mechanism, adversary: Adversary, *, rounds: int = 1000) -> list[Answer]:
    """Return the transcript Π of Algorithm 5; ``rounds`` ends an adversary that never halts."""
    seen: list[Answer] = []
    while len(seen) < rounds and (move := adversary.next_move(tuple(seen))) is not None:
        seen.append(mechanism.respond(move))
    return seen
