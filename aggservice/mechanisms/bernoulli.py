"""Uniform integers and biased coins, exact: from random bits, compared bit by bit with a probability."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.reals import Real, exp
from aggservice.mechanisms.words import EXHAUSTED, FULL, TIE, Progress, Tape, below, fill


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


def bernoulli(bits: Bits, p: Real | Fraction) -> bool:
    """Return True with probability p, exactly. If p is 0 or 1, no bits are drawn."""
    certain = _certain(p)
    return certain if certain is not None else bernoulli_twin(Tape(bits), Real.of(p))


def bernoulli_exp(bits: Bits, x: Fraction) -> bool:
    """Return True with probability e^-x for rational x ≥ 0, exactly."""
    return bernoulli(bits, _exp_of(x))


def bernoulli_batch(bits: Bits, p: Real | Fraction, size: int) -> NDArray[np.bool_]:
    """Return ``size`` independent coins that are True with probability p, exactly."""
    certain = _certain(p)
    if certain is not None:
        return np.full(size, certain)
    real = Real.of(p)
    threshold = threshold_word(real)
    out = np.empty(size, dtype=np.bool_)
    fill(
        bits,
        out,
        lambda words, into: bernoulli_kernel(words, threshold, into),
        lambda tape: bernoulli_twin(tape, real),
        1.0,
    )
    return out


def threshold_word(p: Real) -> np.uint64:
    """Return the first 64 bits of p in (0, 1). A word below them means True, above them False, equal a tie."""
    floor = p.floor(64)
    if not 0 <= floor < 1 << 64:
        raise ParameterError("a probability is out of range: use a number from 0 to 1")
    return np.uint64(floor)


def bernoulli_twin(tape: Tape, p: Real) -> bool:
    """Return whether a uniform number, read from ``tape`` word by word, lies below p."""
    return below(tape, tape.word(), 64, p)


@njit(cache=True)
def bernoulli_kernel(
    words: NDArray[np.uint64], threshold: np.uint64, out: NDArray[np.bool_]
) -> Progress:  # pragma: no cover - compiled
    """Write one coin per word; stop at a word equal to the threshold."""
    count = min(words.size, out.size)
    for index in range(count):
        if words[index] == threshold:
            return index, index, TIE
        out[index] = words[index] < threshold
    return count, count, FULL if count == out.size else EXHAUSTED


def _exp_of(x: Fraction) -> Real:
    if not x >= 0:
        raise ParameterError(f"e^-x with x = {x} is not a probability: use x ≥ 0")
    return exp(-Fraction(x))


def _certain(p: Real | Fraction) -> bool | None:
    """Return the outcome of a coin with p = 0 or 1, or None if 0 < p < 1; raise ``ParameterError`` otherwise."""
    real = Real.of(p)
    low, high = real.bounds(64)
    if low == high and low in (0, 1 << 64):
        return low != 0
    if not (high >= 0 and low <= 1 << 64) or (not isinstance(p, Real) and not 0 <= p <= 1):
        raise ParameterError("a probability is out of range: use a number from 0 to 1")
    return None
