"""The exact local privacy of a finite mechanism, by its whole matrix of probabilities."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import ParameterError


def channel_epsilon(channel: ArrayLike) -> float:
    """Return the exact local privacy of a finite mechanism, a row of output probabilities an input.

    >>> round(channel_epsilon([[0.75, 0.25], [0.25, 0.75]]), 12) == round(math.log(3), 12)
    True
    """
    rows: NDArray[np.float64] = np.asarray(channel, dtype=np.float64)
    if (
        rows.ndim != 2
        or not rows.size
        or not (rows >= 0).all()
        or not np.allclose(rows.sum(axis=1), 1, rtol=0, atol=1e-9)
    ):
        raise ParameterError("a channel is a matrix with a row of probabilities that add up to one for each input")
    highest = rows.max(axis=0)
    lowest = rows.min(axis=0)
    reached = highest > 0
    if (lowest[reached] == 0).any():
        return math.inf
    if lowest[reached].min() < 1e-300:  # the ratio may leave the range of floats; its logarithm does not
        return float((np.log(highest[reached]) - np.log(lowest[reached])).max())
    return float(np.log(highest[reached] / lowest[reached]).max())
