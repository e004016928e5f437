"""A job's result as bytes: what the ledger stores and digests, and returns whenever it is asked again.

``b"aggr1\\n"``, four bytes of the header's length, the header as canonical JSON, then the rows: all buckets (16 bytes
each, big-endian), then all metrics (8 bytes each, big-endian, two's complement). A shuffle's result begins with
``b"aggs1\\n"`` and has the reports, one after the other, for its rows. A paid failure is ``b"aggf1\\n"`` and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import EngineError, ReturnCode
from aggservice.engine.release.statement import Statement
from aggservice.engine.shuffle.rows import SHUFFLED_MAGIC, ShuffledRows

_MAGIC, _FAILED_MAGIC = b"aggr1\n", b"aggf1\n"
_LENGTH_BYTES = 4
_BUCKET_BYTES, _METRIC_BYTES = 16, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """What a finished job reports beside its rows. ``files`` is empty for a result kept in the ledger."""

    job_request_id: str
    return_code: ReturnCode
    error_counts: Mapping[str, int]
    statement: Statement
    row_count: int
    finished_ms: int
    others: int | None = None
    undeclared: int | None = None
    debug_run: bool = False
    files: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the job was charged and its summary lost."""
        return self.return_code in (ReturnCode.RESULT_WRITE_ERROR, ReturnCode.INTERNAL_ERROR)

    def to_bytes(self) -> bytes:
        """Return the header as canonical JSON: sorted keys, no spaces."""
        plain = {
            "job_request_id": self.job_request_id,
            "return_code": self.return_code.value,
            "error_counts": dict(self.error_counts),
            "statement": self.statement.to_plain(),
            "row_count": self.row_count,
            "finished_ms": self.finished_ms,
            "others": self.others,
            "undeclared": self.undeclared,
            "debug_run": self.debug_run,
            "files": list(self.files),
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> ResultHeader:
        """Return the header that ``to_bytes`` wrote."""
        try:
            plain: dict[str, Any] = json.loads(raw)
            plain["return_code"] = ReturnCode(plain["return_code"])
            plain["statement"] = Statement.from_plain(plain["statement"])
            plain["files"] = tuple(plain["files"])
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
        """Return the metrics by bucket: for small summaries and for looking at."""
        keys = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return {high << 64 | low: metric for (high, low), metric in zip(keys, self.metrics.tolist(), strict=True)}


def encode_result(header: ResultHeader, rows: Rows | ShuffledRows) -> bytes:
    """Return a whole result as bytes."""
    if isinstance(rows, ShuffledRows):
        return result_head(header) + rows.reports.tobytes()
    return result_head(header) + rows.buckets() + rows.metrics.astype(">i8").tobytes()


def encode_failure(header: ResultHeader) -> bytes:
    """Return what the ledger keeps of a paid failure: fewer bytes than any summary has.

    A store that has room for a summary then has room for a failure, so that the lack of room tells nothing.
    """
    plain = {
        "job_request_id": header.job_request_id,
        "return_code": header.return_code.value,
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
    magic = _MAGIC if header.statement.shuffle is None else SHUFFLED_MAGIC
    return magic + len(raw).to_bytes(_LENGTH_BYTES, "big") + raw


def decode_result(raw: bytes) -> tuple[ResultHeader, Rows | ShuffledRows]:
    """Return header and rows of ``encode_result``; the rows are views of ``raw``."""
    if raw.startswith(_FAILED_MAGIC):
        none = np.empty(0, dtype=np.uint64)
        return _decode_failure(raw), Rows(high=none, low=none, metrics=np.empty(0, dtype=np.int64))
    start = len(_MAGIC) + _LENGTH_BYTES
    if raw[: len(_MAGIC)] not in (_MAGIC, SHUFFLED_MAGIC) or len(raw) < start:
        raise EngineError("the ledger holds a result that this version cannot read")
    end = start + int.from_bytes(raw[len(_MAGIC) : start], "big")
    header = ResultHeader.from_bytes(raw[start:end])
    if header.statement.shuffle is not None:
        reports = np.frombuffer(raw, dtype=np.uint8, offset=end)
        return header, ShuffledRows(reports=reports.reshape(-1, header.statement.shuffle.report_bytes))
    count = (len(raw) - end) // (_BUCKET_BYTES + _METRIC_BYTES)
    buckets = np.frombuffer(raw, dtype=">u8", count=2 * count, offset=end).reshape(-1, 2)
    metrics = np.frombuffer(raw, dtype=">i8", count=count, offset=end + count * _BUCKET_BYTES)
    rows = Rows(
        high=buckets[:, 0].astype(np.uint64), low=buckets[:, 1].astype(np.uint64), metrics=metrics.astype(np.int64)
    )
    return header, rows
