"""A job's result as bytes, which the ledger stores and hashes, and returns if the job is sent again.

``b"aggr1\\n"``, four bytes of the header's length, the header as canonical JSON, then the rows: all buckets (16 bytes
each, big-endian), then all metrics (8 bytes each, big-endian, two's complement). A shuffle's result begins with
``b"aggs1\\n"`` and has the reports, one after the other, for its rows. A paid failure is ``b"aggf1\\n"`` and JSON. If
the header names an ``output_public_key``, a sealed document (docs/wire.md) stands in place of the rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import EngineError, ReturnCode
from aggservice.engine.release.statement import Statement
from aggservice.engine.shuffle import SHUFFLED_MAGIC, ShuffledRows
from aggservice.wire.hpke.summaries import STREAM_NAME, SealedKind, SummarySealer, histogram_columns

_MAGIC, _FAILED_MAGIC = b"aggr1\n", b"aggf1\n"
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """What a finished job reports besides its rows. ``files`` is empty for a result kept in the ledger.

    A sealed result has ``output_public_key``, and ``sealed_totals`` in place of ``others`` and ``undeclared``; both
    are base64.
    """

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
    output_public_key: str = ""
    sealed_totals: str = ""

    @property
    def failed(self) -> bool:
        """Whether the job was charged and its summary lost."""
        return self.return_code in (ReturnCode.RESULT_WRITE_ERROR, ReturnCode.INTERNAL_ERROR)

    def to_bytes(self) -> bytes:
        """Return the header as canonical JSON: sorted keys, no spaces."""
        plain: dict[str, Any] = {
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
        if self.output_public_key:
            plain |= {"output_public_key": self.output_public_key, "sealed_totals": self.sealed_totals}
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
        """Return the metrics by bucket, for small summaries and for inspection."""
        keys = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return {high << 64 | low: metric for (high, low), metric in zip(keys, self.metrics.tolist(), strict=True)}


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
    return replace(header, others=None, undeclared=None, sealed_totals=base64.b64encode(document).decode())


def encode_failure(header: ResultHeader) -> bytes:
    """Return the bytes that the ledger keeps for a paid failure: fewer than any summary has.

    A store that has room for a summary then has room for a failure, so that a lack of room reveals nothing.
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


def decode_result(raw: bytes) -> tuple[ResultHeader, Rows | ShuffledRows | bytes]:
    """Return header and rows of ``encode_result``; sealed rows are the bytes of their document."""
    if raw.startswith(_FAILED_MAGIC):
        none = np.empty(0, dtype=np.uint64)
        return _decode_failure(raw), Rows(high=none, low=none, metrics=np.empty(0, dtype=np.int64))
    start = len(_MAGIC) + _LENGTH_BYTES
    if raw[: len(_MAGIC)] not in (_MAGIC, SHUFFLED_MAGIC) or len(raw) < start:
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
