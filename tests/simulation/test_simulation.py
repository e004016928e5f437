"""Deterministic simulation of services, queue, ledger, staging and engine; each seed is one history.

``History(seed).run()`` lives through it again and prints its last steps if an invariant does not hold.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import pytest

from .faults import SEEDED
from .history import History, ViolationError


def lived(seeds: Iterable[int], tally: Counter[str]) -> None:
    """Live through histories; ViolationError names the seed of the first that breaks an invariant."""
    for seed in seeds:
        history = History(seed)
        history.run()
        tally["histories"] += 1
        tally["points"] += history.scheduler.points
        tally["kills"] += history.scheduler.kills
        tally["faults"] += history.scheduler.faults
        tally["power cuts"] += history.cuts
        tally["accepted jobs"] += len(history.accepted)
        tally["released jobs"] += sum(len(how) > 200 for how in history.told.values())


def first_found(fault: Any, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the first seed whose history finds a fault that was put into the code, and what it says."""
    for seed in seeds:
        try:
            History(seed, (fault,)).run()
        except ViolationError as problem:
            return seed, str(problem).partition("\n")[0]
    return None


def test_random_histories_hold_every_invariant() -> None:
    tally: Counter[str] = Counter()
    lived(range(100), tally)
    for what in ("kills", "faults", "power cuts", "accepted jobs", "released jobs"):
        assert tally[what] > 20, (what, tally)


@pytest.mark.parametrize("name", SEEDED)
def test_a_fault_in_the_code_is_found(name: str) -> None:
    found = first_found(SEEDED[name], range(100))
    assert found is not None, name


def test_a_seed_decides_everything() -> None:
    for seed in range(5):
        traces = []
        for _ in range(2):
            history = History(seed)
            history.scheduler.trace = deque()
            history.run()
            traces.append(list(history.scheduler.trace))
        assert traces[0] == traces[1] and len(traces[0]) > 50


@pytest.mark.soak
def test_10_000_histories() -> None:
    tally: Counter[str] = Counter()
    for start in range(0, 10_000, 1_000):
        lived(range(start, start + 1_000), tally)
        print(", ".join(f"{count:,} {what}" for what, count in tally.items()) + ": no violation", flush=True)
    assert tally["histories"] == 10_000


@pytest.mark.soak
def test_every_seeded_fault_is_found_within_1_000_histories() -> None:
    for name, fault in SEEDED.items():
        found = first_found(fault, range(1_000))
        assert found is not None, name
        print(f"{name}: found by {found[1]}")
