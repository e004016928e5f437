"""The Spark engine against the local one: the same sealed files, two executors against two worker processes.

The rounds are interleaved and the median of their ratios counts. Joining the cluster and a first small job, which loads
and compiles the kernels in each executor, are left out and printed. ``--full`` also runs a job in the clear over 50
million keys.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from aggservice.bench import conclude
from aggservice.bench.domain import write_clear_reports, write_domain
from aggservice.bench.engine import NOW_MS, Others, Used, engine_seconds, in_process, new_ledger, prepare, timed_job
from aggservice.engine import InlineOpener, LocalEngine
from aggservice.engine.spark.engine import SparkEngine
from aggservice.engine.spark.settings import SparkSettings
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import BucketRows, KeySet, read_domain, read_reports, write_buckets
from aggservice.wire.avro.reports import write_reports

EXECUTORS = 2
EXECUTOR_MEMORY = "2g"
CLEAR_REPORTS, CLEAR_KEYS, CLEAR_FILES = 10_000_000, 50_000_000, 20
_GIB = 1 << 30
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_job(folder: str, cleartext: bool, out: Any) -> None:
    """Join a cluster of our own, warm it, and run one job; ``out`` gets "ready", then the result and the start-up."""
    inputs = Path(folder)
    state = Path(tempfile.mkdtemp(dir=inputs, prefix="state-"))
    os.environ["SPARK_LOCAL_DIRS"] = str(state / "spark")
    local = LocalEngine(
        ledger=new_ledger(state), opener=InlineOpener(KeySet(())), clock=ManualClock(NOW_MS), bits=SecureBits()
    )
    settings = SparkSettings(
        master=f"local-cluster[{EXECUTORS},1,2048]",
        keys=None if cleartext else inputs / "keys.json",
        options={
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.driver.extraJavaOptions": _JAVA,
            "spark.executor.extraJavaOptions": _JAVA,
        },
    )
    engine = SparkEngine(local, settings)
    start = time.perf_counter()
    engine.start()
    _warm(engine, inputs, state / "warm", cleartext)
    started = time.perf_counter() - start
    out.put("ready")
    result = timed_job(engine, inputs, state / "summary.avro", cleartext=cleartext)
    out.put((*result, started))
    engine.close()
    shutil.rmtree(state, ignore_errors=True)


def _warm(engine: SparkEngine, inputs: Path, folder: Path, cleartext: bool) -> None:
    """Run a small job of two files, so that both executors have started Python and compiled every kernel."""
    folder.mkdir()
    batch = next(iter(read_reports(min(inputs.glob("reports*.avro")), rows=100)))
    for part in range(EXECUTORS):
        write_reports(folder / f"reports-{part}.avro", [batch.slice(64 * part, 64 * part + 64)])
    keys = next(iter(read_domain(inputs / "domain.avro")))
    write_buckets(folder / "domain.avro", BucketRows.domain(keys.key_high[:1000], keys.key_low[:1000]))
    if not cleartext:
        shutil.copy(inputs / "keys.json", folder / "keys.json")
    for number in range(2):
        timed_job(engine, folder, folder / f"warm-{number}.avro", cleartext=cleartext, name=f"warm-{number}")


def spark_seconds(folder: Path, *, cleartext: bool = False) -> tuple[float, int, Used, float]:
    """Return how long the Spark engine takes over a folder, its rows, what its processes used, and its start-up."""
    (taken, rows, errors, started), used = in_process(spark_job, (str(folder), cleartext))
    if errors or not rows:
        raise RuntimeError(f"the job on Spark failed: {rows} rows, errors {errors}")
    return taken, rows, used, started


def _clear_part(folder: str, part: int) -> None:
    count = CLEAR_REPORTS // CLEAR_FILES
    rows = np.random.default_rng(part).integers(0, CLEAR_KEYS, count * 10)
    write_clear_reports(Path(folder) / f"reports-{part:03d}.avro", rows, first=part * count)


def _clear(folder: Path) -> None:
    """Run 100 million contributions in the clear into 50 million keys, end to end."""
    if not (folder / "domain.avro").exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"writing {CLEAR_KEYS:,} keys and {CLEAR_REPORTS:,} reports in the clear …", flush=True)
        with multiprocessing.get_context("spawn").Pool(EXECUTORS) as pool:
            pool.starmap(_clear_part, [(str(folder), part) for part in range(CLEAR_FILES)])
        write_domain(folder, CLEAR_KEYS)
    taken, rows, used, started = spark_seconds(folder, cleartext=True)
    if rows != CLEAR_KEYS:
        raise RuntimeError(f"the job released {rows} rows instead of {CLEAR_KEYS}: its time means nothing")
    total = CLEAR_KEYS + CLEAR_REPORTS * 10
    print(
        f"in the clear: {CLEAR_REPORTS * 10:,} contributions into {CLEAR_KEYS:,} keys in {taken:.1f} s with charge: "
        f"{total / taken:,.0f} rows per second; peak RSS of all processes {used.peak / _GIB:.2f} GiB, executors "
        f"{EXECUTOR_MEMORY} each; start-up {started:.1f} s",
        flush=True,
    )


def command(
    reports: Annotated[int, typer.Option(help="Number of sealed reports, of 20 contributions each.")] = 150_000,
    keys: Annotated[int, typer.Option(help="Keys of the domain.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; the median counts.")] = 3,
    full: Annotated[bool, typer.Option("--full", help="A million reports; then 50 million keys in the clear.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Keep the reports in this folder for the next run.")] = None,
) -> None:
    """The Spark engine over the local one: reports per second.

    Two executors, each a process with one core, against two worker processes, over the same sealed files.
    """
    if full:
        reports, keys = 1_000_000, 1_000_000
    with tempfile.TemporaryDirectory(prefix="aggservice-bench-") as scratch:
        inputs = (folder or Path(scratch)) / "sealed"
        if not (inputs / "domain.avro").exists():
            inputs.mkdir(parents=True, exist_ok=True)
            print(f"sealing {reports:,} reports on {EXECUTORS} processes …", flush=True)
            prepare(inputs, reports, keys, EXECUTORS)
        here: list[float] = []
        there: list[float] = []
        peak = 0
        for number in range(rounds):
            others = Others()
            local_s, _, local_used = engine_seconds(inputs, EXECUTORS)
            spark_s, rows, spark_used, started = spark_seconds(inputs)
            if rows != keys:
                raise RuntimeError(f"the job released {rows} rows instead of {keys}: its time means nothing")
            here.append(local_s)
            there.append(spark_s)
            peak = max(peak, spark_used.peak)
            print(
                f"round {number + 1}: {local_s / spark_s:.3f}, local {local_s:.2f} s ({local_used.cpu_s:.1f} s CPU), "
                f"Spark {spark_s:.2f} s ({spark_used.cpu_s:.1f} s CPU) after a start-up of {started:.1f} s, peak RSS "
                f"{spark_used.peak / _GIB:.2f} GiB; other processes had "
                f"{others.share(local_used, spark_used):.0%} of the machine",
                flush=True,
            )
        if full:
            _clear((folder or Path(scratch)) / "clear")
    conclude(
        median(one / two for one, two in zip(here, there, strict=True)),
        f"reports per second of the Spark engine on {EXECUTORS} executors over the local engine on as many "
        f"processes, sealed reports into {keys:,} keys",
        f"{reports / median(there):,.0f} against {reports / median(here):,.0f} per second; without the start-up of "
        f"{started:.1f} s; peak RSS of all of Spark's processes {peak / _GIB:.2f} GiB",
    )
