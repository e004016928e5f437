"""Real numbers with bounds of any requested precision, in integer arithmetic.

Noise may not depend on a rounded probability. A ``Real`` is a number such as e^-x for rational x, or a quotient of
sums of those. It gives integer bounds as close as the caller wants; a sampler compares a uniform number with it bit
by bit and never rounds. Nothing here is a float except what ``float()`` returns, for display.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from aggservice.mechanisms.errors import ParameterError

#: Numbers that agree to this many bits are not compared further: the formula is probably wrong.
MAX_PRECISION = 1 << 13

Bounds = tuple[int, int]


class Real:
    """A real number x: ``bounds(p)`` gives integers lo ≤ x·2^p ≤ hi, closer for larger p.

    >>> round(float(exp(Fraction(-1, 2)) + 1), 6)
    1.606531
    """

    __slots__ = ("_compute", "_known")

    def __init__(self, compute: Callable[[int], Bounds]) -> None:
        self._compute = compute
        self._known: dict[int, Bounds] = {}

    @staticmethod
    def of(value: Real | Fraction | int) -> Real:
        """Return ``value`` as a Real; rational numbers are exact."""
        if isinstance(value, Real):
            return value
        exact = Fraction(value)

        def compute(precision: int) -> Bounds:
            scaled = exact.numerator << precision
            return scaled // exact.denominator, -(-scaled // exact.denominator)

        return Real(compute)

    def bounds(self, precision: int) -> Bounds:
        """Return integers (lo, hi) with lo ≤ x·2^precision ≤ hi."""
        found = self._known.get(precision)
        if found is None:
            found = self._known[precision] = self._compute(precision)
        return found

    def __add__(self, other: Real | Fraction | int) -> Real:
        right = Real.of(other)

        def compute(precision: int) -> Bounds:
            (a, b), (c, d) = self.bounds(precision), right.bounds(precision)
            return a + c, b + d

        return Real(compute)

    def __neg__(self) -> Real:
        def compute(precision: int) -> Bounds:
            low, high = self.bounds(precision)
            return -high, -low

        return Real(compute)

    def __sub__(self, other: Real | Fraction | int) -> Real:
        return self + -Real.of(other)

    def __mul__(self, other: Real | Fraction | int) -> Real:
        right = Real.of(other)

        def compute(precision: int) -> Bounds:
            (a, b), (c, d) = self.bounds(precision), right.bounds(precision)
            corners = (a * c, a * d, b * c, b * d)
            return min(corners) >> precision, -(-max(corners) >> precision)

        return Real(compute)

    def __truediv__(self, other: Real | Fraction | int) -> Real:
        right = Real.of(other)

        def compute(precision: int) -> Bounds:
            working = precision
            while True:
                (a, b), (c, d) = self.bounds(working), right.bounds(working)
                if c > 0 or d < 0:
                    break
                if working > MAX_PRECISION:
                    raise ParameterError("the divisor is too close to 0 to divide by it: check the formula")
                working *= 2
            low = min((n << precision) // m for n in (a, b) for m in (c, d))
            high = max(-((-n << precision) // m) for n in (a, b) for m in (c, d))
            return low, high

        return Real(compute)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Real | Fraction | int) -> Real:
        return -self + other

    def __rtruediv__(self, other: Real | Fraction | int) -> Real:
        return Real.of(other) / self

    def compare(self, other: Real | Fraction | int) -> int:
        """Return -1, 0 or 1 for less than, equal to or greater than ``other``.

        Equal numbers give 0 if they are whole multiples of some 2^-p. Others raise ``ParameterError``.
        """
        right = Real.of(other)
        precision = 64
        while precision <= MAX_PRECISION:
            (a, b), (c, d) = self.bounds(precision), right.bounds(precision)
            if b < c:
                return -1
            if a > d:
                return 1
            if a == b == c == d:
                return 0
            precision *= 2
        raise ParameterError(f"two numbers agree to {MAX_PRECISION} bits and cannot be compared: check the formula")

    def __ge__(self, other: Real | Fraction | int) -> bool:
        return self.compare(other) >= 0

    def floor(self, precision: int = 0) -> int:
        """Return ⌊x·2^precision⌋ exactly."""
        working = precision + 32
        while working <= MAX_PRECISION:
            low, high = (bound >> (working - precision) for bound in self.bounds(working))
            if low == high:
                return low
            working *= 2
        raise ParameterError("a number is too close to an integer to round it down: check the formula")

    def __float__(self) -> float:
        """Return x within one unit in the last place."""
        precision = 96
        while True:
            low, high = self.bounds(precision)
            if (high - low) << 60 <= abs(low) + abs(high) or precision > MAX_PRECISION:
                return float(Fraction(low + high, 1 << (precision + 1)))
            precision *= 2


def exp(exponent: Fraction | int) -> Real:
    """Return e^exponent for a rational exponent.

    For x ≤ 0: halve s times until |x|/2^s ≤ ½, sum the series in fixed point with its rounding counted, and square
    s times with outward rounding. For x > 0: the reciprocal of e^-x.
    """
    exact = Fraction(exponent)
    if exact == 0:
        return Real.of(1)
    if exact > 0:
        inverse = exp(-exact)
        extra = 2 * int(exact * 3 / 2) + 8

        def reciprocal(precision: int) -> Bounds:
            working = precision + extra
            low, high = inverse.bounds(working)
            unit = 1 << (precision + working)
            return unit // high, -(-unit // max(low, 1))

        return Real(reciprocal)

    def compute(precision: int) -> Bounds:
        return _exp_negative(-exact, precision)

    return Real(compute)


def _exp_negative(x: Fraction, precision: int) -> Bounds:
    """Return integer bounds of e^-x·2^precision for x > 0, at most a few units apart."""
    halvings = max(0, (2 * x.numerator // x.denominator).bit_length())
    working = precision + halvings + 24
    step = (x.numerator << working) // (x.denominator << halvings)
    total = term = 1 << working
    index = 0
    while term:
        index += 1
        term = ((term * step) >> working) // index
        total += -term if index & 1 else term
    # Each term is short by at most 2, the remainder is below the last term, and `step` is short by at most 1.
    slack = 2 * index + 4
    low, high = total - slack, total + slack
    for _ in range(halvings):
        low, high = (low * low) >> working, -(-(high * high) >> working)
    drop = working - precision
    return max(low >> drop, 0), -(-high >> drop)
