"""How a batch sampler turns random words into samples: a fast kernel, and its plain twin where the kernel stops.

A kernel reads words and writes samples until the output is full, the words run out, or it meets a word that ties
with the first 64 bits of a threshold. It never consumes words of a sample it did not finish. A tie, met about once
in 2^60 draws, is settled by the twin, which reads as many further words as it takes; so the pair is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.reals import Real

#: Why a kernel stopped.
FULL, EXHAUSTED, TIE = 0, 1, 2

#: Words drawn at a time: small enough to stay in a core's second-level cache.
CHUNK_WORDS = 1 << 15

#: The sample where a kernel stopped, the words it used, and why it stopped.
Progress = tuple[int, int, int]

Scalar = TypeVar("Scalar", bound=np.generic)


class Tape:
    """Words to read one after the other: first those at hand, then fresh ones from ``bits``."""

    def __init__(self, bits: Bits, at_hand: NDArray[np.uint64] | None = None) -> None:
        self._bits = bits
        self._at_hand = at_hand
        self.used = 0

    def word(self) -> int:
        """Return the next word."""
        if self._at_hand is not None and self.used < self._at_hand.size:
            word = int(self._at_hand[self.used])
        else:
            word = self._bits.word()
        self.used += 1
        return word


def fill(
    bits: Bits,
    out: NDArray[Scalar],
    kernel: Callable[[NDArray[np.uint64], NDArray[Scalar]], Progress],
    twin: Callable[[Tape], int],
    words_each: float,
) -> None:
    """Fill ``out`` by running ``kernel`` over chunks of words, and ``twin`` where it says TIE.

    Words that a kernel was given but did not use are kept for the next sample: dropping words that were looked at
    would bias the distribution. ``words_each`` is how many words a sample takes on average.
    """
    left: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
    done = 0
    while done < out.size:
        wanted = int((out.size - done) * words_each) + 64
        fresh = bits.words(min(wanted, CHUNK_WORDS))
        words = np.concatenate((left, fresh)) if left.size else fresh
        start = 0
        while done < out.size:
            made, used, why = kernel(words[start:], out[done:])
            done += made
            start += used
            if why != TIE:
                break
            tape = Tape(bits, words[start:])
            out[done] = twin(tape)
            done += 1
            start = min(start + tape.used, words.size)
        left = words[start:]


def below(tape: Tape, value: int, width: int, threshold: Real) -> bool:
    """Return whether U < threshold, where U is uniform on [0, 1) and ``value`` holds its first ``width`` bits.

    The result is exact. While the known bits of U are also the first bits of the threshold, it reads another word from
    ``tape``, and never more words than a kernel with an exact table.
    """
    while True:
        low, high = threshold.bounds(width)
        if low != high:
            low = threshold.floor(width)
            high = low + 1
        if value + 1 <= low:
            return True
        if value >= high:
            return False
        value = (value << 64) | tape.word()
        width += 64
