"""Lower bounds on ε from samples of two worlds: an event chosen on one half, confidence intervals on the other.

If a mechanism is (ε, δ)-DP then P[S] ≤ e^ε·Q[S] + δ for every event S, so ε ≥ ln((P[S] − δ)/Q[S]). Clopper and
Pearson's exact intervals bound both probabilities. The event may be chosen in any way from one half of the samples
(every second one). The other half is independent of that choice, so one interval per world is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Samples = Mapping[str, NDArray[np.int64]]
"""What an adversary computed from each trial, by name: columns of equal length."""
_CELLS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The values of one feature that lie in the chosen ``cells`` between ``edges``.

    ``in_second`` says that the second world has them more often.
    """

    feature: str
    edges: NDArray[np.int64]
    cells: NDArray[np.bool_]
    in_second: bool

    def count(self, samples: Samples) -> tuple[int, int]:
        """Return how many samples are in the event, and how many there are."""
        values = samples[self.feature]
        inside = self.cells[np.searchsorted(self.edges, values, side="right")]
        return int(np.count_nonzero(inside)), values.size


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """What the samples show: ε is at least ``epsilon``, at the δ and with the confidence asked for."""

    epsilon: float
    feature: str
    hits: tuple[int, int]
    trials: tuple[int, int]


def lower_limit(hits: int, trials: int, alpha: float) -> float:
    """Return p with P[at least ``hits`` of ``trials``] = α: a lower confidence limit (Clopper and Pearson 1934)."""
    return 0.0 if hits == 0 else float(beta.ppf(alpha, hits, trials - hits + 1))


def upper_limit(hits: int, trials: int, alpha: float) -> float:
    """Return the upper confidence limit of a probability."""
    return 1.0 if hits == trials else float(beta.isf(alpha, hits + 1, trials - hits))


def limited_epsilon(p: tuple[int, int], q: tuple[int, int], delta: float, alpha: float) -> float:
    """Return a lower bound on ε at δ from (hits, trials) of two worlds; it is wrong with probability at most α."""
    least = lower_limit(*p, alpha / 2) - delta
    return max(0.0, log(least / upper_limit(*q, alpha / 2))) if least > 0 else 0.0


def choose_event(first: Samples, second: Samples, delta: float, alpha: float) -> Event:
    """Return the event with the largest bound on these samples.

    Values are put into about 48 cells of similar weight. Candidates are half-lines, and unions of cells in descending
    order of their ratio, for every feature and in both directions. A union may overfit, so it must be better by a
    tenth.
    """
    best: tuple[float, Event] | None = None
    for feature in first:
        pooled = np.concatenate((first[feature], second[feature]))
        edges = np.unique(np.quantile(pooled, np.linspace(0, 1, _CELLS), method="inverted_cdf").astype(np.int64))
        edges = np.unique(np.concatenate((edges, edges + 1)))  # a value that is common has a cell of its own
        counts = [
            np.bincount(np.searchsorted(edges, world[feature], side="right"), minlength=edges.size + 1)
            for world in (first, second)
        ]
        for in_second in (False, True):
            p, q = counts[::-1] if in_second else counts
            rising, unions = np.arange(p.size), np.argsort(-(p + 0.5) / (q + 0.5), kind="stable")
            for order, worth in ((rising, 1.0), (rising[::-1], 1.0), (unions, 0.9)):
                hits = np.cumsum(p[order]), np.cumsum(q[order])
                for size in range(1, order.size):
                    inside = int(hits[0][size - 1]), int(hits[1][size - 1])
                    found = limited_epsilon((inside[0], int(p.sum())), (inside[1], int(q.sum())), delta, alpha)
                    if best is None or worth * found > best[0]:
                        cells = np.zeros(order.size, dtype=np.bool_)
                        cells[order[:size]] = True
                        best = worth * found, Event(feature=feature, edges=edges, cells=cells, in_second=in_second)
    assert best is not None
    return best[1]


def lower_bound(first: Samples, second: Samples, *, delta: float, alpha: float) -> LowerBound:
    """Return a lower bound on ε that is wrong with probability at most α; trials of a world must be independent."""
    even, odd = (
        [{name: values[at::2] for name, values in world.items()} for world in (first, second)] for at in (0, 1)
    )
    event = choose_event(even[0], even[1], delta, alpha)
    p, q = (event.count(world) for world in (reversed(odd) if event.in_second else odd))
    return LowerBound(
        epsilon=limited_epsilon(p, q, delta, alpha), feature=event.feature, hits=(p[0], q[0]), trials=(p[1], q[1])
    )


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the ε at δ of Gaussian noise of ρ-zCDP: μ = √(2ρ), δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).

    Balle and Wang 2018, Theorem 8; at the scales of a summary discrete noise has the same curve.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    mu = (2 * rho) ** 0.5

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 100.0))
