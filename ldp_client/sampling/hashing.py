"""Universal hashing to any number of values, and the server's count of matching hashes.

The family is multiply-add-shift (Dietzfelbinger 1996): for multiplier a and addend b uniform on 64 bits and v below
2^32, h(v) = ⌊((a·v + b) mod 2^64) / 2^32⌋ is strongly universal: for v ≠ w the pair (h(v), h(w)) is uniform on all
pairs of 32-bit numbers, because 64 ≥ 32 + 32 − 1. The hash value is H(v) = ⌊h(v)·g / 2^32⌋.

For v ≠ w, Pr[H(v) = H(w)] = 1/g + r(g − r)/(g·2^64) with r = 2^32 mod g: exactly 1/g if g is a power of two,
and otherwise larger by at most g/2^66. The same independence makes Pr[H(w) = x | H(v)] equal to 1/g within 2^-32,
which the estimator (q₁' = 1/g) needs; with universality alone it could be biased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import check_numbers, check_words, is_count, short_text
from ldp_client.errors import ReportError
from ldp_client.sampling.draws import Draws

WORD_BITS = 64
HASH_BITS = 32

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniversalHash:
    """One function of the family, into [0, g)."""

    multiplier: int
    addend: int
    g: int

    def __post_init__(self) -> None:
        for word in (self.multiplier, self.addend):
            if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < 1 << WORD_BITS:
                raise ReportError(f"a hash function must have two words of 64 bits, not {short_text(word)}")
        if not isinstance(self.g, int) or not is_count(self.g, 2, (1 << HASH_BITS) - 1):
            raise ReportError(f"a hash function must have between 2 and 2^32 - 1 values, not {short_text(self.g)}")

    def __call__(self, value: int) -> int:
        """Return H(value)."""
        return hash_twin(self.multiplier, self.addend, value, self.g)


def draw_hash(draws: Draws, g: int) -> UniversalHash:
    """Return a function drawn uniformly from the family."""
    return UniversalHash(multiplier=draws.word(), addend=draws.word(), g=g)


def draw_hashes(bits: Bits, count: int) -> tuple[Words, Words]:
    """Return the multipliers and addends of ``count`` functions drawn from the family."""
    words = bits.words(2 * count)
    return words[:count].copy(), words[count:].copy()


def hash_twin(
    multiplier: int, addend: int, value: int, g: int, *, word_bits: int = WORD_BITS, hash_bits: int = HASH_BITS
) -> int:
    """Return H(value); with smaller word sizes, tests can enumerate the whole family."""
    mixed = (multiplier * value + addend) % (1 << word_bits)
    return ((mixed >> (word_bits - hash_bits)) * g) >> hash_bits


def bucket_starts(hashed: NDArray[np.int64], g: int) -> Words:
    """Return, for each x in [0, g], the smallest a·v + b (mod 2^64) that hashes to x: ⌈x·2^32/g⌉·2^32, 0 for x = g.

    It cannot overflow before the last shift: x ≤ g < 2^32, so that x·2^32 + g − 1 is below 2^64.
    """
    raised = (hashed.astype(np.uint64) << np.uint64(HASH_BITS)) + np.uint64(g - 1)
    return (raised // np.uint64(g)) << np.uint64(HASH_BITS)


def hash_values(multipliers: Words, addends: Words, values: NDArray[np.int64], g: int) -> NDArray[np.int64]:
    """Return H_u(values[u]) for each user u."""
    mixed = (multipliers * values.astype(np.uint64) + addends) >> np.uint64(HASH_BITS)
    return ((mixed * np.uint64(g)) >> np.uint64(HASH_BITS)).astype(np.int64)


def count_matches(
    multipliers: Words, addends: Words, reported: NDArray[np.int64], g: int, size: int
) -> NDArray[np.int64]:
    """Return, for each v below ``size``, how many users u have H_u(v) = reported[u] (Algorithm 2, line 4)."""
    hashed = check_numbers(reported, g, "the reported hash values")
    steps = check_words(multipliers, hashed.shape, "the multipliers of the hash functions")
    offsets = check_words(addends, hashed.shape, "the addends of the hash functions")
    if hashed.size >= 1 << 32:
        raise ReportError("too many reports for one count: give at most 2^32 - 1 at a time")
    # With fewer hash values than reports, compute each interval once; otherwise only those of the reports.
    few = g < hashed.size
    values = np.arange(g) if few else hashed
    starts = bucket_starts(values, g)
    widths = bucket_starts(values + 1, g) - starts
    counts = np.zeros(size, dtype=np.uint32)
    if few:
        starts, widths = starts[hashed], widths[hashed]
    _count_kernel(steps, offsets - starts, widths, counts)
    return counts.astype(np.int64)


@njit(cache=True)
def _count_kernel(
    steps: Words, offsets: Words, widths: Words, counts: NDArray[np.uint32]
) -> None:  # pragma: no cover - compiled
    """Add one to counts[v] where offset + v·step (mod 2^64) lies below the width: H(v) is in the reported bucket.

    Each test is one addition, one comparison and one masked addition, so that the loop runs in vectors.
    """
    for user in range(steps.size):
        mixed = offsets[user]
        step = steps[user]
        width = widths[user]
        for value in range(counts.size):
            counts[value] += np.uint32(mixed < width)
            mixed += step
