"""Benchmarks: each measures a part of the project against a peer or a limit in the same run.

Each module is one benchmark. It exposes ``command``, a typer command whose options are sizes with defaults that finish
in about a minute; ``--full`` runs the sizes that the project promises. It ends by calling ``conclude``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call of ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(works: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Return the median time of each work over rounds in which every work runs once.

    Interleaving spreads a slow minute of the machine over all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: median(taken) for name, taken in times.items()}


def conclude(ratio: float, words: str, figures: str) -> None:
    """Print the last line: the ratio, what was divided by what, and the figures behind it."""
    print(f"{ratio:.3f} {words} ({figures})")
