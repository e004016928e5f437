"""Decode thousands of opened payloads into columns, in one pass.

A kernel reads payloads in the canonical form that browsers write. All other payloads go to the single
decoder, one at a time. The kernel takes a payload exactly if the single decoder accepts it and encodes it back to the
same bytes, so both accept and refuse the same payloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.wire.batch.opening import OpenedBatch
from aggservice.wire.batch.spans import Spans
from aggservice.wire.errors import ReportStatus, WireError
from aggservice.wire.limits import MAX_CONTRIBUTIONS
from aggservice.wire.report.payload import Contribution, decode_payload

_OK = int(ReportStatus.OK)
_UNRECOGNISED = 255
"""The kernel's mark for a payload that is not canonical: the single decoder decides."""

SMALLEST_CONTRIBUTION_BYTES = 36
"""A payload holds at most as many contributions as its length divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionColumns:
    """Contributions as columns, in the order of their reports; ``row`` is the report's index in its batch."""

    key_high: NDArray[np.uint64]
    key_low: NDArray[np.uint64]
    value: NDArray[np.uint32]
    filtering_id: NDArray[np.uint64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return self.row.size

    @classmethod
    def make(cls, column: Callable[[str, Any], NDArray[Any]]) -> ContributionColumns:
        """Return columns made by calling ``column`` with the name and type of each."""
        return cls(**{name: column(name, kind) for name, kind in _TYPES.items()})

    def taken(self, chosen: slice | NDArray[np.int64]) -> ContributionColumns:
        """Return a copy of some rows."""
        return self.make(lambda name, _: getattr(self, name)[chosen].copy())

    def contributions(self) -> list[Contribution]:
        """Return the contributions as objects, for small batches and for inspection."""
        columns = (self.key_high.tolist(), self.key_low.tolist(), self.value.tolist(), self.filtering_id.tolist())
        return [
            Contribution(bucket=high << 64 | low, value=value, filtering_id=filtering_id)
            for high, low, value, filtering_id in zip(*columns, strict=True)
        ]


_TYPES = {"key_high": np.uint64, "key_low": np.uint64, "value": np.uint32, "filtering_id": np.uint64, "row": np.int64}


def decode_batch(opened: OpenedBatch, *, nulls: bool = False) -> tuple[ContributionColumns, NDArray[np.uint8]]:
    """Return the contributions of a batch of histogram payloads, and the status of each row.

    Rows that failed to open keep their status; rows that the single decoder refuses get the status of its error.
    Null contributions (value 0) are left out unless ``nulls``.
    """
    plaintexts = opened.plaintexts
    status = opened.status.copy()
    lengths = plaintexts.stops - plaintexts.starts
    most = int((lengths // SMALLEST_CONTRIBUTION_BYTES).sum())
    columns = ContributionColumns.make(lambda _, kind: np.empty(most, dtype=kind))
    count = decode_kernel(
        plaintexts.buffer,
        plaintexts.starts,
        plaintexts.stops,
        nulls,
        status,
        columns.key_high,
        columns.key_low,
        columns.value,
        columns.filtering_id,
        columns.row,
    )
    columns = columns.taken(slice(0, count))
    unrecognised = np.flatnonzero(status == _UNRECOGNISED)
    if unrecognised.size:
        columns = _with_singles(columns, plaintexts, unrecognised, status, nulls)
    return columns, status


def _with_singles(
    columns: ContributionColumns,
    plaintexts: Spans,
    rows: NDArray[np.int64],
    status: NDArray[np.uint8],
    nulls: bool,
) -> ContributionColumns:
    """Decode ``rows`` with the single decoder; return the columns with their contributions added, in order of rows."""
    found: list[tuple[int, int, int, int, int]] = []
    for row in rows.tolist():
        try:
            payload = decode_payload(plaintexts[row])
        except WireError as error:
            status[row] = error.status
            continue
        status[row] = _OK
        for one in payload.contributions:
            if nulls or one.value:
                found.append((one.bucket >> 64, one.bucket & 0xFFFFFFFFFFFFFFFF, one.value, one.filtering_id, row))
    if not found:
        return columns
    more = dict(zip(_TYPES, zip(*found, strict=True), strict=True))
    joined = ContributionColumns.make(
        lambda name, kind: np.concatenate([getattr(columns, name), np.array(more[name], dtype=kind)])
    )
    return joined.taken(np.argsort(joined.row, kind="stable"))


_HEAD = np.frombuffer(b"\xa2ddata", dtype=np.uint8)
_TAIL = np.frombuffer(b"ioperationihistogram", dtype=np.uint8)
_ID = np.frombuffer(b"\xa3bid", dtype=np.uint8)
_NO_ID = np.frombuffer(b"\xa2", dtype=np.uint8)
_VALUE = np.frombuffer(b"evalueD", dtype=np.uint8)
_BUCKET = np.frombuffer(b"fbucketP", dtype=np.uint8)
_HEAD_BYTES, _TAIL_BYTES = 6, 20


@njit(cache=True, inline="always")
def _same(buffer, at, expected):  # type: ignore[no-untyped-def]
    # No early exit: without branches the compiler compares many bytes at once.
    difference = np.uint8(0)
    for index in range(expected.size):
        difference |= buffer[at + index] ^ expected[index]
    return difference == 0


@njit(cache=True, inline="always")
def _number(buffer, at, count):  # type: ignore[no-untyped-def]
    total = np.uint64(0)
    for index in range(count):
        total = (total << np.uint64(8)) | np.uint64(buffer[at + index])
    return total


@njit(cache=True)
def _layout(buffer, start, stop):  # type: ignore[no-untyped-def]
    """Return where a payload's entries begin, their number and the length of their IDs; -1 if it is not canonical.

    The length is checked against the count, so that reading the entries stays inside the payload.
    """
    if stop - start < _HEAD_BYTES + 1 + _TAIL_BYTES or not _same(buffer, start, _HEAD):
        return -1, 0, 0
    at = start + _HEAD_BYTES
    first = np.int64(buffer[at])
    if 0x80 <= first <= 0x97:
        count = first - 0x80
        at += 1
    elif first == 0x98:
        count = np.int64(buffer[at + 1])
        at += 2
        if count < 24:
            return -1, 0, 0
    elif first == 0x99:
        count = np.int64(buffer[at + 1]) << 8 | np.int64(buffer[at + 2])
        at += 3
        if not 256 <= count <= MAX_CONTRIBUTIONS:
            return -1, 0, 0
    else:
        return -1, 0, 0
    width = np.int64(0)
    entry_bytes = np.int64(SMALLEST_CONTRIBUTION_BYTES)
    if count > 0 and buffer[at] == 0xA3:
        width = np.int64(buffer[at + 4]) - 0x40
        if not 1 <= width <= 8:
            return -1, 0, 0
        entry_bytes += 4 + width
    if at + count * entry_bytes + _TAIL_BYTES != stop or not _same(buffer, stop - _TAIL_BYTES, _TAIL):
        return -1, 0, 0
    return at, count, width


@njit(cache=True)
def decode_kernel(  # type: ignore[no-untyped-def]
    buffer, starts, stops, nulls, status, key_high, key_low, value, filtering_id, row_of
):
    """Write the contributions of every canonical payload whose status is 0; return how many were written.

    Payloads that are not canonical get the status 255 and write nothing. The columns must have room for a
    contribution every 36 bytes of payload.
    """
    written = 0
    for row in range(starts.size):
        if status[row] != 0:
            continue
        at, count, width = _layout(buffer, starts[row], stops[row])
        good = at >= 0
        begun = written
        for _ in range(count):
            identity = np.uint64(0)
            if width > 0:
                good = _same(buffer, at, _ID) and buffer[at + 4] == 0x40 + width
                identity = _number(buffer, at + 5, width)
                at += 5 + width
            else:
                good = _same(buffer, at, _NO_ID)
                at += 1
            good = good and _same(buffer, at, _VALUE) and buffer[at + 7] < 0x80 and _same(buffer, at + 11, _BUCKET)
            if not good:
                break
            amount = _number(buffer, at + 7, 4)
            if nulls or amount > 0:
                value[written] = amount
                key_high[written] = _number(buffer, at + 19, 8)
                key_low[written] = _number(buffer, at + 27, 8)
                filtering_id[written] = identity
                row_of[written] = row
                written += 1
            at += 35
        if not good:
            written = begun
            status[row] = _UNRECOGNISED
    return written
