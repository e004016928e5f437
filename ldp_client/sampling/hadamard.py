"""Sums of signs over inner products: for every value at once (Walsh-Hadamard), or for the candidates named."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]


def parity(words: Words) -> NDArray[np.bool_]:
    """Return whether each word has an odd number of bits set."""
    return (np.bitwise_count(words) & 1).astype(np.bool_)


def transform_twin(values: list[int]) -> list[int]:
    """Return T[u] = Σ_v (−1)^⟨v,u⟩ values[v], term by term."""
    size = len(values)
    return [sum(-value if (u & v).bit_count() & 1 else value for v, value in enumerate(values)) for u in range(size)]


@njit(cache=True)
def transform(values: Whole) -> None:  # pragma: no cover - compiled
    """Replace an array of a power of two of whole numbers by its Walsh-Hadamard transform, in place, in n log n steps.

    No overflow as long as the absolute values add up to less than 2^63.
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


def signs_for_twin(vectors: list[int], odd: list[bool], candidates: list[int]) -> list[int]:
    """Return what ``signs_for`` returns, a pair at a time."""
    return [
        sum(1 if ((v & u).bit_count() & 1 == 1) == bit else -1 for v, bit in zip(vectors, odd, strict=True))
        for u in candidates
    ]
