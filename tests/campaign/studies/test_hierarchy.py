"""Least squares over hierarchies: equal to the dense solution, exact variances, intervals that cover."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aggservice.campaign.errors import CampaignError
from aggservice.campaign.estimates.hierarchy import (
    Tree,
    best_shares,
    least_squares,
    level_variances,
    separate_shares,
    without_negatives,
)
from aggservice.mechanisms import DiscreteLaplace, SecureBits

Floats = NDArray[np.float64]


def random_tree(draws: np.random.Generator) -> Tree:
    """Return a random forest of up to 40 nodes, with single children and leaves at every depth."""
    roots = int(draws.integers(1, 3))
    level, counts = roots, []
    total = roots
    while level and total < 40:
        children = draws.integers(0, 4, level)
        counts.append(children)
        level = int(children.sum())
        total += level
    counts.append(np.zeros(level, dtype=np.int64))
    return Tree.of_counts(np.concatenate(counts), roots)


def leaves_below(tree: Tree) -> Floats:
    """Return the matrix of which leaf is below which node."""
    leaves = np.flatnonzero(np.diff(tree.first) == 0)
    below = np.zeros((len(tree), leaves.size))
    below[leaves, np.arange(leaves.size)] = 1
    parent = tree.parent
    for v in range(len(tree) - 1, tree.roots - 1, -1):
        below[parent[v]] += below[v]
    return below


def dense(tree: Tree, values: Floats, variances: Floats) -> tuple[Floats, Floats, Floats]:
    """Return estimates, variances and fourth cumulants (of Laplace noise) by weighted least squares over the leaves.

    A node that the observed ones do not determine has an infinite variance.
    """
    below = leaves_below(tree)
    seen = np.isfinite(variances)
    weights = 1 / np.sqrt(variances[seen])
    inverse = np.linalg.pinv(below[seen] * weights[:, None], rcond=1e-10) * weights
    by_value = below @ inverse  # the weight of each observed value in each node's estimate
    known = np.abs(below @ inverse @ below[seen] - below).max(axis=1, initial=0.0) < 1e-7
    spread = np.where(known, by_value**2 @ variances[seen], np.inf)
    fourth = by_value**4 @ (3 * variances[seen] ** 2)
    return np.where(known, by_value @ values[seen], np.nan), spread, fourth


def test_equals_the_dense_solution_on_a_thousand_trees() -> None:
    draws = np.random.default_rng(19)
    sizes, undetermined = [], 0
    for number in range(1000):
        tree = random_tree(draws)
        values = draws.normal(0, 100, len(tree))
        variances = np.exp(draws.normal(0, 1.5, len(tree)))
        variances[draws.random(len(tree)) < (0.0, 0.1, 0.4)[number % 3]] = np.inf
        values[np.isinf(variances)] = np.nan if number % 2 else 1e300
        found = least_squares(tree, values, variances)
        expected, spread, fourth = dense(tree, values, variances)
        known = np.isfinite(spread)
        assert np.array_equal(known, np.isfinite(found.variances)) and np.array_equal(known, ~np.isnan(found.values))
        np.testing.assert_allclose(found.values[known], expected[known], rtol=1e-9, atol=1e-9 * 100)
        np.testing.assert_allclose(found.variances[known], spread[known], rtol=1e-9)
        u = 1.959963984540054
        width = np.sqrt(spread[known]) * (u + (u**3 - 3 * u) * fourth[known] / spread[known] ** 2 / 24)
        np.testing.assert_allclose(found.half_widths[known], width, rtol=1e-8)
        parent = tree.parent
        for v in np.flatnonzero(np.diff(tree.first)).tolist():
            children = found.values[parent == v]
            if known[v] and known[parent == v].all():
                assert abs(children.sum() - found.values[v]) <= 1e-9 * max(1.0, np.abs(children).sum())
        sizes.append(len(tree))
        undetermined += int((~known).sum())
    assert max(sizes) >= 40 and undetermined > 100


def cover(branching: list[int], shares: list[float], repetitions: int) -> tuple[Floats, Floats]:
    """Return the share of intervals that contain the truth, over all nodes, and the mean squared errors before and
    after, by depth; ``shares`` divide ε = 10 and Λ₁ = 65,536 over the depths.
    """
    tree = Tree.regular(branching)
    depth = np.zeros(len(tree), dtype=np.int64)
    parent = tree.parent
    for v in range(1, len(tree)):
        depth[v] = depth[parent[v]] + 1
    truth = leaves_below(tree) @ np.full(int(np.prod(branching)), 50_000.0)
    laws = [DiscreteLaplace(epsilon_micro=round(10_000_000 * share), sensitivity=65_536) for share in shares]
    spread = np.array([float(law.variance()) for law in laws])[depth]
    bits = SecureBits()
    noise = np.empty((repetitions, len(tree)))
    for place, law in enumerate(laws):
        at = np.flatnonzero(depth == place)
        noise[:, at] = law.sample(bits, repetitions * at.size).reshape(repetitions, at.size)
    inside = np.zeros(len(tree))
    after = np.zeros(len(tree))
    for row in noise:
        found = least_squares(tree, truth + row, spread)
        inside += np.abs(found.values - truth) <= found.half_widths
        after += (found.values - truth) ** 2
    mean = np.bincount(depth, weights=after / repetitions) / np.bincount(depth)
    return inside / repetitions, mean / np.array([float(law.variance()) for law in laws])


@pytest.mark.parametrize(("branching", "shares"), [([2, 2, 2, 2], [0.2] * 5), ([10, 10], [0.2, 0.3, 0.5])])
def test_intervals_cover(branching: list[int], shares: list[float]) -> None:
    """Over 2,000 repetitions, the mean coverage over nodes is 95 % ± 1.

    Coverage of a node is binomial with p from 0.949 to 0.954 and a standard deviation of 0.005; nodes are dependent,
    so the mean is bounded by that of one node: 1 % is beyond 8.5 times the distance left to 0.96 for p = 0.9515. For
    each single node 6 standard deviations more are allowed: below 10⁻⁸ for 111 nodes.
    """
    inside, ratio = cover(branching, shares, 2000)
    assert 0.94 <= inside.mean() <= 0.96
    assert inside.min() >= 0.949 - 6.5 * 0.005 and inside.max() <= 0.954 + 6.5 * 0.005
    assert np.all(ratio < 1.0) or ratio.min() < 0.6


def test_without_negatives_still_adds_up() -> None:
    tree = Tree.regular([3, 4])
    draws = np.random.default_rng(1)
    found = least_squares(tree, draws.normal(5, 10, len(tree)), np.ones(len(tree)))
    plain = without_negatives(tree, found)
    assert (found.values < 0).any() and (plain >= 0).all()
    for v in range(4):
        children = plain[tree.first[v] : tree.first[v + 1]]
        assert abs(children.sum() - plain[v]) < 1e-9
    assert without_negatives(
        Tree.regular([2]), least_squares(Tree.regular([2]), np.array([4.0, 0, 0]), np.array([1.0, 1e18, 1e18]))
    ).tolist() == pytest.approx([4, 2, 2])


@pytest.mark.parametrize("first", [[1, 0], [1, 3], [1, 2, 2, 2], [0, 0], [1, 1, 3, 2, 4]])
def test_what_is_not_a_tree(first: list[int]) -> None:
    with pytest.raises(CampaignError, match="in order of depth"):
        Tree(first=np.array(first, dtype=np.int32))


def test_what_is_refused() -> None:
    tree = Tree.of_parents(np.array([-1, 0, 0, 1, 2, 2]))
    assert tree.first.tolist() == [1, 3, 4, 6, 6, 6, 6]
    with pytest.raises(CampaignError, match="ascending order"):
        Tree.of_parents(np.array([-1, 0, 0, 2, 1]))
    for variances in (np.zeros(6), -np.ones(6), np.full(6, np.nan)):
        with pytest.raises(CampaignError, match="not above 0"):
            least_squares(tree, np.ones(6), variances)
    with pytest.raises(CampaignError, match="6 nodes"):
        least_squares(tree, np.ones(5), np.ones(6))


@pytest.mark.parametrize(("branching", "shares"), [([2, 3, 4], [0.1, 0.2, 0.3, 0.4]), ([5, 2], [0.0, 0.5, 0.5])])
def test_variances_of_levels_are_those_of_the_tree(branching: list[int], shares: list[float]) -> None:
    tree = Tree.regular(branching)
    depth = np.zeros(len(tree), dtype=np.int64)
    for v in range(1, len(tree)):
        depth[v] = depth[tree.parent[v]] + 1
    own = np.array([2 / share**2 if share else np.inf for share in shares])[depth]
    found = least_squares(tree, np.zeros(len(tree)), own).variances
    for level, variance in enumerate(level_variances(branching, shares)):
        np.testing.assert_allclose(found[depth == level], variance, rtol=1e-12)


def test_best_shares_beat_others() -> None:
    draws = np.random.default_rng(8)
    branching, weights = [2, 2, 10], [0.1, 0.4, 0.2, 0.3]
    best = best_shares(branching, weights)
    least = np.dot(weights, level_variances(branching, best))
    for shares in draws.dirichlet(np.ones(4), 2000):
        assert np.dot(weights, level_variances(branching, shares.tolist())) >= least * (1 - 1e-6)
    apart = separate_shares(weights)
    cost = sum(weight / share**2 for weight, share in zip(weights, apart, strict=True))
    for shares in draws.dirichlet(np.ones(4), 2000):
        assert sum(weight / share**2 for weight, share in zip(weights, shares, strict=True)) >= cost
    with pytest.raises(CampaignError, match="shares do not fit"):
        level_variances([2], [0.5, 0.0])
    with pytest.raises(CampaignError, match="weights do not fit"):
        best_shares([2], [0.0, 0.0])


def test_the_table_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hierarchies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (binary|10-ary), depth (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) ", page, re.M)
    assert len(rows) == 6
    for kind, depth, *figures in rows:
        branching = [2 if kind == "binary" else 10] * int(depth)
        levels = len(branching) + 1
        uniform = [1 / levels] * levels
        found = (
            level_variances(branching, [0.0] * len(branching) + [1.0]),  # the leaves alone, added up
            [2 * levels**2] * levels,
            level_variances(branching, uniform),
            level_variances(branching, best_shares(branching, uniform)),
        )
        assert figures == [f"{(sum(one) / levels) ** 0.5:.2f}" for one in found]
