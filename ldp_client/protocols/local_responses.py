"""Local responses one after another, after a shuffle, and after one swap: Algorithms 3, 4 and 5 of the shuffling paper.

Erlingsson, Feldman, Mironov, Raghunathan, Talwar and Thakurta (SODA 2019), section 4. Each randomizer sees the answers
of those before it. The functions draw through ``Draws``, so ``ldp_client.privacy.enumeration.distribution`` gives their
exact laws for few users; the service shuffles reports of one randomizer in ``aggservice.engine``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ldp_client.checks import is_count, short_text
from ldp_client.errors import ReportError
from ldp_client.sampling.draws import Draws

Value = TypeVar("Value")
Answer = TypeVar("Answer")

#: A_ldp⁽ⁱ⁾: a function of the answers z₁, …, z_{i−1} and the i-th value that returns the answer z_i.
LocalRandomizer = Callable[[tuple[Answer, ...], Value, Draws], Answer]


def local_responses(
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: Draws
) -> tuple[Answer, ...]:
    """Return z₁, …, z_n: the i-th randomizer answers for the i-th value (Algorithm 3, A_local)."""
    if not data or len(data) != len(randomizers):
        raise ReportError(
            f"give values and one randomizer for each, got {len(data)} values and {len(randomizers)} randomizers"
        )
    answers: tuple[Answer, ...] = ()
    for value, randomizer in zip(data, randomizers, strict=True):
        answers = (*answers, randomizer(answers, value, draws))
    return answers


def shuffled_responses(
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: Draws
) -> tuple[Answer, ...]:
    """Return the local responses of the values in a uniformly random order (Algorithm 4, A_sl).

    The order is drawn by Fisher and Yates, every permutation with the same probability.
    """
    order = list(data)
    for left in range(len(order) - 1, 0, -1):
        pick = draws.below(left + 1)
        order[left], order[pick] = order[pick], order[left]
    return local_responses(order, randomizers, draws)


def swapped_responses(
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: Draws
) -> tuple[Answer, ...]:
    """Return the local responses after the first value and a uniformly drawn one have changed places (Algorithm 5)."""
    return local_responses(with_first(data, draws.below(len(data)) if data else 0), randomizers, draws)


def with_first(data: Sequence[Value], place: int) -> list[Value]:
    """Return σ_I(D): the values with the first and the one at ``place``, counted from 0, exchanged."""
    if not is_count(place, 0, max(0, len(data) - 1)):
        raise ReportError(f"place must be an integer from 0 to {len(data) - 1}, not {short_text(place)}")
    swapped = list(data)
    if swapped:
        swapped[0], swapped[place] = swapped[place], swapped[0]
    return swapped
