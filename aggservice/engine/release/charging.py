"""Charging a job and keeping its result: one call of the ledger, exactly once (docs/design.md, semantics 3)."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import (
    InputReadError,
    JobIdTakenError,
    PaidFailureError,
    ResultWriteError,
    ReturnCode,
    UnpaidError,
)
from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.release.output import AvroShards, Destination, StagedRows
from aggservice.engine.release.result import (
    ResultHeader,
    Rows,
    decode_result,
    encode_failure,
    encode_result,
    seal_totals,
)
from aggservice.engine.request import JobRequest
from aggservice.engine.shuffle.plan import ShufflePlan
from aggservice.engine.shuffle.rows import ShuffledRows
from budget import BudgetError, BudgetExhaustedError, Check, Committed, JobKey, Ledger, Release, UnitSet
from budget.errors import JobConflictError, StoreError
from budget.files.staging import Attempt
from budget.jobs import Remaining
from budget.ledger import RESULT_MAX_BYTES
from budget.release import REPORT_UNIT

Result = tuple[ResultHeader, Rows | ShuffledRows | StagedRows]

MOST_ROWS_IN_LEDGER = 10_000_000
"""The most rows, 240 MB, that the ledger keeps beside an entry. Larger summaries are files."""
_TRIES = 2
"""The number of attempts to store a result; if all fail, the job becomes a paid failure, with as many attempts.

A store may accept at the second attempt what it refused at the first: SQLite empties its log in between. If a failure
had fewer attempts than a result, a full disk would reveal for free which of the two a job had.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipted:
    """A committed result: the entry that paid for it, its signed receipt, and what its units have left.

    A summary has ``rows``, a shuffle has ``shuffled``; if the job gave a key, either has only the document ``sealed``.
    All three are None if the result is in files.
    """

    header: ResultHeader
    rows: Rows | None
    committed: Committed
    remaining: Remaining | None
    repeated: bool
    shuffled: ShuffledRows | None = None
    sealed: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one job charges to the ledger."""

    ledger: Ledger
    caller: str
    request: JobRequest
    digest: bytes
    plan: ReleasePlan | ShufflePlan

    @property
    def job(self) -> JobKey:
        """The job's caller and id, which identify it in the ledger."""
        return JobKey(caller=self.caller, job_id=self.request.job_request_id)

    @property
    def release(self) -> Release:
        """The release to log: mechanisms, privacy unit, covered APIs, and parameters for auditors."""
        ids = ",".join(map(str, self.request.filtering_ids))
        key = self.request.output_key
        return Release(
            mechanisms=self.plan.mechanisms(),
            unit=REPORT_UNIT
            if isinstance(self.plan, ShufflePlan) or self.plan.task is not None
            else self.ledger.terms.unit,
            covers={api.value: times for api, times in self.plan.covers.items()},
            parameters={
                **self.plan.parameters(),
                "filtering_ids": ids if len(ids) <= 4000 else f"{len(self.request.filtering_ids)} ids",
                "scope": self.request.attribution_report_to or self.request.reporting_site or "",
                **({} if key is None else {"output_public_key": key.hex()}),
            },
        )

    def check(self, units: NDArray[np.uint8]) -> Check:
        """Return whether the units could pay, and which could not; nothing is charged."""
        return self.ledger.check(caller=self.caller, release=self.release, units=UnitSet(units))

    def commit(
        self,
        make: Callable[[], Result],
        *,
        units: NDArray[np.uint8],
        destination: Destination,
        failed: ResultHeader,
        declared: int = 0,
        staged: Attempt | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> Receipted:
        """Charge ``units`` (distinct, ascending) and keep what ``make`` returns in one transaction; then publish files.

        ``make`` sees sums and noise. So a failure in ``make``, while its result is written, or in the store must be
        paid for: ``failed`` is then committed instead, and PaidFailureError raised (docs/design.md, semantics 8). A
        unit that cannot pay raises UnpaidError in any case. If the same request was committed in the meantime, its
        first result is returned and this one is dropped. If the destination has no room for ``declared``
        rows, ResultWriteError is raised and nothing is charged. If sums or noise have been written by now, that is too
        late to check: give the ``staged`` attempt that an earlier ``stage_for`` returned. ``make_room`` removes what a
        lost result leaves on the disk, which may be the ledger's, so that the paid failure fits.
        """
        paying = UnitSet(units)
        attempt = staged or stage_for(self.ledger, self.job, destination, declared)
        try:
            header, rows = make()
            header = seal_totals(header, destination.sealer)
        except Exception as problem:
            if attempt is not None:
                attempt.discard()
            make_room()
            return self._fail(problem, failed, paying)
        lost: Exception | None = None
        for _ in range(_TRIES):
            try:
                result = self._result(header, rows, destination, attempt)
            except Exception as problem:
                make_room()
                return self._fail(problem, failed, paying)
            attempt = None
            try:
                committed = self._commit(result, paying)
            except StoreError as problem:
                lost = problem
                continue
            remaining = self.ledger.remaining(paying)
            if committed.repeated:
                return _receipted(self.ledger, committed, remaining)
            released = decode_result(result)[1] if isinstance(result, bytes) and destination.sealer else rows
            return _with_rows(
                replace(header, files=_files(destination, rows)),
                None if committed.manifest or not isinstance(released, Rows | ShuffledRows | bytes) else released,
                committed,
                remaining,
                repeated=False,
            )
        assert lost is not None
        make_room()
        return self._fail(lost, failed, paying)

    def _result(
        self,
        header: ResultHeader,
        rows: Rows | ShuffledRows | StagedRows,
        destination: Destination,
        attempt: Attempt | None,
    ) -> bytes | Attempt:
        """Return the result as the ledger takes it: bytes, or sealed files of an attempt."""
        if not isinstance(destination, AvroShards):
            if not isinstance(rows, Rows | ShuffledRows):
                raise ResultWriteError("rows that are in files cannot be kept in the ledger")
            if len(rows) > MOST_ROWS_IN_LEDGER:
                raise ResultWriteError("the summary has too many rows to keep in the ledger: ask for files")
            encoded = encode_result(header, rows, destination.sealer)
            if len(encoded) > RESULT_MAX_BYTES:
                raise ResultWriteError("the result has more bytes than the ledger keeps: ask for files")
            return encoded
        attempt = attempt or self.ledger.stage(self.job)
        try:
            destination.write(attempt, replace(header, files=_files(destination, rows)), rows)
            attempt.seal(destination.folder)
        except BaseException:
            attempt.discard()
            raise
        return attempt

    def _commit(self, result: bytes | Attempt, paying: UnitSet) -> Committed:
        release = self.release
        try:
            return self.ledger.commit(
                job=self.job, request_digest=self.digest, release=release, units=paying, result=result
            )
        except BudgetExhaustedError as problem:
            raise UnpaidError(problem, release) from problem
        except JobConflictError as problem:
            raise JobIdTakenError(str(problem)) from problem

    def _fail(self, problem: Exception, failed: ResultHeader, paying: UnitSet) -> Receipted:
        """Charge for a result that was lost. Returns only if the same request was already committed."""
        lost = isinstance(problem, OSError | ResultWriteError | BudgetError)
        code = ReturnCode.RESULT_WRITE_ERROR if lost else ReturnCode.INTERNAL_ERROR
        committed = self._commit_failure(encode_failure(replace(failed, return_code=code)), paying)
        if not committed.repeated:
            raise PaidFailureError(code) from problem
        return _receipted(self.ledger, committed, self.ledger.remaining(paying))

    def _commit_failure(self, result: bytes, paying: UnitSet) -> Committed:
        for _ in range(_TRIES - 1):
            with suppress(StoreError):
                return self._commit(result, paying)
        return self._commit(result, paying)

    @staticmethod
    def find(ledger: Ledger, caller: str, request: JobRequest, digest: bytes) -> Receipted | None:
        """Return this request's result, or None if it is not paid for; JobIdTakenError if its id was used before."""
        committed = ledger.job(caller, request.job_request_id)
        if committed is None:
            return None
        if committed.entry.request_digest != digest:
            raise JobIdTakenError(f"the job id {request.job_request_id!r} was used for another request")
        return _receipted(ledger, committed, ledger.remaining_of(committed.entry.seq))


def stage_for(
    ledger: Ledger, job: JobKey, destination: Destination, declared: int = 0, *, beside: int = 0
) -> Attempt | None:
    """Begin an attempt if the result is files, else return None; ResultWriteError if ``declared`` rows do not fit.

    ``beside`` is the number of further bytes that the job writes to the same disk. Call this before anything is
    written that depends on what reports contain: otherwise the error depends on it too.
    """
    if not isinstance(destination, AvroShards):
        if declared > MOST_ROWS_IN_LEDGER:
            raise ResultWriteError(
                f"{declared:,} declared keys are too many for a stream (at most {MOST_ROWS_IN_LEDGER:,}); "
                "nothing was charged: ask for files with CreateJob"
            )
        return None
    try:
        attempt = ledger.stage(job)
    except OSError as problem:
        raise ResultWriteError(f"the staging folder cannot be used: {problem.strerror}; tell the operator") from problem
    free = shutil.disk_usage(attempt.folder).free
    needed = destination.least_bytes(declared) + beside
    if free < needed:
        attempt.discard()
        raise ResultWriteError(
            f"{declared:,} declared keys need {needed >> 20} MiB, and the staging "
            f"folder has {free >> 20} MiB left; nothing was charged: tell the operator"
        )
    return attempt


def find_result(ledger: Ledger, caller: str, job_request_id: str, *, with_remaining: bool = False) -> Receipted | None:
    """Return what a caller's job released; None if this caller has no such job, or it is not paid for.

    ``with_remaining`` also looks up what its units have left by now.
    """
    committed = ledger.job(caller, job_request_id)
    if committed is None:
        return None
    return _receipted(ledger, committed, ledger.remaining_of(committed.entry.seq) if with_remaining else None)


def _files(destination: Destination, rows: Rows | ShuffledRows | StagedRows) -> tuple[str, ...]:
    return destination.names(len(rows)) if isinstance(destination, AvroShards) else ()


def _with_rows(
    header: ResultHeader,
    rows: Rows | ShuffledRows | bytes | None,
    committed: Committed,
    remaining: Remaining | None,
    *,
    repeated: bool,
) -> Receipted:
    return Receipted(
        header=header,
        rows=rows if isinstance(rows, Rows) else None,
        shuffled=rows if isinstance(rows, ShuffledRows) else None,
        sealed=rows if isinstance(rows, bytes) else None,
        committed=committed,
        remaining=remaining,
        repeated=repeated,
    )


def _receipted(ledger: Ledger, committed: Committed, remaining: Remaining | None) -> Receipted:
    manifest = committed.manifest
    if manifest is None:
        header, rows = decode_result(committed.result)
        return _with_rows(header, rows, committed, remaining, repeated=True)
    (named,) = [one for one in manifest.files if one.name.endswith("-statement.json")]
    try:
        raw = ledger.published(manifest, named.name)
    except OSError:
        raw = b""
    if hashlib.sha256(raw).digest() != named.sha256:
        raise InputReadError(
            f"the job was paid for and its files were written, but {named.name} has been moved or changed: restore it"
        )
    return Receipted(
        header=ResultHeader.from_bytes(raw), rows=None, committed=committed, remaining=remaining, repeated=True
    )
