"""The exact output distribution of a client: its own code runs once per branch of its draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import TypeVar

from aggservice.mechanisms import Real
from ldp_client.errors import LdpError
from ldp_client.sampling.draws import Draws

Outcome = TypeVar("Outcome", bound=Hashable)

#: Probabilities are cut after this many bits: an error of 10^-38 per coin.
_PRECISION = 128


class Branch(Draws):
    """Replays a prefix of choices, then takes the first choice at every further draw."""

    def __init__(self, prefix: list[int]) -> None:
        self.taken = prefix
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
        raise LdpError("a 64-bit word has too many branches to enumerate: give the client its hash function")


def cut(p: Real) -> Fraction:
    """Return the first 128 bits of a probability."""
    return Fraction(p.floor(_PRECISION), 1 << _PRECISION)


def distribution(program: Callable[[Branch], Outcome]) -> dict[Outcome, Fraction]:
    """Return the probability of every outcome of ``program``, by running it along each branch of its draws.

    It runs once per branch, so it is for small domains. Each coin is cut at 128 bits, so that probabilities are within
    10^-37 of the truth.
    """
    found: dict[Outcome, Fraction] = {}
    prefix: list[int] = []
    while True:
        branch = Branch(prefix)
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
