"""Finite mechanisms: definitions 3.1 to 4.10 and lemmas 4.9, 4.11 of the Privacy Sandbox paper, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, combinations, product
from math import inf, log
from random import Random
from typing import Any

import pytest

from aggservice.audit.finite import (
    IndividualFilter,
    Law,
    Price,
    UniversalQuery,
    largest_loss,
    least_delta,
    mixture,
    rollout,
    transcripts,
)

ONE = Fraction(1)
UNITS = ("x", "z")


def law(rng: Random, size: int = 3) -> dict[int, Fraction]:
    parts = [rng.randint(1, 9) for _ in range(size)]
    return {at: Fraction(part, sum(parts)) for at, part in enumerate(parts)}


def bernoulli(chance: Fraction) -> dict[int, Fraction]:
    return {1: chance, 0: 1 - chance}


def without(unit: str) -> Any:
    return lambda database: database - {unit}


def subsets(items: tuple[str, ...]) -> list[frozenset[str]]:
    return [frozenset(one) for one in chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))]


def test_least_delta_is_the_worst_event() -> None:
    """Definition 3.1 quantifies over all events: here all of them are tried."""
    rng = Random(1)
    for _ in range(200):
        p, q = law(rng), law(rng)
        factor = Fraction(rng.randint(10, 30), 10)
        events = [set(one) for size in range(4) for one in combinations(range(3), size)]
        worst = max(
            sum(first[at] for at in event) - factor * sum(second[at] for at in event)
            for event in events
            for first, second in ((p, q), (q, p))
        )
        assert least_delta(p, q, factor) == worst


def test_the_largest_loss_is_the_least_epsilon_without_a_delta() -> None:
    rng = Random(2)
    for _ in range(100):
        p, q = law(rng), law(rng)
        ratio = max(max(p[at] / q[at], q[at] / p[at]) for at in p)
        assert largest_loss(p, q) == pytest.approx(log(ratio))
        assert least_delta(p, q, ratio) == 0
        assert ratio == 1 or least_delta(p, q, ratio * Fraction(99, 100)) > 0
    assert largest_loss({0: ONE}, {1: ONE}) == inf
    assert largest_loss({0: ONE, 1: Fraction(0)}, {0: ONE}) == 0


def test_a_mixture_is_as_close_as_its_parts() -> None:
    """Fact 5.2: at the e^ε and the largest δ of the parts, mixtures with the same weights are within δ."""
    rng = Random(3)
    for _ in range(200):
        pairs = [(law(rng), law(rng)) for _ in range(3)]
        weights = law(rng)
        factor = Fraction(rng.randint(10, 25), 10)
        worst = max(least_delta(p, q, factor) for p, q in pairs)
        mixed = [mixture((weights[at], pair[which]) for at, pair in enumerate(pairs)) for which in (0, 1)]
        assert least_delta(mixed[0], mixed[1], factor) <= worst
        assert sum(mixed[0].values()) == 1


class Archive:
    """Answers exactly from the records that it stored in earlier rounds."""

    start: Any = frozenset()

    def answer(self, state: Any, database: Any, query: Any) -> tuple[Any, Law]:
        return state | database, {query in state: ONE}


def test_the_printed_rollout_misses_what_a_state_stores() -> None:
    """The printed Theorem 4.2 (docs/paper.md): a rollout of zeros, and transcripts that differ for certain."""
    moves = [(frozenset({"x"}), "x"), (frozenset(), "x")]
    assert rollout(Archive(), moves, without("x"), [ONE, ONE], own_states=False) == [0, 0]
    assert rollout(Archive(), moves, without("x"), [ONE, ONE], own_states=True) == [0, 1]

    def adversary(seen: tuple[Any, ...]) -> Any:
        return moves[len(seen)] if len(seen) < 2 else None

    first, second = transcripts(Archive(), adversary), transcripts(Archive(), adversary, without("x"))
    assert (first, second) == ({(False, True): ONE}, {(False, False): ONE})
    assert least_delta(first, second, Fraction(10**9)) == 1


class Challenge:
    """Round 1 draws a number below n; round 2 says whether the one record of the database is that number."""

    start: Any = None

    def __init__(self, n: int) -> None:
        self._n = n

    def answer(self, state: Any, database: Any, query: Any) -> tuple[Any, Law]:
        if query == "draw":
            return None, {at: Fraction(1, self._n) for at in range(self._n)}
        return None, {query in database: ONE}


def test_adversaries_who_choose_databases_are_stronger() -> None:
    """Remark 3.7: databases of one record; a stable adversary gains 1/n, one who chooses the record gains all."""

    def stable(seen: tuple[Any, ...]) -> Any:
        return None if len(seen) == 2 else (frozenset({3}), seen[0] if seen else "draw")

    def adaptive(seen: tuple[Any, ...]) -> Any:
        return None if len(seen) == 2 else (frozenset(seen[:1]), seen[0] if seen else "draw")

    gains = [
        least_delta(
            transcripts(Challenge(8), one),
            transcripts(Challenge(8), one, lambda database: frozenset()),
            Fraction(100),
        )
        for one in (stable, adaptive)
    ]
    assert gains == [Fraction(1, 8), 1]


def universal(rng: Random, delta: Fraction) -> UniversalQuery:
    """Draw a one-shot mechanism, and find what it costs each unit: the least e^ε at δ over all sets of units."""
    laws = {units: law(rng, 2) for units in subsets(UNITS)}
    prices = {}
    for unit in UNITS:
        pairs = [(laws[units], laws[units - {unit}]) for units in laws]
        factor = max(
            (
                (a - delta) / b
                for p, q in pairs
                for first, second in ((p, q), (q, p))
                for a, b in ((first[at], second[at]) for at in first)
            ),
            default=ONE,
        )
        prices[unit] = Price(max(ONE, factor), delta)
        assert all(least_delta(p, q, prices[unit].factor) <= delta for p, q in pairs)
    return UniversalQuery(laws.__getitem__, prices)


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 20)])
def test_a_filter_per_unit_bounds_every_adaptive_adversary(delta: Fraction) -> None:
    """Lemmas 4.9 and 4.11: three rounds, queries chosen by earlier answers, each unit within the limit or left out."""
    rng = Random(4)
    limit = Price(Fraction(4), 2 * delta)
    masked = reached = 0
    for _ in range(60):
        queries = {seen: universal(rng, delta) for rounds in range(3) for seen in product((0, 1), repeat=rounds)}

        def adversary(seen: tuple[Any, ...], queries: dict[Any, UniversalQuery] = queries) -> Any:
            return (frozenset(UNITS), queries[seen]) if len(seen) < 3 else None

        mechanism = IndividualFilter(UNITS, limit)
        first = transcripts(mechanism, adversary)
        for unit in UNITS:
            second = transcripts(mechanism, adversary, without(unit))
            assert least_delta(first, second, limit.factor) <= limit.delta
            reached += least_delta(first, second, limit.factor / 2) > limit.delta
        masked += any(queries[()].price[unit].factor * queries[0,].price[unit].factor > limit.factor for unit in UNITS)
    assert masked > 10 and reached > 5


def test_without_a_filter_the_same_adversaries_gain_more() -> None:
    """The check above can fail: under a limit that masks nobody, three rounds exceed e^ε = 4."""
    rng = Random(4)
    found = 0
    for _ in range(60):
        queries = [universal(rng, Fraction(0)) for _ in range(3)]

        def adversary(seen: tuple[Any, ...], queries: list[UniversalQuery] = queries) -> Any:
            return (frozenset(UNITS), queries[len(seen)]) if len(seen) < 3 else None

        mechanism = IndividualFilter(UNITS, Price(Fraction(10**9)))
        first = transcripts(mechanism, adversary)
        found += any(
            least_delta(first, transcripts(mechanism, adversary, without(unit)), 4 * ONE) > 0 for unit in UNITS
        )
    assert found > 10
