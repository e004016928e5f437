"""Discrete Gaussian noise: P[x] ∝ e^(-x²/2σ²) on the whole numbers, for the zCDP budgets of Appendix B.

Sampled by rejection from discrete Laplace noise of rate 1/t, t = ⌊σ⌋ + 1 (Canonne, Kamath and Steinke 2020,
Algorithm 3). The kernel computes the acceptance probability in 64-bit fixed point with a stated error; a uniform
word inside the error is settled by the twin in exact arithmetic, so no rounding reaches the output.
Privacy: sums that differ by at most Δ in L2 norm give Δ²/2σ²-zCDP (same paper, Theorem 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import erfc, isqrt, pi, sqrt
from math import exp as float_exp

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.geometric import Digits, digits_of
from aggservice.mechanisms.laplace import NoiseLaw, laplace_twin
from aggservice.mechanisms.reals import exp
from aggservice.mechanisms.words import EXHAUSTED, FULL, TIE, Progress, Tape, below, fill

_SMALLEST, _LARGEST = Fraction(1, 100), Fraction(1 << 96)
#: Below this σ the law is summed term by term; above it the Euler-Maclaurin formula is exact to 10⁻¹².
_SUMMED_SIGMA = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(NoiseLaw):
    """Discrete Gaussian noise with parameter σ² = ``variance_parameter``, from 1/100 to 2^96.

    The variance of the law is within 10⁻⁹ of σ² for σ ≥ 1.2; ``variance()`` gives it.
    """

    exact = False

    variance_parameter: Fraction

    def __post_init__(self) -> None:
        if not isinstance(self.variance_parameter, int | Fraction):
            raise ParameterError("σ² is a float: give a whole number or a Fraction")
        if not _SMALLEST <= self.variance_parameter <= _LARGEST:
            raise ParameterError(f"σ² must lie between {_SMALLEST} and 2^96, not {self.variance_parameter}")

    @staticmethod
    def for_zcdp(*, rho_micro: int, sensitivity: int) -> DiscreteGaussian:
        """Return the noise that makes sums of L2 sensitivity Λ satisfy ρ-zCDP: σ² = Λ²/2ρ, exactly."""
        if not isinstance(rho_micro, int) or not rho_micro >= 1 or not sensitivity >= 1:
            raise ParameterError("ρ or the sensitivity is invalid: use ρ ≥ 10⁻⁶ and a sensitivity of at least 1")
        return DiscreteGaussian(variance_parameter=Fraction(sensitivity**2 * 10**6, 2 * rho_micro))

    @property
    def sigma(self) -> float:
        """Return σ as a float, for display."""
        return sqrt(self.variance_parameter)

    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        shape = shape_of(Fraction(self.variance_parameter))
        digits, numbers, powers = shape.digits, shape.numbers, shape.powers
        tables = digits.thresholds, digits.guide, digits.shifts, digits.guide_bits, numbers, powers
        out = np.empty(size, dtype=np.int64)
        fill(
            bits,
            out,
            lambda words, into: gaussian_kernel(words, *tables, into),
            lambda tape: gaussian_twin(tape, shape),
            (digits.shifts.size + 1) * 1.6,
        )
        return out

    def _normaliser(self) -> float:
        """Return Σ e^(-x²/2σ²), by its terms or by Poisson summation, with relative error below 10⁻¹⁴."""
        if self.variance_parameter <= 1:
            return 1 + 2 * sum(self._weight(x) for x in range(1, 40))
        return self.sigma * sqrt(2 * pi) * (1 + 2 * float_exp(-2 * pi**2 * float(self.variance_parameter)))

    def _weight(self, x: float) -> float:
        return float_exp(-x * x / (2 * float(self.variance_parameter)))

    def pmf(self, x: int) -> float:
        """Return P[X = x], with relative error below 10⁻¹²."""
        return self._weight(x) / self._normaliser()

    def cdf(self, x: int) -> float:
        """Return P[X ≤ x], with absolute error below 10⁻¹²."""
        if x >= 0:
            return 1 - self.cdf(-x - 1)
        sigma = self.sigma
        if sigma <= _SUMMED_SIGMA:
            return sum(self._weight(k) for k in range(x, x - int(40 * sigma) - 40, -1)) / self._normaliser()
        edge = (x + 0.5) / sigma
        density = float_exp(-edge * edge / 2) / sqrt(2 * pi)
        slope, third = -edge * density / sigma**2, (3 * edge - edge**3) * density / sigma**4
        return erfc(-edge / sqrt(2)) / 2 - slope / 24 + 7 * third / 5760

    def variance(self) -> float:
        """Return the variance of the law, with relative error below 10⁻¹²."""
        if self.sigma > 3:
            return float(self.variance_parameter)
        return 2 * sum(x * x * self._weight(x) for x in range(1, 130)) / self._normaliser()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the sampler needs for one σ²: the proposal's tables and the constants of the acceptance test.

    ``numbers`` holds, in this order: t's bit length L, ⌊2^(63+L)/t⌋, ⌊σ²/t²·2^57⌋, ⌊t²/2σ²·2^57⌋. ``powers`` holds
    ⌊e^-i·2^63⌋ and ⌊e^(-j/2^11)·2^63⌋ and ⌊e^(-j/2^22)·2^63⌋, one table per row.
    """

    variance_parameter: Fraction
    t: int
    digits: Digits
    numbers: NDArray[np.uint64]
    powers: NDArray[np.uint64]


@lru_cache(maxsize=16)
def shape_of(variance_parameter: Fraction, prefix: int = 63) -> Shape:
    """Return the tables for σ²; tests pass a small ``prefix`` to make ties of the proposal common."""
    t = isqrt(variance_parameter.numerator // variance_parameter.denominator) + 1
    length = t.bit_length()
    ratio = variance_parameter / (t * t)
    numbers = [length, min((1 << (63 + length)) // t, (1 << 64) - 1), int(ratio * 2**57), int(2**57 / (2 * ratio))]
    return Shape(
        variance_parameter=variance_parameter,
        t=t,
        digits=digits_of(Fraction(1, t), prefix),
        numbers=np.array(numbers, dtype=np.uint64),
        powers=_power_table(),
    )


@lru_cache(maxsize=1)
def _power_table() -> NDArray[np.uint64]:
    table = np.zeros((3, 2048), dtype=np.uint64)
    for row, (unit, count) in enumerate(((1, 64), (1 << 11, 2048), (1 << 22, 2048))):
        for index in range(count):
            # Never 2^63 itself: the kernel doubles an entry before it multiplies.
            table[row, index] = min(exp(Fraction(-index, unit)).bounds(63)[0], (1 << 63) - 1)
    return table


def gaussian_twin(tape: Tape, shape: Shape) -> int:
    """Return one sample from the words of ``tape``: the plain form of ``gaussian_kernel``, in exact arithmetic."""
    while True:
        x = laplace_twin(tape, shape.digits)
        excess = abs(x) - shape.variance_parameter / shape.t
        if below(tape, tape.word() >> 1, 63, exp(-excess * excess / (2 * shape.variance_parameter))):
            return x


@njit(cache=True, inline="always")
def _high_product(a: np.uint64, b: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    """Return the high 64 bits of the 128-bit product."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + ((a0 * b0) >> shift)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> shift) + (other >> shift)


@njit(cache=True)
def acceptance(
    size: np.uint64, numbers: NDArray[np.uint64], powers: NDArray[np.uint64]
) -> tuple[np.uint64, np.uint64]:  # pragma: no cover - compiled
    """Return (p, e): the acceptance probability of |x| = size lies within (p ± e)/2^63.

    v = size/t in 57 fractional bits (error 3 with the constant subtracted), its square in 50 (error below 2^-48 for
    v < 64), times t²/2σ² < 64 in 43: γ is known to 2^-40. Then e^-γ by three table look-ups and one linear step
    (error 2^-45), each product short by at most 2: in all below p·2^-36 + 16.
    """
    length = numbers[0]
    if size >> (length + np.uint64(5)):
        return np.uint64(0), np.uint64(16)
    if length <= 58:
        scaled = size << (np.uint64(58) - length)
    else:
        scaled = size >> (length - np.uint64(58))
    v = _high_product(scaled, numbers[1])
    distance = v - numbers[2] if v > numbers[2] else numbers[2] - v
    gamma = _high_product(_high_product(distance, distance), numbers[3])  # 43 fractional bits
    whole = gamma >> np.uint64(43)
    if whole >= 44:
        return np.uint64(0), np.uint64(16)
    fraction = gamma & np.uint64((1 << 43) - 1)
    first = fraction >> np.uint64(32)
    second = (fraction >> np.uint64(21)) & np.uint64(2047)
    rest = fraction & np.uint64((1 << 21) - 1)  # units of 2^-43
    one = np.uint64(1)
    p = _high_product(powers[0, whole] << one, powers[1, first])
    p = _high_product(p << one, powers[2, second])
    p -= _high_product(p << one, rest << np.uint64(20))
    return p, (p >> np.uint64(36)) + np.uint64(16)


@njit(cache=True)
def gaussian_kernel(
    words: NDArray[np.uint64],
    thresholds: NDArray[np.uint64],
    guide: NDArray[np.int64],
    shifts: NDArray[np.int64],
    guide_bits: int,
    numbers: NDArray[np.uint64],
    powers: NDArray[np.uint64],
    out: NDArray[np.int64],
) -> Progress:  # pragma: no cover - compiled
    """Write discrete Gaussian numbers: proposals as in ``laplace_kernel`` (63-bit thresholds), then one word to accept.

    A sample's words are consumed only when it is finished, so that the twin can start it again at a tie.
    """
    rows = shifts.size
    jump = np.uint64(63 - guide_bits)
    made = 0
    used = 0
    at = 0
    while made < out.size:
        if at + rows + 1 > words.size:
            return made, used, EXHAUSTED
        total = np.int64(0)
        for row in range(rows):
            value = words[at + row] >> np.uint64(1)
            digit = guide[row, value >> jump]
            while value > thresholds[row, digit]:
                digit += 1
            if value == thresholds[row, digit]:
                return made, used, TIE
            total += digit << shifts[row]
        negative = words[at] & np.uint64(1)
        at += rows
        if negative and total == 0:
            continue
        p, error = acceptance(np.uint64(total), numbers, powers)
        value = words[at] >> np.uint64(1)
        at += 1
        if value > p + error:
            continue
        if value + error >= p:
            return made, used, TIE
        out[made] = -total if negative else total
        made += 1
        used = at
    return made, used, FULL
