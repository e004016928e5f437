"""A histogram job on a cluster: this process decides, counts and charges; executors open, sum and draw noise.

Everything up to the noise is deterministic, so that Spark may compute it again. Noise is drawn in one action, whose
only output is receipts; the files that they name are charged for, and no other is ever published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.jobs.histogram import (
    check_batch_size,
    check_declarable,
    check_declared,
    check_priced,
    check_releasable,
)
from aggservice.engine.jobs.session import EngineParts, InputFile, Scope, Session
from aggservice.engine.opening.coverage import Coverage, PrivacyUnit
from aggservice.engine.release.charging import Charge, stage_for
from aggservice.engine.release.noise import noisy_total, others_of
from aggservice.engine.release.output import AvroShards, ResultBound
from aggservice.engine.spark.blobs import IdReceipt, PartReceipt, joint_fingerprint
from aggservice.engine.spark.cluster import Cluster, guarded
from aggservice.engine.spark.comparing import SortedRun, compare_ids, join_runs, mapped_units, merge_range, ranges_of
from aggservice.engine.spark.opening import domain_split, open_split, repeated_split
from aggservice.engine.spark.parts import PART_ROW_BYTES, SHARD, PartRows
from aggservice.engine.spark.plan import DOMAIN_ROW_BYTES, OpeningPlan, Partitions, Split, SummingPlan, TaskKeys, splits
from aggservice.engine.spark.releasing import PART, release_part
from aggservice.engine.spark.scratch import remove_written
from aggservice.engine.spark.settings import SparkSettings
from aggservice.job.errors import CancelledError, EngineError, InputReadError, ResultWriteError
from aggservice.job.request import SumRequest, TaskRequest, task_of
from aggservice.job.result import Outcome, ResultHeader
from aggservice.mechanisms import SecureBits
from aggservice.wire import UNIT_BYTES, ReportBatch, read_key_set
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from aggservice.wire.errors import KeySetError
from budget import JobKey, UnitSet
from budget.errors import StagingError
from budget.files.staging import Attempt

T = TypeVar("T")


def same_partition(target: int) -> int:
    """Return ``target``, the number of a partition. Spark compares divisions by this function, so all must use it."""
    return target


class Exchange:
    """Runs the tasks of one job, which can be cancelled without those of other jobs."""

    def __init__(self, cluster: Cluster, group: str, partitions: int) -> None:
        self._cluster = cluster
        self._group = group
        self._partitions = partitions
        self._context = cluster.context()
        self._sources: list[Any] = []

    def add(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> None:
        """Add what ``work`` yields for each item, as (partition, blob); tasks run when the blobs are first read."""
        rdd = self._context.parallelize(items, max(1, len(items)))
        blobs = rdd.mapPartitionsWithIndex(guarded(lambda _, mine: (blob for item in mine for blob in work(item))))
        self._sources.append(blobs.partitionBy(self._partitions, same_partition))

    def read(self, work: Callable[[int, Iterable[Any]], Iterator[T]], partitions: range) -> list[T]:
        """Run ``work`` over the blobs of each of some partitions, in the order in which their sources were added."""
        blobs = self._sources[0]
        for source in self._sources[1:]:
            blobs = blobs.union(source)
        assert blobs.getNumPartitions() == self._partitions
        return self._cluster.run(self._group, blobs, work, partitions)

    def each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Run ``work`` for each item, in one task per item; return the results in order."""
        rdd = self._context.parallelize(items, len(items))
        return self._cluster.run(self._group, rdd, lambda _, mine: (work(item) for item in mine), range(len(items)))

    def forget(self) -> None:
        """Remove the blobs of this job, which are cleartext."""
        from py4j.protocol import Py4JError

        for source in self._sources:
            with suppress(Py4JError, OSError):  # a context that stopped has removed it
                source._jrdd.rdd().cleanShuffleDependencies(False)


class ClusterSession(Session):
    """One histogram over files in progress on a cluster."""

    def __init__(
        self,
        parts: EngineParts,
        cluster: Cluster,
        settings: SparkSettings,
        scope: Scope,
        request: SumRequest,
        *,
        destination: AvroShards,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        check_priced(request, parts.ledger)
        super().__init__(parts, scope, request, destination=destination, cleartext=cleartext, debug_only=debug_only)
        self._cluster = cluster
        self._settings = settings
        self._keys = None if cleartext else settings.keys
        self._key_ids = () if cleartext else _key_ids(settings.keys)
        self._sum_request = request
        self._discovers = request.discovery is not None or request.debug_run
        self._domain: list[InputFile] = []
        self._reports: list[InputFile] = []
        if isinstance(request, TaskRequest):
            check_declared(request.task.histogram_size, parts.settings.max_domain_keys)
        self._group = f"job {SecureBits().read(8).hex()}"
        self._progress: Any = None

    @property
    def reports_read(self) -> int:
        """How many reports have been opened; until all have been counted, a file that is opened again counts again."""
        return self._counts.read or (0 if self._progress is None else int(self._progress.value))

    def cancel(self) -> None:
        """End the job and its tasks, unless it has been committed by then. A cancelled job leaves nothing behind."""
        super().cancel()
        self._cluster.cancel(self._group)

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Raise EngineError: a job on a cluster reads files."""
        raise EngineError("a job on a cluster reads its domain from files: use declare_files")

    def add(self, batch: ReportBatch) -> None:
        """Raise EngineError: a job on a cluster reads files."""
        raise EngineError("a job on a cluster reads its reports from files: use add_files")

    def declare_files(self, files: Sequence[InputFile]) -> None:
        """Declare the keys of domain files, in order; executors read them when the job finishes."""
        self._check_cancelled()
        check_declarable(self._request, reading=bool(self._reports))
        self._domain += files

    def add_files(self, files: Sequence[InputFile]) -> None:
        """Add the reports of files, in order; executors read them when the job finishes."""
        self._check_cancelled()
        check_releasable(len(self._key_sources()), discovers=self._discovers)
        self._reports += files

    def finish(self, *, content: bytes = b"") -> Outcome:
        self._check_cancelled()
        check_releasable(len(self._key_sources()), discovers=self._discovers)
        scratch = self._scratch()
        try:
            plan = self._plan(scratch.path("x").parent)
            exchange = Exchange(self._cluster, self._group, plan.partitions.count)
            try:
                return self._run(exchange, plan, content)
            finally:
                exchange.forget()
        finally:
            scratch.discard()

    def _scratch(self) -> Attempt:
        """Begin the folder for what executors note. Until the release these are ids and units, which are public."""
        job = JobKey(caller=self._scope.caller, job_id=self._request.job_request_id)
        try:
            return self._parts.ledger.stage(job)
        except (OSError, StagingError) as problem:
            raise ResultWriteError(f"nothing was charged: the service has no room for the job: {problem}") from problem

    def _key_sources(self) -> list[Split] | list[TaskKeys]:
        """Return where declared keys come from: domain files, or a W3C task."""
        task = task_of(self._request)
        return splits(self._domain) if task is None else [TaskKeys(number=0, task=task)]

    def _plan(self, scratch: Path) -> OpeningPlan:
        task = task_of(self._request)
        return OpeningPlan(
            spec=self._spec,
            keys=None if self._keys is None else str(self._keys.absolute()),
            key_ids=self._key_ids,
            partitions=Partitions.of(
                self._settings,
                domain_bytes=sum(file.size for file in self._domain)
                + (0 if task is None else task.histogram_size * DOMAIN_ROW_BYTES),
                report_bytes=sum(file.size for file in self._reports),
                discovers=self._discovers,
                slots=self._cluster.slots,
            ),
            salt=self._bits.child("key salt").word(),
            distinct_units=self._spec.unit == PrivacyUnit.SHARED_ID,
            scratch=str(scratch),
        )

    def _tasks(self, work: Callable[[], list[Any]]) -> list[Any]:
        """Run a step in executors. Cancellation ends it."""
        self._check_cancelled()
        try:
            return work()
        except EngineError:
            self._check_cancelled()
            raise

    def _run(self, exchange: Exchange, plan: OpeningPlan, content: bytes) -> Outcome:
        """Open and compare; count and check; ask whether units can pay; stage; release; charge.

        Sums depend on contributions, and noisy rows fill the staging folder: from the release on, any failure is paid
        for. So the units are asked, and the room for all possible rows is taken, before it.
        """
        reports = splits(self._reports)
        self._progress = self._cluster.context().accumulator(0)
        if sources := self._key_sources():
            exchange.add(partial(domain_split, plan), sources)
        exchange.add(partial(_open, plan, self._progress), reports)
        found: list[IdReceipt] = self._tasks(lambda: exchange.read(partial(_compare, plan), range(plan.partitions.ids)))
        bases, bound, fingerprints, coverage = self._count(found)
        units = self._units(exchange, plan.scratch, found)
        self._check_units(len(units))
        release, header, charge = self._planned(self._sum_request, coverage.covers(), content)
        summing = SummingPlan(
            opening=plan,
            release=release,
            discovers=self._discovers,
            mask=self._sum_request.discovery.mask if self._sum_request.discovery else None,
            debug_run=self._request.debug_run,
            bits=self._bits.child("noise"),
            noise_of=self._parts.noise_of,
            bases=bases,
            fingerprints=fingerprints,
        )
        staged: Attempt | None = None
        if not self._request.debug_run:
            known = charge.ask(UnitSet(units))
            if known is not None:
                return known.checked
            staged = self._stage(charge, bound, len(units))
        lost: Exception | None = None
        parts: list[PartReceipt] = []
        try:
            parts = self._tasks(lambda: _release(exchange, summing, reports, found))
        except CancelledError:
            if staged is not None:
                staged.discard()
            raise
        except Exception as problem:
            lost = problem
        rows = PartRows(plan.scratch, parts, exchange.each, debug_run=self._request.debug_run)
        if self._request.debug_run:
            if lost is not None:
                raise lost
            return self._debug_outcome(header, rows.rows(), release, payable=charge.check(units).payable)

        def make() -> tuple[ResultHeader, PartRows]:
            if lost is not None:
                raise lost
            noise = self._parts.noise_of(self._bits.child("others noise"))
            undeclared = noisy_total(sum(part.undeclared for part in parts), release, noise)
            others = others_of(undeclared, sum(part.released for part in parts))
            return replace(header, row_count=len(rows), others=others, undeclared=undeclared), rows

        make_room = partial(remove_written, plan.scratch, PART, SHARD)
        return self._keep(charge, make, units=units, failed=header, bound=bound, staged=staged, make_room=make_room)

    def _stage(self, charge: Charge, bound: ResultBound, units: int) -> Attempt:
        """Begin the attempt that is charged for, with room for parts and shards of all rows that there can be.

        It also counts the units, which executors have written up to three times: as runs, as ranges and as one file.
        """
        beside = bound.rows * PART_ROW_BYTES + 3 * UNIT_BYTES * units
        attempt = stage_for(self._parts.ledger, charge.job, self._destination, bound, beside=beside)
        assert attempt is not None
        return attempt

    def _count(self, found: Sequence[IdReceipt]) -> tuple[tuple[int, ...], ResultBound, tuple[bytes, ...], Coverage]:
        """Count reports and keys in the order of files; refuse the job if its public facts do not allow a release.

        Returns the ordinal of the first key of each domain file, the most rows that there can be, the fingerprint of
        each report file, and the coverage.
        """
        domains = sorted((facts for receipt in found for facts in receipt.domains), key=lambda facts: facts.split)
        bases, rows = [], 0
        for domain in domains:
            if domain.problem is not None:
                raise domain.problem
            bases.append(rows)
            rows += domain.rows
        check_releasable(rows, discovers=self._discovers)
        check_declared(rows, self._parts.settings.max_domain_keys)
        coverage = Coverage()
        reports = sorted((facts for receipt in found for facts in receipt.reports), key=lambda facts: facts.split)
        for facts in reports:
            if facts.problem is not None:
                raise facts.problem
            self._count_submitted(int(facts.statuses.sum()))
            self._counts.add_counted(facts.statuses)
            coverage.add_found(facts.apis, facts.debug_days)
        if len(reports) != len(self._reports) or len(domains) != len(self._key_sources()):
            raise EngineError("executors did not report about every file: run the job again")
        fingerprints = tuple(facts.fingerprint for facts in reports)
        # A file that Spark opens again after a fault may have changed: then some of its units would not be charged.
        if any(receipt.fingerprint != joint_fingerprint(dict(enumerate(fingerprints))) for receipt in found):
            raise InputReadError(
                "a report file changed while the job ran; nothing was charged: run the job again on files that stay"
            )
        self._counts.repeated = sum(receipt.repeated for receipt in found)
        self._counts.check()
        check_batch_size(self._request, self._counts.used, self._parts.settings.w3c_minimum_batch)
        payload_bytes = sum(facts.payload_bytes for facts in reports) if self._discovers else 0
        bound = ResultBound(declared=rows, rows=rows + payload_bytes // SMALLEST_CONTRIBUTION_BYTES)
        return tuple(bases), bound, fingerprints, coverage

    def _units(self, exchange: Exchange, folder: str, found: Sequence[IdReceipt]) -> NDArray[np.uint8]:
        """Return the units of the job, sorted, in a mapped file: they never pass through this process's memory."""
        runs = [SortedRun(name=receipt.units, count=receipt.unit_count) for receipt in found]
        runs = [run for run in runs if run.count] or runs[:1]
        if len(runs) > 1:
            ranges = ranges_of(folder, runs, self._settings.partition_rows)
            merge = partial(_merge, folder, tuple(runs))
            runs = self._tasks(lambda: exchange.each(merge, ranges)) if len(ranges) > 1 else [merge(ranges[0])]
        return mapped_units(folder, join_runs(folder, runs))


def _key_ids(keys: Path | None) -> tuple[str, ...]:
    if keys is None:
        raise EngineError("this Spark engine has no key file, so it cannot open sealed reports: configure one")
    try:
        return tuple(pair.id for pair in read_key_set(keys).pairs)
    except KeySetError as problem:
        raise EngineError(f"the private keys cannot be read: {problem}") from problem


def _release(
    exchange: Exchange, plan: SummingPlan, reports: Sequence[Split], found: Sequence[IdReceipt]
) -> list[PartReceipt]:
    """Release every partition of keys: the one action in which noise is drawn."""
    repeats = tuple((receipt.repeats, receipt.repeated) for receipt in found if receipt.repeated)
    if repeats:
        files = list(zip(reports, plan.fingerprints, strict=True))
        exchange.add(partial(_repeated, plan.opening, repeats), files)
    partitions = plan.opening.partitions
    parts = exchange.read(partial(release_part, plan), range(partitions.ids, partitions.count))
    return sorted(parts, key=lambda part: part.partition)


def _open(plan: OpeningPlan, progress: Any, split: Split) -> Iterable[Any]:
    return open_split(plan, split, progress.add)


def _repeated(plan: OpeningPlan, repeats: tuple[tuple[str, int], ...], file: tuple[Split, bytes]) -> Iterable[Any]:
    return repeated_split(plan, *file, repeats)


def _compare(plan: OpeningPlan, _: int, blobs: Iterable[Any]) -> Iterator[IdReceipt]:
    return compare_ids(plan, blobs)


def _merge(folder: str, runs: tuple[SortedRun, ...], bounds: tuple[int, int]) -> SortedRun:
    return merge_range(folder, runs, *bounds)
