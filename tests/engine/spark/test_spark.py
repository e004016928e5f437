"""The Spark engine against the local one: the same answers, and each release exactly once, whatever fails.

One test runs every check, so that a whole run starts one small cluster, in one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.engine.spark.cluster import Cluster
from aggservice.job.errors import EngineError
from aggservice.job.result import Outcome
from aggservice.wire.hpke.summaries import open_document
from budget import MemoryStore, PostgresStore

from .spark_faults import (
    Trial,
    after,
    fault_job,
    kill_executor,
    kill_worker,
    killed_driver,
    run_through,
    sqlite,
    true_sums,
)
from .spark_jobs import KINDS, Job, missing, random_job, small_cluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Postgres:
    """A PostgreSQL server that can be restarted as if it had crashed."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def get_uri(self) -> str:
        return str(self._server.get_uri())

    def restart(self) -> None:
        from pgserver._commands import pg_ctl

        pg_ctl(
            ["-m", "immediate", "-w", "restart"], pgdata=self._server.pgdata, user=self._server.system_user, timeout=60
        )


@contextmanager
def postgres() -> Iterator[Postgres]:
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    with tempfile.TemporaryDirectory(prefix="aggservice-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder)
        yield Postgres(server)
        server.cleanup()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_same_answers(cluster: Cluster, folder: Path, seed: int) -> str:
    """Run a random job on both engines and compare all that it shows; return how it ended."""
    job = random_job(folder / "in", seed)
    here, there = job.local(folder / "local"), job.local(folder / "spark")
    ours, theirs = job.run(here, folder / "a"), job.run(job.spark(there, cluster), folder / "b")
    assert type(ours) is type(theirs), (seed, ours, theirs)
    assert list((folder / "spark" / "staging").iterdir()) == []
    if isinstance(ours, EngineError):
        assert str(ours) == str(theirs), seed
        assert here.ledger.checkpoint().entries == there.ledger.checkpoint().entries == 1
        return type(ours).__name__
    assert isinstance(ours, Outcome) and isinstance(theirs, Outcome)
    assert ours.header == theirs.header, seed
    assert files_of(folder / "a") == files_of(folder / "b"), seed
    if job.request.output_key is not None:
        check_sealed(job, folder / "b")
    if ours.rows is not None:
        for name in ("high", "low", "metrics", "unnoised", "annotations"):
            assert getattr(ours.rows, name).tolist() == getattr(theirs.rows, name).tolist(), (seed, name)
    if ours.committed is not None:
        assert theirs.committed is not None
        mine, other = ours.committed.entry, theirs.committed.entry
        assert (mine.units, mine.cost, mine.release) == (other.units, other.cost, other.release), seed
        assert mine.result.files == other.result.files
        assert ours.remaining == theirs.remaining
    return ours.header.return_code.value


def check_sealed(job: Job, folder: Path) -> None:
    """Open every shard with the key that the job named; none is left in the clear."""
    sealed = [path for path in folder.iterdir() if path.suffix == ".sealed"]
    assert len(sealed) == len(list(folder.iterdir())) - 1, "all but the statement"
    rows = sum(len(open_document(path.read_bytes(), job.maker.keys, name=path.name)) // 24 for path in sealed)
    assert rows == json.loads((folder / "summary-statement.json").read_text())["row_count"] > 0


def check_many(cluster: Cluster, folder: Path, count: int) -> Counter[str]:
    """Compare that many jobs, several at once: they share the cluster."""
    with ThreadPoolExecutor(4) as pool:
        return Counter(pool.map(lambda seed: check_same_answers(cluster, folder / str(seed), seed), range(count)))


def part_written(trial: Trial) -> Callable[[], bool]:
    """Return a condition that holds once a task has written noisy rows."""
    return lambda: any(trial.staging.glob("*/files/part.*"))


def check_faults(cluster: Cluster, folder: Path) -> None:
    """Fail a task after it drew, and kill a worker and an executor after a file was written: released once each."""
    job = fault_job(folder / "jobs", 1)
    true = true_sums(job, folder)
    trial = Trial(job=job, folder=folder / "retried", true=true, store=MemoryStore())
    assert isinstance(trial.run(job.spark(trial.engine(raises=True), cluster)), Outcome)
    assert trial.check() > 0, "the task that failed had drawn, and its second attempt drew again"
    for name, fault in (("worker", kill_worker), ("executor", kill_executor)):
        trial = Trial(job=job, folder=folder / name, true=true, store=MemoryStore())
        happened, _ = run_through(trial, cluster, fault, part_written(trial))
        assert happened, name


def test_spark_gives_the_answers_of_the_local_engine_once_each(tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        endings = check_many(cluster, tmp_path, 2 * len(KINDS))
        assert endings.keys() >= {"SUCCESS", "SUCCESS_WITH_ERRORS"}
        check_faults(cluster, tmp_path / "faults")


@pytest.mark.soak
def test_each_release_happens_once_whatever_fails_at_80_random_moments(tmp_path: Path) -> None:
    patient = {"spark.task.maxFailures": "50", "spark.stage.maxConsecutiveAttempts": "50"}
    with (
        small_cluster(
            tmp_path, **patient, **{"spark.deploy.maxExecutorRetries": "-1", "spark.speculation": "true"}
        ) as cluster,
        postgres() as server,
    ):
        job = fault_job(tmp_path / "jobs", 1)
        true = true_sums(job, tmp_path)
        for name in ("first", "usual"):
            trial = Trial(job=job, folder=tmp_path / name, true=true, store=MemoryStore())
            start = time.monotonic()
            assert isinstance(trial.run(job.spark(trial.engine(), cluster)), Outcome)
            usual = time.monotonic() - start  # of the second run, when workers and compiled code are there

        def one(number: int, kind: str) -> Counter[str]:
            """Run jobs until one of them has met the fault: a moment after a job's end tells nothing."""
            random = np.random.default_rng()
            counts: Counter[str] = Counter()
            for attempt in range(10):
                store = PostgresStore(server.get_uri(), schema=f"trial{number}_{attempt}")
                trial = Trial(job=job, folder=tmp_path / f"trial-{number}-{attempt}", true=true, store=store)
                ready = after(random.uniform(0, usual))
                if kind != "PostgreSQL restarted" and random.random() < 0.4:
                    ready = part_written(trial)
                if kind == "task retried":
                    _, again = run_through(trial, cluster, lambda: None, lambda: False, raises=True)
                    happened = again > 0
                else:
                    fault = {"executor killed": kill_executor, "worker killed": kill_worker}.get(kind, server.restart)
                    happened, again = run_through(trial, cluster, fault, ready)
                store.close()
                counts += Counter({"jobs": 1, kind: int(happened), "keys drawn more than once": again})
                if happened:
                    break
            return counts

        kinds = ("executor killed", "worker killed", "task retried")
        with ThreadPoolExecutor(4) as pool:  # a fault hits the jobs of the others, too
            counts = sum(pool.map(one, range(60), kinds * 20), Counter())
        for number in range(60, 80):
            counts += one(number, "PostgreSQL restarted")
    print(f"{dict(counts)}: each job released and charged once, one draw per key published")
    assert all(counts[kind] == 20 for kind in (*kinds, "PostgreSQL restarted"))


@pytest.mark.soak
def test_a_killed_driver_releases_nothing_twice_at_20_random_moments(tmp_path: Path) -> None:
    random = np.random.default_rng()
    job = fault_job(tmp_path / "jobs", 1)
    true = true_sums(job, tmp_path)
    counts: Counter[str] = Counter()
    for number in range(20):
        folder = tmp_path / f"trial-{number}"
        trial = Trial(job=job, folder=folder, true=true, store=sqlite(folder))
        counts[killed_driver(trial, folder, float(random.uniform(0, 14)), small_cluster)] += 1
    print(f"20 drivers killed, {dict(counts)}: each job released and charged once, one draw per key published")


@pytest.mark.soak
def test_spark_gives_the_answers_of_the_local_engine_for_200_jobs(tmp_path: Path) -> None:
    with small_cluster(tmp_path) as cluster:
        endings = check_many(cluster, tmp_path, 200)
    print(f"200 random jobs, {len(KINDS)} kinds, two executors against the local engine: the same; {dict(endings)}")
    assert sum(endings.values()) == 200 and len(endings) >= 4


@pytest.mark.soak
def test_the_example_of_a_standalone_cluster_runs() -> None:
    pytest.importorskip("pgserver", reason="pgserver is not installed: no PostgreSQL to test against")
    script = Path(__file__).resolve().parents[3] / "examples" / "scale" / "standalone.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "summary: 50 keys" in done.stdout and "audit: ok" in done.stdout
