"""The unit keys of a batch of reports: ``aggservice.wire.report.units`` for columns."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.batch.shared_infos import SharedInfoColumns
from aggservice.wire.errors import ReportStatus
from aggservice.wire.limits import UNIT_BYTES
from aggservice.wire.report.units import HOUR_S, checked_filtering_id, origin_prefix, shared_id_unit

_ID_BYTES = 16
_HOUR_BYTES = 4


def report_units(columns: SharedInfoColumns, filtering_ids: Sequence[int] = (0,)) -> NDArray[np.uint8]:
    """Return an array (report, filtering ID, 20): the report unit of every report under every filtering ID.

    Rows whose status is not OK are zero. Computes one SHA-256 per entry.
    """
    rows = np.flatnonzero(columns.status == ReportStatus.OK)
    units = np.zeros((len(columns), len(filtering_ids), UNIT_BYTES), dtype=np.uint8)
    units[rows] = report_unit_keys(
        columns.origins,
        columns.origin[rows],
        columns.report_id[rows],
        columns.scheduled_report_time_s[rows],
        filtering_ids,
    )
    return units


def report_unit_keys(
    origins: Sequence[str],
    origin: NDArray[np.integer],
    report_ids: NDArray[np.uint8],
    times_s: NDArray[np.int64],
    filtering_ids: Sequence[int] = (0,),
) -> NDArray[np.uint8]:
    """Return the report units of plain columns: ``origin`` has indexes into ``origins``, report ids have 16 bytes."""
    suffixes = [checked_filtering_id(filtering_id).to_bytes(8, "big") for filtering_id in filtering_ids]
    prefixes = [origin_prefix(one) for one in origins]
    raw = report_ids.tobytes()
    starts = range(0, len(raw), _ID_BYTES)
    messages = [
        prefixes[one] + raw[start : start + _ID_BYTES] for one, start in zip(origin.tolist(), starts, strict=True)
    ]
    digests = np.empty((len(messages), len(suffixes), _ID_BYTES), dtype=np.uint8)
    for column, suffix in enumerate(suffixes):
        hashes = b"".join([sha256(message + suffix).digest() for message in messages])
        digests[:, column] = np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 32)[:, :_ID_BYTES]
    return with_hours(times_s, digests)


def with_hours(times_s: NDArray[np.int64], digests: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return unit keys (report, filtering ID, 20) from the reports' times and digests (report, filtering ID, 16)."""
    hours = (times_s // HOUR_S).astype(">u4").view(np.uint8).reshape(-1, 1, _HOUR_BYTES)
    return np.concatenate((np.broadcast_to(hours, (*digests.shape[:2], _HOUR_BYTES)), digests), axis=2)


def shared_id_units(columns: SharedInfoColumns, filtering_ids: Sequence[int] = (0,)) -> NDArray[np.uint8]:
    """Return an array (report, filtering ID, 20): the shared-ID unit of every report under every filtering ID.

    Rows whose status is not OK are zero. Computes one SHA-256 per distinct unit and filtering ID.
    """
    for filtering_id in filtering_ids:
        checked_filtering_id(filtering_id)
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
        digests = b"".join(
            shared_id_unit(columns.row(row), filtering_id)[_HOUR_BYTES:]
            for row in rows[first].tolist()
            for filtering_id in filtering_ids
        )
        distinct = np.frombuffer(digests, dtype=np.uint8).reshape(-1, len(filtering_ids), _ID_BYTES)
        units[rows] = with_hours(columns.scheduled_report_time_s[rows], distinct[inverse.reshape(-1)])
    return units
