"""Uniform whole numbers below n, exactly: mask and reject."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.words import EXHAUSTED, FULL, Progress, Tape, fill


def uniform_below(bits: Bits, n: int) -> int:
    """Return a uniform whole number in [0, n), for n of any size."""
    if n < 1:
        raise ParameterError(f"there is no whole number in [0, {n}): n must be at least 1")
    return uniform_twin(Tape(bits), n)


def uniform_below_batch(bits: Bits, n: int, size: int) -> NDArray[np.int64]:
    """Return ``size`` independent uniform whole numbers in [0, n), for n up to 2^63."""
    if not 1 <= n <= 1 << 63:
        raise ParameterError(f"n must lie in [1, 2^63] for a batch, not {n}")
    out = np.empty(size, dtype=np.int64)
    largest = np.uint64(n - 1)
    mask = np.uint64((1 << (n - 1).bit_length()) - 1)
    fill(
        bits,
        out,
        lambda words, into: uniform_kernel(words, largest, mask, into),
        lambda tape: uniform_twin(tape, n),
        (int(mask) + 1) / n,
    )
    return out


def uniform_twin(tape: Tape, n: int) -> int:
    """Return a uniform number below n from whole words: keep as many low bits as n needs, and retry until below n."""
    width = (n - 1).bit_length()
    mask = (1 << width) - 1
    while True:
        value = 0
        for position in range(max(1, -(-width // 64))):
            value |= tape.word() << (64 * position)
        value &= mask
        if value < n:
            return value


@njit(cache=True)
def uniform_kernel(
    words: NDArray[np.uint64], largest: np.uint64, mask: np.uint64, out: NDArray[np.int64]
) -> Progress:  # pragma: no cover - compiled
    """Write numbers of [0, largest]; ``mask`` has the bits of ``largest``. Each try takes one word."""
    made = 0
    used = 0
    while made < out.size:
        if used >= words.size:
            return made, used, EXHAUSTED
        value = words[used] & mask
        used += 1
        if value <= largest:
            out[made] = np.int64(value)
            made += 1
    return made, used, FULL
