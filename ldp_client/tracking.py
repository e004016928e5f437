"""How well reports hide whether they come from one user or from several: bounds, laws of streams, and trackability.

Naor and Vexler, "Can Two Walk Together" (FORC 2020), sections 3 and 5. A mechanism is (γ, δ)-untrackable for k reports
when the law of one user's stream and the product of two users' streams, split anywhere, are within e^γ and δ of each
other, both ways. Here the pure form (δ = 0) is about single streams. The printed form, about arbitrary sets of
streams and their projections, fails even for a uniform bit without any state.

The trackability τ for k reports is the largest |ln Pr[one user]/Pr[two users]| over ⌊k/2⌋ streams of two users, the
i-th split after i reports, and ⌈k/2⌉ streams of one user, all drawn independently. A ``StreamLaw`` draws such streams
and computes their probabilities; laws that belong to one protocol stand with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from aggservice.mechanisms import Bits, Real
from aggservice.mechanisms.composition import advanced_epsilon
from ldp_client.checks import check_stream, is_chance, is_count, short_text
from ldp_client.errors import LdpParameterError
from ldp_client.estimation import Floats, ResponseChain, ResponseStep
from ldp_client.sampling import LaneCoins, bits_of, pack, randomized_values, rows_from_bytes, unpack

_BATCH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A pair (γ, δ), or (ε, δ): a ratio of probabilities below e^γ up to δ."""

    gamma: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not self.gamma >= 0 or not self.delta >= 0:
            raise LdpParameterError(f"γ and δ must be numbers of at least 0, not {self.gamma!r} and {self.delta!r}")


def _check(reports: int, epsilon: float = 0.0, users: int = 2) -> None:
    check_stream(reports)
    if not epsilon >= 0:
        raise LdpParameterError(f"ε must be a number of at least 0, not {epsilon!r}")
    if not is_count(users, 2):
        raise LdpParameterError(f"users must be an integer of at least 2, not {short_text(users)}")


def permanent_untrackable(reports: int, epsilon: float) -> float:
    """Return γ for a permanent state whose reports are ε-DP with respect to it: ⌊k/2⌋ε (Theorem 13)."""
    _check(reports, epsilon)
    return reports // 2 * epsilon


def composed_untrackable(mechanisms: int, each: Bound, slack: float) -> Bound:
    """Return the bound for a user of several mechanisms, each (γ, δ)-untrackable (Theorem 14).

    γ' = √(2m ln(1/δ'))·γ + mγ(e^γ − 1) with mδ + δ', where ``slack`` is δ'; with no slack, the plain sum.
    """
    if not is_count(mechanisms, 1) or not 0 <= slack < 1:
        raise LdpParameterError(
            f"mechanisms must be at least 1 and slack in [0, 1), got {short_text(mechanisms)} and {short_text(slack)}"
        )
    plain = mechanisms * each.gamma
    advanced = plain if slack == 0 else advanced_epsilon(each.gamma, mechanisms, slack)
    return Bound(gamma=advanced, delta=mechanisms * each.delta + (slack if advanced < plain else 0))


def undetectable(untrackable: Bound, everlasting: Bound) -> Bound:
    """Return the bound on the detection of a change of the user's value (Theorem 12).

    (γ, δ)-untrackable and (ε, δ')-everlasting give (γ + ε, max{e^ε·δ + δ', δ + e^γ·δ'})-undetectable.
    """
    one = _times(everlasting.gamma, untrackable.delta) + everlasting.delta
    two = untrackable.delta + _times(untrackable.gamma, everlasting.delta)
    return Bound(gamma=untrackable.gamma + everlasting.gamma, delta=max(one, two))


def _times(gamma: float, delta: float) -> float:
    """Return e^γ·δ, which is 0 for δ = 0 and any γ."""
    return delta and math.exp(min(gamma, 700.0)) * delta


def several_untrackable(users: int, gamma: float) -> float:
    """Return γ for one user against ``users``, given γ for two: (n − 1)γ (Theorem 16)."""
    _check(1, gamma, users)
    return (users - 1) * gamma


def several_permanent_untrackable(users: int, reports: int, epsilon: float) -> float:
    """Return γ for one user against ``users`` of a permanent-state mechanism.

    ⌈log₂ n⌉⌊k/2⌋ε (Theorem 17) or (n − 1)⌊k/2⌋ε (Theorems 13 and 16), which is never less for n ≥ 2.
    """
    _check(reports, epsilon, users)
    return int(users - 1).bit_length() * permanent_untrackable(reports, epsilon)


class StreamLaw(ABC):
    """The law of a permanent-state client's reports: it draws the users' states, and then parts of their streams.

    Tracking compares the probability that two parts of a stream came from one user with the probability that they came
    from two users with the same value.
    """

    #: The probability that what is sent in the clear tells two users apart at once.
    told_apart = Fraction(0)

    def parts(self, bits: Bits, first: int, second: int, users: int, *, same: bool) -> tuple[Any, Any]:
        """Return two parts of ``first`` and ``second`` reports for each of ``users``: from one state, or from two."""
        state = self._state(bits, users)
        other = state if same else self._state(bits, users)
        return self._send(bits, state, first), self._send(bits, other, second)

    @abstractmethod
    def part(self, reports: Sequence[Any]) -> Any:
        """Return the reports of one device as a part of its stream."""

    @abstractmethod
    def log_probability(self, *parts: Any) -> Floats:
        """Return, per user, the log-probability that all these parts came from one user."""

    def report_epsilon(self) -> float:
        """Return the ε of a report with respect to the state (Theorem 13); infinite if it shows part of the state."""
        return math.inf

    @abstractmethod
    def _state(self, bits: Bits, users: int) -> Any:
        """Draw a state per user."""

    @abstractmethod
    def _send(self, bits: Bits, state: Any, reports: int) -> Any:
        """Draw the part that users in these states send in ``reports`` reports."""


def _instant(chain: ResponseChain) -> ResponseStep:
    if chain.instant is None:
        raise LdpParameterError("a client without a second step sends its state itself, so every report identifies it")
    return chain.instant


class BitsLaw(StreamLaw):
    """Reports that are rows of independently randomized bits: RAPPOR, L-SUE, L-OSUE, Bitwise Everlasting Privacy.

    A part is how often each bit was set, and the number of reports.
    """

    def __init__(self, pattern: NDArray[np.bool_], chain: ResponseChain) -> None:
        instant = _instant(chain)
        self._pattern = pattern
        self._permanent = LaneCoins(chain.permanent)
        self._instant = LaneCoins(instant)
        self._row = rows_from_bytes([pack(pattern)], pattern.size)
        self._start = _log_pair(chain.permanent)
        self._emit = _log_pair(instant)

    def part(self, reports: Sequence[bytes | int]) -> Any:
        """Return how often each bit was set in a device's reports (packed rows, or single bits), and their number."""
        rows = [row if isinstance(row, bytes) else bytes([row]) for row in reports]
        return np.sum([unpack(row, self._pattern.size) for row in rows], axis=0)[None, :], len(rows)

    def log_probability(self, *parts: Any) -> Floats:
        """Return the sum over bits of the log-probability of a bit's count, over both states."""
        counts = sum(part[0].astype(np.int64) for part in parts)
        total = sum(part[1] for part in parts)
        table = self._table(total)
        return np.asarray(table[self._pattern.astype(np.int64), counts].sum(axis=1))

    def report_epsilon(self) -> float:
        """Return the sum over bits of the larger log-ratio."""
        (one_clear, zero_clear), (one_set, zero_set) = self._emit
        return self._pattern.size * max(abs(one_set - one_clear), abs(zero_set - zero_clear))

    def _state(self, bits: Bits, users: int) -> NDArray[np.uint64]:
        return self._permanent.flip(bits, np.repeat(self._row, users, axis=0), self._pattern.size)

    def _send(self, bits: Bits, state: NDArray[np.uint64], reports: int) -> tuple[NDArray[np.uint8], int]:
        counts = np.zeros((state.shape[0], self._pattern.size), dtype=np.uint8 if reports < 256 else np.int64)
        for _ in range(reports):
            counts += bits_of(self._instant.flip(bits, state, self._pattern.size), self._pattern.size)
        return counts, reports

    def _table(self, total: int) -> Floats:
        """Return the log-probability of c ones in ``total`` reports, for a clear and for a set bit of the pattern."""
        ones = np.arange(total + 1)
        by_state = [ones * self._emit[state][0] + (total - ones) * self._emit[state][1] for state in (0, 1)]
        return np.array(
            [np.logaddexp(start[1] + by_state[0], start[0] + by_state[1]) for start in (self._start[0], self._start[1])]
        )


class SymbolLaw(StreamLaw):
    """Reports that are one of g symbols after two GRR steps: L-GRR, or LOLOHA with one hash function for all users.

    A part is how often each symbol was sent. If users hold different symbols, use ``log_of_counts``.
    """

    def __init__(self, symbol: int, size: int, chain: ResponseChain) -> None:
        self._symbol, self._size, self._chain, self._instant = symbol, size, chain, _instant(chain)

    def part(self, reports: Sequence[int]) -> NDArray[np.int64]:
        return np.bincount(np.asarray(reports), minlength=self._size)[None, :]

    def log_probability(self, *parts: Any) -> Floats:
        counts = sum(parts)
        return self.log_of_counts(counts, np.full(counts.shape[0], self._symbol))

    def log_of_counts(self, counts: NDArray[np.int64], held: NDArray[np.int64]) -> Floats:
        """Return the log-probability of each user's counts, given the symbol they hold."""
        total = counts.sum(axis=1, keepdims=True)
        keep, other = (math.log(float(chance)) for chance in (self._instant.p, self._instant.q))
        terms = counts * keep + (total - counts) * other + math.log(float(self._chain.permanent.q))
        terms[np.arange(held.size), held] += math.log(float(self._chain.permanent.p / self._chain.permanent.q))
        return np.asarray(np.logaddexp.reduce(terms, axis=1))

    def report_epsilon(self) -> float:
        return math.log(float(self._instant.p / self._instant.q))

    def _state(self, bits: Bits, users: int) -> NDArray[np.int64]:
        return self.states(bits, np.full(users, self._symbol))

    def _send(self, bits: Bits, state: NDArray[np.int64], reports: int) -> NDArray[np.int64]:
        return self.count(bits, state, reports)

    def states(self, bits: Bits, held: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw each user's permanent answer to the symbol they hold."""
        return randomized_values(bits, held, self._size, self._chain.permanent.p)

    def count(self, bits: Bits, state: NDArray[np.int64], reports: int) -> NDArray[np.int64]:
        """Return how often each symbol is sent in ``reports`` reports of these answers."""
        counts = np.zeros((state.size, self._size), dtype=np.int64)
        for _ in range(reports):
            counts[np.arange(state.size), randomized_values(bits, state, self._size, self._instant.p)] += 1
        return counts


def _log_pair(step: ResponseStep) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (ln P[1], ln P[0]) from a clear bit and from a set one."""
    return tuple((log_chance(chance), log_chance(1 - chance)) for chance in (step.q, step.p))  # type: ignore[return-value]


def log_chance(chance: Real) -> float:
    """Return the log of a probability, which may be 0."""
    value = float(chance)
    return math.log(value) if value > 0 else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """An estimated quantile of τ and its interval, which assumes nothing about the distribution of τ."""

    level: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trackability:
    """Independent draws of τ for a number of reports, in ascending order."""

    reports: int
    draws: Floats

    def percentile(self, level: float, confidence: float = 0.95) -> Percentile:
        """Return the quantile at ``level`` with an interval of at least ``confidence``.

        The number of draws below the true quantile is binomial, which gives a pair of order statistics. With too few
        draws for a bounded interval, its end is infinity (or 0, the least value of τ).
        """
        if not is_chance(level) or not is_chance(confidence):
            raise LdpParameterError(
                f"level and confidence must lie in (0, 1), not {short_text(level)} and {short_text(confidence)}"
            )
        count = self.draws.size
        miss = (1 - confidence) / 2
        low = int(binom.ppf(miss, count, level)) - 1
        high = int(binom.isf(miss, count, level))
        return Percentile(
            level=level,
            value=self._quantile(level),
            low=float(self.draws[low]) if low >= 0 else 0.0,
            high=float(self.draws[high]) if high < count else float("inf"),
        )

    def _quantile(self, level: float) -> float:
        above = float(np.quantile(self.draws, level, method="higher"))
        return above if np.isinf(above) else float(np.quantile(self.draws, level))  # ∞ − ∞ has no middle


def trackability(
    law: StreamLaw, reports: int, draws: int, bits: Bits, each: Callable[[int], None] | None = None
) -> Trackability:
    """Return ``draws`` draws of τ for k ``reports``, each in O(k²); ``each`` is called with the number done."""
    if not is_count(reports, 2):
        raise LdpParameterError(f"tracking needs at least two reports, not {short_text(reports)}")
    if not is_count(draws, 1):
        raise LdpParameterError(f"tracking needs at least one draw, not {short_text(draws)}")
    found = np.empty(draws)
    for start in range(0, draws, _BATCH):
        size = min(_BATCH, draws - start)
        worst = np.zeros(size)
        for first in range(1, reports // 2 + 1):
            worst = np.maximum(worst, gap(law, bits, first, reports - first, size, same=False))
        for first in range(1, (reports + 1) // 2 + 1):
            worst = np.maximum(worst, gap(law, bits, first, reports - first, size, same=True))
        found[start : start + size] = worst
        if each is not None:
            each(start + size)
    return Trackability(reports=reports, draws=np.sort(found))


def gap(law: StreamLaw, bits: Bits, first: int, second: int, users: int, *, same: bool) -> Floats:
    """Return C of section 5 for each of ``users`` new streams, each of one user or of two, split after ``first``."""
    one, two = law.parts(bits, first, second, users, same=same)
    together = law.log_probability(one, two)
    apart = law.log_probability(one) + law.log_probability(two)
    return np.abs(together - apart)
