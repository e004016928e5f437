"""Sums of signs over inner products: for all values at once (Walsh-Hadamard), or for given candidates."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]


def parity(words: Words) -> NDArray[np.bool_]:
    """Return whether each word has an odd number of bits set."""
    return (np.bitwise_count(words) & 1).astype(np.bool_)


@njit(cache=True)
def transform(values: Whole) -> None:  # pragma: no cover - compiled
    """Replace an array of n integers, n a power of two, by its Walsh-Hadamard transform, in n log n steps.

    It cannot overflow if the absolute values add up to less than 2^63.
    """
    half = 1
    while half < values.size:
        for start in range(0, values.size, 2 * half):
            for index in range(start, start + half):
                low, high = values[index], values[index + half]
                values[index] = low + high
                values[index + half] = low - high
        half *= 2


@njit(cache=True)
def signs_for(vectors: Words, odd: NDArray[np.bool_], candidates: Words) -> Whole:  # pragma: no cover - compiled
    """Return Σᵢ (−1)^(⟨vᵢ,u⟩ ⊕ oddᵢ) for each candidate u."""
    totals = np.zeros(candidates.size, dtype=np.int64)
    for which in range(candidates.size):
        candidate = candidates[which]
        total = 0
        for index in range(vectors.size):
            word = vectors[index] & candidate
            word ^= word >> np.uint64(32)
            word ^= word >> np.uint64(16)
            word ^= word >> np.uint64(8)
            word ^= word >> np.uint64(4)
            word ^= word >> np.uint64(2)
            word ^= word >> np.uint64(1)
            if ((word & np.uint64(1)) != 0) == odd[index]:
                total += 1
            else:
                total -= 1
        totals[which] = total
    return totals
