"""k-ary randomized response: tell the truth or a uniform lie, exactly.

With probability k/(e^ε + k - 1) the answer is drawn uniformly from all k values (the truth among them), else it is
the truth; so the truth has e^ε times the probability of any other answer. This is the form of Algorithms 8 and 9 of
the Privacy Sandbox paper and of the browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms.bernoulli import threshold_word, uniform_twin
from aggservice.mechanisms.bits import Bits
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.reals import Real, exp
from aggservice.mechanisms.words import EXHAUSTED, FULL, TIE, Progress, Tape, below, fill

MICRO = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """Randomized response over k values for ε = epsilon_micro·10⁻⁶.

    >>> float(RandomizedResponse(k=2925, epsilon_micro=14_000_000).rate)
    0.0024263221679834087
    """

    k: int
    epsilon_micro: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 1 <= self.k <= 1 << 62:
            raise ParameterError(f"the number of values must lie in [1, 2^62], not {self.k!r}")
        if not isinstance(self.epsilon_micro, int) or not 0 <= self.epsilon_micro <= 1000 * MICRO:
            raise ParameterError(f"ε in 10⁻⁶ must lie in [0, 10⁹], not {self.epsilon_micro!r}")

    @property
    def rate(self) -> Real:
        """Return the probability of a uniform answer, k/(e^ε + k - 1)."""
        return Real.of(self.k) / (exp(Fraction(self.epsilon_micro, MICRO)) + (self.k - 1))

    def pmf(self, answer: int, truth: int) -> Real:
        """Return the probability of ``answer`` when the truth is ``truth``."""
        each = self.rate / self.k
        return 1 - self.rate + each if answer == truth else each

    def variance(self) -> Real:
        """Return the variance of the unbiased count of one value that nobody holds, a user: q(1-q)/(p-q)²."""
        lie = self.rate / self.k
        keep = 1 - self.rate
        return lie * (1 - lie) / (keep * keep)

    def respond(self, bits: Bits, truths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one answer for each truth in [0, k)."""
        if truths.size and not (int(truths.min()) >= 0 and int(truths.max()) < self.k):
            raise ParameterError(f"every value must lie in [0, {self.k})")
        if self.k == 1:
            return truths.copy()
        # The draws do not depend on the truths: -1 stands for the truth, so that kernel and twin share one form.
        out = np.empty(truths.size, dtype=np.int64)
        rate = self.rate
        certain = self.epsilon_micro == 0
        threshold = np.uint64(0) if certain else threshold_word(rate)
        mask = np.uint64((1 << (self.k - 1).bit_length()) - 1)

        def kernel(words: NDArray[np.uint64], into: NDArray[np.int64]) -> Progress:
            return response_kernel(words, threshold, certain, np.uint64(self.k - 1), mask, into)

        fill(bits, out, kernel, lambda tape: response_twin(tape, rate, self.k), 1 + 2 * float(rate))
        return np.where(out < 0, truths, out)


def response_twin(tape: Tape, rate: Real, k: int) -> int:
    """Return -1 for the truth, or a uniform value: one word decides, the following ones choose."""
    return uniform_twin(tape, k) if below(tape, tape.word(), 64, rate) else -1


@njit(cache=True)
def response_kernel(
    words: NDArray[np.uint64],
    threshold: np.uint64,
    certain: bool,
    largest: np.uint64,
    mask: np.uint64,
    out: NDArray[np.int64],
) -> Progress:  # pragma: no cover - compiled
    """Write -1 (the truth) or a uniform value of [0, largest]; ``certain`` means that every answer is uniform."""
    made = 0
    used = 0
    while made < out.size:
        at = used
        if at >= words.size:
            return made, used, EXHAUSTED
        word = words[at]
        at += 1
        if not certain and word == threshold:
            return made, used, TIE
        if certain or word < threshold:
            while True:
                if at >= words.size:
                    return made, used, EXHAUSTED
                value = words[at] & mask
                at += 1
                if value <= largest:
                    break
            out[made] = np.int64(value)
        else:
            out[made] = -1
        made += 1
        used = at
    return made, used, FULL
