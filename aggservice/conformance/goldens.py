"""Chromium's golden reports: folders with a key pair, sealed reports and the cleartext of each.

A folder holds ``public_key.json``, ``private_key.txt`` and pairs of ``report_NAME.json`` and
``report_NAME_cleartext_payloads.json`` (content/test/data/{attribution_reporting,private_aggregation}/
aggregatable_report_goldens). A report passes if each of its payloads opens to its cleartext, and our
encoder makes the same bytes from the contributions that our decoder finds in it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggservice.wire import AggregatableReport, PublicKeySet, SharedInfo, WireError, decode_payload
from aggservice.wire.hpke.sealing import open_sealed
from aggservice.wire.report.body import SealedPayload
from aggservice.wire.report.shared_info import UNVERSIONED

_CLEARTEXT_SUFFIX = "_cleartext_payloads.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenResult:
    """The result of one golden report; ``differences`` is empty if it passed."""

    name: str
    differences: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing differed."""
        return not self.differences


def check_goldens(root: Path) -> Iterator[GoldenResult]:
    """Yield the result of every golden report under ``root``, in order of its path."""
    for report in sorted(root.rglob("report_*.json"), key=_natural):
        if not report.name.endswith(_CLEARTEXT_SUFFIX):
            yield GoldenResult(name=str(report.relative_to(root)), differences=tuple(_differences(report)))


def _natural(path: Path) -> tuple[str, int, str]:
    digits = "".join(filter(str.isdigit, path.stem))
    return str(path.parent), int(digits or 0), path.name


def _differences(path: Path) -> Iterator[str]:
    try:
        key = X25519PrivateKey.from_private_bytes(base64.b64decode((path.parent / "private_key.txt").read_text()))
        public = PublicKeySet.parse((path.parent / "public_key.json").read_text())
        listed = json.loads(path.with_name(path.stem + _CLEARTEXT_SUFFIX).read_text())
        cleartexts = [base64.b64decode(text) for text in listed]
        body = json.loads(path.read_text())
        report = AggregatableReport.from_dict(body)
        info = SharedInfo.parse(report.shared_info)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        yield f"cannot be read: {error}"
        return
    if report.to_dict() != body:
        yield f"its JSON body came back as {report.to_json()}"
    if info.serialise() != report.shared_info:
        yield f"shared_info: expected {report.shared_info}, serialised {info.serialise()}"
    if len(cleartexts) != len(report.payloads):
        yield f"payloads: expected {len(cleartexts)}, found {len(report.payloads)}"
    held = {entry.id for entry in public.keys if entry.key == key.public_key()}
    for payload, cleartext in zip(report.payloads, cleartexts, strict=False):
        if payload.key_id not in held:
            yield f"key_id: {payload.key_id} is not the folder's key pair"
        yield from _payload_differences(payload, cleartext, report.shared_info, info, key)


def _payload_differences(
    payload: SealedPayload, cleartext: bytes, text: str, info: SharedInfo, key: X25519PrivateKey
) -> Iterator[str]:
    try:
        opened = open_sealed(payload.payload, shared_info=text, key=key, unversioned=info.version == UNVERSIONED)
        if opened != cleartext:
            yield f"payload: expected {cleartext.hex()}, opened {opened.hex()}"
        decoded = decode_payload(opened)
        if (again := decoded.encode()) != opened:
            yield f"encoding: expected {opened.hex()}, encoded {again.hex()}"
        if (decoded.filtering_id_bytes > 0) != info.has_filtering_ids:
            yield f"filtering IDs: {decoded.filtering_id_bytes} bytes in version {info.version!r}"
    except WireError as error:
        yield f"payload: {error}"
    if payload.debug_cleartext_payload not in (None, cleartext):
        yield f"debug_cleartext_payload: {payload.debug_cleartext_payload!r} is not the cleartext"
