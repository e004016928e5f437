"""The stages of a job on a cluster, run in this process: what a session counts, draws, charges and leaves behind.

``test_spark.py`` runs them on a real cluster, with noise that depends on keys alone.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.engine import AvroShards, InlineOpener, LocalEngine, ledger_terms
from aggservice.engine.release.noise import ExactNoise
from aggservice.engine.spark import releasing
from aggservice.engine.spark import session as spark_session
from aggservice.engine.spark.blobs import PartReceipt
from aggservice.engine.spark.cluster import TaskError, guarded
from aggservice.engine.spark.engine import SparkEngine
from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.errors import EngineError, InvalidJobError, PaidFailureError
from aggservice.job.parameters import AttributionTask
from aggservice.job.request import HistogramRequest, JobRequest, TaskRequest
from aggservice.job.result import Outcome
from aggservice.mechanisms import Bits, SecureBits
from aggservice.service.jobs.folders import Folder
from aggservice.service.jobs.places import PlacedFile
from aggservice.wire import AggregatableReport, Api, BucketRows, ReportBatch, write_buckets, write_key_set
from aggservice.wire.avro.reports import write_reports
from budget import EpsilonDeltaFilter, LaplaceNoise, Ledger, MemoryStore, Signer, Staging

from ..conftest import NOW_MS, ORIGIN, SCOPE, Maker

SITE = "https://shop.example"
TASK = AttributionTask(conversion_site=SITE, histogram_size=4, max_value=10)


class HereExchange:
    """Runs tasks one after the other in this process; every read runs the tasks of its sources again, as Spark may."""

    made: list[HereExchange]
    before_release: Callable[[], None]

    def __init__(self, cluster: object, group: str, partitions: int) -> None:
        self._sources: list[tuple[Callable[[Any], Iterable[Any]], Sequence[Any]]] = []
        self.forgotten = False
        self._reads = 0
        self.made.append(self)

    def add(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> None:
        self._sources.append((work, items))

    def read(self, work: Callable[[int, Iterable[Any]], Iterator[Any]], partitions: range) -> list[Any]:
        self._reads += 1
        if self._reads == 2:
            type(self).before_release()
        blobs = [blob for task, items in self._sources for item in items for blob in task(item)]
        return [one for part in partitions for one in work(part, [blob for blob in blobs if blob[0] == part])]

    def each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    def forget(self) -> None:
        self.forgotten = True


class Here:
    """As much of a cluster as a session asks for: two slots, and a counter."""

    slots = 2
    value = 0

    def context(self) -> Here:
        return self

    def accumulator(self, value: int) -> Here:
        return self

    def add(self, count: int) -> None:
        self.value += count

    def cancel(self, group: str) -> None:
        raise AssertionError("nobody cancels here")


@pytest.fixture(autouse=True)
def exchange(monkeypatch: pytest.MonkeyPatch) -> type[HereExchange]:
    HereExchange.made, HereExchange.before_release = [], lambda: None
    monkeypatch.setattr(spark_session, "Exchange", HereExchange)
    return HereExchange


class Files:
    """The files of a job below a folder, and an engine over them."""

    def __init__(self, folder: Path, maker: Maker, noise_of: Callable[[Bits], Any] = ExactNoise) -> None:
        self.folder, self.maker = folder, maker
        write_key_set(folder / "keys.json", maker.keys)
        (folder / "state").mkdir(mode=0o700)
        bits = SecureBits()
        self.ledger = Ledger.create(
            MemoryStore(),
            filter=EpsilonDeltaFilter(),
            signer=Signer.generate(bits),
            clock=maker.clock,
            bits=bits,
            staging=Staging(folder / "state" / "staging", bits),
            terms=ledger_terms(),
        )
        self.local = LocalEngine(
            ledger=self.ledger, opener=InlineOpener(maker.keys), clock=maker.clock, bits=bits, noise_of=noise_of
        )
        # Partitions of one row, so that a job has several of ids and of keys.
        settings = SparkSettings(master="", keys=folder / "keys.json", partition_rows=1, partition_bytes=400)
        self.engine = SparkEngine(self.local, settings, Here())  # type: ignore[arg-type]

    def write(self, *files: Sequence[AggregatableReport]) -> None:
        for number, reports in enumerate(files):
            write_reports(self.folder / f"reports-{number}.avro", [ReportBatch.of(reports)])

    def run(self, request: JobRequest, engine: LocalEngine | None = None, keys: int = 8) -> Outcome:
        folder = Folder(self.folder)
        output = self.folder / f"out-{request.job_request_id}"
        output.mkdir()
        session = (engine or self.engine).begin(
            SCOPE, request, destination=AvroShards(prefix=output / "summary.avro"), input_bytes=1
        )
        if request.has_domain:
            domain = BucketRows.domain(np.zeros(keys, dtype=np.uint64), np.arange(keys, dtype=np.uint64))
            write_buckets(self.folder / "domain.avro", domain)
            session.declare_files([PlacedFile(folder, "domain.avro")])
        session.add_files([PlacedFile(folder, name) for name in folder.files("reports")])
        return session.finish()

    @property
    def entries(self) -> int:
        return self.ledger.checkpoint().entries


def request(name: str, **changes: Any) -> JobRequest:
    given = {"attribution_report_to": ORIGIN, "mechanism": LaplaceNoise.parse(epsilon="1"), **changes}
    kind = TaskRequest if "task" in given else HistogramRequest
    return kind(job_request_id=name, **given)


def test_every_partition_draws_from_secret_bits_of_its_own(tmp_path: Path, maker: Maker) -> None:
    """Not from a number of the partition or the job, nor twice from the same: the others total has its own, too."""
    given: list[Bits] = []

    def noise_of(bits: Bits) -> ExactNoise:
        given.append(bits)
        return ExactNoise(bits)

    files = Files(tmp_path, maker, noise_of)
    files.write([maker.report({at: 5}) for at in range(8)])
    for name in ("a", "b"):
        files.run(request(name, others=LaplaceNoise.parse(epsilon="1")))
    assert len(given) >= 2 * 3
    assert all(type(bits) is SecureBits for bits in given)
    assert len({bits.read(16) for bits in given}) == len(given)


@pytest.mark.parametrize("others", [None, LaplaceNoise.parse(epsilon="1")])
def test_a_task_tells_the_total_of_undeclared_keys_only_if_the_job_pays_for_it(
    others: LaplaceNoise | None, tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight keys are declared; two reports have 5 each for others."""
    receipts: list[PartReceipt] = []

    def receipt(**fields: Any) -> PartReceipt:
        receipts.append(PartReceipt(**fields))
        return receipts[-1]

    monkeypatch.setattr(releasing, "PartReceipt", receipt)
    files = Files(tmp_path, maker)
    files.write([maker.report({at: 5}) for at in range(10)])
    files.run(request("a", others=others))
    assert sum(one.declared for one in receipts) == 8
    assert sum(one.undeclared for one in receipts) == (0 if others is None else 10)


def test_what_tasks_send_is_removed_and_never_readable_by_others(
    tmp_path: Path, maker: Maker, exchange: type[HereExchange]
) -> None:
    """Blobs hold true sums: the exchange is emptied after a job that ends well and after one that fails."""
    files = Files(tmp_path, maker)
    files.write([maker.report({1: 5})])
    modes: list[int] = []

    def look() -> None:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state" / "staging").rglob("units.*"))

    exchange.before_release = look
    files.run(request("good"))
    with pytest.raises(EngineError):
        files.run(request("bad", task=TASK))
    assert [one.forgotten for one in exchange.made] == [True, True]
    assert modes and not any(mode & 0o077 for mode in modes)
    assert not list((tmp_path / "state" / "staging").iterdir())


def test_a_w3c_job_with_too_few_reports_is_refused_before_the_charge(tmp_path: Path, maker: Maker) -> None:
    """The minimum counts reports that are used: neither repeated nor bad ones make up for them."""
    files = Files(tmp_path, maker)
    stated = {"histogram_size": 4, "max_value": 10, "epsilon_micro": 1_000_000}
    made = [maker.report({1: 5}, api=Api.W3C_ATTRIBUTION, **stated) for _ in range(20)]
    files.write(made[:19], [made[0], maker.report({1: 5})])
    with pytest.raises(InvalidJobError, match="19 usable reports"):
        files.run(request("few", task=TASK, error_threshold_percent=50))
    assert files.entries == 1
    files.write(made[:19], [made[0], made[19]])
    assert files.run(request("enough", task=TASK)).header.statement.l1 == 2 * TASK.max_value


def test_bounds_of_debug_reports_are_those_of_the_local_engine(tmp_path: Path, maker: Maker) -> None:
    """Two context sites and two days over two files: Λ₁ counts four times, and once for sources."""
    files = Files(tmp_path, maker)
    debug = {"api": Api.ATTRIBUTION_REPORTING_DEBUG}
    made = [
        maker.report({1: 5}, **debug, attribution_destination=site, scheduled_report_time_s=NOW_MS // 1000 - days)
        for site in (SITE, "https://other.example")
        for days in (60, 86_460)
    ]
    files.write(made[:3], made[3:])
    there = files.run(request("there")).header.statement
    assert there.l1 == 5 * 65_536
    assert there.l1 == files.run(request("here"), files.local).header.statement.l1


@pytest.mark.parametrize("how", ["a draw that fails", "a file that changes"])
def test_what_fails_after_reports_were_counted_is_paid_for(
    tmp_path: Path, maker: Maker, exchange: type[HereExchange], how: str
) -> None:
    """A failure that depends on contributions must cost as much as an answer; nothing is published."""

    def noise_of(bits: Bits) -> Any:
        if how == "a draw that fails":
            raise EngineError("no noise")
        return ExactNoise(bits)

    files = Files(tmp_path, maker, noise_of)
    files.write([maker.report({1: 5})], [maker.report({2: 5})])
    if how == "a file that changes":
        exchange.before_release = lambda: files.write([maker.report({1: 7})])
    with pytest.raises(PaidFailureError):
        files.run(request("lost"))
    assert files.entries == 2
    assert not list((tmp_path / "out-lost").iterdir())


def test_an_error_of_a_task_says_where_and_never_what() -> None:
    def work(partition: int, rows: Iterable[Any]) -> Iterator[int]:
        raise ValueError("the report holds 65536")
        yield partition

    with pytest.raises(TaskError) as caught:
        list(guarded(work)(0, []))
    assert "65536" not in str(caught.value) and "ValueError at " in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
