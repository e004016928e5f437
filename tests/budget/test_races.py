"""Threads and processes race for a budget that is enough for exactly k of N jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aggservice.mechanisms import SecureBits, SystemClock
from budget import EpsilonDeltaFilter, Ledger, verify_store

sys.path.insert(0, str(Path(__file__).parent))
import race_worker

from .releases import TERMS

K = 6
"""ε* = 64 pays for six jobs of ε = 10."""
PLACES = ["sqlite", "postgres"]


def places(kind: str, rounds: int, folder: Path, request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Create a ledger for each round and return where they are."""
    if kind == "sqlite":
        found = [(str(folder / f"race{number}.db"), "") for number in range(rounds)]
    else:
        dsn = request.getfixturevalue("postgres_dsn")
        found = [(dsn, f"{folder.name}_{number}") for number in range(rounds)]
    for place in found:
        store = race_worker.connect(place)
        Ledger.create(
            store,
            terms=TERMS,
            filter=EpsilonDeltaFilter(),
            signer=race_worker.signer(),
            clock=SystemClock(),
            bits=SecureBits(),
        )
        store.close()
    return found


def check(place: tuple[str, str], paid: int) -> None:
    """Exactly k were paid, the units have spent exactly that, and the audit agrees."""
    store = race_worker.connect(place)
    ledger = Ledger.open(store, clock=SystemClock())
    spent = ledger.balances(race_worker.keys_of(range(1000)))
    assert paid == K
    assert set(spent.loss_micro.tolist()) == {K * 10_000_000} and set(spent.uses.tolist()) == {K}
    report = verify_store(store)
    assert report.ok and report.releases == K, report.disagreement
    store.close()


def race_threads(kind: str, rounds: int, folder: Path, request: pytest.FixtureRequest) -> None:
    for place in places(kind, rounds, folder, request):
        store = race_worker.connect(place)
        ledger = Ledger.open(store, clock=SystemClock(), signer=race_worker.signer())
        paid = race_worker.race_in_threads(ledger, threads=32)
        store.close()
        check(place, paid)


def race_processes(kind: str, rounds: int, folder: Path, request: pytest.FixtureRequest) -> None:
    processes, jobs = 8, 4
    found = places(kind, rounds, folder, request)
    context = race_worker.warm_context()
    barrier, answers = context.Barrier(processes), context.Queue()
    running = [
        context.Process(target=race_worker.race_in_process, args=(number, found, jobs, barrier, answers))
        for number in range(processes)
    ]
    for process in running:
        process.start()
    for place in found:
        # Rounds do not mix: the barrier holds everyone until all eight have reported.
        check(place, sum(answers.get(timeout=300) for _ in range(processes)))
    for process in running:
        process.join(timeout=60)
        assert process.exitcode == 0


@pytest.mark.parametrize("kind", PLACES)
def test_threads_race(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    race_threads(kind, 1, tmp_path, request)


@pytest.mark.parametrize("kind", PLACES)
def test_processes_race(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    race_processes(kind, 1, tmp_path, request)


@pytest.mark.soak
@pytest.mark.parametrize("kind", PLACES)
def test_threads_race_twenty_times(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    race_threads(kind, 20, tmp_path, request)


@pytest.mark.soak
@pytest.mark.parametrize("kind", PLACES)
def test_processes_race_twenty_times(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    race_processes(kind, 20, tmp_path, request)
