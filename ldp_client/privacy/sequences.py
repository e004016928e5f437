"""The exact privacy loss of a whole sequence of reports, for small mechanisms: Theorem 3.1 of the LOLOHA paper.

The theorem says that no sequence is ε-LDP once it has ε/α reports, if no single step is α-LDP. Read as printed, where a
step may depend on earlier *values*, it is false: ``compensating`` is a counterexample. It holds if a step depends on
its own value and on earlier *reports* only, since then the losses of the steps add up. For clients that memoize,
``stream_loss`` shows how the loss grows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ldp_client.checks import is_count, short_text
from ldp_client.errors import ProtocolError
from ldp_client.privacy.enumeration import Branch, distribution, log_ratio

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
                    least = min(least, _widest([dict(enumerate(law)) for law in laws]))
    return least


def sequence_loss(step: LongitudinalStep, values: int, length: int) -> float:
    """Return the ε of the whole sequence of ``length`` reports, over all pairs of sequences of values."""
    _check(values, length)
    return _widest([_laws(step, held) for held in itertools.product(range(values), repeat=length)])


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

    return _widest([distribution(program(held)) for held in itertools.product(range(values), repeat=length)])


def compensating(odds: Fraction, rare: Fraction) -> LongitudinalStep:
    """Return the counterexample to Theorem 3.1 as printed: two values, two reports, and a memory of the values.

    The first report is a binary response with these odds. The t-th later one sends 1 with a probability of about
    ``rare``/2^t, ``odds`` times more often for the value 1 than for 0: no step is α-LDP for α < ln(odds). But the
    probability also falls with the weight of the history (how likely these values sent these reports). So a report of 1
    hides everything that earlier reports revealed, and a report of 0 reveals almost nothing. The loss of any number of
    reports stays near ln(odds).
    """
    if not odds > 1 or not rare > 0 or not 4 * rare * odds**2 <= 1:
        raise ProtocolError(f"odds > 1 and 4·rare·odds² ≤ 1 must hold, got (odds, rare) = {short_text((odds, rare))}")

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


def _widest(laws: Sequence[dict[Any, Fraction]]) -> float:
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
        raise ProtocolError(
            f"cannot list {short_text(values)}^{short_text(length)} sequences: use at least 2 values, a length of at "
            f"least 1, and fewer than 2^{_MOST_BITS} sequences"
        )
