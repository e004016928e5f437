"""Algorithms 3, 4 and 5 of the shuffling paper: their exact laws, and the steps of the proof of Theorem 7."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from aggservice.audit.finite import largest_loss, least_delta, mixture
from aggservice.mechanisms import Real, SecureBits, closed_epsilon
from aggservice.mechanisms.shuffling import step_epsilon
from ldp_client.enumeration import distribution, local_responses, shuffled_responses, swapped_responses, with_first
from ldp_client.errors import ReportError
from ldp_client.sampling import ExactDraws

Answers = tuple[int, ...]


def response(odds: int, *, adaptive: bool) -> Any:
    """Return binary response with these odds; adaptive, it answers for the inverse once an odd number of 1 was sent."""

    def randomizer(before: Answers, value: int, draws: ExactDraws) -> int:
        turn = sum(before) % 2 if adaptive else 0
        return value ^ turn ^ (not draws.coin(Real.of(Fraction(odds, odds + 1))))

    return randomizer


def law(algorithm: Any, data: Sequence[int], randomizers: Sequence[Any]) -> dict[Answers, Fraction]:
    found = distribution(lambda draws: algorithm(data, randomizers, draws))
    assert sum(found.values()) == 1
    return found


def orders(data: Sequence[int]) -> dict[Answers, Fraction]:
    """Return every permutation of the data with its probability."""
    found: dict[Answers, Fraction] = {}
    for order in itertools.permutations(data):
        found[order] = found.get(order, Fraction(0)) + Fraction(1, math.factorial(len(data)))
    return found


MIXED = [
    response(3, adaptive=True),
    response(2, adaptive=False),
    response(3, adaptive=True),
    response(3, adaptive=False),
]


def test_algorithm_3_answers_in_order() -> None:
    """Against the product written out; and two data sets that differ in one value are ln 3 apart, no more."""
    found = law(local_responses, (1, 0, 1), MIXED[:3])
    for answers in itertools.product((0, 1), repeat=3):
        chance = Fraction(1)
        for at, (value, odds, adaptive) in enumerate(((1, 3, True), (0, 2, False), (1, 3, True))):
            right = value ^ (sum(answers[:at]) % 2 if adaptive else 0)
            chance *= Fraction(odds if answers[at] == right else 1, odds + 1)
        assert abs(found[answers] - chance) < Fraction(1, 10**30)
    assert largest_loss(found, law(local_responses, (0, 0, 1), MIXED[:3])) == pytest.approx(math.log(3), abs=1e-12)


@pytest.mark.parametrize("data", [(0, 1), (1, 0, 0), (1, 0, 1, 1)])
def test_algorithm_4_is_algorithm_3_on_every_order(data: Answers) -> None:
    randomizers = MIXED[: len(data)]
    mixed = mixture((chance, law(local_responses, order, randomizers)) for order, chance in orders(data).items())
    assert law(shuffled_responses, data, randomizers) == pytest.approx(mixed, abs=1e-30)


@pytest.mark.parametrize("data", [(0, 1), (1, 0, 0), (1, 0, 1, 1)])
def test_algorithm_5_swaps_the_first_with_one_of_all(data: Answers) -> None:
    randomizers = MIXED[: len(data)]
    share = Fraction(1, len(data))
    mixed = mixture((share, law(local_responses, with_first(data, place), randomizers)) for place in range(len(data)))
    assert law(swapped_responses, data, randomizers) == pytest.approx(mixed, abs=1e-30)


@pytest.mark.parametrize("place", range(4))
def test_a_shuffle_is_a_swap_after_any_order_of_the_others(place: int) -> None:
    """The reduction in the proof of Theorem 7: value i* comes first, the others in any order, and then A_swap."""
    data = (1, 0, 1, 1)
    others = data[:place] + data[place + 1 :]
    parts = [(chance, law(swapped_responses, (data[place], *rest), MIXED)) for rest, chance in orders(others).items()]
    assert law(shuffled_responses, data, MIXED) == pytest.approx(mixture(parts), abs=1e-30)


@pytest.mark.parametrize("others", list(itertools.product((0, 1), repeat=3)))
def test_each_answer_after_a_swap_reveals_as_little_as_theorem_8_says(others: Answers) -> None:
    """B⁽ⁱ⁾ is ε₁-DP at index 1 with ε₁ = 2e^(2ε₀)(e^ε₀ − 1)/n, and its p at most e^(2ε₀)/n; ε₀ = ln 3, n = 4."""
    epsilon0, n = math.log(3), 4
    steps: list[dict[Answers, dict[int, Fraction]]] = []
    for first in (0, 1):
        by_place = [law(local_responses, with_first((first, *others), place), MIXED) for place in range(n)]
        found: dict[Answers, dict[int, Fraction]] = {}
        for length in range(n):
            for before in itertools.product((0, 1), repeat=length):
                reach = [sum(p for z, p in each.items() if z[:length] == before) for each in by_place]
                assert reach[length] / sum(reach) <= Fraction(9, n)
                after = [
                    sum(p for each in by_place for z, p in each.items() if z[: length + 1] == (*before, answer))
                    for answer in (0, 1)
                ]
                found[before] = {answer: chance / sum(after) for answer, chance in enumerate(after)}
        steps.append(found)
    losses = [largest_loss(steps[0][before], steps[1][before]) for before in steps[0]]
    assert 0 < max(losses) <= step_epsilon(epsilon0, n)


@pytest.mark.parametrize(("odds", "n"), [(2, 3), (3, 4), pytest.param(2, 5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("adaptive", [False, True])
def test_theorem_7_bounds_the_exact_shuffle(odds: int, n: int, adaptive: bool) -> None:
    """Every pair of neighbours, at several δ; a shuffle is never worse than its local ε₀ either."""
    randomizers = [response(odds, adaptive=adaptive)] * n
    found = {data: law(shuffled_responses, data, randomizers) for data in itertools.product((0, 1), repeat=n)}
    pairs = [((0, *rest), (1, *rest)) for rest in itertools.product((0, 1), repeat=n - 1)]
    worst = max(largest_loss(found[a], found[b]) for a, b in pairs)
    assert worst <= math.log(odds) + 1e-12
    for delta in (0.5, 0.1, 0.01):
        factor = Fraction(math.exp(min(closed_epsilon(math.log(odds), n, delta), 50.0)))
        assert max(least_delta(found[a], found[b], factor) for a, b in pairs) <= delta
    inside = Fraction(1, 100) + 1
    assert max(least_delta(found[a], found[b], inside) for a, b in pairs) < Fraction(odds - 1, odds + 1)


def test_random_draws_and_refusals() -> None:
    sent = shuffled_responses((0, 1, 1, 0), MIXED, ExactDraws(SecureBits()))
    assert len(sent) == 4 and set(sent) <= {0, 1}
    for algorithm in (local_responses, shuffled_responses, swapped_responses):
        for data, randomizers in (((), []), ((0, 1), MIXED[:1]), ((), MIXED)):
            with pytest.raises(ReportError, match="one randomizer for each"):
                algorithm(data, randomizers, ExactDraws(SecureBits()))
    for place in (-1, 2, 1.0, True):
        with pytest.raises(ReportError, match="place"):
            with_first((0, 1), place)  # type: ignore[arg-type]
