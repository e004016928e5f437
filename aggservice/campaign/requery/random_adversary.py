"""Random adaptive adversaries that try to spend every last 10⁻⁶ of ε; each is a random function of the transcript.

They add events where the noisy answers are largest, drill down into the keys they saw, ask for exactly the budget that
should be left and for more, name reports twice, reuse job ids, split queries over filtering IDs and callers, and keep
asking after a refusal. They never look at the truth or at the ledger.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar

from aggservice.campaign.assess.losses import RELEASED, ContributionBounds, PrivacyLoss
from aggservice.campaign.requery.adversary import (
    AddSource,
    AddTrigger,
    AdversaryQuery,
    Event,
    MechanismAnswer,
    Move,
    RunOperation,
    play,
)
from aggservice.campaign.requery.interactive import SummaryMechanism, bounds_terms
from aggservice.campaign.service.config import memory_ledger
from aggservice.mechanisms import Bits, Clock, SeededBits, uniform_below
from aggservice.wire import Api, KeySet
from budget import Delta, Epsilon, EpsilonDeltaFilter, Ledger

T = TypeVar("T")
_KEYS = 6
_JOB_MAX_MICRO = 64 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the adversary knows about a report: the device and key it chose, and the filtering ID."""

    device: int
    key: int
    filtering_id: int


class _Choices:
    """The choices of one round, from bits that depend on the transcript so far."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def below(self, count: int) -> int:
        return uniform_below(self._bits, count)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def among(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


def _storing(key: int, step: int, most: int) -> Callable[[Any], tuple[Any, int, int]]:
    """Return a π that counts its runs in the device's storage and contributes more each time, up to ``most``."""

    def pi(storage: dict[str, int]) -> tuple[dict[str, int], int, int]:
        runs = storage.get("runs", 0) + 1
        return {**storage, "runs": runs}, key, min(most, step * runs)

    return pi


@dataclass(slots=True, kw_only=True)
class RandomAdversary:
    """One adversary, decided by ``bits``: the same transcript always gives the same next move.

    ``limit_epsilon_micro`` and ``limit_delta_atto`` are ε* and δ*, which are public.
    """

    api: Api
    bounds: ContributionBounds
    limit_epsilon_micro: int
    limit_delta_atto: int
    bits: Bits
    rounds: int = 12
    _style: dict[str, int] = field(init=False)
    _own: SeededBits = field(init=False)

    def __post_init__(self) -> None:
        self._own = SeededBits(self.bits.read(32))
        draw = _Choices(self._own.child("style"))
        self._style = {
            "devices": 1 + draw.below(3),
            "focus": draw.among((20, 50, 80)),  # percent of rounds that stay with the reports asked before
            "greed": draw.among((0, 15, 50)),  # percent of rounds that ask for all that should be left
            "excess": draw.among((0, 10, 30)),  # percent of rounds that ask for more than should be left
            "discovery": draw.among((0, 30, 70)) if self.limit_delta_atto else 0,
            "tricks": draw.among((0, 15, 40)),
            "share": draw.among((1, 2, 4, 16)),  # a usual query asks for ε*/share
        }

    def next_move(self, seen: Sequence[MechanismAnswer]) -> Move | None:
        """Choose the next events and query from the answers so far; halt after ``rounds`` rounds."""
        if len(seen) >= self.rounds:
            return None
        past = hashlib.sha256(repr([(one.rows, one.return_code, one.others) for one in seen]).encode()).hexdigest()
        choose = _Choices(self._own.child(past))
        known = [one for answer in seen for one in _reports_of(answer.move.events)]
        events = self._events(choose, seen)
        known += _reports_of(events)
        return Move(events=events, query=self._query(choose, seen, known))

    def _events(self, choose: _Choices, seen: Sequence[MechanismAnswer]) -> tuple[Event, ...]:
        """Add sources and triggers, or runs of operations, more where the last answer was largest."""
        stuck = bool(seen) and seen[-1].rows is None and choose.chance(70)
        if seen and not stuck and choose.chance(self._style["focus"]):
            return ()
        rows = seen[-1].rows if seen else None
        hot = max(rows, key=lambda key: rows[key]) % (1 << 8) if rows else choose.below(_KEYS)
        device = hot % self._style["devices"] if choose.chance(50) else choose.below(self._style["devices"])
        if self.api is Api.SHARED_STORAGE:
            return tuple(
                RunOperation(
                    device=device,
                    window=len(seen) // 4,
                    pi=_storing(choose.below(_KEYS), self._value(choose), self.bounds.l1),
                )
                for _ in range(1 + choose.below(3))
            )
        events: list[Event] = []
        if not seen or choose.chance(40):
            events.append(AddSource(device=device, key=choose.below(_KEYS), rounds=1 + choose.below(2 * self.rounds)))
        for _ in range(1 + choose.below(3)):
            events.append(
                AddTrigger(
                    device=device,
                    key=choose.below(_KEYS) << 4,
                    value=self._value(choose),
                    filtering_id=1 if choose.chance(self._style["tricks"]) else 0,
                )
            )
        return tuple(events)

    def _value(self, choose: _Choices) -> int:
        l1 = self.bounds.l1
        return choose.among((l1, max(1, l1 // 2), l1 - l1 // 2, max(1, l1 // 3), 1 + choose.below(l1)))

    def _query(self, choose: _Choices, seen: Sequence[MechanismAnswer], known: Sequence[_Known]) -> AdversaryQuery:
        if seen and choose.chance(self._style["tricks"]) and choose.chance(40):
            # Reuse a job id, for the same request or for another one.
            old = choose.among(seen)
            query = old.move.query
            reports = query.reports if choose.chance(50) else query.reports[: len(query.reports) // 2 + 1]
            return replace(query, reports=reports, job_id=old.job_id)
        chosen = self._choose_reports(choose, seen, known)
        filtering_ids = choose.among(((0,), (1,), (0, 1))) if choose.chance(self._style["tricks"]) else (0,)
        spent_epsilon, spent_delta = visible_spend(seen)
        if not choose.chance(self._style["excess"]):
            # Leave out reports that should have no budget left, unless that leaves no report.
            fresh = [
                place
                for place in chosen
                if all(spent_epsilon[place, one] < self.limit_epsilon_micro for one in filtering_ids)
            ]
            chosen = tuple(fresh) or chosen
        units = [(place, one) for place in chosen for one in filtering_ids]
        left = self.limit_epsilon_micro - max((spent_epsilon[unit] for unit in units), default=0)
        asked = max(1, self.limit_epsilon_micro // self._style["share"] - choose.below(3))
        if left > 0 and (asked > left or choose.chance(self._style["greed"])):
            asked = left
        if choose.chance(self._style["excess"]):
            asked = choose.among((asked, left + 1, self.limit_epsilon_micro))
        asked = min(max(1, asked), _JOB_MAX_MICRO)
        delta = None
        if choose.chance(self._style["discovery"]):
            remaining = self.limit_delta_atto - max((spent_delta[unit] for unit in units), default=0)
            delta = Delta(atto=max(1, choose.among((remaining, self.limit_delta_atto // 3, remaining // 2 + 1))))
        others = None
        if choose.chance(self._style["tricks"]) and asked > 1:
            part = 1 + choose.below(asked - 1)
            others, asked = Epsilon(micro=part), asked - part
        if choose.chance(self._style["tricks"]):
            chosen += chosen[:1]
        return AdversaryQuery(
            reports=chosen,
            epsilon=Epsilon(micro=asked),
            domain=() if delta else self._domain(choose, seen),
            delta=delta,
            others=others,
            filtering_ids=filtering_ids,
            caller=choose.among(("adversary", "accomplice")) if choose.chance(self._style["tricks"]) else "adversary",
        )

    def _choose_reports(
        self, choose: _Choices, seen: Sequence[MechanismAnswer], known: Sequence[_Known]
    ) -> tuple[int, ...]:
        """Choose the reports of the last query, of one device, of the key with the largest value, or any."""
        everything = tuple(range(len(known)))
        if seen and choose.chance(self._style["focus"]):
            return seen[-1].move.query.reports or everything
        kind = choose.below(4)
        if kind == 0:
            device = choose.below(self._style["devices"])
            return tuple(place for place in everything if known[place].device == device) or everything
        rows = seen[-1].rows if seen else None
        if kind == 1 and rows:
            largest = max(rows, key=lambda key: rows[key])
            return tuple(place for place in everything if known[place].key & largest) or everything
        if kind == 2:
            return tuple(place for place in everything if choose.chance(60)) or everything
        return everything

    def _domain(self, choose: _Choices, seen: Sequence[MechanismAnswer]) -> tuple[int, ...]:
        """Choose keys with large noisy values, or all possible keys."""
        rows = seen[-1].rows if seen else None
        if rows and choose.chance(50):
            return tuple(sorted(rows, key=lambda key: -rows[key])[: 1 + choose.below(4)])
        keys = {source | trigger << 4 for source in range(_KEYS) for trigger in range(_KEYS)}
        return tuple(sorted(keys)) if self.api is not Api.SHARED_STORAGE else tuple(range(_KEYS))


def _reports_of(events: Sequence[Event]) -> list[_Known]:
    found = []
    for event in events:
        if isinstance(event, AddTrigger):
            found.append(_Known(device=event.device, key=event.key, filtering_id=event.filtering_id))
        elif isinstance(event, RunOperation):
            found.append(_Known(device=event.device, key=1, filtering_id=0))
    return found


def visible_spend(
    seen: Sequence[MechanismAnswer],
) -> tuple[defaultdict[tuple[int, int], int], defaultdict[tuple[int, int], int]]:
    """Return what each (report, filtering ID) has visibly spent: the price of every new answer."""
    epsilon: defaultdict[tuple[int, int], int] = defaultdict(int)
    delta: defaultdict[tuple[int, int], int] = defaultdict(int)
    answered: set[tuple[str, str]] = set()
    for answer in seen:
        query = answer.move.query
        if answer.rows is None or (query.caller, answer.job_id) in answered:
            continue
        answered.add((query.caller, answer.job_id))
        for place in set(query.reports):
            for filtering_id in query.filtering_ids:
                epsilon[place, filtering_id] += query.epsilon.micro + (query.others.micro if query.others else 0)
                delta[place, filtering_id] += query.delta.atto if query.delta else 0
    return epsilon, delta


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """The result of one game. ``share`` is the largest part of ε* that a unit lost; ``past`` counts units above ε*."""

    number: int
    api: Api
    rounds: int
    released: int
    refused: int
    units: int
    share: Fraction
    past: int
    undercharged: int
    disagreeing: int


def play_games(
    count: int, *, bits: Bits, clock: Clock, make_ledger: Callable[..., Ledger] = memory_ledger, first: int = 0
) -> Iterator[GameResult]:
    """Play ``count`` games, each with its own adversary, bounds and limits; yield each result."""
    keys = KeySet.create(bits.child("keys"), clock)
    for number in range(first, first + count):
        yield _game(number, bits.child(f"game {number}"), keys, clock, make_ledger)


def _game(number: int, bits: Bits, keys: KeySet, clock: Clock, make_ledger: Callable[..., Ledger]) -> GameResult:
    draw = bits.child("setting")
    api = (Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE)[uniform_below(draw, 2)]
    l1 = (1, 7, 100, 65_536)[uniform_below(draw, 4)]
    l0 = min(l1, (1, 3, 20, l1)[uniform_below(draw, 4)])
    limits = EpsilonDeltaFilter(
        epsilon_micro=(1, 999_999, 3_000_000, 64_000_000)[uniform_below(draw, 4)],
        delta_atto=(0, 10**8, 10**13)[uniform_below(draw, 3)],
    )
    bounds = ContributionBounds(l1=l1, l0=l0)
    mechanism = SummaryMechanism(
        api=api,
        bounds=bounds,
        ledger=make_ledger(limits, bounds_terms(api, bounds), clock=clock, bits=bits.child("ledger")),
        keys=keys,
        clock=clock,
        bits=bits.child("mechanism"),
    )
    adversary = RandomAdversary(
        api=api,
        bounds=bounds,
        limit_epsilon_micro=limits.epsilon_micro,
        limit_delta_atto=limits.delta_atto,
        bits=bits.child("adversary"),
        rounds=6 + uniform_below(draw, 15),
    )
    answers = play(mechanism, adversary)
    recorder = mechanism.recorder
    totals = recorder.totals()
    comparisons = recorder.compare(mechanism.balances())
    limit = PrivacyLoss.of(limits.limit)
    return GameResult(
        number=number,
        api=api,
        rounds=len(answers),
        released=sum(one.outcome == RELEASED for one in recorder.rounds),
        refused=sum(answer.rows is None for answer in answers),
        units=len({one.unit for one in recorder.sent.values() if one.contributions}),
        share=max((loss.epsilon for loss in totals.values()), default=Fraction(0)) / limit.epsilon,
        past=len(recorder.units_over_limit(limit)),
        undercharged=sum(one.undercharged for one in comparisons),
        disagreeing=sum(one.lost != one.charged for one in comparisons),
    )
