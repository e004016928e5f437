"""The law of a sum of independent noises, for slices that add up several keys: exact for discrete Laplace noise.

A discrete Laplace variable is the difference of two geometric ones. Write U and V for their generating functions in z
and 1/z, r = e^-a, p = r/(1 + r) and q = 1/(1 + r). Then U·V = p·z·U + q·V. Applied to Uⁿ·Vⁿ until one factor is used
up, this makes the sum of n noises a mixture of shifted negative binomial variables with positive weights, so that
nothing cancels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc, gammaln, ndtr

from aggservice.mechanisms import DiscreteLaplace, NoiseLaw

Floats = NDArray[np.float64]

_NEGLIGIBLE = 1e-19
_CELLS = 1 << 20
"""How many values of the incomplete beta function are computed at once."""


def chance_between(noise: NoiseLaw, terms: int, low: Floats, high: Floats) -> Floats:
    """Return P[low ≤ S ≤ high] for the sum S of ``terms`` noises; 0 if high < low. The ends are whole, or infinite.

    Errors are below 1e-12 for discrete Laplace noise, and for one noise of any law. The sum of several others is taken
    as normal.

    >>> law = DiscreteLaplace(epsilon="0.5", sensitivity=1)
    >>> chance_between(law, 1, np.array([0.0]), np.array([0.0])).round(6).tolist()    # tanh(rate / 2)
    [0.244919]
    """
    if isinstance(noise, DiscreteLaplace):
        rate = float(noise.rate)
        found = _cdf(rate, terms, high) - _cdf(rate, terms, low - 1)
    elif terms == 1:
        found = _exact_cdf(noise, high) - _exact_cdf(noise, low - 1)
    else:
        deviation = np.sqrt(terms * float(noise.variance()))
        found = ndtr((high + 0.5) / deviation) - ndtr((low - 0.5) / deviation)
    return np.where(high < low, 0.0, np.clip(found, 0.0, 1.0))


def _exact_cdf(noise: NoiseLaw, x: Floats) -> Floats:
    """Return P[X ≤ x] of one noise, by its own law."""
    ends = {-np.inf: 0.0, np.inf: 1.0}
    return np.array([ends[one] if one in ends else float(noise.cdf(int(one))) for one in x.tolist()])


def _cdf(rate: float, terms: int, x: Floats) -> Floats:
    """Return P[S ≤ x]; S is symmetric."""
    beyond = _beyond(rate, terms, np.where(x >= 0, x, -x - 1))
    return np.where(x >= 0, 1 - beyond, beyond)


def _beyond(rate: float, terms: int, x: Floats) -> Floats:
    """Return P[S > x] for x ≥ 0."""
    r = np.exp(-rate)
    if terms == 1:
        return np.asarray(np.exp(-rate * (x + 1)) / (1 + r), dtype=np.float64)
    left = np.arange(1.0, terms + 1)  # factors that are left when those of the other side are used up
    paths = gammaln(2 * terms - left) - gammaln(terms) - gammaln(terms - left + 1) - (2 * terms - left) * np.log1p(r)
    above, below = np.exp(paths - terms * rate), np.exp(paths - (terms - left) * rate)
    kept = np.maximum(above, below) > _NEGLIGIBLE
    left, above, below = left[kept], above[kept], below[kept]
    success = -np.expm1(-rate)
    found = np.empty(x.size)
    step = max(1, _CELLS // left.size)
    for start in range(0, x.size, step):
        part = x[start : start + step, None]
        up = np.where(part < terms, 1.0, betaincc(left, np.maximum(part - terms + 1, 1), success))
        found[start : start + step] = up @ above  # terms + NB(left) > x
        if (part < terms - 1).any():  # (terms − left) − NB(left) > x
            room = terms - left - part
            down = np.where(room < 1, 0.0, betainc(left, np.maximum(room, 1), success))
            found[start : start + step] += down @ below
    return found
