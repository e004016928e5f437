"""Faults while a job runs on Spark, at random moments, and what must hold afterwards.

The source of noise is a canary: it writes down every draw that it makes, so that a second draw for a key is known, and
any value in a summary can be traced to the one draw that it contains.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.spark.cluster import Cluster
from aggservice.job.errors import EngineError, PaidFailureError
from aggservice.job.result import Outcome
from aggservice.mechanisms import Bits, SecureBits
from aggservice.wire import read_summary
from budget import EpsilonDeltaFilter, JobKey, Ledger, SqliteStore, Store, verify_store

from .spark_jobs import SCOPE, Job, random_job

REACH = 1 << 40


class Canary:
    """Draws noise that never repeats, and writes every draw down; ``raises`` fails the first draw after that."""

    def __init__(self, folder: str, raises: bool, bits: Bits) -> None:
        self.folder = folder
        self.raises = raises
        self.bits = bits

    def draw(self, noise: Any, size: int) -> NDArray[np.int64]:
        raise AssertionError("this job draws noise for keys only")

    def draw_for(self, noise: Any, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
        drawn = (SecureBits().words(high.size) % np.uint64(2 * REACH)).astype(np.int64) - REACH
        name = SecureBits().read(8).hex()
        np.save(Path(self.folder) / f".{name}.npy", np.stack((high.view(np.int64), low.view(np.int64), drawn), axis=1))
        os.replace(Path(self.folder) / f".{name}.npy", Path(self.folder) / f"{name}.npy")
        if self.raises:
            with suppress(FileExistsError):
                os.close(os.open(Path(self.folder) / "raised", os.O_CREAT | os.O_EXCL))
                raise OSError("a fault of the test")
        return drawn


def drawn_in(folder: Path) -> dict[tuple[int, int], list[int]]:
    """Return every draw ever made, by key."""
    found: dict[tuple[int, int], list[int]] = {}
    for path in folder.glob("[!.]*.npy"):
        for high, low, draw in np.load(path).tolist():
            found.setdefault((high % (1 << 64), low % (1 << 64)), []).append(draw)
    return found


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One job with a ledger of its own, and the folders that it uses."""

    job: Job
    folder: Path
    true: dict[tuple[int, int], int]
    store: Store
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "draws").mkdir(parents=True)
        object.__setattr__(self, "ledger", self.job.ledger(self.folder / "state", self.store))

    def noise_of(self, *, raises: bool = False) -> Callable[[Bits], Canary]:
        return partial(Canary, str(self.folder / "draws"), raises)

    def engine(self, *, raises: bool = False) -> Any:
        return self.job.engine_of(self.ledger, self.noise_of(raises=raises))

    @property
    def staging(self) -> Path:
        return self.folder / "state" / "staging"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def run(self, engine: Any) -> Any:
        return self.job.run(engine, self.output)

    def check(self) -> int:
        """Assert that the job was released and charged once; return how many keys were drawn for more than once."""
        committed = self.ledger.job(SCOPE.caller, self.job.request.job_request_id)
        assert committed is not None and committed.manifest is not None
        assert self.ledger.checkpoint().entries == 2
        report = verify_store(self.store)
        assert report.ok and report.releases == 1, report.disagreement
        names = {one.name for one in committed.manifest.files}
        assert {path.name for path in self.output.iterdir()} == names
        draws = drawn_in(self.folder / "draws")
        rows = 0
        for path in sorted(self.output.glob("*.avro")):
            for page in read_summary(path):
                columns = zip(page.key_high.tolist(), page.key_low.tolist(), page.metric.tolist(), strict=True)
                for high, low, metric in columns:
                    assert metric - self.true[high, low] in draws[high, low]
                    rows += 1
        assert rows == len(self.true)
        # If the database did not tell how a commit ended, its files stay staged until a service starts: the same ones.
        for path in self.staging.glob("*/files/*"):
            assert path.read_bytes() == (self.output / path.name).read_bytes()
        self.ledger.recover_staged()
        assert list(self.staging.iterdir()) == [], "a draw that nobody paid for is left"
        return sum(len(found) > 1 for found in draws.values())


def fault_job(folder: Path, seed: int) -> Job:
    """Return a job over declared keys that every unit can pay for."""
    job = random_job(folder, seed, reports=40, kind="declared")
    request = replace(job.request, error_threshold_percent=Fraction(100))
    return replace(job, request=request, filter=EpsilonDeltaFilter())


def true_sums(job: Job, folder: Path) -> dict[tuple[int, int], int]:
    """Return the true sum of each declared key, from a debug run of the local engine."""
    debug = replace(job, request=replace(job.request, debug_run=True))
    outcome = debug.run(debug.local(folder / "truth"), folder / "truth-out")
    assert isinstance(outcome, Outcome) and outcome.rows is not None and outcome.rows.unnoised is not None
    rows = outcome.rows
    assert rows.annotations is not None
    columns = zip(rows.high.tolist(), rows.low.tolist(), rows.unnoised.tolist(), rows.annotations.tolist(), strict=True)
    return {(high, low): value for high, low, value, tags in columns if tags & 1}


def processes(word: str) -> list[int]:
    """Return the ids of processes below this one whose command line has a word."""
    import psutil

    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(word in part for part in one.cmdline()):
                found.append(one.pid)
    return found


def kill_executor() -> None:
    """Kill one executor: the process that runs tasks, with its Python workers."""
    for process in processes("CoarseGrainedExecutorBackend")[:1]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def kill_worker() -> None:
    """Kill one Python worker: the task that it runs fails and is tried again."""
    for process in processes("pyspark.daemon")[-1:]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@contextmanager
def later(fault: Callable[[], None], ready: Callable[[], bool]) -> Iterator[threading.Event]:
    """Cause a fault once ``ready`` says so, while the block runs; the event says whether it happened."""
    done, happened = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            if ready():
                happened.set()
                fault()
                return
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield happened
    finally:
        done.set()
        thread.join()


def after(seconds: float) -> Callable[[], bool]:
    """Return a condition that holds from that many seconds on."""
    start = time.monotonic()
    return lambda: time.monotonic() - start >= seconds


def run_through(
    trial: Trial, cluster: Cluster, fault: Callable[[], None], ready: Callable[[], bool], *, raises: bool = False
) -> tuple[bool, int]:
    """Run a trial with a fault; if it was not released, run it again; return if the fault came, and repeated draws."""
    with later(fault, ready) as happened:
        outcome = trial.run(trial.job.spark(trial.engine(raises=raises), cluster))
    for _ in range(5):
        if isinstance(outcome, Outcome):
            break
        assert isinstance(outcome, EngineError) and not isinstance(outcome, PaidFailureError), outcome
        assert trial.ledger.job(SCOPE.caller, trial.job.request.job_request_id) is None
        assert not list(trial.output.iterdir())
        trial.ledger.recover_staged()
        outcome = trial.run(trial.job.spark(trial.engine(), cluster))
    assert isinstance(outcome, Outcome), outcome
    return happened.is_set(), trial.check()


def settle(trial: Trial) -> None:
    """Do what a service does when it starts after a crash, until executors of the dead one have ended."""
    for _ in range(200):
        trial.ledger.recover_staged()
        if not list(trial.staging.iterdir()):
            return
        time.sleep(0.1)


def killed_driver(trial: Trial, folder: Path, seconds: float, start: Callable[[Path], Any]) -> str:
    """Run a trial in a process that is killed after some seconds of work; return how far the job had come."""
    begun, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            from pyspark import SparkContext  # an extra that may be missing

            # A driver of its own, whatever this process has run before.
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
            with start(folder) as cluster:
                os.write(end, b"1")
                trial.run(trial.job.spark(trial.engine(), cluster))
                time.sleep(60)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(end)
    assert os.read(begun, 1) == b"1", "the driver did not start"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun)
    settle(trial)
    job = JobKey(caller=SCOPE.caller, job_id=trial.job.request.job_request_id)
    committed = trial.ledger.job(job.caller, job.job_id) is not None
    assert committed == bool(list(trial.output.iterdir()) if trial.output.exists() else [])
    if not committed:
        outcome = trial.run(trial.engine())
        assert isinstance(outcome, Outcome), outcome
    trial.check()
    return "after the commit" if committed else "before the commit"


def sqlite(folder: Path) -> Store:
    """Return an empty store of this trial's own."""
    folder.mkdir(parents=True, exist_ok=True)
    return SqliteStore(folder / "ledger.db")
