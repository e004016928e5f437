"""Charging a job and keeping its result: one call of the ledger, exactly once (docs/design.md, semantics 3)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import InputReadError, JobIdTakenError, ResultWriteError, UnpaidError
from aggservice.engine.opening import PrivacyUnit
from aggservice.engine.output import AvroShards, Destination
from aggservice.engine.release import ReleasePlan
from aggservice.engine.request import JobRequest
from aggservice.engine.result import ResultHeader, Rows, decode_result, encode_result
from aggservice.engine.shuffle_plan import ShufflePlan
from aggservice.engine.shuffle_rows import ShuffledRows
from budget import (
    Attempt,
    BudgetExhaustedError,
    Check,
    Committed,
    JobConflictError,
    JobKey,
    Ledger,
    Release,
    Remaining,
    UnitSet,
)

MOST_ROWS_IN_LEDGER = 10_000_000
"""240 MB: what the ledger keeps beside an entry. Larger summaries are files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipted:
    """A result that the ledger has: the entry that paid, its signed receipt, and what its units have left.

    ``rows`` are a summary's and ``shuffled`` a shuffle's; both are None when they are in files.
    """

    header: ResultHeader
    rows: Rows | None
    committed: Committed
    remaining: Remaining | None
    repeated: bool
    shuffled: ShuffledRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one job asks of the ledger."""

    ledger: Ledger
    caller: str
    request: JobRequest
    digest: bytes
    plan: ReleasePlan | ShufflePlan

    @property
    def job(self) -> JobKey:
        """The job, as the ledger knows it."""
        return JobKey(caller=self.caller, job_id=self.request.job_request_id)

    def release(self, unit: PrivacyUnit) -> Release:
        """Return what is logged: the mechanisms that cost, and what an auditor should know beside them."""
        ids = ",".join(map(str, self.request.filtering_ids))
        return Release(
            mechanisms=self.plan.mechanisms(),
            parameters={
                **self.plan.parameters(),
                "privacy_unit": unit.value,
                "filtering_ids": ids if len(ids) <= 4000 else f"{len(self.request.filtering_ids)} ids",
                "scope": self.request.attribution_report_to or self.request.reporting_site or "",
            },
        )

    def check(self, units: NDArray[np.uint8], unit: PrivacyUnit) -> Check:
        """Say whether the units could pay; nothing is charged."""
        return self.ledger.check(caller=self.caller, release=self.release(unit), units=UnitSet(units))

    def commit(
        self,
        *,
        header: ResultHeader,
        rows: Rows | ShuffledRows,
        units: NDArray[np.uint8],
        unit: PrivacyUnit,
        destination: Destination,
    ) -> Receipted:
        """Charge ``units`` (distinct, ascending) and keep the result in one transaction; then publish files.

        When the same request was committed in the meantime, its first result is returned and this one forgotten.
        """
        paying = UnitSet(units)
        release = self.release(unit)
        if isinstance(destination, AvroShards):
            header = replace(header, files=destination.names(len(rows)))
            attempt = self.ledger.stage(self.job)
            try:
                destination.write(attempt, header, rows)
                attempt.seal(destination.folder)
            except BaseException:
                attempt.discard()
                raise
            result: bytes | Attempt = attempt
        else:
            if len(rows) > MOST_ROWS_IN_LEDGER:
                raise ResultWriteError(
                    f"{len(rows):,} rows are too many for a stream (at most {MOST_ROWS_IN_LEDGER:,}); "
                    "nothing was charged: ask for files instead, with CreateJob"
                )
            result = encode_result(header, rows)
        try:
            committed = self.ledger.commit(
                job=self.job,
                request_digest=self.digest,
                release=release,
                units=paying,
                result=result,
            )
        except BudgetExhaustedError as problem:
            raise UnpaidError(problem, release) from problem
        except JobConflictError as problem:
            raise JobIdTakenError(str(problem)) from problem
        remaining = self.ledger.remaining(paying)
        if committed.repeated:
            return _receipted(committed, remaining)
        kept = None if committed.manifest else rows
        return _with_rows(header, kept, committed, remaining, repeated=False)

    @staticmethod
    def find(ledger: Ledger, caller: str, request: JobRequest, digest: bytes) -> Receipted | None:
        """Return the result of this request if it has been paid for; refuse the id if another request has it."""
        committed = ledger.job(caller, request.job_request_id)
        if committed is None:
            return None
        if committed.entry.request_digest != digest:
            raise JobIdTakenError(f"job id {request.job_request_id!r} was used for another request")
        return _receipted(committed, remaining_of(ledger, committed.entry.seq))


def find_result(ledger: Ledger, caller: str, job_request_id: str, *, with_remaining: bool = False) -> Receipted | None:
    """Return what a caller's job released, if it was paid for. Another caller's job does not exist.

    ``with_remaining`` also looks up what its units have left by now.
    """
    committed = ledger.job(caller, job_request_id)
    if committed is None:
        return None
    return _receipted(committed, remaining_of(ledger, committed.entry.seq) if with_remaining else None)


def remaining_of(ledger: Ledger, seq: int) -> Remaining:
    """Return what the units of a logged release have left by now."""
    packed = ledger.store.read("units", lambda transaction: b"".join(part.keys for part in transaction.parts(seq)))
    return ledger.remaining(UnitSet.packed(packed))


def _with_rows(
    header: ResultHeader,
    rows: Rows | ShuffledRows | None,
    committed: Committed,
    remaining: Remaining | None,
    *,
    repeated: bool,
) -> Receipted:
    shuffled = rows if isinstance(rows, ShuffledRows) else None
    summed = None if isinstance(rows, ShuffledRows) else rows
    return Receipted(
        header=header, rows=summed, shuffled=shuffled, committed=committed, remaining=remaining, repeated=repeated
    )


def _receipted(committed: Committed, remaining: Remaining | None) -> Receipted:
    manifest = committed.manifest
    if manifest is None:
        header, rows = decode_result(committed.result)
        return _with_rows(header, rows, committed, remaining, repeated=True)
    (named,) = [one for one in manifest.files if one.name.endswith("-statement.json")]
    path = Path(manifest.destination) / named.name
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    if hashlib.sha256(raw).digest() != named.sha256:
        raise InputReadError(f"the job was paid for and its files written, but {path.name} has been moved or changed")
    return Receipted(
        header=ResultHeader.from_bytes(raw), rows=None, committed=committed, remaining=remaining, repeated=True
    )
