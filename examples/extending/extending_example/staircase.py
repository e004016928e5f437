"""A mechanism: discrete staircase noise (Geng and Viswanath, "The optimal mechanism in differential privacy", 2014).

Laplace noise falls by the same factor at every step, so that a move by Λ₁ costs ε and a smaller move costs less. The
staircase charges ε for every move of up to Λ₁, and spends what it saves on a higher peak: for one sum, no ε-DP noise
has a smaller expected error than the best staircase, and for a large ε the error of Laplace noise is far larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import (
    Bits,
    DiscreteLaplace,
    NoiseLaw,
    ParameterError,
    Real,
    bernoulli_batch,
    exp,
    uniform_below_batch,
)
from budget import Epsilon, Mechanism, Sensitivity

_MICRO = 10**6
_LARGEST = (1 << 62) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase(NoiseLaw):
    """Noise in stairs of ``width`` values, each b = e^(-ε/keys) times as likely as the stair before it.

    P[x] = a · b^k for kΔ ≤ |x| < kΔ + r, and a · b^(k+1) for kΔ + r ≤ |x| < (k + 1)Δ, where Δ is the width. A move by
    1 to Δ crosses one edge of a stair, and costs ε/keys. This is so for every r; the one chosen here, near
    Δ/(1 + e^(ε/2)), has the least expected error in the continuous form. With ``tau``, the noise is conditioned on
    |x| ≤ τ. Probabilities are ``Real`` numbers, and samples use integers only.
    """

    epsilon_micro: int
    keys: int
    width: int
    tau: int = _LARGEST
    high: int = field(init=False, repr=False, compare=False)
    """How many values of the first stair are in its higher part, r: from 1 to the width."""
    _peak: Real = field(init=False, repr=False, compare=False)
    """a without τ: the probabilities add up to 1."""
    _cut: Real = field(init=False, repr=False, compare=False)
    """The probability above τ of the noise without τ."""

    def __post_init__(self) -> None:
        if self.rate * _LARGEST < 1000 * self.width:
            raise ParameterError("the noise is so wide that it does not fit into 64 bits: ask for a larger ε")
        high, b = max(1, (self.width / (exp(self.rate / 2) + 1) + Fraction(1, 2)).floor()), exp(-self.rate)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "_peak", (1 - b) / (2 * (high + b * (self.width - high)) - (1 - b)))
        object.__setattr__(self, "_cut", Real.of(0) if self.largest is None else self.tail(self.tau + 1))

    @property
    def largest(self) -> int | None:
        return self.tau if self.tau < _LARGEST else None

    @property
    def rate(self) -> Fraction:
        """The loss of one move of one key, ε/keys."""
        return Fraction(self.epsilon_micro, _MICRO * self.keys)

    def sample(self, bits: Bits, size: int) -> NDArray[np.int64]:
        """Return samples: a stair, the part of it, a value in that part, and a sign; -0 is drawn again.

        A stair k has a probability in proportion to b^k, which is discrete Laplace noise that is not negative.
        """
        found = np.empty(0, dtype=np.int64)
        while found.size < size:
            stairs = DiscreteLaplace(epsilon_micro=self.epsilon_micro, sensitivity=self.keys)
            stair = stairs.sample(bits, 2 * (size - found.size) + 64)
            stair = stair[stair >= 0]
            high, low = self.high, self.width - self.high
            place = uniform_below_batch(bits, high, stair.size)
            if low:
                below = uniform_below_batch(bits, low, stair.size) + high
                place = np.where(bernoulli_batch(bits, high / (high + exp(-self.rate) * low), stair.size), place, below)
            x = stair * self.width + place
            negative = bernoulli_batch(bits, Fraction(1, 2), x.size)
            kept = (x <= self.tau) & ~(negative & (x == 0))
            found = np.append(found, np.where(negative, -x, x)[kept])
        return found[:size]

    def pmf(self, x: int) -> Real:
        """Return P[X = x]."""
        if abs(x) > self.tau:
            return Real.of(0)
        stair, place = divmod(abs(x), self.width)
        return self._peak * exp(-self.rate * (stair + (place >= self.high))) / (1 - 2 * self._cut)

    def cdf(self, x: int) -> Real:
        """Return P[X ≤ x]."""
        if x >= 0:
            return 1 - self.cdf(-x - 1)
        if x < -self.tau:
            return Real.of(0)
        return (self.tail(-x) - self._cut) / (1 - 2 * self._cut)

    def variance(self) -> Real:
        """Return the variance."""
        whole = self.tail(0, power=2)
        return 2 * (whole if self.largest is None else whole - self.tail(self.tau + 1, power=2)) / (1 - 2 * self._cut)

    def tail(self, start: int, power: int = 0) -> Real:
        """Return Σ i^power · P[i] over all i ≥ start ≥ 0 of the noise without τ, for a power of 0 or 2.

        What is left of the stair with ``start``, and then the series over whole stairs, of which each is b times the
        one before: Σ bⁿ = 1/(1 - b), Σ n bⁿ = b/(1 - b)², Σ n² bⁿ = b(1 + b)/(1 - b)³.
        """
        b, width = exp(-self.rate), self.width
        stair = start // width
        edge, after = stair * width + self.high, (stair + 1) * width
        rest = _power_sum(start, max(start, edge), power) + b * _power_sum(max(start, edge), after, power)

        def whole(degree: int) -> Real:
            edge = after + self.high
            return _power_sum(after, edge, degree) + b * _power_sum(edge, after + width, degree)

        more = whole(power) / (1 - b)
        if power == 2:
            more += 2 * width * whole(1) * b / ((1 - b) * (1 - b))
            more += width * width * whole(0) * b * (1 + b) / ((1 - b) * (1 - b) * (1 - b))
        return self._peak * exp(-self.rate * stair) * (rest + b * more)


def _power_sum(low: int, high: int, power: int) -> int:
    """Return Σ i^power over low ≤ i < high, for a power of 0, 1 or 2."""

    def below(n: int) -> int:
        return (n, n * (n - 1) // 2, n * (n - 1) * (2 * n - 1) // 6)[power]

    return below(high) - below(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaircaseNoise(Mechanism):
    """Staircase noise over keys known in advance: ε-DP.

    A mechanism is a frozen dataclass: its fields (here ε) are its parameters in jobs and in ledgers. It states a price
    and gives the noise for the operator's bounds. A unit that moves Λ₀ keys by a little each crosses an edge in each of
    them, so that every key gets ε/Λ₀: the staircase is good for Λ₀ = 1, and Laplace noise is better for a large Λ₀.
    A noise of ε per key would pass for one key, and the kit, which tries every move of a unit, would refuse it.
    """

    name = "discrete_staircase"
    epsilon: Epsilon

    @property
    def pure_micro(self) -> int:
        return self.epsilon.micro

    def noise(self, bounds: Sensitivity) -> Staircase:
        return Staircase(epsilon_micro=self.epsilon.micro, keys=bounds.l0, width=bounds.l1)
