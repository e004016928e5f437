"""What the client library returns: frozen values with plain names. Amounts are decimal text, times milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aggservice.job.parameters import JobParameters
from aggservice.job.result import SummaryHeader


class JobStatus(StrEnum):
    """How far a job has come, by the deployed service's names."""

    RECEIVED = "RECEIVED"
    IN_PROGRESS = "IN_PROGRESS"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount of privacy budget. The ledger's filter decides which of ``epsilon`` and ``rho`` is set."""

    epsilon: str = ""
    rho: str = ""
    delta: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How many reports a job left out for one reason, and what the reason means."""

    category: str
    count: int
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many reports a job has opened, and its stage: queued, reading, charging, releasing or finished."""

    reports_read: int
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a finished job ended."""

    return_code: str
    message: str
    error_counts: tuple[ErrorCount, ...]
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is now. ``result`` is set once it has finished, and ``summary`` if it succeeded.

    A job that the service knows only from its ledger has no ``parameters``, no prefixes and no ``received_ms``.
    """

    job_request_id: str
    job_status: JobStatus
    progress: Progress
    received_ms: int | None
    started_ms: int | None
    updated_ms: int | None
    parameters: JobParameters | None
    input_data_blob_prefixes: tuple[str, ...]
    output_data_blob_prefix: str
    output_domain_blob_prefix: str
    result: JobResult | None
    summary: SummaryHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What one privacy unit has spent and has left, and in how many jobs it was used."""

    unit: bytes
    spent: Amount
    remaining: Amount
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpaidUnit:
    """A privacy unit that could not pay, and the caller's own jobs that spent it."""

    unit: bytes
    spent: Amount
    uses: int
    job_request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck:
    """Whether a job would be paid, its cost per unit, and the first 20 units that could not pay."""

    sufficient: bool
    unit_count: int
    unpaid_count: int
    unpaid: tuple[UnpaidUnit, ...]
    cost: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One entry of the ledger's log. ``cost`` is None for an entry that charges nothing."""

    index: int
    kind: str
    caller: str
    job_request_id: str
    time_ms: int
    cost: Amount | None
    unit_count: int
    result_digest: bytes
    entry_hash: bytes
    previous_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The service's audit of its own ledger. ``first_bad_entry`` is None if no single entry is to blame."""

    ok: bool
    entry_count: int
    unit_count: int
    head: bytes
    first_bad_entry: int | None
    problem: str
