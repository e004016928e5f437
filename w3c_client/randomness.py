"""The random choices of a browser: when its epochs begin, and how credit is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Protocol

from aggservice.mechanisms import Bits, uniform_below
from aggservice.wire.device import DeviceConfigError

#: A double has this many bits after the point if it is below 1.
_DOUBLE_BITS = 53


class W3cChoices(Protocol):
    """The interface for the random choices of a browser."""

    def epoch_offset_ms(self, epoch_ms: int) -> Fraction | int:
        """Return a time in [0, ``epoch_ms``)."""
        ...

    def coin(self, favourable: int, total: int) -> bool:
        """Return True with probability ``favourable`` / ``total``, exactly."""
        ...

    def fraction(self) -> float:
        """Return a double in [0, 1)."""
        ...


class RandomW3cChoices(W3cChoices):
    """Random choices, drawn from ``bits`` in the order in which a browser needs them."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        return uniform_below(self._bits, epoch_ms)

    def coin(self, favourable: int, total: int) -> bool:
        return uniform_below(self._bits, total) < favourable

    def fraction(self) -> float:
        """Draw one of the doubles k / 2^53, each equally likely."""
        return (self._bits.word() >> (64 - _DOUBLE_BITS)) / (1 << _DOUBLE_BITS)


class FixedW3cChoices(W3cChoices):
    """W3cChoices that a scenario gives: one for epochs, and a list for credit, which repeats after its last number."""

    def __init__(self, *, epoch_start: float, fractions: Sequence[float]) -> None:
        self._epoch_start = Fraction(epoch_start)
        self._fractions = tuple(fractions)
        self.used = 0

    def epoch_offset_ms(self, epoch_ms: int) -> Fraction:
        return self._epoch_start * epoch_ms

    def coin(self, favourable: int, total: int) -> bool:
        return Fraction(self.fraction()) * total < favourable

    def fraction(self) -> float:
        chosen = self._fractions[self.used % len(self._fractions)]
        self.used += 1
        return chosen


class W3cWordChoices(W3cChoices):
    """W3cChoices as ``Fleet`` makes them: a time for epochs, and one 64-bit word per coin, which ``words`` yields."""

    def __init__(self, offset_ms: int) -> None:
        self._offset_ms = offset_ms
        self.words: Iterator[int] = iter(())

    def epoch_offset_ms(self, epoch_ms: int) -> int:
        return self._offset_ms

    def coin(self, favourable: int, total: int) -> bool:
        """Return whether the next word, as a fraction of 2⁶⁴, is below ``favourable`` / ``total``."""
        return next(self.words) * total < favourable << 64

    def fraction(self) -> float:
        """Raise ``DeviceConfigError``: a fleet draws no doubles."""
        raise DeviceConfigError("W3cWordChoices has no doubles: set the configuration's arithmetic to exact")
