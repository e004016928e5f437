"""What a job on a cluster promises, where only an unlucky moment would show it: its tasks run here, in a chosen order.

``HereExchange`` stands where ``Exchange`` does and runs the same tasks over the same blobs in this process, so that a
test can lose an executor between two of them. ``test_spark`` runs jobs on a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aggservice.engine import PrivacyUnit
from aggservice.engine.spark import session as session_module
from aggservice.engine.spark.engine import SparkEngine
from aggservice.engine.spark.releasing import PART
from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.errors import InputReadError, PaidFailureError, UnpaidError
from aggservice.job.request import Discovery
from aggservice.job.result import Outcome
from aggservice.wire import ReportBatch, write_key_set
from aggservice.wire.avro.reports import write_reports
from budget import Delta, EpsilonDeltaFilter, LaplaceNoise, MemoryStore, Store
from budget.errors import StoreError
from budget.store import T, Transaction

from ..conftest import Maker
from ..test_flow import request
from .spark_jobs import Job

CAPACITY = 1 << 30


class Counter:
    """What Spark's accumulator is here: a number that tasks add to."""

    value = 0

    def add(self, count: int) -> None:
        self.value += count


class HereCluster:
    """A cluster whose tasks run in this process."""

    slots = 3

    def context(self) -> Any:
        return SimpleNamespace(accumulator=lambda _: Counter())

    def cancel(self, group: str) -> None:
        """Do nothing: no task runs while another call is made."""


class HereExchange:
    """Runs tasks one after the other; ``between`` is called after each one that reads a partition."""

    between: Callable[[HereExchange, int], None] = staticmethod(lambda exchange, partition: None)

    def __init__(self, cluster: HereCluster, group: str, partitions: int) -> None:
        self._partitions = partitions
        self._sources: list[tuple[Callable[[Any], Iterable[Any]], Sequence[Any]]] = []
        self._blobs: list[list[tuple[int, Any]]] = []

    def add(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> None:
        self._sources.append((work, items))
        self._blobs.append([blob for item in items for blob in work(item)])

    def lose(self) -> None:
        """Lose what tasks sent to one another, as with an executor: Spark runs the tasks again."""
        self._blobs = [[blob for item in items for blob in work(item)] for work, items in self._sources]

    def read(self, work: Callable[[int, Iterable[Any]], Iterable[Any]], partitions: range) -> list[Any]:
        found: list[Any] = []
        for partition in partitions:
            found += work(partition, [blob for blobs in self._blobs for blob in blobs if blob[0] == partition])
            self.between(self, partition)
        return found

    def each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    def forget(self) -> None:
        self._blobs = []


@pytest.fixture
def tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> type[HereExchange]:
    class Exchange(HereExchange):
        pass

    monkeypatch.setattr(session_module, "Exchange", Exchange)
    return Exchange


def small_job(folder: Path, maker: Maker) -> Job:
    """Return a job that discovers keys, without its reports."""
    folder.mkdir(parents=True)
    write_key_set(folder / "keys.json", maker.keys)
    return Job(
        folder=folder,
        maker=maker,
        request=request(
            "job",
            mechanism=LaplaceNoise.parse(epsilon="40"),
            discovery=Discovery(delta=Delta.parse("0.00001")),
        ),
        unit=PrivacyUnit.REPORT,
        filter=EpsilonDeltaFilter(),
        rows_per_shard=100,
        partition_rows=1 << 20,
        partition_bytes=256,
    )


def spark(job: Job, state: Path, store: Store | None = None, caller_bytes: int = CAPACITY) -> SparkEngine:
    settings = SparkSettings(
        master="", keys=job.folder / "keys.json", partition_rows=job.partition_rows, partition_bytes=job.partition_bytes
    )
    return SparkEngine(job.local(state, store=store, caller_bytes=caller_bytes), settings, HereCluster())  # type: ignore[arg-type]


def test_a_file_that_changes_when_an_executor_is_lost_charges_nothing(
    tmp_path: Path, maker: Maker, tasks_run_here: type[HereExchange]
) -> None:
    """Otherwise the new file's ids in the partitions that were compared before would never pay.

    What is counted about the second file goes to the second partition, which is read after the fault.
    """
    job = small_job(tmp_path / "in", maker)
    before, after = ([maker.report({key: 30}) for key in range(12)] for _ in range(2))
    write_reports(job.folder / "reports-0", [maker.batch([maker.report({1: 30})])])
    write_reports(job.folder / "reports-1", [maker.batch(before)])

    def swap(exchange: HereExchange, partition: int) -> None:
        if partition == 0:
            write_reports(job.folder / "reports-1", [maker.batch(after)])
            exchange.lose()

    engine = spark(job, tmp_path / "state")
    tasks_run_here.between = staticmethod(swap)
    ended = job.run(engine, tmp_path / "out")
    assert isinstance(ended, InputReadError) and "changed while the job ran" in str(ended), ended
    assert engine.ledger.checkpoint().entries == 1, "nothing was charged"
    assert list((tmp_path / "state" / "staging").iterdir()) == [] == list((tmp_path / "out").iterdir())
    tasks_run_here.between = staticmethod(lambda exchange, partition: None)
    ended = job.run(engine, tmp_path / "out")
    assert isinstance(ended, Outcome) and ended.committed is not None
    assert ended.committed.entry.units.count == 13


def test_room_is_taken_by_public_numbers_before_noisy_rows_are_written(
    tmp_path: Path, maker: Maker, tasks_run_here: type[HereExchange]
) -> None:
    """Whether a job is refused for lack of room must not tell how many rows passed the threshold."""
    batches = [maker.batch([maker.report({row % keys + 1: 40}) for row in range(24)]) for keys in (1, 8)]

    def end(number: int, quota: int) -> tuple[str, str, int]:
        home = tmp_path / str(quota) / str(number)
        job = small_job(home / "in", maker)
        write_reports(job.folder / "reports", [batches[number]])
        engine = spark(job, home / "state", caller_bytes=quota)
        ended = job.run(engine, home / "out")
        text = str(ended) if isinstance(ended, Exception) else ""
        return type(ended).__name__, text, engine.ledger.checkpoint().entries

    low, high = 1, CAPACITY  # the smallest quota with which the first world's job is released
    while low < high:
        middle = (low + high) // 2
        first, second = end(0, middle), end(1, middle)
        assert first == second
        low, high = (low, middle) if first == ("Outcome", "", 2) else (middle + 1, high)
        assert first == ("Outcome", "", 2) or (first[0] == "ResultWriteError" and first[2] == 1)
    assert 100_000 < low < CAPACITY


def test_a_job_that_cannot_pay_draws_no_noise_and_writes_no_rows(
    tmp_path: Path, maker: Maker, tasks_run_here: type[HereExchange]
) -> None:
    """What it wrote could be measured by other callers, again and again, for nothing."""
    job = small_job(tmp_path / "in", maker)
    write_reports(job.folder / "reports", [maker.batch([maker.report({row % 8 + 1: 40}) for row in range(24)])])
    engine = spark(job, tmp_path / "state")
    assert isinstance(job.run(engine, tmp_path / "first"), Outcome)
    again = replace(job, request=replace(job.request, job_request_id="again"))
    staged: list[str] = []

    def look(exchange: HereExchange, partition: int) -> None:
        staged.extend(path.name.split(".")[0] for path in (tmp_path / "state" / "staging").rglob("*"))

    tasks_run_here.between = staticmethod(look)
    assert isinstance(again.run(engine, tmp_path / "second"), UnpaidError)
    assert "units" in staged and PART not in staged


class FullStore(MemoryStore):
    """A store on the disk of what is staged: it cannot write while more than ``room`` bytes are staged there."""

    def __init__(self, staged: Path, room: int) -> None:
        super().__init__()
        self._staged = staged
        self._room = room
        self.most = 0

    def write(self, name: str, work: Callable[[Transaction], T]) -> T:
        size = sum(one.stat().st_size for one in self._staged.rglob("*") if one.is_file())
        self.most = max(self.most, size)
        if size > self._room:
            raise StoreError("transaction failed: database or disk is full")
        return super().write(name, work)


def test_a_ledger_on_the_disk_that_noisy_rows_fill_charges_all_the_same(
    tmp_path: Path, maker: Maker, tasks_run_here: type[HereExchange]
) -> None:
    """Otherwise a job fails for nothing once many keys pass the threshold, and not with few."""
    few, many = (maker.batch([maker.report({row % keys + 1: 40}) for row in range(600)]) for keys in (1, 300))

    def run(name: str, batch: ReportBatch, room: int) -> tuple[Any, int, int]:
        job = small_job(tmp_path / name / "in", maker)
        write_reports(job.folder / "reports", [batch])
        store = FullStore(tmp_path / name / "state" / "staging", room)
        engine = spark(replace(job, partition_bytes=1 << 20), tmp_path / name / "state", store)
        ended = job.run(engine, tmp_path / name / "out")
        return type(ended), engine.ledger.checkpoint().entries, store.most

    ended, entries, room = run("few", few, CAPACITY)
    assert (ended, entries) == (Outcome, 2)
    assert run("many", many, CAPACITY)[:2] == (Outcome, 2)
    assert run("full", many, room)[:2] == (PaidFailureError, 2)


def test_a_fault_of_any_kind_during_the_release_is_paid_for(
    tmp_path: Path, maker: Maker, tasks_run_here: type[HereExchange]
) -> None:
    """Executors have summed by then: whether they fail may depend on what reports hold."""
    job = small_job(tmp_path / "in", maker)
    write_reports(job.folder / "reports", [maker.batch([maker.report({1: 40})])])

    def fail(exchange: HereExchange, partition: int) -> None:
        if list((tmp_path / "state" / "staging").glob("*/files/part.*")):
            raise ConnectionError("the cluster is gone")

    tasks_run_here.between = staticmethod(fail)
    engine = spark(job, tmp_path / "state")
    assert isinstance(job.run(engine, tmp_path / "out"), PaidFailureError)
    assert engine.ledger.checkpoint().entries == 2
    assert list((tmp_path / "state" / "staging").iterdir()) == []
