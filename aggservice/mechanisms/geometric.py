"""Geometric numbers by their digits: tables of thresholds, the batch kernel and its plain twin.

If P[G ≥ g] = e^(-a·g), the digits of G in any mixed radix of powers of two are independent: the digit of weight 2^w
is j with probability proportional to e^(-a·j·2^w), truncated to the digit's range, and the top digit is geometric
again. So G costs one table look-up per digit, for any rate a. A threshold is the first 63 bits of an exact cumulative
probability; a word that ties with one is settled by the twin with as many further bits as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.reals import Real, exp
from aggservice.mechanisms.words import EXHAUSTED, FULL, TIE, Progress, Tape

#: How many bits of a word are compared with a threshold; the remaining bit is the sign.
PREFIX = 63
_DIGIT_BITS = 10
_GUIDE_BITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The tables of one rate: row i serves the digit of weight 2^shifts[i]; only the last digit is unbounded.

    ``thresholds[i, j]`` is ⌊cdf(j)·2^prefix⌋, ``guide[i, u]`` the first j that a word with leading bits u can have.
    """

    rate: Fraction
    prefix: int
    guide_bits: int
    shifts: NDArray[np.int64]
    thresholds: NDArray[np.uint64]
    guide: NDArray[np.int64]

    def cumulative(self, row: int, digit: int) -> Real:
        """Return P[digit of this row ≤ ``digit``]."""
        step = self.rate * (1 << int(self.shifts[row]))
        below_next = 1 - exp(-step * (digit + 1))
        if row == self.shifts.size - 1:
            return below_next
        size = 1 << int(self.shifts[row + 1] - self.shifts[row])
        return Real.of(1) if digit >= size - 1 else below_next / (1 - exp(-step * size))


@lru_cache(maxsize=64)
def digits_of(rate: Fraction, prefix: int = PREFIX, digit_bits: int = _DIGIT_BITS) -> Digits:
    """Return the tables for P[G ≥ g] = e^(-rate·g).

    Tests pass a small ``prefix`` to make ties common and a small ``digit_bits`` to have many digits.
    """
    if not rate > 0:
        raise ParameterError(f"a geometric rate must be positive, not {rate}")
    reach = Fraction(prefix) * 7 / 10 / rate  # e^-(rate·reach) is about 2^-prefix: few words go beyond it
    total_bits = max(1, (int(reach) + 1).bit_length())
    if total_bits > 62:
        raise ParameterError(f"the geometric rate {rate} is too small: samples would exceed 64-bit integers")
    rows = -(-total_bits // digit_bits)
    each = -(-total_bits // rows)
    shifts = np.arange(rows, dtype=np.int64) * each
    sizes: list[int | None] = [1 << each] * (rows - 1) + [None]
    columns = [_row(rate * (1 << int(shift)), size, prefix) for shift, size in zip(shifts, sizes, strict=True)]
    width = max(len(column) for column in columns)
    thresholds = np.full((rows, width), np.uint64(1 << prefix), dtype=np.uint64)
    guide_bits = min(_GUIDE_BITS, prefix)
    guide = np.empty((rows, 1 << guide_bits), dtype=np.int64)
    starts = np.arange(1 << guide_bits, dtype=np.uint64) << np.uint64(prefix - guide_bits)
    for i, column in enumerate(columns):
        thresholds[i, : len(column)] = column
        guide[i] = np.searchsorted(thresholds[i], starts, side="left")
    return Digits(rate=rate, prefix=prefix, guide_bits=guide_bits, shifts=shifts, thresholds=thresholds, guide=guide)


def _row(step: Fraction, size: int | None, prefix: int) -> list[int]:
    """Return ⌊cdf(j)·2^prefix⌋ for a digit with P[j] ∝ e^(-step·j), below ``size`` or unbounded.

    Powers come from one exponential by interval multiplication; where the interval straddles a whole number the
    row is computed again with more bits.
    """
    precision = prefix + 64
    while True:
        column = _row_at(step, size, prefix, precision)
        if column is not None:
            return column
        precision *= 2


def _row_at(step: Fraction, size: int | None, prefix: int, precision: int) -> list[int] | None:
    one = 1 << precision
    ratio_low, ratio_high = exp(-step).bounds(precision)
    if size is None:
        norm_low = norm_high = one
    else:
        tail_low, tail_high = exp(-step * size).bounds(precision)
        norm_low, norm_high = one - tail_high, one - tail_low
    column: list[int] = []
    power_low = power_high = one
    last = (1 << prefix) - 1
    while size is None or len(column) < size - 1:
        power_low = (power_low * ratio_low) >> precision
        power_high = -(-(power_high * ratio_high) >> precision)
        low = ((one - power_high) << prefix) // norm_high
        high = -(-((one - power_low) << prefix) // norm_low)
        # The probability is irrational, so a floor is known once no whole number lies strictly inside the interval.
        if high - low > 1:
            return None
        column.append(low)
        if size is None and low >= last:
            return column
    column.append(1 << prefix)
    return column


def geometric_twin(tape: Tape, digits: Digits) -> tuple[int, int]:
    """Return (G, the spare low bits of the first word): one word per digit, and more words only for ties."""
    words = [tape.word() for _ in range(digits.shifts.size)]
    spare_bits = 64 - digits.prefix
    total = 0
    for row, word in enumerate(words):
        value = word >> spare_bits
        digit = int(np.searchsorted(digits.thresholds[row], np.uint64(value), side="left"))
        if digit < digits.thresholds.shape[1] and int(digits.thresholds[row, digit]) == value:
            total += _settle(tape, digits, row, digit, value) << int(digits.shifts[row])
        else:
            total += digit << int(digits.shifts[row])
    return total, words[0] & ((1 << spare_bits) - 1)


def _settle(tape: Tape, digits: Digits, row: int, digit: int, value: int) -> int:
    """Return the digit of the uniform number that starts with ``value``, known to be at least ``digit``."""
    width = digits.prefix
    while True:
        low, high = digits.cumulative(row, digit).bounds(width)
        if value + 1 <= low:
            return digit
        if value >= high:
            digit += 1
            continue
        value = (value << 64) | tape.word()
        width += 64


@njit(cache=True)
def laplace_kernel(
    words: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    guide: NDArray[np.int64],
    shifts: NDArray[np.int64],
    prefix: int,
    guide_bits: int,
    tau: int,
    out: NDArray[np.int64],
) -> Progress:  # pragma: no cover - compiled
    """Write signed geometric numbers of at most ``tau`` in size: the lowest bit of a sample's first word is its sign.

    A negative zero or a number beyond ``tau`` is rejected; its words are used up. Digits stay below 2^62, because
    ``digits_of`` checks it, so nothing overflows.
    """
    rows = shifts.size
    drop = np.uint64(64 - prefix)
    jump = np.uint64(prefix - guide_bits)
    made = 0
    used = 0
    while made < out.size:
        if used + rows > words.size:
            return made, used, EXHAUSTED
        total = np.int64(0)
        for row in range(rows):
            value = words[used + row] >> drop
            digit = guide[row, value >> jump]
            while value > thresholds[row, digit]:
                digit += 1
            if value == thresholds[row, digit]:
                return made, used, TIE
            total += digit << shifts[row]
        negative = words[used] & np.uint64(1)
        used += rows
        if total > tau or (negative and total == 0):
            continue
        out[made] = -total if negative else total
        made += 1
    return made, used, FULL
