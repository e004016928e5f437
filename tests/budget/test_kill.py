"""A process is killed at random moments of a job loop; what it leaves must be exactly once or not at all."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from aggservice.mechanisms import SecureBits, SystemClock
from budget import EpsilonDeltaFilter, Ledger, Staging, verify_store

sys.path.insert(0, str(Path(__file__).parent))
import race_worker

from .releases import TERMS


def released(folder: Path) -> dict[tuple[str, str], bytes]:
    """Everything a caller could read: (job, file) to the file's digest."""
    found = {}
    for file in (folder / "out").rglob("*"):
        if file.is_file():
            found[file.parent.name, file.name] = hashlib.sha256(file.read_bytes()).digest()
    return found


def paid_files(ledger: Ledger) -> dict[tuple[str, str], bytes]:
    """Every file that the log says was released."""
    found = {}
    for job in range(10_000):
        committed = ledger.job("killed", str(job))
        if committed is None:
            return found
        assert committed.entry.units.count == len(race_worker.units_of_job(job))
        if job % 3:
            assert len(committed.entry.result.files) == 2
            for file in committed.entry.result.files:
                found[str(job), file.name] = file.sha256
        else:
            assert committed.result.startswith(b"noise ") and len(committed.result) == 2006
    raise AssertionError("too many jobs")


def nothing_leaks(folder: Path) -> None:
    """Outside the published folder, nothing is readable by anybody but the owner."""
    for path in folder.rglob("*"):
        if (folder / "out") in path.parents or path == folder / "out":
            continue
        closed = [path, *path.parents]
        assert any(not place.stat().st_mode & 0o077 for place in closed[: closed.index(folder)]), path


def kill_loop(place: tuple[str, str], folder: Path, kills: int) -> None:
    # The moments of the kills are random on purpose; the assertions hold for every one of them.
    moments = random.Random()
    (folder / "out").mkdir()
    store = race_worker.connect(place)
    signer = race_worker.signer()
    Ledger.create(
        store, terms=TERMS, filter=EpsilonDeltaFilter(), signer=signer, clock=SystemClock(), bits=SecureBits()
    )
    store.close()
    context = race_worker.warm_context()
    done, killed_mid_staging, window_s = 0, 0, 0.15
    for _ in range(kills):
        ready, theirs = context.Pipe(duplex=False)
        process = context.Process(target=race_worker.job_loop, args=(place, folder, done, theirs))
        process.start()
        theirs.close()
        assert ready.poll(60) and ready.recv()
        time.sleep(moments.uniform(0, window_s))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        ready.close()

        store = race_worker.connect(place)
        ledger = Ledger.open(
            store, clock=SystemClock(), signer=signer, staging=Staging(folder / "staging", SecureBits())
        )
        nothing_leaks(folder)
        before = released(folder)
        left = ledger.recover_staged()
        # PostgreSQL may still be finishing the last commit of the dead; whoever writes next waits for it.
        store.write("wait", lambda transaction: None)
        paid = paid_files(ledger)
        assert before.items() <= paid.items(), "something is readable that nobody paid for"
        killed_mid_staging += bool(left)
        assert released(folder) == paid, "something was paid for that nobody can fetch"
        assert list((folder / "staging").iterdir()) == []
        report = verify_store(store)
        assert report.ok, report.disagreement
        done = report.releases
        window_s *= 1 if done else 2  # on a busy machine, until the first job gets through
        uses = [0] * race_worker.UNIVERSE
        for job in range(done):
            for unit in race_worker.units_of_job(job):
                uses[unit] += 1
        spent = ledger.balances(race_worker.keys_of(range(race_worker.UNIVERSE)))
        order = {race_worker.keys_of(range(unit, unit + 1)).tobytes(): unit for unit in range(race_worker.UNIVERSE)}
        assert [uses[order[spent.units[i]]] for i in range(len(spent.units))] == spent.uses.tolist()
        store.close()
    print(f"{kills} kills, {done} jobs committed, {killed_mid_staging} kills left staged files behind")
    assert done > 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_killed_process_leaves_nothing_half_done(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = (
        (str(tmp_path / "ledger.db"), "") if kind == "sqlite" else (request.getfixturevalue("postgres_dsn"), "kills")
    )
    kill_loop(place, tmp_path, kills=6)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_hundred_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = (str(tmp_path / "ledger.db"), "") if kind == "sqlite" else (request.getfixturevalue("postgres_dsn"), "soak")
    kill_loop(place, tmp_path, kills=200)
