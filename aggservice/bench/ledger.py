"""``aggservice bench ledger``: charging a job's units against opening as many reports on all cores.

Fresh units of one day, shaped as ``aggservice.wire`` shapes them (hour ‖ 16 bytes of hash), are charged in one job
into a ledger that already holds many; then the same units again; then everything is audited. The rate of bare HPKE
opens is measured in the same run, one process per core.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

import budget
from aggservice.bench import at_once, conclude, seconds
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire.hpke.sealing import SUITE, hpke_info

_API = "attribution-reporting"
_PAYLOAD_BYTES = 847
_HOURS_A_DAY = 24
_FIRST_HOUR = 480_000
_ROUNDS = 3


def _open_many(count: int, begin: Any, out: Any) -> None:
    """Measure per round how long ``count`` bare HPKE opens of a 20-contribution payload take in this process."""
    key = X25519PrivateKey.generate()
    info = hpke_info(bytes(300))
    sealed = [SUITE.encrypt(bytes(_PAYLOAD_BYTES), key.public_key(), info=info) for _ in range(64)]

    def work(opens: int = count) -> None:
        for i in range(opens):
            SUITE.decrypt(sealed[i % 64], key, info=info)

    work(50)
    times = []
    for _ in range(_ROUNDS):
        begin.wait()
        times.append(seconds(work))
    out.put(times)


def open_rate(opens: int) -> float:
    """Return opens per second over all cores: the sum of the processes' rates while all of them run."""
    cores = len(os.sched_getaffinity(0))
    found = at_once(_open_many, [(opens,)] * cores)
    return median(sum(opens / taken for taken in rounds) for rounds in zip(*found, strict=True))


def units_of_day(day: int, count: int) -> NDArray[np.uint8]:
    """Return ``count`` fresh unit keys spread evenly over the hours of one day, in random order."""
    keys = np.frombuffer(SecureBits().read(count * 20), dtype=np.uint8).reshape(count, 20).copy()
    hours = (_FIRST_HOUR + day * _HOURS_A_DAY + np.arange(count) % _HOURS_A_DAY).astype(">u4")
    keys[:, :4] = hours.view(np.uint8).reshape(count, 4)
    return keys


def _charge(ledger: budget.Ledger, job_id: str, keys: NDArray[np.uint8]) -> float:
    release = ledger.terms.release(budget.LaplaceNoise.parse(epsilon="10"), covers={_API: 1})
    return seconds(
        lambda: ledger.commit(
            job=budget.JobKey(caller="bench", job_id=job_id),
            request_digest=hashlib.sha256(job_id.encode()).digest(),
            release=release,
            units=keys,
            result=b"summary",
        )
    )


def _measure(store: budget.Store, held: int, count: int, verify: bool) -> tuple[float, float, float]:
    """Fill a ledger, charge fresh units, charge them again, audit; return both times and audited units per second."""
    bits = SecureBits()
    ledger = budget.Ledger.create(
        store,
        filter=budget.EpsilonDeltaFilter(),
        terms=budget.Terms(bounds={_API: budget.Sensitivity()}),
        signer=budget.Signer.generate(bits),
        clock=SystemClock(),
        bits=bits,
    )
    _charge(ledger, "compile", units_of_day(0, 300))
    per_day = min(1_000_000, held) or 1
    for day, start in enumerate(range(0, held, per_day), start=1):
        _charge(ledger, f"fill-{day}", units_of_day(day, min(per_day, held - start)))
    # A day in the middle that already has its units, so that the charge is a merge and not only an append.
    fresh = units_of_day(1 + held // per_day // 2, count)
    first = _charge(ledger, "fresh", fresh)
    second = _charge(ledger, "again", fresh)
    if not verify:
        return first, second, 0.0
    reports = []
    taken = seconds(lambda: reports.append(budget.verify_store(store)))
    if not reports[0].ok:
        raise typer.BadParameter(f"the audit disagrees: {reports[0].disagreement}")
    return first, second, reports[0].units_charged / taken


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    import pgserver

    server = pgserver.get_server(folder)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def command(
    units: Annotated[int, typer.Option(help="Fresh units charged in one job.", min=1)] = 200_000,
    held: Annotated[int, typer.Option(help="Units the ledger holds beforehand.", min=0)] = 2_000_000,
    opens: Annotated[int, typer.Option(help="Reports each process opens, three times.", min=100)] = 20_000,
    postgres: Annotated[bool, typer.Option(help="Measure PostgreSQL too (needs pgserver).")] = True,
    full: Annotated[bool, typer.Option("--full", help="1,000,000 units into 20,000,000.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="The folder for the databases; default: a temporary folder.")
    ] = None,
) -> None:
    """The ledger: time to open reports over time to charge them.

    Charges units in one job, in SQLite and PostgreSQL; opens as many reports on all cores.
    """
    if full:
        units, held, opens = 1_000_000, 20_000_000, 60_000
    rate = open_rate(opens)
    opening = units / rate
    print(f"open      {rate:,.0f} reports per second on all cores: {units:,} take {opening:.2f} s")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = budget.SqliteStore(Path(name) / "ledger.db")
        first, second, audited = _measure(store, held, units, verify=True)
        store.close()
        print(f"sqlite    fresh {first:.2f} s ({first / opening:.3f} of opening), again {second:.2f} s")
        print(f"verify    {audited:,.0f} units per second")
        if postgres and find_spec("pgserver") is None:
            print("postgres  not measured: pgserver is not installed (pip install 'aggservice[test]')")
        elif postgres:
            with _postgres(Path(name) / "postgres") as dsn:
                server = budget.PostgresStore(dsn)
                fresh, again, _ = _measure(server, held, units, verify=False)
                server.close()
            print(f"postgres  fresh {fresh:.2f} s ({fresh / opening:.3f} of opening), again {again:.2f} s")
    conclude(
        opening / first,
        f"times: opening {units:,} reports on all cores over charging them in one job, SQLite, {held:,} units held",
        f"open {opening:.2f} s, charge {first:.2f} s = {first / opening:.3f} of it, again {second:.2f} s,"
        f" verify {audited:,.0f} units per second",
    )
