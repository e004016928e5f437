"""A search for the client events with which one unit moves the sums most: random starts, then hill climbing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from .worlds import Measured

Event = TypeVar("Event")
Score = Callable[[Measured], float]


def by_l1(measured: Measured) -> float:
    """Seek the largest change of the sums, then the largest number of sums changed."""
    return measured.l1_ratio + measured.l0_ratio / 1000


def by_l0(measured: Measured) -> float:
    """Seek the largest number of sums changed, then the largest change."""
    return measured.l0_ratio + measured.l1_ratio / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Generic[Event]):
    """What is searched: how an event is drawn and varied, and what a sequence of events comes to."""

    draw: Callable[[Random], Event]
    vary: Callable[[Random, Event], Event]
    measure: Callable[[tuple[Event, ...]], Measured]


@dataclass(slots=True)
class Found(Generic[Event]):
    """What a search found: the sequence with the largest score, and how many sequences passed what is stated."""

    events: tuple[Event, ...] = ()
    measured: Measured = field(default_factory=Measured)
    score: float = -1.0
    tried: int = 0
    broken: int = 0

    def __str__(self) -> str:
        best = self.measured
        return (
            f"largest change L1 {best.l1:,} of {best.stated.l1:,} stated ({best.l1_ratio:.3f}), L0 {best.l0:,} of "
            f"{best.stated.l0:,} ({best.l0_ratio:.3f}); {len(self.events)} events; {self.tried:,} sequences tried, "
            f"{self.broken:,} beyond what is stated"
        )


def search(
    problem: Problem[Event],
    *,
    seed: str,
    score: Score = by_l1,
    starts: int = 8,
    draws: int = 8,
    steps: int = 60,
    most: int = 12,
    until: float | None = None,
    enough: float = 0.0,
    starts_at_most: int = 60,
) -> Found[Event]:
    """Climb from ``starts`` places, each the best of ``draws`` random sequences, by ``steps`` mutations each.

    A mutation that scores no less is kept. ``until`` ends the search once a sequence scores that much; while none
    scores ``enough``, it starts from more places, up to ``starts_at_most``.
    """
    rng = Random(seed)
    found: Found[Event] = Found()

    def tried(events: tuple[Event, ...]) -> float:
        measured = problem.measure(events)
        value = score(measured)
        found.tried += 1
        found.broken += not measured.holds
        if value > found.score:
            found.events, found.measured, found.score = events, measured, value
        return value

    for start in range(max(starts, starts_at_most)):
        if start >= starts and found.score >= enough:
            break
        pool = [tuple(problem.draw(rng) for _ in range(rng.randint(1, most))) for _ in range(draws)]
        scores = [tried(events) for events in pool]
        height = max(scores)
        events = pool[scores.index(height)]
        for _ in range(steps):
            if until is not None and found.score >= until:
                return found
            other = _mutate(problem, rng, events, most)
            value = tried(other)
            if value >= height:
                events, height = other, value
    return found


def _mutate(problem: Problem[Event], rng: Random, events: tuple[Event, ...], most: int) -> tuple[Event, ...]:
    changed = list(events)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(6):
            case 0 if len(changed) < most:
                changed.insert(rng.randint(0, len(changed)), problem.draw(rng))
            case 1 if len(changed) > 1:
                del changed[place]
            case 2 if changed and len(changed) < most:
                changed.insert(rng.randint(0, len(changed)), changed[place])
            case 3 if changed and len(changed) < most:
                width = rng.randint(1, 4)
                changed[place:place] = changed[max(0, place - width) : place][: most - len(changed)]
            case 4 if changed:
                other = rng.randrange(len(changed))
                changed[place], changed[other] = changed[other], changed[place]
            case _ if changed:
                changed[place] = problem.vary(rng, changed[place])
    return tuple(changed)
