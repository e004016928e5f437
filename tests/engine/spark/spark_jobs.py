"""Random jobs over files, a small cluster to run them on, and sources of noise that reach executors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.engine import AvroShards, InlineOpener, LocalEngine, PrivacyUnit, Scope, ledger_terms
from aggservice.engine.spark.cluster import Cluster
from aggservice.engine.spark.engine import SparkEngine
from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.errors import EngineError
from aggservice.job.request import Discovery, HistogramRequest, JobRequest, KeyMask
from aggservice.mechanisms import Bits, ManualClock, SecureBits, SeededBits
from aggservice.service.jobs.asked import FileJob
from aggservice.service.jobs.folders import Folder
from aggservice.service.jobs.places import Prefix
from aggservice.wire import Api, BucketRows, Contribution, ReportBatch, write_buckets, write_key_set
from aggservice.wire.avro.reports import write_reports
from budget import (
    Delta,
    EpsilonDeltaFilter,
    GaussianNoise,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    Sensitivity,
    Signer,
    Staging,
    Store,
    ZcdpFilter,
)
from budget.files.staging import CALLER_BYTES

from ..conftest import NOW_MS, ORIGIN, Maker

SCOPE = Scope(caller="adtech")
KINDS = ("declared", "discovery", "mask", "others", "filtering", "gaussian", "shared", "debug", "sealed")
BOUNDS = {api: Sensitivity(l1=40, l0=20) for api in Api}
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def missing() -> str:
    """Return why Spark cannot run here; empty if it can."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "no Java was found: the Spark engine is not tested (install Java 17)"
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed: the Spark engine is not tested (pip install 'aggservice[spark]')"
    return ""


@contextmanager
def small_cluster(folder: Path, **options: str) -> Iterator[Cluster]:
    """Run a cluster of two executors, each a process with one core, until the block ends."""
    from pyspark import cloudpickle

    for name in (__name__, __name__.replace("spark_jobs", "spark_faults")):
        if name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
    settings = SparkSettings(
        master="local-cluster[2,1,1024]",
        keys=None,
        options={
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            **options,
        },
    )
    cluster = Cluster(settings)
    try:
        work = Path(os.environ.get("SPARK_HOME", "")) / "work" / cluster.context().applicationId
        yield cluster
    finally:
        cluster.close()
        del os.environ["SPARK_LOCAL_DIRS"]
        shutil.rmtree(work, ignore_errors=True)


class HashedNoise:
    """Noise that depends on the key alone, so that every division into partitions draws the same."""

    def __init__(self, bits: Bits) -> None:
        self.bits = bits

    def draw(self, noise: Any, size: int) -> NDArray[np.int64]:
        return np.full(size, 5, dtype=np.int64)

    def draw_for(self, noise: Any, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
        pairs = zip(high.tolist(), low.tolist(), strict=True)
        texts = (f"{type(noise).__name__} {one} {two}" for one, two in pairs)
        drawn = [int.from_bytes(blake2b(text.encode(), digest_size=1).digest(), "big") % 21 - 10 for text in texts]
        return np.array(drawn, dtype=np.int64).reshape(high.shape)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A random job: what it asks, what its ledger allows, and how it is divided on a cluster."""

    folder: Path
    maker: Maker
    request: JobRequest
    unit: PrivacyUnit
    filter: Any
    rows_per_shard: int
    partition_rows: int
    partition_bytes: int

    def files(self, output: Path) -> FileJob:
        """Return the job over its files."""
        folder = Folder(self.folder)
        return FileJob(
            prefixes=(Prefix(folder, "reports"),),
            domain=Prefix(folder, "domain") if list(self.folder.glob("domain*")) else None,
            output=AvroShards(prefix=output / "summary.avro", rows_per_shard=self.rows_per_shard),
        )

    def ledger(self, state: Path, store: Store | None = None, caller_bytes: int = CALLER_BYTES) -> Ledger:
        """Return a fresh ledger."""
        bits = SeededBits("ledger")
        state.mkdir(parents=True, mode=0o700)
        return Ledger.create(
            store or MemoryStore(),
            filter=self.filter,
            terms=ledger_terms(self.unit, BOUNDS),
            signer=Signer.generate(bits),
            clock=ManualClock(NOW_MS),
            bits=bits,
            staging=Staging(state / "staging", SecureBits(), caller_bytes=caller_bytes),
        )

    def local(
        self,
        state: Path,
        noise_of: Any = HashedNoise,
        store: Store | None = None,
        caller_bytes: int = CALLER_BYTES,
    ) -> LocalEngine:
        """Return the engine of this machine with a fresh ledger."""
        return self.engine_of(self.ledger(state, store, caller_bytes), noise_of)

    def engine_of(self, ledger: Ledger, noise_of: Any) -> LocalEngine:
        """Return the engine of this machine."""
        return LocalEngine(
            ledger=ledger,
            opener=InlineOpener(self.maker.keys),
            clock=self.maker.clock,
            bits=SeededBits("engine"),
            noise_of=noise_of,
        )

    def spark(self, local: LocalEngine, cluster: Cluster) -> SparkEngine:
        """Return the cluster's engine over a local one."""
        settings = SparkSettings(
            master="",
            keys=self.folder / "keys.json",
            partition_rows=self.partition_rows,
            partition_bytes=self.partition_bytes,
        )
        return SparkEngine(local, settings, cluster)

    def run(self, engine: LocalEngine | SparkEngine, output: Path) -> Any:
        """Run the job; return its outcome, or the error that it ended with."""
        output.mkdir(parents=True, exist_ok=True)
        job = self.files(output)
        try:
            session = engine.begin(
                SCOPE, self.request, destination=job.output, input_bytes=job.input_bytes(), debug_only=False
            )
            return job.run(session)
        except EngineError as problem:
            return problem


def random_job(folder: Path, seed: int, *, reports: int = 60, kind: str | None = None) -> Job:
    """Write the files of a job of some kind: repeated reports and keys, bad reports, several files of each sort."""
    random = np.random.default_rng(seed)
    kind = kind or KINDS[seed % len(KINDS)]
    maker = Maker(SeededBits(f"job {seed}"))
    folder.mkdir(parents=True)
    write_key_set(folder / "keys.json", maker.keys)
    keys = [int(key) for key in random.integers(0, 1 << 62, 12)]
    keys += [key << 60 for key in keys[:4]]
    made = []
    for number in range(int(random.integers(1, reports))):
        contributions = [
            Contribution(
                bucket=keys[random.integers(0, len(keys))],
                value=int(random.integers(0, 12)),
                filtering_id=int(random.integers(0, 3)) if kind == "filtering" else 0,
            )
            for _ in range(random.integers(0, 5))
        ]
        changes: dict[str, Any] = {"scheduled_report_time_s": NOW_MS // 1000 - int(random.integers(60, 90_000))}
        fault = int(random.integers(0, 40))
        if fault == 0:
            changes["reporting_origin"] = "https://other.example"
        elif fault == 1:
            changes["scheduled_report_time_s"] = 1_000_000
        elif fault == 2:
            contributions = [Contribution(bucket=keys[0], value=41)]
        elif fault == 3:
            changes |= {"api": Api.SHARED_STORAGE, "attribution_destination": None}
        if kind == "shared":
            changes["source_registration_time_s"] = 86_400 * (19_000 + number % 3)
            if changes.get("api") is not None:
                del changes["source_registration_time_s"]
        made.append(maker.report(contributions, **changes))
    made += [made[index] for index in random.integers(0, len(made), random.integers(0, 6))]
    order = random.permutation(len(made))
    parts = int(random.integers(1, 4))
    for part in range(parts):
        chosen = [made[index] for index in order[part::parts]]
        write_reports(folder / f"reports-{part}.avro", [ReportBatch.of(chosen)] if chosen else [])
    if kind != "discovery" or random.integers(0, 2):
        declared = random.choice(len(keys), int(random.integers(1, 40)))
        for part, rows in enumerate(np.array_split(declared, random.integers(1, 3))):
            high = np.array([keys[row] >> 64 for row in rows], dtype=np.uint64)
            low = np.array([keys[row] & ((1 << 64) - 1) for row in rows], dtype=np.uint64)
            write_buckets(folder / f"domain-{part}.avro", BucketRows.domain(high, low))
    gaussian = kind == "gaussian"
    request = HistogramRequest(
        job_request_id=f"job-{seed}",
        attribution_report_to=ORIGIN,
        mechanism=GaussianNoise.parse(rho="0.5") if gaussian else LaplaceNoise.parse(epsilon="60"),
        error_threshold_percent=threshold_of(random),
        filtering_ids=(0, 2) if kind == "filtering" else (0,),
        debug_run=kind == "debug",
    )
    if kind in ("discovery", "mask", "debug"):
        mask = KeyMask.of((1 << 61) - 1) if kind == "mask" else KeyMask()
        request = replace(request, discovery=Discovery(delta=Delta.parse("0.000001"), mask=mask))
    if kind == "sealed":
        request = replace(request, output_key=maker.keys.pairs[0].public.key.public_bytes_raw())
    if kind in ("others", "mask", "sealed"):
        request = replace(request, others=LaplaceNoise.parse(epsilon="3"))
    size = sum(path.stat().st_size for path in folder.glob("reports*"))
    domain = sum(path.stat().st_size for path in folder.glob("domain*")) // 17
    poor = random.integers(0, 12) == 0
    return Job(
        folder=folder,
        maker=maker,
        request=request,
        unit=PrivacyUnit.SHARED_ID if kind == "shared" else PrivacyUnit.REPORT,
        filter=ZcdpFilter.parse(rho="0.1" if poor else "2") if gaussian else _filter(poor=bool(poor)),
        rows_per_shard=int(random.integers(1, 12)),
        partition_rows=1 + (domain if kind not in ("discovery", "mask", "debug") else size // 64) // parts_of(random),
        partition_bytes=1 + size // parts_of(random),
    )


def _filter(*, poor: bool) -> EpsilonDeltaFilter:
    return EpsilonDeltaFilter.parse(epsilon="1" if poor else "64", delta="0.00001")


def parts_of(random: np.random.Generator) -> int:
    """Return into how many partitions something is divided."""
    return int(random.integers(1, 4))


def threshold_of(random: np.random.Generator) -> Fraction:
    """Return a threshold of bad reports: usually one that no job exceeds."""
    return Fraction(2) if random.integers(0, 6) == 0 else Fraction(100)
