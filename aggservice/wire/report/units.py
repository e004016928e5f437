"""The privacy units that a report pays for: keys of fixed length, bound to the reporting origin.

Both kinds are 20 bytes: the hour of ``scheduled_report_time`` (four bytes, big-endian, so that old units sort and
expire together) and the first 16 bytes of a SHA-256. The hash of the *report* unit covers the origin, the report id
and the filtering ID (Algorithm 1 of the paper, see docs/wire.md); that of the *shared ID* unit covers the origin and
the text whose hash the deployed service calls the shared ID.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

from aggservice.wire.errors import EncodingError
from aggservice.wire.limits import MAX_FILTERING_ID
from aggservice.wire.report.shared_info import SharedInfo

HOUR_S = 3600
_DIGEST_BYTES = 16


def unit_hour(time_s: int) -> bytes:
    """Return the first four bytes of the units of a report scheduled for ``time_s``."""
    return (time_s // HOUR_S).to_bytes(4, "big")


def origin_prefix(origin: str) -> bytes:
    """Return the origin in the form that is hashed: its length in two bytes, then its text."""
    raw = origin.encode()
    return len(raw).to_bytes(2, "big") + raw


def instant(time_s: int) -> str:
    """Return a time as the deployed service writes it into a shared ID: an ISO-8601 instant.

    >>> instant(1234483200)
    '2009-02-13T00:00:00Z'
    """
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shared_id_text(info: SharedInfo, filtering_id: int) -> str:
    """Return the text whose SHA-256 is the shared ID.

    It has api, version and origin; for Attribution Reporting also destination and source time; and the filtering ID if
    the version is at least 1.0 or the ID is not 0.
    """
    if info.api is None:
        raise EncodingError("a report without a version has no shared ID: leave it out")
    parts = [info.api.value, info.version, info.reporting_origin]
    if info.attribution_destination is not None:
        parts.append(info.attribution_destination)
    if info.source_registration_time_s is not None:
        parts.append(instant(info.source_registration_time_s))
    if info.has_filtering_ids or filtering_id:
        parts.append(str(checked_filtering_id(filtering_id)))
    return "-".join(parts)


def shared_id(info: SharedInfo, filtering_id: int = 0) -> str:
    """Return the shared ID in hexadecimal, exactly as the deployed service computes it."""
    return sha256(shared_id_text(info, filtering_id).encode()).hexdigest()


def report_unit(info: SharedInfo, filtering_id: int = 0) -> bytes:
    """Return the unit key of this one report and filtering ID."""
    message = (
        origin_prefix(info.reporting_origin)
        + info.report_id_bytes
        + checked_filtering_id(filtering_id).to_bytes(8, "big")
    )
    return unit_hour(info.scheduled_report_time_s) + sha256(message).digest()[:_DIGEST_BYTES]


def shared_id_unit(info: SharedInfo, filtering_id: int = 0) -> bytes:
    """Return the unit key that all reports with the same shared ID and hour have in common."""
    message = origin_prefix(info.reporting_origin) + shared_id_text(info, filtering_id).encode()
    return unit_hour(info.scheduled_report_time_s) + sha256(message).digest()[:_DIGEST_BYTES]


def checked_filtering_id(filtering_id: int) -> int:
    """Return ``filtering_id`` if it is in range; otherwise raise ``EncodingError``."""
    if not 0 <= filtering_id <= MAX_FILTERING_ID:
        raise EncodingError(f"the filtering ID {filtering_id} is out of range: use an integer from 0 to 2^64 - 1")
    return filtering_id
