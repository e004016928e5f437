"""What one process of the race and one of the kill loop do. Imported by name in processes that pytest starts."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

import numpy as np
from releases import TERMS, release_of
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.mechanisms import SecureBits, SeededBits, SystemClock
from budget import (
    BudgetExhaustedError,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    PostgresStore,
    Signer,
    SqliteStore,
    Staging,
    Store,
    verify_store,
)

UNIVERSE = 400


def signer() -> Signer:
    return Signer.generate(SeededBits("race"))


def keys_of(units: range) -> np.ndarray:
    raw = b"".join(bytes(3) + hashlib.sha256(str(unit).encode()).digest()[:17] for unit in units)
    return np.frombuffer(raw, np.uint8).reshape(-1, 20)


def connect(place: tuple[str, str]) -> Store:
    """Open a store from (path, "") for SQLite or (connection string, schema) for PostgreSQL."""
    return PostgresStore(place[0], schema=place[1]) if place[1] else SqliteStore(place[0])


def try_to_pay(ledger: Ledger, job_id: str, epsilon: str, units: np.ndarray) -> bool:
    """Commit one job; return whether it was paid for."""
    try:
        ledger.commit(
            job=JobKey(caller="racer", job_id=job_id),
            request_digest=hashlib.sha256(job_id.encode()).digest(),
            release=release_of(LaplaceNoise.parse(epsilon=epsilon)),
            units=units,
            result=job_id.encode(),
        )
    except BudgetExhaustedError:
        return False
    return True


def race_in_process(number: int, places: list[tuple[str, str]], jobs: int, barrier: Any, answers: Any) -> None:
    """Race in every round against the other processes: ``jobs`` jobs one after another; report how many were paid."""
    units = keys_of(range(1000))
    for place in places:
        store = connect(place)
        ledger = Ledger.open(store, clock=SystemClock(), signer=signer())
        barrier.wait()
        paid = sum(try_to_pay(ledger, f"{number}-{job}", "10", units) for job in range(jobs))
        answers.put(paid)
        barrier.wait()
        store.close()


def race_in_threads(ledger: Ledger, threads: int) -> int:
    """Race ``threads`` threads with a job each; return how many were paid."""
    units = keys_of(range(1000))
    start = threading.Barrier(threads)
    paid: list[bool] = []

    def run(number: int) -> None:
        start.wait()
        paid.append(try_to_pay(ledger, str(number), "10", units))

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(paid) == threads
    return sum(paid)


def warm() -> None:
    """Load the compiled kernels, once, in the process that the others are forked from."""
    bits = SeededBits("warm")
    ledger = Ledger.create(
        MemoryStore(), terms=TERMS, filter=EpsilonDeltaFilter(), signer=signer(), clock=SystemClock(), bits=bits
    )
    assert try_to_pay(ledger, "warm", "1", keys_of(range(300)))
    assert verify_store(ledger.store).ok


def warm_context() -> Any:
    """Return a context whose processes are forked from one that has this module loaded and its kernels compiled.

    The server that forks them finds modules by PYTHONPATH only: it does not take over this process's sys.path.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def units_of_job(job: int) -> range:
    """The units that job number ``job`` of the kill loop charges."""
    start = int.from_bytes(hashlib.sha256(b"%d" % job).digest()[:4], "big") % UNIVERSE
    return range(start, min(UNIVERSE, start + 60))


def job_loop(place: tuple[str, str], folder: Path, first_job: int, ready: Any) -> None:
    """Do jobs for ever: every result is fresh noise, two of three jobs write files, every fourth is asked again."""
    bits = SecureBits()
    store = connect(place)
    ledger = Ledger.open(store, clock=SystemClock(), signer=signer(), staging=Staging(folder / "staging", bits))
    ready.send(True)
    job = first_job
    while True:
        key = JobKey(caller="killed", job_id=str(job))
        request = hashlib.sha256(b"%d" % job).digest()
        release = release_of(LaplaceNoise.parse(epsilon="0.01"))
        for _ in range(2 if job % 4 == 0 else 1):
            result: Any = b"noise " + bits.read(2000)
            if job % 3:
                result = ledger.stage(key)
                for shard in range(2):
                    result.path(f"summary-{shard}-of-2").write_bytes(b"noise " + bits.read(20_000))
                result.seal(folder / "out" / str(job))
            ledger.commit(
                job=key, request_digest=request, release=release, units=keys_of(units_of_job(job)), result=result
            )
        job += 1


warm()


def backup_and_restore(folder: Path, ready: Any) -> None:
    """Back up and restore one ledger after another, until the process is killed; ``ready`` after the first ones."""
    runner = CliRunner()
    for number in range(1_000_000):
        backup, place = folder / f"b{os.getpid()}-{number}.db", folder / f"r{os.getpid()}-{number}.db"
        for arguments in (
            ("backup", folder / "ledger.db", backup),
            ("restore", backup, place, "--keys", folder / "copy.json"),
        ):
            done = runner.invoke(app, ["ledger", *map(str, arguments)])
            assert done.exit_code == 0, done.output
        if not number:
            ready.send(True)
            ready.close()
