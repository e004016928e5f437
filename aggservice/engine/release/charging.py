"""Charging a job and keeping its result: one call of the ledger, exactly once (docs/design.md, semantics 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.release.output import AvroShards, Destination, ResultBound, StagedRows
from aggservice.engine.shuffle import ShufflePlan
from aggservice.job.errors import (
    InputReadError,
    JobIdTakenError,
    PaidFailureError,
    ResultWriteError,
    ReturnCode,
    UnpaidError,
)
from aggservice.job.request import JobRequest, ShuffleRequest, TaskRequest
from aggservice.job.result import (
    Outcome,
    ResultHeader,
    Rows,
    ShuffledRows,
    decode_result,
    encode_failure,
    encode_result,
    seal_totals,
)
from budget import BudgetError, BudgetExhaustedError, Check, Committed, JobKey, Ledger, Release, UnitSet
from budget.answers import Remaining
from budget.errors import JobConflictError, StagingError, StoreError
from budget.files.staging import Attempt
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
            unit=REPORT_UNIT if isinstance(self.request, TaskRequest | ShuffleRequest) else self.ledger.terms.unit,
            covers={api.value: times for api, times in self.plan.covers.items()},
            parameters={
                **self.plan.parameters(),
                "filtering_ids": ids if len(ids) <= 4000 else f"{len(self.request.filtering_ids)} ids",
                "scope": self.request.scope,
                **({} if key is None else {"output_public_key": key.hex()}),
            },
        )

    def check(self, units: NDArray[np.uint8]) -> Check:
        """Return whether the units could pay, and which could not; nothing is charged."""
        return self.ledger.check(caller=self.caller, release=self.release, units=UnitSet(units))

    def ask(self, units: UnitSet) -> Outcome | None:
        """Raise UnpaidError if a unit cannot pay now; return the job's result if it was committed in the meantime.

        Call it before noise is drawn: what a job does afterwards may be measured by others.
        """
        release = self.release
        try:
            self.ledger.require(caller=self.caller, release=release, units=units)
        except BudgetExhaustedError as problem:
            known = self.find(self.ledger, self.caller, self.request, self.digest)
            if known is None:
                raise UnpaidError(problem, release) from problem
            return known
        return None

    def commit(
        self,
        make: Callable[[], Result],
        *,
        units: NDArray[np.uint8],
        destination: Destination,
        failed: ResultHeader,
        bound: ResultBound,
        staged: Attempt | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Charge ``units`` (distinct, ascending) and keep what ``make`` returns in one transaction; then publish files.

        First the units are asked, and the room that ``bound`` states is taken: UnpaidError or ResultWriteError, and
        nothing is charged, drawn or written. If noise is drawn before this call, do both then: call ``ask``, and give
        the ``staged`` attempt that ``stage_for`` returned.

        ``make`` sees sums and noise. So a failure in ``make``, while its result is written, or in the store must be
        paid for: ``failed`` is then committed instead, and PaidFailureError raised (docs/design.md, semantics 8). A
        unit that cannot pay any more raises UnpaidError in any case. If the same request was committed in the
        meantime, its first result is returned and this one is dropped. ``make_room`` removes what a lost result leaves
        on the disk, which may be the ledger's, so that the paid failure fits.
        """
        paying = UnitSet(units)
        attempt = staged
        if attempt is None:
            known = self.ask(paying)
            if known is not None:
                return known
            attempt = stage_for(self.ledger, self.job, destination, bound)
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
                attempt = attempt or stage_for(self.ledger, self.job, destination, bound)
                result = self._result(header, rows, destination, attempt)
            except Exception as problem:
                make_room()
                return self._fail(problem, failed, paying)
            attempt = None
            try:
                committed = self._write(result, paying)
            except StoreError as problem:
                lost = problem
                continue
            remaining = self.ledger.remaining(paying)
            if committed.repeated:
                return _outcome(self.ledger, committed, remaining)
            released = decode_result(result)[1] if isinstance(result, bytes) and destination.sealer else rows
            kept = None if committed.manifest or not isinstance(released, Rows | ShuffledRows | bytes) else released
            named = replace(header, files=_files(destination, rows))
            return _with_rows(named, kept, committed, remaining, repeated=False)
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
        assert attempt is not None
        try:
            destination.write(attempt, replace(header, files=_files(destination, rows)), rows)
            attempt.seal(destination.folder)
        except BaseException:
            attempt.discard()
            raise
        return attempt

    def _write(self, result: bytes | Attempt, paying: UnitSet) -> Committed:
        """Write the charge, its entry and its result into the ledger; the errors are the engine's."""
        release = self.release
        try:
            return self.ledger.commit(
                job=self.job, request_digest=self.digest, release=release, units=paying, result=result
            )
        except BudgetExhaustedError as problem:
            raise UnpaidError(problem, release) from problem
        except JobConflictError as problem:
            raise JobIdTakenError(str(problem)) from problem

    def _fail(self, problem: Exception, failed: ResultHeader, paying: UnitSet) -> Outcome:
        """Charge for a result that was lost. Returns only if the same request was already committed."""
        lost = isinstance(problem, OSError | ResultWriteError | BudgetError)
        code = ReturnCode.RESULT_WRITE_ERROR if lost else ReturnCode.INTERNAL_ERROR
        result = encode_failure(replace(failed, return_code=code))
        for _ in range(_TRIES - 1):
            with suppress(StoreError):
                committed = self._write(result, paying)
                break
        else:
            committed = self._write(result, paying)
        if not committed.repeated:
            raise PaidFailureError(code) from problem
        return _outcome(self.ledger, committed, self.ledger.remaining(paying))

    @staticmethod
    def find(ledger: Ledger, caller: str, request: JobRequest, digest: bytes) -> Outcome | None:
        """Return this request's result, or None if it is not paid for; JobIdTakenError if its id was used before."""
        committed = ledger.job(caller, request.job_request_id)
        if committed is None:
            return None
        if committed.entry.request_digest != digest:
            raise JobIdTakenError(f"the job id {request.job_request_id!r} was used for another request")
        return _outcome(ledger, committed, ledger.remaining_of(committed.entry.seq))


def stage_for(
    ledger: Ledger, job: JobKey, destination: Destination, bound: ResultBound, *, beside: int | None = None
) -> Attempt | None:
    """Begin an attempt if the result is files, else return None; ResultWriteError if it may not or cannot fit.

    Its room is taken from the caller's quota and from the disk. Other processes may write the files instead: with
    ``beside``, the bytes that they need besides, the room is taken from the quota only.
    """
    if not isinstance(destination, AvroShards):
        if bound.declared > MOST_ROWS_IN_LEDGER:
            raise ResultWriteError(
                f"{bound.declared:,} declared keys are too many for a stream (at most {MOST_ROWS_IN_LEDGER:,}); "
                "nothing was charged: ask for files with CreateJob"
            )
        return None
    sizes = destination.room(bound)
    attempt: Attempt | None = None
    try:
        attempt = ledger.stage(job, room=sum(sizes) + (beside or 0))
        if beside is None:
            attempt.allocate(sizes)
    except (OSError, StagingError) as problem:
        if attempt is not None:
            attempt.discard()
        why = (
            f"the service has no room for the result: {problem.strerror}"
            if isinstance(problem, OSError)
            else str(problem)
        )
        raise ResultWriteError(f"nothing was charged: {why}") from problem
    return attempt


def find_result(ledger: Ledger, caller: str, job_request_id: str, *, with_remaining: bool = False) -> Outcome | None:
    """Return what a caller's job released; None if this caller has no such job, or it is not paid for.

    ``with_remaining`` also looks up what its units have left by now.
    """
    committed = ledger.job(caller, job_request_id)
    if committed is None:
        return None
    return _outcome(ledger, committed, ledger.remaining_of(committed.entry.seq) if with_remaining else None)


def _files(destination: Destination, rows: Rows | ShuffledRows | StagedRows) -> tuple[str, ...]:
    return destination.names(len(rows)) if isinstance(destination, AvroShards) else ()


def _with_rows(
    header: ResultHeader,
    rows: Rows | ShuffledRows | bytes | None,
    committed: Committed,
    remaining: Remaining | None,
    *,
    repeated: bool,
) -> Outcome:
    return Outcome(
        header=header,
        rows=rows if isinstance(rows, Rows) else None,
        shuffled=rows if isinstance(rows, ShuffledRows) else None,
        sealed=rows if isinstance(rows, bytes) else None,
        committed=committed,
        remaining=remaining,
        repeated=repeated,
    )


def _outcome(ledger: Ledger, committed: Committed, remaining: Remaining | None) -> Outcome:
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
    return Outcome(header=ResultHeader.from_bytes(raw), committed=committed, remaining=remaining, repeated=True)
