"""The unit keys of a batch of reports: ``aggservice.wire.report.units`` for columns."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.batch.shared_infos import SharedInfoColumns
from aggservice.wire.errors import EncodingError
from aggservice.wire.report.units import HOUR_S, UNIT_BYTES, origin_prefix, shared_id_unit
from aggservice.wire.status import ReportStatus

_ID_BYTES = 16
_HOUR_BYTES = 4
_MAX_FILTERING_ID = (1 << 64) - 1


def _checked(filtering_ids: Sequence[int]) -> Sequence[int]:
    if not all(0 <= filtering_id <= _MAX_FILTERING_ID for filtering_id in filtering_ids):
        raise EncodingError("a filtering ID is an integer from 0 to 2^64 - 1")
    return filtering_ids


def report_units(columns: SharedInfoColumns, filtering_ids: Sequence[int] = (0,)) -> NDArray[np.uint8]:
    """Return an array (report, filtering ID, 20): the report unit of every report under every filtering ID.

    Rows whose status is not OK are zero. One SHA-256 an entry.
    """
    suffixes = [filtering_id.to_bytes(8, "big") for filtering_id in _checked(filtering_ids)]
    rows = np.flatnonzero(columns.status == ReportStatus.OK)
    raw = columns.report_id[rows].tobytes()
    prefixes = [origin_prefix(origin) for origin in columns.origins]
    starts = range(0, len(raw), _ID_BYTES)
    messages = [
        prefixes[origin] + raw[start : start + _ID_BYTES]
        for origin, start in zip(columns.origin[rows].tolist(), starts, strict=True)
    ]
    units = np.zeros((len(columns), len(suffixes), UNIT_BYTES), dtype=np.uint8)
    for place, suffix in enumerate(suffixes):
        digests = b"".join([sha256(message + suffix).digest() for message in messages])
        units[rows, place, _HOUR_BYTES:] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)[:, :_ID_BYTES]
    _put_hours(units, columns, rows)
    return units


def shared_id_units(columns: SharedInfoColumns, filtering_ids: Sequence[int] = (0,)) -> NDArray[np.uint8]:
    """Return an array (report, filtering ID, 20): the shared-ID unit of every report under every filtering ID.

    Rows whose status is not OK are zero. One SHA-256 for each distinct unit and filtering ID.
    """
    _checked(filtering_ids)
    rows = np.flatnonzero(columns.status == ReportStatus.OK)
    covered = np.stack(
        [
            columns.api[rows].astype(np.int64),
            columns.version[rows].astype(np.int64),
            columns.origin[rows].astype(np.int64),
            columns.destination[rows].astype(np.int64),
            columns.source_registration_time_s[rows],
        ],
        axis=1,
    )
    units = np.zeros((len(columns), len(filtering_ids), UNIT_BYTES), dtype=np.uint8)
    if rows.size:
        _, first, inverse = np.unique(covered, axis=0, return_index=True, return_inverse=True)
        for place, filtering_id in enumerate(filtering_ids):
            digests = b"".join(
                shared_id_unit(columns.row(row), filtering_id)[_HOUR_BYTES:] for row in rows[first].tolist()
            )
            distinct = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _ID_BYTES)
            units[rows, place, _HOUR_BYTES:] = distinct[inverse.reshape(-1)]
    _put_hours(units, columns, rows)
    return units


def _put_hours(units: NDArray[np.uint8], columns: SharedInfoColumns, rows: NDArray[np.int64]) -> None:
    hours = (columns.scheduled_report_time_s[rows] // HOUR_S).astype(">u4").view(np.uint8).reshape(-1, 1, _HOUR_BYTES)
    units[rows, :, :_HOUR_BYTES] = hours
