"""Exact laws by enumeration: of a client, of a whole sequence of reports, and of responses after a shuffle.

``distribution`` runs a client's own code once per branch of its draws.

``sequence_loss`` and ``stream_loss`` are about Theorem 3.1 of the LOLOHA paper, which says that no sequence is ε-LDP
once it has ε/α reports, if no single step is α-LDP. Read as printed, where a step may depend on earlier *values*, it is
false: ``compensating`` is a counterexample. It holds if a step depends on its own value and on earlier *reports* only,
since then the losses of the steps add up. For clients that memoize, ``stream_loss`` shows how the loss grows.

``local_responses``, ``shuffled_responses`` and ``swapped_responses`` are Algorithms 3, 4 and 5 of Erlingsson, Feldman,
Mironov, Raghunathan, Talwar and Thakurta (SODA 2019), section 4. Each randomizer sees the answers of those before it.
The service shuffles reports of one randomizer in ``aggservice.engine``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

from aggservice.mechanisms import Real
from ldp_client.checks import is_count, short_text
from ldp_client.errors import LdpError, LdpParameterError, ReportError
from ldp_client.sampling import ExactDraws

Outcome = TypeVar("Outcome", bound=Hashable)

#: Probabilities are cut after this many bits: an error of 10^-38 per coin.
_PRECISION = 128


class Branch(ExactDraws):
    """Replays a prefix of choices, then takes the first choice at every further draw."""

    def __init__(self, prefix: list[int], word_bits: int = 0) -> None:
        self.taken = prefix
        self.words = 0
        self._word_bits = word_bits
        self.weights: list[Fraction] = []
        self.widths: list[int] = []

    def _choose(self, width: int) -> int:
        position = len(self.widths)
        if position == len(self.taken):
            self.taken.append(0)
        self.widths.append(width)
        return self.taken[position]

    def pick(self, chances: Sequence[Fraction]) -> int:
        """Return the index of one of several outcomes, given their probabilities."""
        choice = self._choose(len(chances))
        self.weights.append(chances[choice])
        return choice

    def coin(self, p: Real) -> bool:
        chance = cut(p)
        return self.pick((chance, 1 - chance)) == 0

    def below(self, n: int) -> int:
        return self.pick((Fraction(1, n),) * n)

    def word(self) -> int:
        if not self._word_bits:
            raise LdpError("a 64-bit word has too many branches to enumerate: give the client its hash function")
        self.words += 1
        return self.below(1 << self._word_bits) << (64 - self._word_bits)


@lru_cache(maxsize=4096)
def cut(p: Real) -> Fraction:
    """Return the first 128 bits of a probability."""
    return Fraction(p.floor(_PRECISION), 1 << _PRECISION)


def distribution(program: Callable[[Branch], Outcome], *, word_bits: int = 0) -> dict[Outcome, Fraction]:
    """Return the probability of every outcome of ``program``, by running it along each branch of its draws.

    It runs once per branch, so it is for small domains. Each coin is cut at 128 bits, so that probabilities are within
    10^-37 of the truth. With ``word_bits``, a word is one of 2^word_bits equally spaced ones; that is still a universal
    family of ``ldp_client.protocols.hashed`` for as few values and hash values (powers of two) as these bits hold.
    """
    found: dict[Outcome, Fraction] = {}
    prefix: list[int] = []
    while True:
        branch = Branch(prefix, word_bits)
        outcome = program(branch)
        found[outcome] = found.get(outcome, Fraction(0)) + math.prod(branch.weights, start=Fraction(1))
        while prefix and prefix[-1] + 1 == branch.widths[len(prefix) - 1]:
            prefix.pop()
        if not prefix:
            return found
        prefix[-1] += 1


def log_ratio(ratio: Fraction) -> float:
    """Return ln(ratio) to a few units in the last place, also for a ratio close to one or too large for a float."""
    if abs(ratio - 1) < Fraction(1, 4):
        return math.log1p(float(ratio - 1))
    shift = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    if abs(shift) < 1000:
        return math.log(float(ratio))
    return math.log(float(ratio / Fraction(2) ** shift)) + shift * math.log(2)


#: A function of the earlier values, the earlier reports and the current value; it returns each report's probability.
LongitudinalStep = Callable[[tuple[int, ...], tuple[int, ...], int], Sequence[Fraction]]

_MOST_BITS = 16


def step_loss(step: LongitudinalStep, values: int, length: int) -> float:
    """Return α of Theorem 3.1: the least loss of a step, over every time up to ``length`` and every history.

    So no step is α'-LDP for any α' < α. Histories with probability 0 do not count.
    """
    _check(values, length)
    least = float("inf")
    for before in range(length):
        for held in itertools.product(range(values), repeat=before):
            for sent, chance in _laws(step, held).items():
                if chance:
                    laws = [step(held, sent, value) for value in range(values)]
                    least = min(least, widest([dict(enumerate(law)) for law in laws]))
    return least


def sequence_loss(step: LongitudinalStep, values: int, length: int) -> float:
    """Return the ε of the whole sequence of ``length`` reports, over all pairs of sequences of values."""
    _check(values, length)
    return widest([_laws(step, held) for held in itertools.product(range(values), repeat=length)])


def stream_loss(report: Callable[[Branch], Callable[[int], Any]], values: int, length: int) -> float:
    """Return the ε of a whole sequence of a client's reports, by running its own code on every branch.

    ``report`` makes a new client from draws and returns its function from a value to a report.
    """
    _check(values, length)

    def program(held: tuple[int, ...]) -> Callable[[Branch], tuple[Any, ...]]:
        def run(draws: Branch) -> tuple[Any, ...]:
            send = report(draws)
            return tuple(send(value) for value in held)

        return run

    return widest([distribution(program(held)) for held in itertools.product(range(values), repeat=length)])


def compensating(odds: Fraction, rare: Fraction) -> LongitudinalStep:
    """Return the counterexample to Theorem 3.1 as printed: two values, two reports, and a memory of the values.

    The first report is a binary response with these odds. The t-th later one sends 1 with a probability of about
    ``rare``/2^t, ``odds`` times more often for the value 1 than for 0: no step is α-LDP for α < ln(odds). But the
    probability also falls with the weight of the history (how likely these values sent these reports). So a report of 1
    hides everything that earlier reports revealed, and a report of 0 reveals almost nothing. The loss of any number of
    reports stays near ln(odds).
    """
    if not odds > 1 or not rare > 0 or not 4 * rare * odds**2 <= 1:
        raise LdpParameterError(
            f"odds > 1 and 4·rare·odds² ≤ 1 must hold, got (odds, rare) = {short_text((odds, rare))}"
        )

    def later(weight: Fraction, value: int, time: int) -> Fraction:
        return rare / 2**time * (odds if value else 1) * odds / weight

    def step(held: tuple[int, ...], sent: tuple[int, ...], value: int) -> tuple[Fraction, Fraction]:
        if not held:
            right = odds / (odds + 1)
            return (right, 1 - right) if value == 0 else (1 - right, right)
        weight = odds if held[0] == sent[0] else Fraction(1)
        for time in range(1, len(held)):
            one = later(weight, held[time], time)
            weight = (odds if held[time] else Fraction(1)) if sent[time] else weight * (1 - one)
        one = later(weight, value, len(held))
        return 1 - one, one

    return step


def _laws(step: LongitudinalStep, held: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    """Return the probability of every sequence of reports, for a given sequence of values."""
    found: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for at, value in enumerate(held):
        found = {
            (*sent, report): chance * weight
            for sent, chance in found.items()
            for report, weight in enumerate(step(held[:at], sent, value))
        }
    return found


def widest(laws: Sequence[Mapping[Any, Fraction]]) -> float:
    """Return the largest log-ratio of two of these laws: for each outcome, its largest over its least probability."""
    outcomes = {outcome for law in laws for outcome, chance in law.items() if chance}
    worst = Fraction(1)
    for outcome in outcomes:
        chances = [law.get(outcome, Fraction(0)) for law in laws]
        if not min(chances):
            return float("inf")
        worst = max(worst, max(chances) / min(chances))
    return log_ratio(worst)


def _check(values: int, length: int) -> None:
    if not is_count(values, 2, 1 << _MOST_BITS) or not is_count(length, 1, _MOST_BITS) or values**length >> _MOST_BITS:
        raise LdpParameterError(
            f"cannot list {short_text(values)}^{short_text(length)} sequences: use at least 2 values, a length of at "
            f"least 1, and fewer than 2^{_MOST_BITS} sequences"
        )


Value = TypeVar("Value")
Answer = TypeVar("Answer")

#: A_ldp⁽ⁱ⁾: a function of the answers z₁, …, z_{i−1} and the i-th value that returns the answer z_i.
LocalRandomizer = Callable[[tuple[Answer, ...], Value, ExactDraws], Answer]


def local_responses(
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: ExactDraws
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
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: ExactDraws
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
    data: Sequence[Value], randomizers: Sequence[LocalRandomizer[Answer, Value]], draws: ExactDraws
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
