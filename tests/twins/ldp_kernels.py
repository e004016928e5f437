"""Plain twins of the kernels of ``ldp_client``, and formulas that only tests compare with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from aggservice.mechanisms import Real
from aggservice.mechanisms.words import Tape, below
from ldp_client.enumeration import Outcome, log_ratio
from ldp_client.estimation import epsilon
from ldp_client.protocols.hashed import HASH_BITS, hash_twin
from ldp_client.sampling import ROUNDS

Words = NDArray[np.uint64]


def report_twin(
    states: list[list[int]], change: list[int], level: list[int], truthful: list[bool], coins: int, starts: list[int]
) -> list[int]:
    """Return the sums that ``report_kernel`` makes, a device at a time; ``coins`` has coin i in its bit i."""
    periods = len(states[0])
    sums = [0] * (2 * periods)
    for row, pick, height, honest, start in zip(states, change, level, truthful, starts, strict=True):
        changes = [(t, now - before) for t, (before, now) in enumerate(itertools.pairwise([0, *row])) if now != before]
        width = 1 << (height - 1)
        chosen = changes[pick - 1] if pick <= len(changes) else None
        for node in range(periods // width):
            if chosen is not None and chosen[0] // width == node:
                sign = chosen[1] if honest else -chosen[1]
            else:
                sign = 1 if coins >> (start + node) & 1 else -1
            sums[periods // width + node] += sign
    return sums


def transform_twin(values: list[int]) -> list[int]:
    """Return T[u] = Σ_v (−1)^⟨v,u⟩ values[v], term by term."""
    size = len(values)
    return [sum(-value if (u & v).bit_count() & 1 else value for v, value in enumerate(values)) for u in range(size)]


def signs_for_twin(vectors: list[int], odd: list[bool], candidates: list[int]) -> list[int]:
    """Return what ``signs_for`` returns, a pair at a time."""
    return [
        sum(1 if ((v & u).bit_count() & 1 == 1) == bit else -1 for v, bit in zip(vectors, odd, strict=True))
        for u in candidates
    ]


def count_matches_twin(
    multipliers: Words, addends: Words, reported: NDArray[np.int64], g: int, size: int
) -> NDArray[np.int64]:
    """Return what ``count_matches`` returns, by hashing every value with every function."""
    users = [(int(a), int(b), int(x)) for a, b, x in zip(multipliers, addends, reported, strict=True)]
    return np.array([sum(hash_twin(a, b, v, g) == x for a, b, x in users) for v in range(size)], np.int64)


def collision_probability(g: int, *, hash_bits: int = HASH_BITS) -> Fraction:
    """Return Pr[H(v) = H(w)] for any v ≠ w, exactly."""
    whole = 1 << hash_bits
    rest = whole % g
    return Fraction(1, g) + Fraction(rest * (g - rest), g * whole * whole)


def collision_bound(g: int, *, hash_bits: int = HASH_BITS) -> Fraction:
    """Return 1/g + g/2^(2·hash_bits + 2), which no collision probability exceeds."""
    return Fraction(1, g) + Fraction(g, 1 << (2 * hash_bits + 2))


def count_bits_twin(rows: Words, size: int) -> NDArray[np.int64]:
    """Return what ``count_bits`` returns, a bit at a time."""
    return np.array([sum((int(row[v // 64]) >> (v % 64)) & 1 for row in rows) for v in range(size)], dtype=np.int64)


def row_bytes(row: Words, size: int) -> bytes:
    """Return one row of words as packed bytes."""
    return row.astype("<u8").tobytes()[: -(-size // 8)]


def privacy_loss(one: Mapping[Outcome, Fraction], other: Mapping[Outcome, Fraction]) -> float:
    """Return the largest ln(one/other) over outcomes: the ε by which ``one`` can exceed ``other``."""
    worst = Fraction(0)
    for outcome, chance in one.items():
        if not chance:
            continue
        against = other.get(outcome, Fraction(0))
        if not against:
            return math.inf
        worst = max(worst, chance / against)
    return log_ratio(worst)


def false_runs_limit(runs: int, significance: float, alarm: float = 1e-6) -> int:
    """Return the most runs with a false detection that Bonferroni's rate allows, but with probability ``alarm``.

    The number of such runs is at most Bin(runs, significance).
    """
    return int(binom.isf(alarm, runs, significance))


def printed_variance(*, buckets: int, sampled: int, epsilon_permanent_micro: int, reports: int) -> float:
    """Return V* with the paper's sinh(ε∞/2) in place of cosh(ε∞/2) − 1: kept to show that it does not hold."""
    half = float(epsilon(epsilon_permanent_micro)) / 2
    return buckets / (2 * sampled * reports * math.sinh(half))


def lane_twin(columns: list[int], further: Tape, set_before: bool, p: Real, q: Real) -> bool:
    """Return the outcome of one lane, given the lane's bit in each round and the words that follow."""
    threshold = p if set_before else q
    value = 0
    for bit in columns:
        value = (value << 1) | bit
    prefix = threshold.floor(ROUNDS)
    if value != prefix:
        return value < prefix
    return below(further, (value << 64) | further.word(), ROUNDS + 64, threshold)
