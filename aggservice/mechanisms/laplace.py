"""Discrete Laplace noise, whole and truncated: P[x] ∝ e^(-a|x|) on the whole numbers, a = ε/Λ₁.

Privacy: two databases whose sums differ by at most Λ₁ in L1 norm give the same noisy sums with probabilities that
differ by at most a factor e^(a·Λ₁) = e^ε (Fact 3.3 of the Privacy Sandbox paper). The truncated form adds δ, the
mass outside the common support (Lemma A.1; ``aggservice.mechanisms.laplace`` computes it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import InitVar, dataclass
from fractions import Fraction
from functools import lru_cache
from math import log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms.bernoulli import bernoulli_exp, uniform_below
from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.geometric import Digits, digits_of, geometric_twin, laplace_kernel
from aggservice.mechanisms.reals import Real, exp
from aggservice.mechanisms.words import Tape, fill


class NoiseLaw(ABC):
    """Integer noise whose law is symmetric about 0. Samples are exact; probabilities are exact or to 10⁻¹²."""

    __slots__ = ()

    exact: ClassVar[bool] = True
    """Whether probabilities are exact ``Real`` numbers."""

    @property
    def largest(self) -> int | None:
        """The largest value that the noise can have; None if it has none."""
        return None

    @abstractmethod
    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent samples, exact to the last bit."""

    @abstractmethod
    def pmf(self, x: int) -> Real | float:
        """Return P[X = x]."""

    @abstractmethod
    def cdf(self, x: int) -> Real | float:
        """Return P[X ≤ x]."""

    @abstractmethod
    def variance(self) -> Real | float:
        """Return the variance."""

    def quantile(self, p: Fraction) -> int:
        """Return the smallest x with P[X ≤ x] ≥ p, for 0 < p < 1. It is exact if ``cdf`` is."""
        if not 0 < p < 1:
            raise ParameterError(f"a quantile needs 0 < p < 1, not {p}")
        p = Fraction(p)
        low, high = -1, 1
        while not self.cdf(high) >= p:
            high *= 2
        while self.cdf(low) >= p:
            low *= 2
        return low + bisect_left(range(low, high), True, key=lambda x: self.cdf(x) >= p)

    def half_width(self, level: Fraction = Fraction(95, 100)) -> int:
        """Return the smallest h with P[|X| ≤ h] ≥ level, for 0 < level < 1.

        By symmetry, P[|X| ≤ h] = 2·P[X ≤ h] - 1. The result is exact if ``cdf`` is.
        """
        return _half_width(self, level)


@lru_cache(maxsize=1024)
def _half_width(law: NoiseLaw, level: Fraction) -> int:
    return law.quantile((1 + level) / 2)


MICRO = 10**6
MAX_EPSILON_MICRO = 64 * MICRO
MAX_SENSITIVITY = 1 << 32
_UNBOUNDED = (1 << 63) - 1


def check_laplace(epsilon_micro: int, sensitivity: int) -> None:
    """Raise ``ParameterError`` if ε (in millionths) or Λ₁ is not a whole number in range."""
    for name, value, limit in (("ε in 10⁻⁶", epsilon_micro, MAX_EPSILON_MICRO), ("Λ₁", sensitivity, MAX_SENSITIVITY)):
        if not isinstance(value, int) or not 1 <= value <= limit:
            raise ParameterError(f"{name} must be a whole number from 1 to {limit}, not {value!r}")


def micro_of(epsilon: str) -> int:
    """Return ε in millionths, from decimal text with at most six places; otherwise raise ``ParameterError``.

    >>> micro_of("10"), micro_of("0.25")
    (10000000, 250000)
    """
    try:
        found = Fraction(epsilon) * MICRO if isinstance(epsilon, str) else Fraction(1, 2)
    except (ValueError, ZeroDivisionError):
        found = Fraction(1, 2)
    if found.denominator != 1:
        raise ParameterError(f"ε must be decimal text with at most six places, such as '0.5', not {epsilon!r}")
    return int(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laplace(NoiseLaw):
    """The parameters: ε, given as ``epsilon_micro``·10⁻⁶ or as decimal text ``epsilon``, and the L1 sensitivity Λ₁."""

    epsilon_micro: int = 0
    sensitivity: int
    epsilon: InitVar[str | None] = None

    def __post_init__(self, epsilon: str | None) -> None:
        if epsilon is not None:
            if self.epsilon_micro:
                raise ParameterError("epsilon and epsilon_micro are both given: give one of them")
            object.__setattr__(self, "epsilon_micro", micro_of(epsilon))
        check_laplace(self.epsilon_micro, self.sensitivity)

    @property
    def rate(self) -> Fraction:
        """Return a = ε/Λ₁."""
        return Fraction(self.epsilon_micro, MICRO * self.sensitivity)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteLaplace(_Laplace):
    """Discrete Laplace noise for ε = epsilon_micro·10⁻⁶ and L1 sensitivity Λ₁.

    >>> from aggservice.mechanisms import SeededBits
    >>> noise = DiscreteLaplace(epsilon="10", sensitivity=65_536)
    >>> noise.sample(SeededBits("example"), 3).dtype
    dtype('int64')
    >>> round(float(noise.variance()) ** 0.5)
    9268
    """

    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        return sample_laplace(bits, self.rate, size)

    def pmf(self, x: int) -> Real:
        ratio = exp(-self.rate)
        return (1 - ratio) / (1 + ratio) * exp(-self.rate * abs(x))

    def cdf(self, x: int) -> Real:
        beyond = exp(-self.rate * (x + 1 if x >= 0 else -x)) / (1 + exp(-self.rate))
        return 1 - beyond if x >= 0 else beyond

    def variance(self) -> Real:
        """Return the variance, 2r/(1-r)² for r = e^-a."""
        ratio = exp(-self.rate)
        return 2 * ratio / ((1 - ratio) * (1 - ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedDiscreteLaplace(_Laplace):
    """Discrete Laplace noise conditioned on |x| ≤ τ (DLap_τ of the Privacy Sandbox paper)."""

    tau: int

    @property
    def largest(self) -> int:
        return self.tau

    def __post_init__(self, epsilon: str | None) -> None:
        _Laplace.__post_init__(self, epsilon)
        if not isinstance(self.tau, int) or not 0 <= self.tau < _UNBOUNDED:
            raise ParameterError(f"τ must be a whole number from 0 to 2^63 - 2, not {self.tau!r}")

    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        """Return ``size`` independent samples, none beyond ±τ, exact to the last bit."""
        return sample_laplace(bits, self.rate, size, self.tau)

    def _normaliser(self) -> Real:
        return 1 + exp(-self.rate) - 2 * exp(-self.rate * (self.tau + 1))

    def pmf(self, x: int) -> Real:
        if abs(x) > self.tau:
            return Real.of(0)
        return (1 - exp(-self.rate)) * exp(-self.rate * abs(x)) / self._normaliser()

    def cdf(self, x: int) -> Real:
        if x < -self.tau:
            return Real.of(0)
        if x >= self.tau:
            return Real.of(1)
        if x >= 0:
            return 1 - self.cdf(-x - 1)
        return (exp(self.rate * x) - exp(-self.rate * (self.tau + 1))) / self._normaliser()

    def variance(self) -> Real:
        """Return the variance, from the closed form of Σ i²rⁱ."""
        n, r = self.tau, exp(-self.rate)
        last = exp(-self.rate * n)
        squares = 1 + r - (n + 1) ** 2 * last + (2 * n * n + 2 * n - 1) * last * r - n * n * last * r * r
        return 2 * r * squares / ((1 - r) * (1 - r) * self._normaliser())


def sample_laplace(bits: Bits, rate: Fraction, size: int, tau: int = _UNBOUNDED) -> NDArray[np.int64]:
    """Return samples with P[x] ∝ e^(-rate·|x|) on |x| ≤ tau.

    A wide window rejects what falls outside it (at most about e^-1 of the draws); a window narrower than 1/rate is
    drawn uniformly and kept with probability e^(-rate·|x|), at least e^-1.
    """
    out = np.empty(size, dtype=np.int64)
    if rate * tau < 1:
        for index in range(size):
            out[index] = _narrow(bits, rate, tau)
        return out
    digits = digits_of(rate)
    tables = digits.thresholds, digits.guide, digits.shifts, digits.prefix, digits.guide_bits
    fill(
        bits,
        out,
        lambda words, into: laplace_kernel(words, *tables, tau, into),
        lambda tape: laplace_twin(tape, digits, tau),
        digits.shifts.size * 1.002,
    )
    return out


def laplace_twin(tape: Tape, digits: Digits, tau: int = _UNBOUNDED) -> int:
    """Return one sample from the words of ``tape``: the plain form of ``laplace_kernel``, also used at its ties."""
    while True:
        size, spare = geometric_twin(tape, digits)
        negative = spare & 1
        if size <= tau and not (negative and size == 0):
            return -size if negative else size


def _narrow(bits: Bits, rate: Fraction, tau: int) -> int:
    while True:
        x = uniform_below(bits, 2 * tau + 1) - tau
        if bernoulli_exp(bits, rate * abs(x)):
            return x


ATTO = 10**18


@lru_cache(maxsize=256, typed=True)
def discovery_threshold(*, epsilon_micro: int, delta_atto: int, l0: int, l1: int) -> int:
    """Return τ = ⌈Λ₁(1 + ln(Λ₀/δ)/ε)⌉, the least whole number for which Lemma A.1 holds.

    It is the least n with e^(ε(n-Λ₁)/Λ₁) ≥ Λ₀/δ, found from a floating-point guess and settled by exact
    comparisons, so that rounding can only add privacy.

    >>> discovery_threshold(epsilon_micro=10_000_000, delta_atto=10**10, l0=1, l1=65_536)
    186258
    """
    check_laplace(epsilon_micro, l1)
    if not isinstance(delta_atto, int) or not 1 <= delta_atto <= ATTO:
        raise ParameterError(f"key discovery needs 0 < δ ≤ 1 in whole 10⁻¹⁸, not {delta_atto!r}")
    if not isinstance(l0, int) or not 1 <= l0 <= l1:
        raise ParameterError(f"Λ₀ must be an integer from 1 to Λ₁ = {l1}, not {l0!r}: each contribution is at least 1")
    needed = Fraction(l0 * ATTO, delta_atto)
    rate = Fraction(epsilon_micro, MICRO * l1)

    def enough(n: int) -> bool:
        return exp(rate * (n - l1)) >= needed

    guess = max(l1, l1 + int(log(needed) / rate))
    step = max(1, guess >> 40)
    while not enough(guess):
        guess += step
    low = guess
    while low > l1 and enough(low):
        low = max(l1, low - step)
    return low + bisect_left(range(low, guess), True, key=enough)


def truncated_delta(noise: TruncatedDiscreteLaplace, shift: int, epsilon: Fraction | None = None) -> Real:
    """Return the exact δ(ε) between truncated noise and the same noise moved by ``shift``, from its pmf.

    ``epsilon`` defaults to a·shift, the noise's own ε at this shift. Then δ is the mass outside the moved support. For
    a smaller ε, the excess where the likelihood ratio is above e^ε is added.
    """
    if not shift >= 0:
        raise ParameterError(f"a shift must be at least 0, not {shift}")
    if shift > 2 * noise.tau:
        return Real.of(1)
    own = noise.rate * shift
    asked = own if epsilon is None else Fraction(epsilon)
    edge = shift - noise.tau - 1  # the last x that the moved copy cannot reach
    if asked >= own:
        return noise.cdf(edge)
    # On the common support the ratio P[x]/P[x - shift] falls from e^own; it exceeds e^asked below (shift - asked/a)/2.
    turning = (shift - asked / noise.rate) / 2
    last = max(edge, min(-(-turning.numerator // turning.denominator) - 1, noise.tau))
    return noise.cdf(last) - exp(asked) * noise.cdf(last - shift)
