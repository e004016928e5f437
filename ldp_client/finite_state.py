"""Permanent-state mechanisms small enough to enumerate: exact values of tracking, detection and privacy.

Definitions and theorems are those of Naor and Vexler (FORC 2020). A state is drawn once from the user's value; every
report is then drawn from the state alone. The probability of a stream depends only on how often each symbol occurs in
it, so that "all streams and all ways to split them" are pairs of count vectors, and a two-symbol mechanism takes O(k³)
steps for k reports.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ldp_client.checks import check_stream, is_count, short_text
from ldp_client.errors import LdpParameterError
from ldp_client.estimation import Floats

Counts = tuple[int, ...]

_MOST_PAIRS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteState:
    """One row of state probabilities per value of the user, and one row of symbol probabilities per state."""

    states: Floats
    symbols: Floats

    def __post_init__(self) -> None:
        for rows in (self.states, self.symbols):
            if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu" or rows.ndim != 2 or not rows.size:
                raise LdpParameterError("states and symbols must be matrices of numbers, and not empty")
            if not (rows >= 0).all() or not np.allclose(rows.sum(axis=1), 1, rtol=0, atol=1e-9):
                raise LdpParameterError("each row of states and of symbols must be probabilities that add up to one")
        if self.states.shape[1] != self.symbols.shape[0]:
            raise LdpParameterError(
                f"values lead to {self.states.shape[1]} states, but symbols have {self.symbols.shape[0]} rows"
            )

    def log_probability(self, value: int, counts: Counts) -> float:
        """Return the log-probability of one stream with these counts from a user who holds ``value``."""
        with np.errstate(divide="ignore"):
            rows = np.log(self.symbols)
            prior = np.log(self.states[value])
        used = [symbol for symbol, count in enumerate(counts) if count]
        terms = prior + rows[:, used] @ np.array([counts[symbol] for symbol in used], dtype=np.float64)
        return float(np.logaddexp.reduce(terms))

    def report_epsilon(self) -> float:
        """Return the ε of a report with respect to the state, which Theorem 13 needs."""
        return _spread(self.symbols)

    def untrackable(self, reports: int) -> float:
        """Return the least γ for which the mechanism is γ-untrackable for ``reports`` reports (Definition 9)."""
        worst = 0.0
        for value, first, second in self._splits(reports):
            worst = max(worst, abs(self._gap(value, value, first, second)))
        return worst

    def undetectable(self, reports: int) -> float:
        """Return the least γ that hides a change of value anywhere in ``reports`` reports (Definition 11).

        Definition 11 compares every pair of values in both orders, and every value with itself. Its set of indices J
        may be empty: then all reports are of the other value, which is what ``everlasting`` compares.
        """
        worst = max(self.untrackable(reports), self.everlasting(reports))
        for value, first, second in self._splits(reports):
            for other in range(self.states.shape[0]):
                if other != value:
                    worst = max(worst, abs(self._gap(value, other, first, second)))
                    worst = max(worst, abs(self._gap(value, other, second, first)))
        return worst

    def everlasting(self, reports: int) -> float:
        """Return the exact ε that ``reports`` reports of one value reveal about it (Definition 10 for this k)."""
        check_stream(reports)
        types = list(_compositions(reports, self.symbols.shape[1]))
        values = range(self.states.shape[0])
        table = np.array([[self.log_probability(value, counts) for counts in types] for value in values])
        reached = table.max(axis=0) > -math.inf
        return float((table[:, reached].max(axis=0) - table[:, reached].min(axis=0)).max())

    def untrackable_delta(self, reports: int, gamma: float) -> float:
        """Return the least δ such that, on every set of streams, one user and two differ by at most e^γ and δ.

        The sets consist of whole streams, as in the proof of Theorem 14: a hockey-stick divergence between the law of
        one user and the product of two, for the worst split.
        """
        check_stream(reports)
        worst = 0.0
        for value in range(self.states.shape[0]):
            for size in range(1, reports // 2 + 1):
                one = two = 0.0
                for first in _compositions(size, self.symbols.shape[1]):
                    for second in _compositions(reports - size, self.symbols.shape[1]):
                        ways = math.exp(_log_ways(first) + _log_ways(second))
                        together = math.exp(self.log_probability(value, _sum(first, second)))
                        apart = math.exp(self.log_probability(value, first) + self.log_probability(value, second))
                        one += ways * max(0.0, together - math.exp(gamma) * apart)
                        two += ways * max(0.0, apart - math.exp(gamma) * together)
                worst = max(worst, one, two)
        return worst

    def several_untrackable(self, reports: int, users: int) -> float:
        """Return the least γ for one user against ``users``, for every division of the reports (Definition 15)."""
        if not is_count(users, 2):
            raise LdpParameterError(f"users must be an integer of at least 2, not {short_text(users)}")
        check_stream(reports)
        symbols = self.symbols.shape[1]
        worst = 0.0
        every = [counts for size in range(reports + 1) for counts in _compositions(size, symbols)]
        for value in range(self.states.shape[0]):
            single = {counts: self.log_probability(value, counts) if any(counts) else 0.0 for counts in every}
            most, least = dict(single), dict(single)
            for _ in range(users - 1):
                most, least = (
                    {
                        whole: choose(before[part] + single[_difference(whole, part)] for part in _parts(whole))
                        for whole in every
                    }
                    for before, choose in ((most, max), (least, min))
                )
            for whole in _compositions(reports, symbols):
                if single[whole] > -math.inf:
                    worst = max(worst, most[whole] - single[whole], single[whole] - least[whole])
                elif most[whole] > -math.inf:
                    return math.inf
        return worst

    def _gap(self, value: int, other: int, first: Counts, second: Counts) -> float:
        """Return ln(Pr[one user] / Pr[two users]) for these counts; 0 if both probabilities are 0."""
        together = self.log_probability(value, _sum(first, second))
        apart = self.log_probability(value, first) + self.log_probability(other, second)
        if together == apart == -math.inf:
            return 0.0
        return together - apart

    def _splits(self, reports: int) -> Iterator[tuple[int, Counts, Counts]]:
        """Yield every value with every pair of count vectors that a split of ``reports`` can give."""
        symbols = self.symbols.shape[1]
        check_stream(reports)
        pairs = sum(
            math.comb(size + symbols - 1, size) * math.comb(reports - size + symbols - 1, reports - size)
            for size in range(1, reports // 2 + 1)
        )
        if pairs * self.states.shape[0] > _MOST_PAIRS:
            raise LdpParameterError(f"{pairs} pairs of count vectors are too many to enumerate: use fewer reports")
        for size in range(1, reports // 2 + 1):
            rest = reports - size
            for first, second in itertools.product(_compositions(size, symbols), _compositions(rest, symbols)):
                for value in range(self.states.shape[0]):
                    yield value, first, second


def _spread(rows: Floats) -> float:
    reached = rows.max(axis=0) > 0
    if (rows.min(axis=0)[reached] == 0).any():
        return math.inf
    return float(np.log(rows.max(axis=0)[reached] / rows.min(axis=0)[reached]).max())


def _compositions(total: int, parts: int) -> Iterator[Counts]:
    """Yield every vector of ``parts`` integers ≥ 0 that add up to ``total``."""
    if parts == 1:
        yield (total,)
        return
    for head in range(total + 1):
        for tail in _compositions(total - head, parts - 1):
            yield (head, *tail)


def _parts(whole: Counts) -> Iterator[Counts]:
    """Yield every count vector that fits into ``whole``."""
    return itertools.product(*(range(count + 1) for count in whole))


def _sum(first: Counts, second: Counts) -> Counts:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _difference(whole: Counts, part: Counts) -> Counts:
    return tuple(a - b for a, b in zip(whole, part, strict=True))


def _log_ways(counts: Counts) -> float:
    """Return the log of how many streams have these counts."""
    return math.lgamma(sum(counts) + 1) - sum(math.lgamma(count + 1) for count in counts)
