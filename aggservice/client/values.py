"""What the client library returns: frozen values with plain names. Amounts are decimal text, times milliseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.client.parameters import JobParameters
from aggservice.wire import KeySet
from aggservice.wire.hpke.summaries import STREAM_NAME, histogram_columns, open_document, open_totals


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
class Shuffled:
    """The part of a statement that only a shuffle has: ε₀, ε∞ (empty: unbounded), whether and for whom it was
    amplified, and the evidence (empty: no device token was checked).
    """

    randomizer: str
    reports: int
    report_bytes: int
    local_epsilon: str
    permanent_epsilon: str
    amplified: bool
    bound: str
    assumption: str
    not_amplified: str
    collection: str
    registry_key_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a summary guarantees. ``interval_half_width`` is that of a 95 % interval; ``cost`` and ``remaining`` hold
    the amounts that are set, by name (epsilon, rho, delta).
    """

    mechanism: str
    epsilon: str
    rho: str
    delta: str
    others_epsilon: str
    l1: int
    l0: int
    threshold: int
    privacy_unit: str
    noise_standard_deviation: float
    interval_half_width: int
    others_half_width: int
    private: bool
    text: str
    cost: Mapping[str, str]
    remaining: Mapping[str, str]
    shuffle: Shuffled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryHeader:
    """Everything that the service says about a summary, without its rows. ``files`` names those of a job over files.

    ``output_public_key`` is the key that rows and ``sealed_totals`` are sealed to; empty if they are not.
    """

    job_request_id: str
    return_code: str
    error_counts: Mapping[str, int]
    statement: Statement
    row_count: int
    finished_ms: int
    debug_run: bool
    others: int | None
    undeclared: int | None
    receipt: bytes
    ledger_entry: int
    files: tuple[str, ...]
    repeated: bool
    result_head: bytes
    output_public_key: bytes
    sealed_totals: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary(SummaryHeader):
    """The summary of a job. ``high``, ``low`` and ``metrics`` are columns with one row per bucket; they are empty for
    a job over files. A shuffle has ``reports`` instead, in random order. A sealed summary has only the
    document ``sealed``; ``opened`` returns it with its rows or reports.
    """

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    metrics: NDArray[np.int64]
    unnoised: NDArray[np.int64] | None
    annotations: NDArray[np.uint8] | None
    reports: tuple[bytes, ...] = ()
    sealed: bytes = b""

    def opened(self, keys: KeySet) -> Summary:
        """Return a sealed summary with its rows or reports and its totals; ``WireError`` if ``keys`` do not open it.

        For a job over files it holds only the totals: ``aggservice job open-summary`` opens its files.
        """
        job, found = self.job_request_id, self
        if self.sealed_totals:
            undeclared, others = open_totals(self.sealed_totals, keys, job_request_id=job)
            found = replace(found, undeclared=undeclared, others=others)
        if not self.sealed:
            return found
        body = open_document(self.sealed, keys, job_request_id=job, name=STREAM_NAME)
        if self.statement.shuffle is not None:
            width = self.statement.shuffle.report_bytes
            return replace(found, reports=tuple(body[at : at + width] for at in range(0, len(body), width)))
        high, low, metrics = histogram_columns(body)
        return replace(found, high=high, low=low, metrics=metrics)

    def __len__(self) -> int:
        return self.metrics.size

    def to_dict(self) -> dict[int, int]:
        """Return the metrics by bucket, as Python numbers."""
        keys = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return {high << 64 | low: metric for (high, low), metric in zip(keys, self.metrics.tolist(), strict=True)}

    def to_arrow(self) -> Any:
        """Return a pyarrow table of ``bucket`` (16 bytes, big-endian) and ``metric``; pandas and Polars read it.

        It needs ``pip install 'aggservice[parquet]'``.
        """
        import pyarrow as pa

        both = np.empty((len(self), 2), dtype=">u8")
        both[:, 0], both[:, 1] = self.high, self.low
        buckets = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(self), [None, pa.py_buffer(both.tobytes())])
        return pa.table({"bucket": buckets, "metric": self.metrics})

    def result_digest(self) -> bytes:
        """Return SHA-256 over the result as the ledger keeps it; the receipt's entry must name this digest.

        A sealed result is kept as it was sealed: opened or not, its digest is over the sealed document.
        """
        if self.sealed:
            return hashlib.sha256(self.result_head + self.sealed).digest()
        both = np.empty((len(self), 2), dtype=">u8")
        both[:, 0], both[:, 1] = self.high, self.low
        if self.statement.shuffle is not None:
            return hashlib.sha256(self.result_head + b"".join(self.reports)).digest()
        return hashlib.sha256(self.result_head + both.tobytes() + self.metrics.astype(">i8").tobytes()).digest()


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
