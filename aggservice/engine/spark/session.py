"""A histogram job on a cluster: this process decides, counts and charges; executors open, sum and draw noise.

Everything up to the noise is deterministic, so that Spark may compute it again. Noise is drawn in one action, whose
only output is receipts; the files that they name are charged for, and no other is ever published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import DomainError, EngineError
from aggservice.engine.jobs.files import InputFile
from aggservice.engine.jobs.histogram_checks import check_declarable, check_declared, check_priced, check_releasable
from aggservice.engine.jobs.session import EngineParts, Outcome, Scope, Session
from aggservice.engine.opening.coverage import Coverage, PrivacyUnit
from aggservice.engine.release.charging import stage_for
from aggservice.engine.release.noise import noisy_total, others_of
from aggservice.engine.release.output import AvroShards
from aggservice.engine.release.result import ResultHeader
from aggservice.engine.request import JobRequest
from aggservice.engine.spark.blobs import IdReceipt, PartReceipt
from aggservice.engine.spark.cluster import Cluster, guarded
from aggservice.engine.spark.comparing import SortedRun, compare_ids, join_runs, mapped_units, merge_range, ranges_of
from aggservice.engine.spark.opening import domain_split, open_split, repeated_split
from aggservice.engine.spark.parts import PartRows
from aggservice.engine.spark.plan import OpeningPlan, Partitions, SummingPlan, same_partition, splits
from aggservice.engine.spark.releasing import release_part
from aggservice.engine.spark.settings import SparkSettings
from aggservice.mechanisms import SecureBits
from aggservice.wire import ReportBatch, read_key_set
from aggservice.wire.errors import KeySetError
from budget import JobKey
from budget.files.staging import Attempt

T = TypeVar("T")


class ClusterSession(Session):
    """One histogram over files in progress on a cluster."""

    def __init__(
        self,
        parts: EngineParts,
        cluster: Cluster,
        settings: SparkSettings,
        scope: Scope,
        request: JobRequest,
        *,
        destination: AvroShards,
        cleartext: bool,
        debug_only: bool,
    ) -> None:
        check_priced(request, parts.ledger)
        super().__init__(parts, scope, request, destination=destination, cleartext=cleartext, debug_only=debug_only)
        self._cluster = cluster
        self._settings = settings
        self._shards = destination
        self._discovers = request.discovery is not None or request.debug_run
        self._domain: list[InputFile] = []
        self._reports: list[InputFile] = []
        self._group = f"job {SecureBits().read(8).hex()}"
        self._progress: Any = None
        self._key_ids = () if cleartext else _key_ids(settings)

    @property
    def reports_read(self) -> int:
        """How many reports have been opened; a file that is opened again counts again, until all have been counted."""
        progress = 0 if self._progress is None else int(self._progress.value)
        return self._counts.read or progress

    def cancel(self) -> None:
        """End the job and its tasks, unless it has been committed by then. Nothing of it is left."""
        super().cancel()
        self._cluster.cancel(self._group)

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Refuse: a job on a cluster reads files."""
        raise EngineError("a job on a cluster reads its domain from files: use declare_files")

    def add(self, batch: ReportBatch) -> None:
        """Refuse: a job on a cluster reads files."""
        raise EngineError("a job on a cluster reads its reports from files: use add_files")

    def declare_files(self, files: Sequence[InputFile]) -> None:
        """Declare the keys of domain files, in order; executors read them when the job finishes."""
        self._check_cancelled()
        check_declarable(reading=bool(self._reports))
        self._domain += files

    def add_files(self, files: Sequence[InputFile]) -> None:
        """Add the reports of files, in order; executors read them when the job finishes."""
        self._check_cancelled()
        check_releasable(len(self._domain), discovers=self._discovers)
        self._reports += files

    def finish(self, *, content: bytes = b"") -> Outcome:
        check_releasable(len(self._domain), discovers=self._discovers)
        job = JobKey(caller=self._scope.caller, job_id=self._request.job_request_id)
        scratch = stage_for(self._parts.ledger, job, self._shards)
        assert scratch is not None
        run = _Run(self, scratch)
        try:
            return run.finish(content)
        finally:
            run.forget()
            scratch.discard()


def _key_ids(settings: SparkSettings) -> tuple[str, ...]:
    if settings.keys is None:
        raise EngineError("this Spark engine has no key file, so it cannot open sealed reports")
    try:
        return tuple(pair.id for pair in read_key_set(settings.keys).pairs)
    except KeySetError as problem:
        raise EngineError(f"the private keys cannot be read: {problem}") from problem


class _Run:
    """The steps of one job, from its files to its outcome."""

    def __init__(self, session: ClusterSession, scratch: Attempt) -> None:
        self._session = session
        self._folder = str(scratch.path("x").parent)
        self._context = session._cluster.context()
        self._rdds: list[Any] = []
        session._progress = self._context.accumulator(0)
        reports, domain = splits(session._reports), splits(session._domain)
        self._splits = reports
        self._plan = OpeningPlan(
            spec=session._spec,
            keys=str(session._settings.keys.absolute()) if session._settings.keys and session._key_ids else None,
            key_ids=session._key_ids,
            partitions=Partitions.of(
                session._settings,
                domain_bytes=sum(split.file.size for split in domain),
                report_bytes=sum(split.file.size for split in reports),
                slots=session._cluster.slots,
            ),
            salt=session._bits.child("key salt").word(),
            distinct_units=session._parts.unit == PrivacyUnit.SHARED_ID,
            scratch=self._folder,
        )
        progress = session._progress
        sources = [self._addressed(partial(_domain, self._plan), domain)] if domain else []
        self._blobs = [*sources, self._addressed(partial(_reports, self._plan, progress), reports)]

    def _addressed(self, work: Callable[[Any], Iterable[Any]], items: Sequence[Any]) -> Any:
        """Return the blobs that ``work`` yields for each item, at the partitions that they are addressed to."""
        rdd = self._context.parallelize(items, max(1, len(items)))
        blobs = rdd.mapPartitionsWithIndex(guarded(lambda _, mine: (blob for item in mine for blob in work(item))))
        found = blobs.partitionBy(self._plan.partitions.count, same_partition)
        self._rdds.append(found)
        return found

    def _together(self, rdds: Sequence[Any]) -> Any:
        """Return the blobs of several sources, partition by partition, in the order of the sources."""
        first = rdds[0]
        for other in rdds[1:]:
            first = first.union(other)
        assert first.getNumPartitions() == self._plan.partitions.count
        return first

    def _tasks(self, rdd: Any, work: Callable[[int, Iterable[Any]], Any], partitions: range) -> list[Any]:
        session = self._session
        session._check_cancelled()
        try:
            return session._cluster.run(session._group, rdd, work, partitions)
        except EngineError:
            session._check_cancelled()
            raise

    def _each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        return self._session._cluster.each(self._session._group, work, items)

    def finish(self, content: bytes) -> Outcome:
        """Open and compare; count and check; release; charge."""
        session, plan = self._session, self._plan
        receipts: list[IdReceipt] = self._tasks(
            self._together(self._blobs), partial(_compare, plan), range(plan.partitions.ids)
        )
        bases, fingerprints, coverage = self._count(receipts)
        units = self._units(receipts)
        session._check_units(len(units))
        release, header, charge = session._planned(coverage.covers(), content)
        request = session._request
        summing = SummingPlan(
            opening=plan,
            release=release,
            discovers=session._discovers,
            mask=request.discovery.mask if request.discovery else None,
            debug_run=request.debug_run,
            bits=session._bits.child("noise"),
            noise_of=session._parts.noise_of,
            bases=bases,
            fingerprints=fingerprints,
        )
        lost: EngineError | None = None
        parts: list[PartReceipt] = []
        try:
            parts = self._release(summing, receipts)
        except EngineError as problem:
            # Sums depend on contributions: from here on a failure is paid for (docs/design.md, semantics 8).
            session._check_cancelled()
            lost = problem
        rows = PartRows(self._folder, parts, self._each, debug_run=request.debug_run)
        if request.debug_run:
            if lost is not None:
                raise lost
            return session._debug_outcome(header, rows.rows(), release, payable=charge.check(units).payable)

        def make() -> tuple[ResultHeader, PartRows]:
            if lost is not None:
                raise lost
            noise = session._parts.noise_of(session._bits.child("others noise"))
            undeclared = noisy_total(sum(part.undeclared for part in parts), release, noise)
            others = others_of(undeclared, sum(part.released for part in parts))
            return replace(header, row_count=len(rows), others=others, undeclared=undeclared), rows

        return session._commit(charge, make, units=units, failed=header, declared=sum(part.declared for part in parts))

    def _count(self, receipts: Sequence[IdReceipt]) -> tuple[tuple[int, ...], tuple[bytes, ...], Coverage]:
        """Count reports and keys, and refuse a job by what is public about it, in the order in which files are read."""
        session = self._session
        domains = sorted((facts for receipt in receipts for facts in receipt.domains), key=lambda facts: facts.split)
        bases, rows = [], 0
        for domain in domains:
            if domain.problem is not None:
                raise domain.problem
            bases.append(rows)
            rows += domain.rows
        check_releasable(rows, discovers=session._discovers)
        check_declared(rows, session._parts.settings.max_domain_keys)
        coverage = Coverage()
        reports = sorted((facts for receipt in receipts for facts in receipt.reports), key=lambda facts: facts.split)
        for facts in reports:
            if facts.problem is not None:
                raise facts.problem
            session._count_submitted(int(facts.statuses.sum()))
            session._counts.add_counted(facts.statuses)
            coverage.add_found(facts.apis, facts.debug_days)
        if len(reports) != len(self._splits) or len(domains) != len(session._domain):
            raise DomainError("some files were not read")
        session._counts.repeated = sum(receipt.repeated for receipt in receipts)
        session._counts.check()
        return tuple(bases), tuple(facts.fingerprint for facts in reports), coverage

    def _units(self, receipts: Sequence[IdReceipt]) -> NDArray[np.uint8]:
        """Return the units of the job, sorted, in a mapped file: they never pass through this process's memory."""
        runs = [SortedRun(name=receipt.units, count=receipt.unit_count) for receipt in receipts]
        most = self._session._settings.partition_rows
        if len(runs) > 1:
            runs = [run for run in runs if run.count]
            if sum(run.count for run in runs) <= most:
                runs = [merge_range(self._folder, tuple(runs), 0, 1 << 64)]
            else:
                ranges = ranges_of(self._folder, runs, most)
                runs = self._each(partial(_merge, self._folder, tuple(runs)), ranges)
        return mapped_units(self._folder, join_runs(self._folder, runs))

    def _release(self, plan: SummingPlan, receipts: Sequence[IdReceipt]) -> list[PartReceipt]:
        """Release every partition of keys: the one action in which noise is drawn."""
        sources = list(self._blobs)
        repeats = tuple((receipt.repeats, receipt.repeated) for receipt in receipts if receipt.repeated)
        if repeats:
            items = list(zip(self._splits, plan.fingerprints, strict=True))
            sources.append(self._addressed(partial(_repeated, plan.opening, repeats), items))
        partitions = self._plan.partitions
        parts = self._tasks(
            self._together(sources), partial(_release_at, plan), range(partitions.ids, partitions.count)
        )
        return sorted(parts, key=lambda part: part.partition)

    def forget(self) -> None:
        """Remove what tasks sent to one another: it is cleartext."""
        for rdd in self._rdds:
            with suppress(Exception):  # a context that stopped has removed it
                rdd._jrdd.rdd().cleanShuffleDependencies(False)


def _domain(plan: OpeningPlan, split: Any) -> Iterable[Any]:
    return domain_split(plan, split)


def _reports(plan: OpeningPlan, progress: Any, split: Any) -> Iterable[Any]:
    return open_split(plan, split, progress.add)


def _repeated(plan: OpeningPlan, repeats: tuple[tuple[str, int], ...], item: Any) -> Iterable[Any]:
    return repeated_split(plan, item[0], item[1], repeats)


def _compare(plan: OpeningPlan, _: int, blobs: Iterable[Any]) -> Iterable[IdReceipt]:
    return compare_ids(plan, blobs)


def _release_at(plan: SummingPlan, partition: int, blobs: Iterable[Any]) -> Iterable[PartReceipt]:
    return release_part(plan, partition, blobs)


def _merge(folder: str, runs: tuple[SortedRun, ...], bounds: tuple[int, int]) -> SortedRun:
    return merge_range(folder, runs, *bounds)
