"""The engine against bare opening: reports per second from Avro to a summary, over those of processes that only open.

Both run on all cores. The engine reads Avro, judges, opens, decodes, drops repeated ids, sums over the domain, draws
noise, stages an Avro summary and charges a fresh SQLite ledger.

Single runs differ, because other processes of the machine may take a core from one of the two sides only. So in each
round half of the bare opens run before the engine and half after it, over files that were just read, and the median of
the rounds' ratios counts. Each round states what share of the machine other processes had.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.bench import at_once, conclude
from aggservice.campaign.columns import ReportColumns
from aggservice.campaign.service.sealing import SealingSettings, SealingTask, seal_piece
from aggservice.engine import AvroShards, Engine, LocalEngine, Scope, WorkerPool, ledger_terms
from aggservice.job.request import HistogramRequest
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.service.jobs.asked import FileJob
from aggservice.service.jobs.folders import Folder
from aggservice.service.jobs.places import Prefix
from aggservice.wire import Api, BucketRows, KeySet, read_key_set, read_reports, write_buckets, write_key_set
from aggservice.wire.hpke.sealing import INFO_PREFIX, SUITE
from budget import EpsilonDeltaFilter, Ledger, Signer, SqliteStore, Staging

ORIGIN = "https://adtech.example"
NOW_MS = 1_700_000_000_000
SLOTS = 20
_GIB = 1 << 30
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def domain_keys(rows: Any) -> tuple[Any, Any]:
    """Return distinct keys, spread over the 128 bits, for these rows of a domain, as columns (high, low)."""
    low = np.asarray(rows, dtype=np.uint64)
    return low * _SPREAD, low


def report_columns(rows: Any, each: int, *, first: int = 0) -> ReportColumns:
    """Return reports of ``each`` contributions of value 1 to these rows of the domain; ids count from ``first``."""
    count = len(rows) // each
    number = np.arange(first, first + count)
    report_id = np.zeros((count, 16), dtype=np.uint8)
    report_id[:, :4] = number.astype(">u4").view(np.uint8).reshape(-1, 4)
    report_id[:, 6], report_id[:, 8] = 0x40, 0x80
    high, low = domain_keys(rows)
    return ReportColumns(
        scheduled_ms=NOW_MS - 1000 * (600 + number % 86_400),
        report_id=report_id,
        destination=np.zeros(count, dtype=np.int64),
        offset=np.arange(count + 1) * each,
        key_high=high,
        key_low=low,
        value=np.ones(len(rows), dtype=np.int64),
        filtering_id=np.zeros(len(rows), dtype=np.uint64),
        null=np.zeros(count, dtype=np.bool_),
    )


def sealing_settings(public_keys: str = "") -> SealingSettings:
    """Return what all reports have in common; sealing needs the service's public keys."""
    return SealingSettings(
        api=Api.ATTRIBUTION_REPORTING,
        reporting_origin=ORIGIN,
        destinations=("https://shop.example",),
        slots=SLOTS,
        public_keys=public_keys,
    )


def _seal_part(folder: str, part: int, start: int, stop: int, keys: int, public: str) -> None:
    """Seal reports ``start`` to ``stop`` into one Avro file."""
    rows = np.random.default_rng(start).integers(0, keys, (stop - start) * SLOTS)
    path = Path(folder) / f"reports-{part:03d}.avro"
    seal_piece(
        SealingTask(path=path, columns=report_columns(rows, SLOTS, first=start), seed=None), sealing_settings(public)
    )


def prepare(folder: Path, reports: int, keys: int, workers: int) -> None:
    """Make keys, domain and sealed reports."""
    clock = ManualClock(NOW_MS)
    ring = KeySet.create(SeededBits("bench"), clock)
    write_key_set(folder / "keys.json", ring)
    write_buckets(folder / "domain.avro", BucketRows.domain(*domain_keys(np.arange(keys))))
    parts = max(workers, reports // 100_000)
    bounds = [reports * part // parts for part in range(parts + 1)]
    public = ring.public(clock).serialise()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(
            _seal_part,
            [(str(folder), part, bounds[part], bounds[part + 1], keys, public) for part in range(parts)],
        )


def _bare_opener(folder: str, half: int, part: int, parts: int, begin: Any, times: Any) -> None:
    """Open every ``parts``-th batch of one half of the batches, and nothing else.

    Reading is not timed, but happens just before opening, so that reports are in the cache as they are in the engine.
    """
    keys = read_key_set(Path(folder) / "keys.json").by_id
    decrypt = SUITE.decrypt
    taken = 0.0
    begin.wait()
    for path in sorted(Path(folder).glob("reports-*.avro")):
        for number, batch in enumerate(read_reports(path, rows=500)):
            if number % parts != part or number // parts % 2 != half:
                continue
            rows = zip(batch.payloads, batch.key_ids, batch.shared_infos, strict=True)
            work = [(payload, keys[key_id.decode()], INFO_PREFIX + info) for payload, key_id, info in rows]
            start = time.perf_counter()
            for payload, key, info in work:
                decrypt(payload, key, info)
            taken += time.perf_counter() - start
    times.put(taken)


def bare_seconds(folder: Path, workers: int, half: int) -> float:
    """Return the seconds that the slowest of ``workers`` processes takes to open its part of half of the reports."""
    return float(max(at_once(_bare_opener, [(str(folder), half, part, workers) for part in range(workers)])))


class Others:
    """How much of the machine other processes use."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        import psutil

        own = os.times()
        everyone = psutil.cpu_times()
        idle = everyone.idle + getattr(everyone, "iowait", 0.0)
        return sum(everyone[:8]), idle, own.user + own.system + own.children_user + own.children_system

    def share(self, *used: Used) -> float:
        """Return the share of the machine's time since the beginning that processes other than ours had.

        ``used`` is what the measured processes used: those that their fork servers started are not our children.
        """
        total, idle, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(0.0, (total - idle - own - sum(one.unwaited_s for one in used)) / total)


def new_ledger(state: Path) -> Ledger:
    """Return a fresh SQLite ledger with a staging folder."""
    bits = SecureBits()
    return Ledger.create(
        SqliteStore(state / "ledger.sqlite"),
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=ManualClock(NOW_MS),
        bits=bits,
        terms=ledger_terms(),
        staging=Staging(state / "staging", bits),
    )


def timed_job(engine: Engine, inputs: Path, output: Path, *, cleartext: bool, name: str = "bench") -> tuple[Any, ...]:
    """Run a job over a folder's reports and domain; return its seconds, the rows released and the reports in error."""
    reports, domain = Prefix(Folder(inputs), "reports"), Prefix(Folder(inputs), "domain.avro")
    job = FileJob(prefixes=(reports,), domain=domain, output=AvroShards(prefix=output))
    request = HistogramRequest(job_request_id=name, attribution_report_to=ORIGIN)
    start = time.perf_counter()
    session = engine.begin(
        Scope(caller="bench"),
        request,
        destination=job.output,
        expected_keys=job.expected_keys(),
        cleartext=cleartext,
        input_bytes=job.input_bytes(),
    )
    outcome = job.run(session)
    return time.perf_counter() - start, outcome.header.row_count, dict(outcome.header.error_counts)


def engine_job(folder: str, workers: int, cleartext: bool, out: Any) -> None:
    """Run one job over a folder's reports and domain, in a separate process, so that its memory is measured alone.

    ``out`` gets "ready" before the clock starts, then the seconds, the rows released and the reports in error.
    """
    inputs = Path(folder)
    state = Path(tempfile.mkdtemp(dir=inputs, prefix="state-"))
    pool = WorkerPool(KeySet(()) if cleartext else read_key_set(inputs / "keys.json"), processes=workers)
    engine = LocalEngine(ledger=new_ledger(state), opener=pool, clock=ManualClock(NOW_MS), bits=SecureBits())
    _warm(engine, inputs, cleartext)
    out.put("ready")
    out.put(timed_job(engine, inputs, state / "summary.avro", cleartext=cleartext))
    pool.close()
    shutil.rmtree(state)


def _warm(engine: Any, folder: Path, cleartext: bool) -> None:
    """Compile every kernel and start every worker before the clock starts; nothing is charged."""
    batch = next(iter(read_reports(min(folder.glob("reports*.avro")), rows=100))).slice(0, 64)
    request = HistogramRequest(job_request_id="warm", attribution_report_to=ORIGIN)
    session = engine.begin(Scope(caller="warm"), request, cleartext=cleartext)
    session.declare(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64))
    for _ in range(8):
        session.add(batch)
    session.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a process used with its descendants: peak RSS, and seconds of CPU since it was ready.

    ``unwaited_s`` are the seconds of CPU of descendants that nobody waited for, from the beginning.
    """

    peak: int
    cpu_s: float
    unwaited_s: float


def in_process(work: Any, arguments: tuple[Any, ...]) -> tuple[Any, Used]:
    """Run ``work`` in a new process; return its result and what the process used with its children."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    child = context.Process(target=work, args=(*arguments, out))
    start = os.times()
    child.start()
    peak, cpu_s, before = 0, 0.0, 0.0
    result: Any = "ready"
    while result == "ready":
        while out.empty() and child.is_alive():
            memory, cpu_s = family_use(child.pid)
            peak = max(peak, memory)
            time.sleep(0.05)
        result = out.get(timeout=60)
        before = cpu_s if result == "ready" else before
    child.join()
    waited = sum(os.times()[2:4]) - sum(start[2:4])
    return result, Used(peak=peak, cpu_s=cpu_s - before, unwaited_s=max(0.0, cpu_s - waited))


def engine_seconds(folder: Path, workers: int, *, cleartext: bool = False) -> tuple[float, int, Used]:
    """Return how long the engine takes over a folder, the rows it released, and what its processes used."""
    (taken, rows, errors), used = in_process(engine_job, (str(folder), workers, cleartext))
    if errors or not rows:
        raise RuntimeError(f"the engine's job failed: {rows} rows, errors {errors}")
    return taken, rows, used


def family_use(process_id: int | None) -> tuple[int, float]:
    """Return the resident memory and the CPU seconds of a process and its descendants; shared pages count for each."""
    import psutil

    memory, cpu_s = 0, 0.0
    try:
        first = psutil.Process(process_id)
        family = [first, *first.children(recursive=True)]
    except psutil.Error:
        return memory, cpu_s
    for one in family:
        try:
            times = one.cpu_times()
            memory += int(one.memory_info().rss)
            cpu_s += times.user + times.system
        except psutil.Error:
            continue
    return memory, cpu_s


def command(
    reports: Annotated[int, typer.Option(help="Number of sealed reports, of 20 contributions each.")] = 60_000,
    keys: Annotated[int, typer.Option(help="Keys of the domain.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; the median counts.")] = 3,
    full: Annotated[bool, typer.Option("--full", help="A million reports and a million keys, five rounds.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Keep the sealed reports in this folder.")] = None,
) -> None:
    """Avro to summary: reports per second over bare opens.

    Both use all cores, one process each.
    """
    if full:
        reports, keys, rounds = 1_000_000, 1_000_000, max(rounds, 5)
    workers = min(2, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        inputs = folder or Path(scratch)
        if not (inputs / "domain.avro").exists():
            inputs.mkdir(parents=True, exist_ok=True)
            print(f"sealing {reports:,} reports on {workers} processes …", flush=True)
            prepare(inputs, reports, keys, workers)
        bare: list[float] = []
        ours: list[float] = []
        peak = 0
        for number in range(rounds):
            others = Others()
            for path in inputs.glob("*.avro"):
                path.read_bytes()
            first = bare_seconds(inputs, workers, 0)
            taken, _, used = engine_seconds(inputs, workers)
            bare.append(first + bare_seconds(inputs, workers, 1))
            ours.append(taken)
            peak = max(peak, used.peak)
            print(
                f"round {number + 1}: {bare[-1] / taken:.3f}, bare {bare[-1]:.2f} s, engine {taken:.2f} s, peak RSS "
                f"{used.peak / _GIB:.2f} GiB, other processes had {others.share(used):.0%} of the machine",
                flush=True,
            )
    ratios = [one / two for one, two in zip(bare, ours, strict=True)]
    conclude(
        median(ratios),
        f"reports per second, Avro to a summary of {keys:,} keys, over bare opens per second, {workers} processes, "
        f"median of {rounds} rounds from {min(ratios):.3f} to {max(ratios):.3f}",
        f"{reports / median(ours):,.0f} against {reports / median(bare):,.0f} per second; "
        f"peak RSS of all processes {peak / _GIB:.2f} GiB",
    )
