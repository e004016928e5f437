"""The JSON body of an aggregatable report, as a browser posts it: Attribution Reporting's and Private Aggregation's."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aggservice.mechanisms import Bits
from aggservice.wire.errors import EncodingError, ReportBodyError
from aggservice.wire.hpke.key_sets import KeySet, PublicKeySet
from aggservice.wire.hpke.sealing import open_sealed, seal
from aggservice.wire.report.payload import DEFAULT_FILTERING_ID_BYTES, Contribution, encode_payload
from aggservice.wire.report.shared_info import UNVERSIONED, SharedInfo


def write_json(value: Any) -> str:
    """Return a value as JSON: keys sorted, no spaces, ``<`` and line separators escaped, doubles as in ECMAScript.

    >>> write_json({"b": [2.5e-06, 8e-07, 1.0], "a": "<é>"})
    '{"a":"\\\\u003Cé>","b":[0.0000025,8e-7,1.0]}'
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{dump_json(key)}:{write_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_json, value)) + "]"
    return _double(value) if isinstance(value, float) else dump_json(value)


def dump_json(value: Any) -> str:
    """Return what ``write_json`` returns, several times as fast; ``value`` must not contain doubles."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003C").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _double(number: float) -> str:
    """Return the shortest decimal, in plain notation from 10⁻⁶ up to 10²¹, with a point or an exponent."""
    if number.is_integer() and abs(number) < 1e21:
        return f"{number:.1f}"
    mantissa, mark, exponent = repr(number).partition("e")
    if mark and -6 <= int(exponent) < 0:
        digits = len(mantissa.partition(".")[2])
        return f"{number:.{digits - int(exponent)}f}"
    return mantissa + mark + (f"{int(exponent):+d}".replace("+-", "-") if mark else "")


DEFAULT_COORDINATOR_ORIGIN = "https://publickeyservice.msmt.aws.privacysandboxservices.com"
MAX_BODY_BYTES = 1 << 18
MAX_PAYLOADS = 16
_DEBUG_KEY_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A payload sealed to the key ``key_id``, with its cleartext when the report is a debug report."""

    payload: bytes
    key_id: str
    debug_cleartext_payload: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableReport:
    """One report as a browser sends it. ``shared_info`` is the exact text that the payloads are bound to.

    Attribution Reporting has ``trigger_context_id`` and the two debug keys of source and trigger; Private Aggregation
    has ``context_id`` and ``debug_key``. Only reports without a version have the last three fields.
    """

    shared_info: str
    payloads: tuple[SealedPayload, ...]
    aggregation_coordinator_origin: str | None = None
    trigger_context_id: str | None = None
    source_debug_key: int | None = None
    trigger_debug_key: int | None = None
    context_id: str | None = None
    debug_key: int | None = None
    attribution_destination: str | None = None
    source_site: str | None = None
    source_registration_time: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.payloads) <= MAX_PAYLOADS:
            raise ReportBodyError(
                f"aggregation_service_payloads has {len(self.payloads)} entries: send 1 to {MAX_PAYLOADS}"
            )
        for name in _DEBUG_KEYS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < _DEBUG_KEY_LIMIT:
                raise ReportBodyError(f"{name} is not a 64-bit unsigned integer")

    def to_dict(self) -> dict[str, Any]:
        """Return the body as JSON values, absent fields left out."""
        entries = []
        for sealed in self.payloads:
            entry = {"key_id": sealed.key_id, "payload": base64.b64encode(sealed.payload).decode()}
            if sealed.debug_cleartext_payload is not None:
                entry["debug_cleartext_payload"] = base64.b64encode(sealed.debug_cleartext_payload).decode()
            entries.append(entry)
        body: dict[str, Any] = {"aggregation_service_payloads": entries, "shared_info": self.shared_info}
        for name in _TEXTS:
            if (text := getattr(self, name)) is not None:
                body[name] = text
        for name in _DEBUG_KEYS:
            if (number := getattr(self, name)) is not None:
                body[name] = str(number)
        return body

    def to_json(self) -> str:
        """Return the body as a browser posts it: keys sorted, no spaces."""
        return dump_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> AggregatableReport:
        """Parse a report body; a ``ReportBodyError`` names the field that is wrong."""
        if len(text) > MAX_BODY_BYTES:
            raise ReportBodyError(f"the report body has more than {MAX_BODY_BYTES} bytes")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise ReportBodyError("the report body is not valid JSON") from None
        return cls.from_dict(body)

    @classmethod
    def from_dict(cls, body: Any) -> AggregatableReport:
        """Return the report with these JSON values. Unknown fields are ignored."""
        if not isinstance(body, dict):
            raise ReportBodyError("the report body is not a JSON object")
        entries = body.get("aggregation_service_payloads")
        if not isinstance(entries, list):
            raise ReportBodyError("aggregation_service_payloads is missing or not a list")
        optional: dict[str, Any] = {name: _text(body, name) for name in _TEXTS if name in body}
        optional |= {name: _debug_key(body, name) for name in _DEBUG_KEYS if name in body}
        return cls(
            shared_info=_text(body, "shared_info"), payloads=tuple(_payload(entry) for entry in entries), **optional
        )


_TEXTS = (
    "aggregation_coordinator_origin",
    "trigger_context_id",
    "context_id",
    "attribution_destination",
    "source_site",
    "source_registration_time",
)
_DEBUG_KEYS = ("source_debug_key", "trigger_debug_key", "debug_key")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ReportBodyError(f"{name} is missing or not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ReportBodyError(f"{name} contains half of a surrogate pair, which is not a character") from None
    return value


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(_text(fields, name), validate=True)
    except (binascii.Error, ValueError):
        raise ReportBodyError(f"{name} is not base64") from None


def _debug_key(fields: dict[str, Any], name: str) -> int:
    text = _text(fields, name)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ReportBodyError(f"{name} is not a 64-bit unsigned integer in decimal")
    return int(text)


def _payload(entry: Any) -> SealedPayload:
    if not isinstance(entry, dict):
        raise ReportBodyError("an entry of aggregation_service_payloads is not a JSON object")
    cleartext = _bytes(entry, "debug_cleartext_payload") if "debug_cleartext_payload" in entry else None
    return SealedPayload(
        payload=_bytes(entry, "payload"), key_id=_text(entry, "key_id"), debug_cleartext_payload=cleartext
    )


def seal_payload(
    plaintext: bytes, *, shared_info: SharedInfo, keys: PublicKeySet, bits: Bits
) -> tuple[str, SealedPayload]:
    """Return the text of ``shared_info``, and ``plaintext`` sealed with it to a random key of ``keys``.

    As in Chrome, the cleartext is included if ``shared_info`` enables debug mode.
    """
    text = shared_info.serialise()
    key = keys.pick(bits)
    sealed = seal(plaintext, shared_info=text, key=key.key, bits=bits, unversioned=shared_info.version == UNVERSIONED)
    cleartext = plaintext if shared_info.debug_mode else None
    return text, SealedPayload(payload=sealed, key_id=key.id, debug_cleartext_payload=cleartext)


def make_report(
    contributions: Sequence[Contribution],
    *,
    shared_info: SharedInfo,
    keys: PublicKeySet,
    bits: Bits,
    maximum: int,
    filtering_id_bytes: int | None = None,
    aggregation_coordinator_origin: str | None = DEFAULT_COORDINATOR_ORIGIN,
    trigger_context_id: str | None = None,
    source_debug_key: int | None = None,
    trigger_debug_key: int | None = None,
    context_id: str | None = None,
    debug_key: int | None = None,
) -> AggregatableReport:
    """Return the report of ``contributions``, padded with nulls to ``maximum`` and sealed to a key of ``keys``.

    By default, filtering IDs have one byte, and before version 1.0 none. Without contributions, it is a null report.
    """
    if filtering_id_bytes is None:
        filtering_id_bytes = DEFAULT_FILTERING_ID_BYTES if shared_info.has_filtering_ids else 0
    if (filtering_id_bytes > 0) != shared_info.has_filtering_ids:
        raise EncodingError(
            "filtering_id_bytes does not match the version: use 1 to 8 from version 1.0 on, and 0 before"
        )
    plaintext = encode_payload(contributions, filtering_id_bytes=filtering_id_bytes, maximum=maximum)
    text, payload = seal_payload(plaintext, shared_info=shared_info, keys=keys, bits=bits)
    return AggregatableReport(
        shared_info=text,
        payloads=(payload,),
        aggregation_coordinator_origin=aggregation_coordinator_origin,
        trigger_context_id=trigger_context_id,
        source_debug_key=source_debug_key,
        trigger_debug_key=trigger_debug_key,
        context_id=context_id,
        debug_key=debug_key,
    )


def open_report(report: AggregatableReport, keys: KeySet) -> bytes:
    """Return the plaintext of the report's first payload, which is the only one that the service reads."""
    sealed = report.payloads[0]
    unversioned = SharedInfo.parse(report.shared_info).version == UNVERSIONED
    return open_sealed(
        sealed.payload,
        shared_info=report.shared_info,
        key=keys.private_key(sealed.key_id),
        unversioned=unversioned,
    )
