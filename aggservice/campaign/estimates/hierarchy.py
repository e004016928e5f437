"""Least squares over a hierarchy of noisy sums, in linear time: children add up to their parent, with exact variances.

The consistent estimates of Dawson et al. ("Optimizing Hierarchical Queries for the Attribution Reporting API", 2023)
for any tree, unequal noise and missing nodes. One pass from the leaves combines each node with its children, one pass
from the root gives each child its share of what its parent knows. Every estimate is the best linear unbiased one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.ratios import half_widths

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """A forest whose nodes are in order of depth: the children of node v are ``first[v]`` to ``first[v + 1]`` − 1.

    The first ``roots`` nodes have no parent.
    """

    first: NDArray[np.int32]
    roots: int = 1

    def __post_init__(self) -> None:
        first = self.first
        if not (1 <= self.roots < first.size and first[0] == self.roots and first[-1] == first.size - 1):
            raise CampaignError("the nodes of a tree must be in order of depth, roots first, siblings together")
        if not (np.all(first[1:] >= first[:-1]) and np.all(first[:-1] > np.arange(first.size - 1))):
            raise CampaignError("the nodes of a tree must be in order of depth, roots first, siblings together")

    def __len__(self) -> int:
        return self.first.size - 1

    @classmethod
    def regular(cls, branching: Sequence[int], roots: int = 1) -> Tree:
        """Return the tree whose nodes at depth d have ``branching[d]`` children each."""
        sizes, counts = [roots], []
        for children in branching:
            counts.append(np.full(sizes[-1], children, dtype=np.int64))
            sizes.append(sizes[-1] * children)
        counts.append(np.zeros(sizes[-1], dtype=np.int64))
        return cls.of_counts(np.concatenate(counts), roots)

    @classmethod
    def of_counts(cls, children: Ints, roots: int = 1) -> Tree:
        """Return the tree whose node v has ``children[v]`` children; nodes are in order of depth."""
        ends = roots + np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(children)))
        return cls(first=ends.astype(np.int32), roots=roots)

    @classmethod
    def of_parents(cls, parent: Ints) -> Tree:
        """Return the tree of each node's parent, −1 for a root; parents are in ascending order, roots first."""
        roots = int(np.count_nonzero(parent < 0))
        if not (np.all(parent[:roots] < 0) and np.all(np.diff(parent[roots:]) >= 0)):
            raise CampaignError("parents must be in ascending order, with the roots first")
        return cls.of_counts(np.bincount(parent[roots:], minlength=parent.size), roots)

    @property
    def parent(self) -> Ints:
        """The parent of each node; −1 for a root."""
        above = np.repeat(np.arange(len(self)), np.diff(self.first))
        return np.concatenate((np.full(self.roots, -1, dtype=np.int64), above))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeEstimate:
    """Consistent estimates of all nodes, their exact variances, and the half-widths of their intervals.

    A node that nothing determines (it and too many of its relatives are missing) has a NaN and an infinite variance.
    """

    values: Floats
    variances: Floats
    half_widths: Floats


def least_squares(
    tree: Tree, values: Floats, variances: Floats, *, excess: float = 3.0, level: float = 0.95
) -> TreeEstimate:
    """Return the consistent estimates of noisy node values with independent noise of these variances.

    A missing node has an infinite variance; its value is ignored. ``excess`` is the excess kurtosis of the noise (3 for
    Laplace noise, 0 for Gaussian), from which the intervals of sums and shares of noises follow.
    """
    size = len(tree)
    if not (values.shape == variances.shape == (size,)):
        raise CampaignError(f"the tree has {size:,} nodes: give one value and one variance each")
    if not np.all(variances > 0):
        raise CampaignError("a variance is not above 0: give the variance of the noise, or infinity for a missing node")
    out, spread = np.empty(size), np.empty(size)
    solve(tree.first, tree.roots, values, variances, out, spread)
    fourth = np.empty(size)
    fourth_cumulants(tree.first, tree.roots, variances, excess, fourth)
    return TreeEstimate(values=out, variances=spread, half_widths=half_widths(spread, fourth, level))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def solve(first, roots, values, variances, out, spread):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Write estimates and variances of all nodes: O(n), each leaf read twice and written once.

    From the leaves up, ``out`` and ``spread`` of inner nodes hold the best estimate from the node and its descendants,
    and ``sums`` and ``spreads`` those of their children together. Siblings that are all leaves take the fast loops.
    """
    size = first.size - 1
    inner = size
    while inner > 0 and first[inner - 1] == first[inner]:
        inner -= 1
    sums, spreads = np.empty(inner), np.empty(inner)
    for v in range(inner - 1, -1, -1):
        start, stop = first[v], first[v + 1]
        if start == stop:
            out[v], spread[v] = values[v], variances[v]
            continue
        total, of_total = 0.0, 0.0
        if start >= inner:
            for c in range(start, stop):
                total += values[c]
                of_total += variances[c]
        else:
            for c in range(start, stop):
                if c >= inner:
                    total += values[c]
                    of_total += variances[c]
                else:
                    total += out[c]
                    of_total += spread[c]
        sums[v], spreads[v] = total, of_total
        own = variances[v]
        if of_total == np.inf:
            out[v], spread[v] = values[v], own
        elif own == np.inf:
            out[v], spread[v] = total, of_total
        else:
            both = own + of_total
            out[v] = (values[v] * of_total + total * own) / both
            spread[v] = own * of_total / both
    for v in range(inner, roots):
        out[v], spread[v] = values[v], variances[v]
    for v in range(roots):
        if spread[v] == np.inf:
            out[v] = np.nan
    for v in range(inner):
        start, stop = first[v], first[v + 1]
        of_total = spreads[v]
        if start == stop:
            continue
        if of_total == np.inf:
            _share_with_missing(start, stop, inner, values, variances, out, spread, v)
            continue
        share = (out[v] - sums[v]) / of_total
        less = (of_total - spread[v]) / (of_total * of_total)
        for c in range(start, min(stop, inner)):
            s = spread[c]
            out[c] += s * share
            spread[c] = s - s * s * less
        for c in range(max(start, inner), stop):
            s = variances[c]
            out[c] = values[c] + s * share
            spread[c] = s - s * s * less


@njit(cache=True, nogil=True)
def _share_with_missing(start, stop, inner, values, variances, out, spread, v):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Estimate a single missing child as its parent less its siblings; leave several missing children unknown."""
    missing, known, of_known = 0, 0.0, 0.0
    for c in range(start, stop):
        if c >= inner:
            out[c], spread[c] = values[c], variances[c]
        if spread[c] == np.inf:
            missing += 1
        else:
            known += out[c]
            of_known += spread[c]
    for c in range(start, stop):
        if spread[c] == np.inf:
            if missing == 1 and spread[v] < np.inf:
                out[c], spread[c] = out[v] - known, spread[v] + of_known
            else:
                out[c] = np.nan


@njit(cache=True, nogil=True)
def fourth_cumulants(first, roots, variances, excess, out):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Write the fourth cumulant of every estimate, for independent noises of one excess kurtosis: O(n).

    The estimate of v is α·(what its subtree says) + something independent of the subtree, so cumulants add up.
    """
    size = first.size - 1
    below, under = np.empty(size), np.empty(size)
    for v in range(size - 1, -1, -1):
        start, stop = first[v], first[v + 1]
        own = variances[v]
        if start == stop:
            below[v] = own
            under[v] = 0.0 if own == np.inf else excess * own * own
            continue
        of_total, cumulant = 0.0, 0.0
        for c in range(start, stop):
            of_total += below[c]
            cumulant += under[c]
        if of_total == np.inf:
            below[v] = own
            under[v] = 0.0 if own == np.inf else excess * own * own
        elif own == np.inf:
            below[v], under[v] = of_total, cumulant
        else:
            a, b = of_total / (own + of_total), own / (own + of_total)
            below[v] = own * of_total / (own + of_total)
            under[v] = (a * a) ** 2 * excess * own * own + (b * b) ** 2 * cumulant
    alpha, rest = np.ones(size), np.zeros(size)
    for v in range(size):
        out[v] = (alpha[v] * alpha[v]) ** 2 * under[v] + rest[v]
        start, stop = first[v], first[v + 1]
        if start == stop:
            continue
        of_total, cumulant, missing = 0.0, 0.0, 0
        for c in range(start, stop):
            if below[c] == np.inf:
                missing += 1
            else:
                of_total += below[c]
                cumulant += under[c]
        if missing:
            for c in range(start, stop):
                alpha[c], rest[c] = 1.0, 0.0
                if below[c] == np.inf:
                    # Its estimate is its parent's less its siblings', which are independent of it.
                    alpha[c] = 0.0
                    rest[c] = out[v] + cumulant
            continue
        own = variances[v]
        of_own = 0.0 if own == np.inf else below[v] / own
        kept = alpha[v] * below[v] / of_total - 1.0
        from_own = 0.0 if own == np.inf else (alpha[v] * of_own) ** 2 * (alpha[v] * of_own) ** 2 * excess * own * own
        for c in range(start, stop):
            g = below[c] / of_total
            alpha[c] = 1.0 + g * kept
            rest[c] = (g * g) ** 2 * ((kept * kept) ** 2 * (cumulant - under[c]) + from_own + rest[v])


def without_negatives(tree: Tree, estimate: TreeEstimate) -> Floats:
    """Return estimates without negative values that still add up: a separate step, because it adds bias.

    From the roots down, negative children become 0 and the others share what is left in proportion to their size. The
    intervals of ``estimate`` do not hold for the result.
    """
    out = np.maximum(estimate.values, 0.0)
    first = tree.first
    for v in np.flatnonzero(np.diff(first)).tolist():
        children = out[first[v] : first[v + 1]]
        total = children.sum()
        if total > 0:
            children *= out[v] / total
        else:
            children[:] = out[v] / children.size
    return out


_STEPS = (4.0, 2.0, 1.3, 1.1, 1.03, 1.01, 1.003, 1.001)


def level_variances(branching: Sequence[int], shares: Sequence[float]) -> list[float]:
    """Return the exact variance of the least-squares estimate of a node of each level, from the root to the leaves.

    ``branching[d]`` is the number of children of a node at depth d; a share of 0 means that a level is not asked for.
    Takes O(depth), because all nodes of a level have the same variance.
    """
    if len(shares) != len(branching) + 1 or not all(0 <= one <= 1 for one in shares) or not shares[-1] > 0:
        raise CampaignError("the shares do not fit the levels: give one from 0 to 1 per level, above 0 for the leaves")
    own = [2 / share**2 if share else float("inf") for share in shares]
    below = own[:]
    for depth in range(len(branching) - 1, -1, -1):
        children = branching[depth] * below[depth + 1]
        below[depth] = children if own[depth] == float("inf") else own[depth] * children / (own[depth] + children)
    found = [below[0]]
    for depth, count in enumerate(branching):
        # A child takes its part of what its parent knows beyond the children (see ``hierarchy.solve``).
        found.append(below[depth + 1] - (count * below[depth + 1] - found[depth]) / count**2)
    return found


def separate_shares(weights: Sequence[float]) -> list[float]:
    """Return the shares that minimise the weighted variance of levels that are not combined: cube roots of weights."""
    roots = [weight ** (1 / 3) for weight in weights]
    return [root / sum(roots) for root in roots]


def best_shares(branching: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return shares that minimise the sum of weight · variance over levels after least squares.

    Coordinate searches in steps from large to small, from uniform shares and from one or two levels with the leaves.
    """
    if len(weights) != len(branching) + 1 or not all(weight >= 0 for weight in weights) or not sum(weights) > 0:
        raise CampaignError("the weights do not fit the levels: give one of 0 or more per level, not all of them 0")

    def error(parts: list[float]) -> float:
        whole = sum(parts)
        variances = level_variances(branching, [part / whole for part in parts])
        return sum(weight * variance for weight, variance in zip(weights, variances, strict=True))

    def search(parts: list[float]) -> tuple[float, list[float]]:
        least = error(parts)
        for step in _STEPS:
            improved = True
            while improved:
                improved = False
                for place in range(len(parts)):
                    for value in (parts[place] * step, parts[place] / step, sum(parts) / len(parts)):
                        trial = [*parts[:place], value, *parts[place + 1 :]]
                        if value > 0 and (found := error(trial)) < least * (1 - 1e-9):
                            parts, least, improved = trial, found, True
        return least, parts

    levels = len(weights)
    # The error has several minima: a level with almost no share keeps it. So start also with some levels left out.
    starts = [[1.0] * levels]
    for asked in chain(combinations(range(levels - 1), 1), combinations(range(levels - 1), 2)):
        starts.append([1.0 if place in asked or place == levels - 1 else 0.0 for place in range(levels)])
    _, best = min(search(parts) for parts in starts)
    return [part / sum(best) for part in best]
