"""``shared_info``: the part of a report that anyone can read and no one can change.

It is JSON text with sorted keys and no spaces, exactly as Chrome writes it, because its bytes are authenticated with
the payload (``aggservice.wire.hpke.sealing``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from aggservice.wire.errors import ReportStatus, SharedInfoError
from aggservice.wire.limits import MAX_SHARED_INFO_BYTES, MAX_TIME_S, MAX_UINT32, MAX_W3C_VALUE
from aggservice.wire.origins import is_reporting_origin

UNVERSIONED = ""
"""The version of reports made before versions existed: read for Chromium's golden reports, refused by a service."""

LATEST_VERSION = "1.0"
NEWEST_MAJOR = 1


class Api(StrEnum):
    """The APIs whose reports the service aggregates. The last one is our own proposal (docs/wire.md)."""

    ATTRIBUTION_REPORTING = "attribution-reporting"
    ATTRIBUTION_REPORTING_DEBUG = "attribution-reporting-debug"
    PROTECTED_AUDIENCE = "protected-audience"
    SHARED_STORAGE = "shared-storage"
    W3C_ATTRIBUTION = "w3c-attribution"

    @property
    def has_source_time(self) -> bool:
        """Whether reports of this API may have a ``source_registration_time``."""
        return self in (Api.ATTRIBUTION_REPORTING, Api.ATTRIBUTION_REPORTING_DEBUG)

    @property
    def has_destination(self) -> bool:
        """Whether reports of this API name an attribution destination: for W3C Attribution, the conversion site."""
        return self.has_source_time or self is Api.W3C_ATTRIBUTION


_APIS = {api.value: api for api in Api}
_WITH_DESTINATION = frozenset(api for api in Api if api.has_destination)
_ARA = frozenset(api for api in Api if api.has_source_time)
_REPORT_ID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_VERSION = re.compile(r"(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})", re.ASCII)
_PRINTABLE = re.compile(r"[!-~]+")
_WHOLE = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)

#: The numbers of a W3C report: the name in the text, and the largest value. Each is at least 1.
W3C_NUMBERS = {
    "histogram_size": ("histogram_size", MAX_UINT32),
    "max_value": ("max_value", MAX_W3C_VALUE),
    "epsilon_micro": ("micro_epsilon", MAX_UINT32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInfo:
    """The fields of ``shared_info``, valid once built. Times are whole seconds since the Unix epoch.

    Only reports without a version have a ``privacy_budget_key``, and only they have no ``api``. Only W3C reports have
    the last three: the size of the histogram, its largest possible sum, and the ε they were made for, in 10⁻⁶.
    """

    api: Api | None
    report_id: str
    reporting_origin: str
    scheduled_report_time_s: int
    version: str = LATEST_VERSION
    attribution_destination: str | None = None
    source_registration_time_s: int | None = None
    debug_mode: bool = False
    privacy_budget_key: str | None = None
    histogram_size: int | None = None
    max_value: int | None = None
    epsilon_micro: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def parse(cls, text: str | bytes) -> SharedInfo:
        """Return the fields of ``text``; raise ``SharedInfoError`` with the status of the first problem.

        Unknown fields are ignored, as in the deployed service.
        """
        return _parse(cls, text)

    def serialise(self) -> str:
        """Return the JSON text exactly as Chrome writes it: keys sorted, no spaces, times as strings."""
        fields: dict[str, str] = {}
        if self.api is not None:
            fields["api"] = self.api.value
        if self.attribution_destination is not None:
            fields["attribution_destination"] = self.attribution_destination
        if self.debug_mode:
            fields["debug_mode"] = "enabled"
        for name, (key, _) in W3C_NUMBERS.items():
            if (number := getattr(self, name)) is not None:
                fields[key] = str(number)
        if self.privacy_budget_key is not None:
            fields["privacy_budget_key"] = self.privacy_budget_key
        fields["report_id"] = self.report_id
        fields["reporting_origin"] = self.reporting_origin
        fields["scheduled_report_time"] = str(self.scheduled_report_time_s)
        if self.source_registration_time_s is not None:
            fields["source_registration_time"] = str(self.source_registration_time_s)
        fields["version"] = self.version
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @property
    def report_id_bytes(self) -> bytes:
        """The 16 bytes of the report's UUID."""
        return UUID(self.report_id).bytes

    @property
    def has_filtering_ids(self) -> bool:
        """Whether contributions of this version carry a filtering ID (from version 1.0)."""
        return self.version != UNVERSIONED and not self.version.startswith("0.")


def _refuse(status: ReportStatus, message: str) -> SharedInfoError:
    return SharedInfoError(status, f"shared_info: {message}")


def _check_version(version: str) -> None:
    if version == UNVERSIONED:
        return
    match = _VERSION.fullmatch(version)
    if match is None or version == "0.0":
        raise _refuse(
            ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION, f"version {version!r} is not supported; use 0.1 or 1.0"
        )
    if int(match[1]) > NEWEST_MAJOR:
        raise _refuse(
            ReportStatus.UNSUPPORTED_REPORT_VERSION,
            f"version {version} is newer than {LATEST_VERSION}, the newest supported: update the service",
        )


def _check(info: SharedInfo) -> None:
    """Raise the error of the first field that is wrong."""
    _check_version(info.version)
    invalid = ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID
    if info.version == UNVERSIONED:
        if info.api is not None or info.privacy_budget_key is None:
            raise _refuse(invalid, "a report without a version must have a privacy_budget_key and no api")
        if _PRINTABLE.fullmatch(info.privacy_budget_key) is None:
            raise _refuse(invalid, "privacy_budget_key is not base64")
    elif info.api is None or info.privacy_budget_key is not None:
        raise _refuse(
            invalid,
            "api is missing" if info.api is None else "only a report without a version has a privacy_budget_key",
        )
    if _REPORT_ID.fullmatch(info.report_id) is None:
        raise _refuse(ReportStatus.INVALID_REPORT_ID, "report_id is not a UUID")
    if not info.reporting_origin:
        raise _refuse(invalid, "reporting_origin is empty")
    if not is_reporting_origin(info.reporting_origin):
        raise _refuse(
            ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED,
            "reporting_origin is not a secure origin such as https://adtech.example",
        )
    if not 0 <= info.scheduled_report_time_s <= MAX_TIME_S:
        raise _refuse(invalid, "scheduled_report_time is not a time in seconds since 1970")
    has_destination = info.api in _WITH_DESTINATION
    if has_destination and not _PRINTABLE.fullmatch(info.attribution_destination or ""):
        raise _refuse(invalid, "attribution_destination is missing or not a site")
    if not has_destination and info.attribution_destination is not None:
        raise _refuse(invalid, "reports of this API have no attribution_destination: leave it out")
    if info.api not in _ARA and info.source_registration_time_s is not None:
        raise _refuse(invalid, "only Attribution Reporting has source_registration_time: leave it out")
    for name, (key, most) in W3C_NUMBERS.items():
        number = getattr(info, name)
        if info.api is not Api.W3C_ATTRIBUTION and number is not None:
            raise _refuse(invalid, f"only W3C Attribution has {key}: leave it out")
        if info.api is Api.W3C_ATTRIBUTION and (type(number) is not int or not 1 <= number <= most):
            raise _refuse(invalid, f"{key} is missing or not a whole number from 1 to {most}")
    if info.source_registration_time_s is not None and not 0 <= info.source_registration_time_s <= MAX_TIME_S:
        raise _refuse(invalid, "source_registration_time is not a time in seconds since 1970")


def _text(fields: dict[str, Any], name: str, status: ReportStatus) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _refuse(status, f"{name} is {'missing' if value is None else 'not a string'}")
    return value


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, str) or _WHOLE.fullmatch(value) is None:
        raise _refuse(
            ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID, f"{name} is not a whole number, written as a string"
        )
    return int(value)


def _parse(cls: type[SharedInfo], text: str | bytes) -> SharedInfo:
    try:
        raw = text if isinstance(text, bytes) else text.encode()
        if len(raw) > MAX_SHARED_INFO_BYTES:
            raise _refuse(ReportStatus.REPORT_PARSING_ERROR, f"the text is longer than {MAX_SHARED_INFO_BYTES} bytes")
        fields = json.loads(raw.decode())
    except SharedInfoError:
        raise
    except (ValueError, RecursionError):
        raise _refuse(ReportStatus.REPORT_PARSING_ERROR, "the text is not valid JSON") from None
    if not isinstance(fields, dict):
        raise _refuse(ReportStatus.REPORT_PARSING_ERROR, "the text is not a JSON object")
    invalid = ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID
    version = _text(fields, "version", invalid)
    _check_version(version)
    unversioned = version == UNVERSIONED
    api: Api | None = None
    if not unversioned:
        api = _APIS.get(_text(fields, "api", invalid))
        if api is None:
            raise _refuse(ReportStatus.UNSUPPORTED_REPORT_API_TYPE, f"api must be one of {', '.join(_APIS)}")
    source_time = fields.get("source_registration_time") if api in _ARA else None
    numbers = {}
    if api is Api.W3C_ATTRIBUTION:
        numbers = {name: _whole(fields.get(key), key) for name, (key, _) in W3C_NUMBERS.items()}
    return cls(
        api=api,
        version=version,
        report_id=_text(fields, "report_id", ReportStatus.INVALID_REPORT_ID),
        reporting_origin=_text(fields, "reporting_origin", invalid),
        scheduled_report_time_s=_whole(fields.get("scheduled_report_time"), "scheduled_report_time"),
        attribution_destination=_text(fields, "attribution_destination", invalid) if api in _WITH_DESTINATION else None,
        source_registration_time_s=None if source_time is None else _whole(source_time, "source_registration_time"),
        debug_mode=fields.get("debug_mode") == "enabled",
        privacy_budget_key=_text(fields, "privacy_budget_key", invalid) if unversioned else None,
        **numbers,
    )
