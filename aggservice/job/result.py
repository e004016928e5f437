"""What a job answers: statement, header and rows; and all of it as bytes, which the ledger stores and hashes.

``b"aggr1\\n"``, four bytes of the header's length, the header as canonical JSON, then the rows: all buckets (16 bytes
each, big-endian), then all metrics (8 bytes each, big-endian, two's complement). A shuffle's result begins with
``b"aggs1\\n"`` and has the reports, one after the other, for its rows. A paid failure is ``b"aggf1\\n"`` and JSON. If
the header names an ``output_public_key``, a sealed document (docs/wire.md) stands in place of the rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.job.errors import EngineError, PaidFailureError, ReturnCode
from aggservice.wire import KeySet
from aggservice.wire.hpke.summaries import (
    STREAM_NAME,
    SealedKind,
    SummarySealer,
    histogram_columns,
    open_document,
    open_totals,
)
from budget import Committed
from budget.answers import Remaining

_MAGIC, _SHUFFLED_MAGIC, _FAILED_MAGIC = b"aggr1\n", b"aggs1\n", b"aggf1\n"
_LENGTH_BYTES = 4
_IN_BASE64 = ("output_public_key", "sealed_totals")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleStatement:
    """The part of a statement that only a shuffle has. Amounts are text; ε∞ is empty if nothing bounds it.

    ``collection`` and ``registry_key_sha256`` name the evidence; they are empty if no device token was checked.
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
    collection: str = ""
    registry_key_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a summary guarantees. Amounts are decimal text; half-widths are of 95 % intervals and whole numbers.

    ``cost`` and ``remaining`` hold the amounts that are set, by name (epsilon, rho, delta). They follow from the ledger
    when the summary is returned, and are not part of what it keeps.
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
    noise_standard_deviation: str
    interval_half_width: int
    others_half_width: int
    private: bool
    text: str
    shuffle: ShuffleStatement | None = None
    cost: Mapping[str, str] = field(default_factory=dict)
    remaining: Mapping[str, str] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return what the ledger keeps, as plain values for JSON."""
        plain = asdict(self)
        del plain["cost"], plain["remaining"]
        return plain

    @classmethod
    def of_nothing(cls) -> Statement:
        """Return the statement of a job that released nothing."""
        amounts = dict.fromkeys(("mechanism", "epsilon", "rho", "delta", "others_epsilon", "privacy_unit", "text"), "")
        numbers = dict.fromkeys(("l1", "l0", "threshold", "interval_half_width", "others_half_width"), 0)
        return cls(**amounts, **numbers, noise_standard_deviation="0", private=False)  # type: ignore[arg-type]

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Statement:
        """Return the statement from the plain values of ``to_plain``."""
        part = plain.get("shuffle")
        return cls(**{**plain, "shuffle": None if part is None else ShuffleStatement(**part)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """What a finished job reports besides its rows. ``files`` is empty for a result kept in the ledger.

    A sealed result has ``output_public_key``, and ``sealed_totals`` in place of ``others`` and ``undeclared``.
    """

    job_request_id: str
    return_code: str
    error_counts: Mapping[str, int]
    statement: Statement
    row_count: int
    finished_ms: int
    others: int | None = None
    undeclared: int | None = None
    debug_run: bool = False
    files: tuple[str, ...] = ()
    output_public_key: bytes = b""
    sealed_totals: bytes = b""

    @property
    def failed(self) -> bool:
        """Whether the job was charged and its summary lost."""
        return self.return_code in (ReturnCode.RESULT_WRITE_ERROR, ReturnCode.INTERNAL_ERROR)

    def to_bytes(self) -> bytes:
        """Return the header as canonical JSON: sorted keys, no spaces."""
        plain: dict[str, Any] = {
            "job_request_id": self.job_request_id,
            "return_code": str(self.return_code),
            "error_counts": dict(self.error_counts),
            "statement": self.statement.to_plain(),
            "row_count": self.row_count,
            "finished_ms": self.finished_ms,
            "others": self.others,
            "undeclared": self.undeclared,
            "debug_run": self.debug_run,
            "files": list(self.files),
        }
        if self.output_public_key:
            plain |= {name: base64.b64encode(getattr(self, name)).decode() for name in _IN_BASE64}
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> ResultHeader:
        """Return the header that ``to_bytes`` wrote."""
        try:
            plain: dict[str, Any] = json.loads(raw)
            plain["return_code"] = ReturnCode(plain["return_code"])
            plain["statement"] = Statement.from_plain(plain["statement"])
            plain["files"] = tuple(plain["files"])
            plain |= {name: base64.b64decode(plain[name]) for name in _IN_BASE64 if name in plain}
            return cls(**plain)
        except (ValueError, TypeError, KeyError) as problem:
            raise EngineError(f"the ledger holds a result that this version cannot read: {problem}") from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a summary as columns. Debug runs have the true sums and annotations (1 in the domain, 2 in reports)."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    metrics: NDArray[np.int64]
    unnoised: NDArray[np.int64] | None = None
    annotations: NDArray[np.uint8] | None = None

    @classmethod
    def none(cls) -> Rows:
        """Return no rows."""
        none = np.empty(0, dtype=np.uint64)
        return cls(high=none, low=none, metrics=np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self.metrics.size

    def slice(self, start: int, stop: int) -> Rows:
        """Return some of the rows, without copying."""
        return Rows(
            high=self.high[start:stop],
            low=self.low[start:stop],
            metrics=self.metrics[start:stop],
            unnoised=None if self.unnoised is None else self.unnoised[start:stop],
            annotations=None if self.annotations is None else self.annotations[start:stop],
        )

    def take(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return a copy of the chosen rows."""
        return Rows(
            high=self.high[chosen],
            low=self.low[chosen],
            metrics=self.metrics[chosen],
            unnoised=None if self.unnoised is None else self.unnoised[chosen],
            annotations=None if self.annotations is None else self.annotations[chosen],
        )

    def pages(self, size: int, first: int = 0) -> Iterator[Rows]:
        """Yield the rows from ``first`` on, ``size`` at a time."""
        for start in range(first, len(self), size):
            yield self.slice(start, start + size)

    def buckets(self) -> bytes:
        """Return the buckets, 16 bytes each, big-endian."""
        both = np.empty((len(self), 2), dtype=">u8")
        both[:, 0] = self.high
        both[:, 1] = self.low
        return both.tobytes()

    def to_dict(self) -> dict[int, int]:
        """Return the metrics by bucket, for small summaries and for inspection."""
        keys = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return {high << 64 | low: metric for (high, low), metric in zip(keys, self.metrics.tolist(), strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShuffledRows:
    """Local reports of one randomizer in random order, one row of bytes per report."""

    reports: NDArray[np.uint8]

    def __len__(self) -> int:
        return self.reports.shape[0]

    @property
    def width(self) -> int:
        """The number of bytes of a report."""
        return self.reports.shape[1]

    def pages(self, size: int, first: int = 0) -> Iterator[ShuffledRows]:
        """Yield the rows from ``first`` on, ``size`` at a time."""
        for start in range(first, len(self), size):
            yield ShuffledRows(reports=self.reports[start : start + size])

    def to_list(self) -> list[bytes]:
        """Return the reports as byte strings."""
        raw, width = self.reports.tobytes(), self.width
        return [raw[at : at + width] for at in range(0, len(raw), width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryHeader(ResultHeader):
    """Everything that a caller is told about a summary, without its rows: its header, and the ledger's record of it.

    ``result_head`` is the beginning of what the ledger keeps, over which ``Summary.result_digest`` is computed.
    """

    receipt: bytes = b""
    ledger_entry: int = 0
    repeated: bool = False
    result_head: bytes = b""


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

    @property
    def rows(self) -> Rows:
        """The columns as rows."""
        return Rows(
            high=self.high,
            low=self.low,
            metrics=self.metrics,
            unnoised=self.unnoised,
            annotations=self.annotations,
        )

    def to_dict(self) -> dict[int, int]:
        """Return the metrics by bucket, as Python numbers."""
        return self.rows.to_dict()

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

    def to_arrow(self) -> Any:
        """Return a pyarrow table of ``bucket`` (16 bytes, big-endian) and ``metric``; pandas and Polars read it.

        It needs ``pip install 'aggservice[parquet]'``.
        """
        import pyarrow as pa

        raw = pa.py_buffer(self.rows.buckets())
        buckets = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(self), [None, raw])
        return pa.table({"bucket": buckets, "metric": self.metrics})

    def result_digest(self) -> bytes:
        """Return SHA-256 over the result as the ledger keeps it; the receipt's entry must name this digest.

        A sealed result is kept as it was sealed: opened or not, its digest is over the sealed document.
        """
        if self.sealed:
            body = self.sealed
        elif self.statement.shuffle is not None:
            body = b"".join(self.reports)
        else:
            body = _body(self.rows)
        return hashlib.sha256(self.result_head + body).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished job: its header, its rows (None if they are in files), the entry that paid for it with its signed
    receipt, and what its units have left. A debug run pays nothing: ``committed`` is None.

    A shuffle has ``shuffled`` reports instead of rows. A sealed result has a sealed document instead.
    """

    header: ResultHeader
    rows: Rows | None = None
    shuffled: ShuffledRows | None = None
    sealed: bytes | None = None
    committed: Committed | None = None
    remaining: Remaining | None = None
    repeated: bool = False

    @property
    def checked(self) -> Outcome:
        """This outcome; PaidFailureError if the job was charged and its summary lost."""
        if self.header.failed:
            raise PaidFailureError(ReturnCode(self.header.return_code))
        return self


def encode_result(header: ResultHeader, rows: Rows | ShuffledRows, sealer: SummarySealer | None = None) -> bytes:
    """Return a whole result as bytes, its rows sealed if there is a sealer."""
    if sealer is not None:
        return result_head(header) + b"".join(sealed_rows(sealer, STREAM_NAME, rows))
    return result_head(header) + _body(rows)


def _body(rows: Rows | ShuffledRows) -> bytes:
    if isinstance(rows, ShuffledRows):
        return rows.reports.tobytes()
    return rows.buckets() + rows.metrics.astype(">i8").tobytes()


def sealed_rows(sealer: SummarySealer, name: str, rows: Rows | ShuffledRows) -> Iterator[bytes]:
    """Yield the sealed document of some rows, piece by piece."""
    kind = SealedKind.SHUFFLE if isinstance(rows, ShuffledRows) else SealedKind.HISTOGRAM
    return sealer.document(name, kind, rows=len(rows), body=_body(rows))


def seal_totals(header: ResultHeader, sealer: SummarySealer | None) -> ResultHeader:
    """Return the header with its two totals sealed, if there is a sealer and the job asked for them."""
    if sealer is None or header.others is None or header.undeclared is None:
        return header
    document = sealer.totals(header.undeclared, header.others)
    return replace(header, others=None, undeclared=None, sealed_totals=document)


def encode_failure(header: ResultHeader) -> bytes:
    """Return the bytes that the ledger keeps for a paid failure: fewer than any summary has.

    A store that has room for a summary then has room for a failure, so that a lack of room reveals nothing.
    """
    plain = {
        "job_request_id": header.job_request_id,
        "return_code": str(header.return_code),
        "finished_ms": header.finished_ms,
    }
    return _FAILED_MAGIC + json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _decode_failure(raw: bytes) -> ResultHeader:
    plain = json.loads(raw[len(_FAILED_MAGIC) :])
    plain["return_code"] = ReturnCode(plain["return_code"])
    return ResultHeader(**plain, error_counts={}, statement=Statement.of_nothing(), row_count=0)


def result_head(header: ResultHeader) -> bytes:
    """Return the bytes of a result up to its rows."""
    raw = header.to_bytes()
    magic = _MAGIC if header.statement.shuffle is None else _SHUFFLED_MAGIC
    return magic + len(raw).to_bytes(_LENGTH_BYTES, "big") + raw


def decode_result(raw: bytes) -> tuple[ResultHeader, Rows | ShuffledRows | bytes]:
    """Return header and rows of ``encode_result``; sealed rows are the bytes of their document."""
    if raw.startswith(_FAILED_MAGIC):
        return _decode_failure(raw), Rows.none()
    start = len(_MAGIC) + _LENGTH_BYTES
    if raw[: len(_MAGIC)] not in (_MAGIC, _SHUFFLED_MAGIC) or len(raw) < start:
        raise EngineError("the ledger holds a result that this version cannot read: use a newer version")
    end = start + int.from_bytes(raw[len(_MAGIC) : start], "big")
    header = ResultHeader.from_bytes(raw[start:end])
    if header.output_public_key:
        return header, raw[end:]
    if header.statement.shuffle is not None:
        reports = np.frombuffer(raw, dtype=np.uint8, offset=end)
        return header, ShuffledRows(reports=reports.reshape(-1, header.statement.shuffle.report_bytes))
    high, low, metrics = histogram_columns(memoryview(raw)[end:])
    return header, Rows(high=high, low=low, metrics=metrics)
