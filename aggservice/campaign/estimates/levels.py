"""The budget of a hierarchy divided over its levels: exact variances of regular trees, and the best shares.

A level with a share p of ε (or of Λ₁) has noise of variance 2·(Λ₁/(p·ε))²; here in units of (Λ₁/ε)².
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

from aggservice.campaign.errors import CampaignError

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


def sums_of_leaves(branching: Sequence[int]) -> list[float]:
    """Return the variance of each level if only the leaves are asked for, with all of ε, and added up."""
    return level_variances(branching, [0.0] * len(branching) + [1.0])


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
