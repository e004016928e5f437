"""The random draws of a client: coins of exact bias, uniform integers, and words.

Clients draw only through this interface, so that the same client code runs on random bits in production and along
every branch in ``ldp_client.privacy.enumeration``, which computes its exact output distribution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli, bernoulli_batch, uniform_below, uniform_below_batch


class Draws:
    """Exact draws from ``bits``, without floats between a probability and an outcome."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def coin(self, p: Real) -> bool:
        """Return True with probability p."""
        return bernoulli(self._bits, p)

    def below(self, n: int) -> int:
        """Return a uniform integer in [0, n)."""
        return uniform_below(self._bits, n)

    def word(self) -> int:
        """Return 64 uniform bits."""
        return self._bits.word()


def randomized_value(draws: Draws, value: int, size: int, keep: Real) -> int:
    """Return ``value`` with probability ``keep``, else one of the other ``size`` − 1 values uniformly (GRR)."""
    if draws.coin(keep):
        return value
    other = draws.below(size - 1)
    return other + (other >= value)


def randomized_values(bits: Bits, values: NDArray[np.int64], size: int, keep: Real) -> NDArray[np.int64]:
    """Return an independent ``randomized_value`` for each of ``values``."""
    kept = bernoulli_batch(bits, keep, values.size)
    others = uniform_below_batch(bits, size - 1, values.size)
    return np.where(kept, values, others + (others >= values))
