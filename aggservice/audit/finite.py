"""The definitions of sections 3 and 4 of the Privacy Sandbox paper for mechanisms that are small enough to enumerate.

A law maps outcomes to exact probabilities. ``factor`` stands for e^ε, so that nothing is rounded. The mechanisms here
are thought experiments, to try a definition or to refute a statement; ``aggservice.audit.exact`` plays the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, log
from typing import Any, Protocol

Law = Mapping[Any, Fraction]
"""Outcomes and their probabilities."""
Change = Callable[[Any], Any]
"""D ↦ D⁻ˣ."""
FiniteAdversary = Callable[[tuple[Any, ...]], tuple[Any, Any] | None]
"""From the answers so far to the next database and query, or None to halt (Definition 3.5)."""


def least_delta(p: Law, q: Law, factor: Fraction) -> Fraction:
    """Return the least δ for which P and Q are (ε, δ)-indistinguishable with e^ε = ``factor`` (Definition 3.1)."""
    outcomes = p.keys() | q.keys()

    def beyond(first: Law, second: Law) -> Fraction:
        gaps = (first.get(one, Fraction(0)) - factor * second.get(one, Fraction(0)) for one in outcomes)
        return sum((gap for gap in gaps if gap > 0), Fraction(0))

    return max(beyond(p, q), beyond(q, p))


def largest_loss(p: Law, q: Law) -> float:
    """Return the least ε for which P and Q are (ε, 0)-indistinguishable: the largest |ln P/Q|, or infinity."""
    if {one for one in p if p[one]} != {one for one in q if q[one]}:
        return inf
    return max(abs(log(p[one] / q[one])) for one in p if p[one])


class FiniteMechanism(Protocol):
    """ℳ : 𝒮 × 𝒟 × 𝒬 → 𝒮 × Δ(ℛ), and its first state (Definition 3.4)."""

    start: Any

    def answer(self, state: Any, database: Any, query: Any) -> tuple[Any, Law]:
        """Return the next state and the law of the answer."""


def same(database: Any) -> Any:
    """Return the database: the world in which nothing is missing."""
    return database


def transcripts(mechanism: FiniteMechanism, adversary: FiniteAdversary, change: Change = same) -> dict[Any, Fraction]:
    """Return the law of transcripts (Algorithm 5); with ``change``, that of ℳ⁻ˣ, which gets D⁻ˣ for each D."""
    found: dict[Any, Fraction] = {}
    waiting: list[tuple[tuple[Any, ...], Any, Fraction]] = [((), mechanism.start, Fraction(1))]
    while waiting:
        seen, state, chance = waiting.pop()
        move = adversary(seen)
        if move is None:
            found[seen] = found.get(seen, Fraction(0)) + chance
            continue
        after, law = mechanism.answer(state, change(move[0]), move[1])
        waiting += [((*seen, one), after, chance * weight) for one, weight in law.items() if weight]
    return found


def mixture(laws: Iterable[tuple[Fraction, Law]]) -> dict[Any, Fraction]:
    """Return Σ αᵢPᵢ: what an adversary who was drawn with the probabilities αᵢ sees (Algorithm 7, Fact 5.2)."""
    found: dict[Any, Fraction] = {}
    for weight, law in laws:
        for one, chance in law.items():
            found[one] = found.get(one, Fraction(0)) + weight * chance
    return found


def rollout(
    mechanism: FiniteMechanism,
    moves: Sequence[tuple[Any, Any]],
    change: Change,
    factors: Sequence[Fraction],
    *,
    own_states: bool,
) -> list[Fraction]:
    """Return the least δ_t of each round for the given e^(ε_t), as Definition 4.1 requires of a privacy rollout.

    As printed (``own_states`` False) both worlds answer round t from the state that D₁ … D_{t-1} left. With
    ``own_states`` the second world answers from the state that D₁⁻ˣ … D_{t-1}⁻ˣ left, which Theorem 4.2 needs.
    """
    state = other = mechanism.start
    found = []
    for (database, query), factor in zip(moves, factors, strict=True):
        after, law = mechanism.answer(state, database, query)
        other_after, other_law = mechanism.answer(other if own_states else state, change(database), query)
        found.append(least_delta(law, other_law, factor))
        state, other = after, other_after
    return found


@dataclass(frozen=True, slots=True)
class Price:
    """θ = (ε, δ) with e^ε in place of ε."""

    factor: Fraction
    delta: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class UniversalQuery:
    """A one-shot mechanism U ↦ Δ(ℛ) over sets of units, and p: what it costs each unit at most (Definition 4.10)."""

    law: Callable[[frozenset[Hashable]], Law]
    price: Mapping[Hashable, Price]


class IndividualFilter:
    """The universal mechanism with the filter φ_{ε,δ} for each unit: a unit that cannot pay is left out (Lemma 4.11).

    Its state is what each unit has paid. With one price for all units it is the mechanism of Lemma 4.9, with one
    difference: where that one answers ⊥, this one answers about no units.
    """

    def __init__(self, units: Iterable[Hashable], limit: Price) -> None:
        self.start: Any = dict.fromkeys(units, Price(Fraction(1)))
        self._limit = limit

    def answer(self, state: Any, database: frozenset[Hashable], query: UniversalQuery) -> tuple[Any, Law]:
        """Return what each unit has paid now, and the law of the answer about the units that could pay."""
        wanted = {
            unit: Price(paid.factor * query.price[unit].factor, paid.delta + query.price[unit].delta)
            for unit, paid in state.items()
        }
        able = {
            unit
            for unit, price in wanted.items()
            if price.factor <= self._limit.factor and price.delta <= self._limit.delta
        }
        after = {unit: wanted[unit] if unit in able else paid for unit, paid in state.items()}
        return after, query.law(database & able)
