"""One charge of very many units, from a sorted file that is mapped into memory."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from aggservice.engine.tables.units import sort_units
from aggservice.mechanisms import SecureBits, SystemClock
from budget import EpsilonDeltaFilter, JobKey, LaplaceNoise, Ledger, PostgresStore, Signer, UnitSet, verify_store

from .releases import TERMS, release_of

RELEASE = release_of(LaplaceNoise.parse(epsilon="10"))
HOURS = 24
_GIB = 1 << 30


def unit_file(path: Path, count: int, first_hour: int) -> NDArray[np.uint8]:
    """Write fresh units of a day in order, an hour at a time; return them mapped."""
    with path.open("wb") as file:
        for hour in range(HOURS):
            size = count * (hour + 1) // HOURS - count * hour // HOURS
            keys = np.frombuffer(SecureBits().read(size * 20), dtype=np.uint8).reshape(size, 20).copy()
            keys[:, :4] = np.frombuffer((first_hour + hour).to_bytes(4, "big"), dtype=np.uint8)
            sort_units(keys)
            file.write(keys.data)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r")).reshape(-1, 20)


def own_memory() -> int:
    """Return the bytes of this process's memory that are not pages of a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def charge(ledger: Ledger, folder: Path, name: str, count: int, first_hour: int) -> tuple[float, int]:
    """Charge fresh units; return the seconds and the peak of this process's own memory."""
    path = folder / name
    units = unit_file(path, count, first_hour)
    peak, done = own_memory(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    committed = ledger.commit(
        job=JobKey(caller="adtech", job_id=name),
        request_digest=hashlib.sha256(name.encode()).digest(),
        release=RELEASE,
        units=UnitSet(units),
        result=b"summary",
    )
    taken = time.perf_counter() - start
    done.set()
    watcher.join()
    assert committed.entry.units.count == count
    assert committed.entry.units.sha256 == hashlib.sha256(units.data).digest()
    path.unlink()
    return taken, peak


def new_ledger(dsn: str, schema: str) -> Ledger:
    bits = SecureBits()
    return Ledger.create(
        PostgresStore(dsn, schema=schema),
        terms=TERMS,
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=SystemClock(),
        bits=bits,
    )


def test_a_charge_of_many_parts_is_logged_and_audited(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new_ledger(postgres_dsn, "many_parts")
    _, peak = charge(ledger, tmp_path, "many", 200_000, 1000)
    charge(ledger, tmp_path, "more", 1000, 1010)
    assert peak < own_memory() + (64 << 20)
    assert ledger.remaining_of(1).least == ledger.remaining_of(1).most
    whole = verify_store(ledger.store)
    monkeypatch.setattr("budget.audit.verify.UNITS_AT_ONCE", 40_000)
    assert verify_store(ledger.store) == whole
    assert whole.ok and whole.units_known == 201_000
    with psycopg.connect(postgres_dsn) as connection:
        for position, seq in ((0, 1), (900, 1)):
            connection.execute("SET search_path TO many_parts")
            connection.execute(
                "UPDATE balances SET records = set_byte(records, 27, get_byte(records, 27) # 1) WHERE first_key ="
                " (SELECT first_key FROM balances ORDER BY first_key LIMIT 1 OFFSET %s)",
                (position,),
            )
            connection.commit()
            found = verify_store(ledger.store).disagreement
            assert found is not None and (found.seq, found.what) == (seq, "balances")
    ledger.store.close()


@pytest.mark.soak
@pytest.mark.parametrize("count", [10**7, 10**8])
def test_the_rate_of_a_large_charge_is_that_of_a_small_one(postgres_dsn: str, count: int) -> None:
    ledger = new_ledger(postgres_dsn, f"large{count}")
    with tempfile.TemporaryDirectory(prefix="aggservice-units-") as name:
        folder = Path(name)
        charge(ledger, folder, "compile", 3000, 100)
        small = median(charge(ledger, folder, f"small-{n}", 10**6, 1000 + 100 * n)[0] for n in range(3))
        taken, peak = charge(ledger, folder, "large", count, 480_000)
    ledger.store.close()
    print(
        f"PostgreSQL: {count:,} fresh units in one charge: {taken:.1f} s, {count / taken:,.0f} per second, against "
        f"{10**6 / small:,.0f} per second for 1,000,000 (median of 3); own memory of the process {peak / _GIB:.2f} GiB"
    )
    assert peak < 4 * _GIB
