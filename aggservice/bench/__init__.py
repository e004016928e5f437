"""Benchmarks: each measures a part of the project against a peer or a limit in the same run.

Each module is one benchmark. It exposes ``command``, a typer command whose options are sizes with defaults that finish
in about a minute; ``--full`` runs the sizes that the project promises. It ends by calling ``conclude``.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

Work = Callable[[], object]


def seconds(work: Work, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long one call of ``work`` takes by a clock; ``time.process_time`` is the CPU time."""
    start = clock()
    work()
    return clock() - start


def interleaved(
    works: Mapping[str, Work | Sequence[Work]], rounds: int = 5, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median time of each work over rounds in which every work runs once, in turns.

    Works that are given in parts take turns part by part. This spreads a slow minute of the machine over all of them.
    """
    turns = list(zip_longest(*([work] if callable(work) else work for work in works.values())))
    totals: list[dict[str, float]] = []
    for _ in range(rounds):
        totals.append(dict.fromkeys(works, 0.0))
        for turn in turns:
            for name, work in zip(works, turn, strict=True):
                totals[-1][name] += seconds(work, clock) if work is not None else 0.0
    return {name: median(total[name] for total in totals) for name in works}


def at_once(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Run ``work`` in one new process per entry of ``arguments`` and return what each put into its queue.

    A work gets its arguments, a barrier at which all of them wait before they are timed, and the queue.
    """
    context = multiprocessing.get_context("spawn")
    begin, out = context.Barrier(len(arguments)), context.Queue()
    processes = [context.Process(target=work, args=(*own, begin, out)) for own in arguments]
    for process in processes:
        process.start()
    found = [out.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def conclude(ratio: float, words: str, figures: str) -> None:
    """Print the last line: the ratio, what was divided by what, and the figures behind it."""
    print(f"{ratio:.3f} {words} ({figures})")
