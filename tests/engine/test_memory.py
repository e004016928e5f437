"""Memory: a job costs at most 64 bytes a report beside its distinct keys, over all processes together."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, tempfile
from pathlib import Path
import numpy as np
from aggservice.engine import LocalEngine, Scope, WorkerPool, ledger_terms
from aggservice.job.request import HistogramRequest, JobRequest
from aggservice.wire import Api, Contribution, KeySet, ReportBatch, SharedInfo, Spans, encode_payload
from budget import Epsilon, EpsilonDeltaFilter, JobKey, LaplaceNoise, Ledger, Signer, SqliteStore, UnitSet
from aggservice.mechanisms import ManualClock, SecureBits

NOW_S = 1_700_000_000

def process_ids(pool):
    return [worker.process.pid for worker in list(pool._workers.values())]

def batch(start, count):
    payload = encode_payload([Contribution(bucket=7, value=1)])
    info = SharedInfo(api=Api.SHARED_STORAGE, report_id="00000000-0000-4000-8000-000000000000",
                      reporting_origin="https://adtech.example", scheduled_report_time_s=NOW_S - 60).serialise()
    head, tail = info.encode().split(b"00000000-0000-4000-8000-000000000000")
    infos = [head + f"{row:08x}-0000-4000-8000-{row * 2654435761 % 2**48:012x}".encode() + tail
             for row in range(start, start + count)]
    return ReportBatch(payloads=Spans.of([payload] * count), key_ids=Spans.of([b""] * count),
                       shared_infos=Spans.of(infos))

def run(engine, name, reports):
    request = HistogramRequest(job_request_id=name, attribution_report_to="https://adtech.example")
    session = engine.begin(Scope(caller="a"), request, cleartext=True)
    session.declare(np.zeros(1, dtype=np.uint64), np.array([7], dtype=np.uint64))
    for start in range(0, reports, 4096):
        session.add(batch(start, min(4096, reports - start)))
    rows = session.finish().rows
    assert len(rows) == 1

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        bits = SecureBits()
        ledger = Ledger.create(SqliteStore(Path(folder) / "l.sqlite"), filter=EpsilonDeltaFilter(),
                               signer=Signer.generate(bits), clock=ManualClock(NOW_S * 1000), bits=bits,
                               terms=ledger_terms())
        # Fill SQLite's page cache, which is bounded, so that its growth is not taken for the reports'.
        units = np.sort(np.frombuffer(bits.read(20 * 1_500_000), dtype="V20")).view(np.uint8).reshape(-1, 20)
        release = ledger.terms.release(LaplaceNoise.parse(epsilon="1"), covers={"attribution-reporting": 1})
        ledger.commit(job=JobKey(caller="b", job_id="b"), request_digest=bytes(32), release=release,
                      units=UnitSet.of(units), result=b"")
        del units
        pool = WorkerPool(KeySet(()), processes=1)
        engine = LocalEngine(ledger=ledger, opener=pool, clock=ManualClock(NOW_S * 1000), bits=bits)
        run(engine, "small", int(sys.argv[1]))
        def peak():
            total = 0
            for process in (os.getpid(), *process_ids(pool)):
                status = Path(f"/proc/{process}/status").read_text()
                total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
            return total * 1024
        Path(f"/proc/{os.getpid()}/clear_refs").write_text("5")  # forget the peak so far
        Path(f"/proc/{process_ids(pool)[0]}/clear_refs").write_text("5")
        run(engine, "middle", int(sys.argv[1]))
        before = peak()
        run(engine, "large", int(sys.argv[2]))
        print(peak() - before)
        pool.close()
"""


def _bytes_a_report(small: int, large: int, tmp_path: object) -> float:
    """Return by how much the peak over all processes grows a report, from a small job to a large one."""
    path = f"{tmp_path}/program.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    done = subprocess.run(
        [sys.executable, path, str(small), str(large)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1]) / (large - small)


def test_a_report_costs_at_most_64_bytes(tmp_path: object) -> None:
    assert _bytes_a_report(150_000, 900_000, tmp_path) <= 64


@pytest.mark.soak
@pytest.mark.parametrize("large", [2_000_000, 2_900_000, 4_000_000])
def test_a_report_of_millions_costs_at_most_64_bytes(large: int, tmp_path: object) -> None:
    measured = _bytes_a_report(150_000, large, tmp_path)
    print(f"{large:,} reports: {measured:.1f} bytes each")
    assert measured <= 64
