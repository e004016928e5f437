"""Least squares over a tree against a plain sum of its leaves, which only reads them."""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import typer

from aggservice.bench import conclude, interleaved
from aggservice.campaign.estimates.hierarchy import Tree, fourth_cumulants, solve

_PROMISED = 20
_ROUNDS = 41


def command(
    leaves: Annotated[int, typer.Option(help="At most this many leaves, of a tree with ten children per node.")] = 10
    ** 6,
    full: Annotated[bool, typer.Option("--full", help="No effect: the promised size is the default.")] = False,
) -> None:
    """Hierarchies: time of least squares over that of a plain sum."""
    depth = int(np.floor(np.log10(leaves) + 1e-9))
    tree = Tree.regular([10] * depth)
    draws = np.random.default_rng(0)
    values, variances = draws.normal(100, 10, len(tree)), draws.uniform(1, 2, len(tree))
    below = values[-(10**depth) :].copy()
    out, spread, fourth = (np.empty(len(tree)) for _ in range(3))

    def estimate() -> None:
        solve(tree.first, tree.roots, values, variances, out, spread)

    def cumulants() -> None:
        fourth_cumulants(tree.first, tree.roots, variances, 3.0, fourth)

    estimate()
    cumulants()
    times = interleaved({"sum": below.sum, "solve": estimate, "cumulants": cumulants}, _ROUNDS, time.process_time)
    for name, words in (
        ("sum", f"a plain sum of {below.size:,} leaves"),
        ("solve", f"estimates and exact variances of {len(tree):,} nodes"),
        ("cumulants", "fourth cumulants of all of them, for intervals"),
    ):
        print(f"{1000 * times[name]:8.2f} ms  {words}")
    conclude(
        times["solve"] / times["sum"],
        "CPU time of least squares over that of a plain sum of the leaves",
        f"{1000 * times['solve']:.2f} ms against {1000 * times['sum']:.2f} ms, medians of {_ROUNDS}; "
        f"promised at most {_PROMISED}",
    )
