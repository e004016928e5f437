"""Quantiles from a noisy histogram: which bucket holds the p-quantile, with an interval of buckets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.intervals import LAPLACE_EXCESS, deviations, half_widths
from aggservice.campaign.estimates.ratios import Interval

Floats = NDArray[np.float64]


def quantile(counts: Floats, variances: Floats, p: float, *, level: float = 0.95) -> Interval:
    """Return the bucket of the p-quantile as an index, with an interval of buckets that holds it.

    The bucket b is the first with (1 − p)·(counts up to b) ≥ p·(counts above b). The law of that difference is known
    for every b; b is in the interval unless the difference at b is below, or that at b − 1 above, what noise explains,
    at half the error each (Bonferroni). The interval does not apply if the total is not above its noise.
    """
    if not (counts.shape == variances.shape and counts.ndim == 1 and counts.size):
        raise CampaignError("a histogram needs one count and one variance per bucket")
    if not (0 < p < 1 and np.all(variances >= 0) and np.all(np.isfinite(variances))):
        raise CampaignError("a quantile needs p between 0 and 1, and finite variances of 0 or more")
    total, spread = counts.sum(), variances.sum()
    fourth = LAPLACE_EXCESS * (variances**2).sum()
    if not total > (spread**0.5 * deviations(fourth / spread**2, level) if spread else 0.0):
        return Interval(estimate=np.nan, low=-np.inf, high=np.inf, level=level, applies=False)

    def both(column: Floats, power: int) -> Floats:
        """Return (1 − p)^power · (sum up to b) + p^power · (sum above b)."""
        up = np.cumsum(column)
        return (1 - p) ** power * up + p**power * (up[-1] - up)

    up = np.cumsum(counts)
    off = (1 - p) * up - p * (total - up)
    # One-sided tests at half the error each: the two-sided width of the same level is what each of them needs.
    width = np.zeros(counts.size)
    known = both(variances, 2)
    noisy = known > 0
    width[noisy] = half_widths(known[noisy], LAPLACE_EXCESS * both(variances**2, 4)[noisy], level)
    reached = off >= -width
    before = np.concatenate(([True], off[:-1] <= width[:-1]))
    inside = np.flatnonzero(reached & before)
    found = int(np.argmax(off >= 0))
    low, high = (int(inside[0]), int(inside[-1])) if inside.size else (found, found)
    return Interval(estimate=float(found), low=float(low), high=float(high), level=level)
