"""The payload of a local-DP report: bytes that a device randomized itself, and the name of what randomized them.

``{"data": bytes, "operation": "ldp", "randomizer": 28 bytes}``, canonical CBOR as the histogram payload is. A report of
one randomizer has one length, so that the length of what is sealed tells nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.errors import EncodingError, PayloadError, PayloadFlaw, UnsupportedOperationError, WireError
from aggservice.wire.open_batch import OpenedBatch
from aggservice.wire.payload import decode_item
from aggservice.wire.status import ReportStatus

LDP = "ldp"
IDENTITY_BYTES = 16
RANDOMIZER_BYTES = 28
MAX_LDP_REPORT_BYTES = 60_000
_OK = int(ReportStatus.OK)
_HEAD, _MIDDLE = b"\xa3ddata", b"ioperationcldpjrandomizer\x58\x1c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomizer:
    """Which local randomizer made a report, as the device says it inside its sealed payload.

    ``identity`` is the same for, and only for, the same mechanism with the same parameters. ``epsilon_micro`` is ε₀ of
    one report and ``epsilon_permanent_micro`` ε∞ of all reports of one value, both in millionths; None where nothing
    bounds the latter.
    """

    identity: bytes
    report_bytes: int
    epsilon_micro: int
    epsilon_permanent_micro: int | None

    def __post_init__(self) -> None:
        if len(self.identity) != IDENTITY_BYTES:
            raise EncodingError(f"a randomizer's identity has {IDENTITY_BYTES} bytes")
        if not 1 <= self.report_bytes <= MAX_LDP_REPORT_BYTES:
            raise EncodingError(f"a local report has 1 to {MAX_LDP_REPORT_BYTES} bytes")
        if not 0 < self.epsilon_micro < 1 << 32:
            raise EncodingError("a report's epsilon is a whole number of millionths above 0 and below 2^32")
        permanent = self.epsilon_permanent_micro
        if permanent is not None and not self.epsilon_micro <= permanent < 1 << 32:
            raise EncodingError("all reports of a value leak at least what one of them does")

    def to_bytes(self) -> bytes:
        """Return the 28 bytes that a payload carries; an unbounded ε∞ is written as 0."""
        numbers = (self.report_bytes, self.epsilon_micro, self.epsilon_permanent_micro or 0)
        return self.identity + b"".join(number.to_bytes(4, "big") for number in numbers)

    @property
    def hex(self) -> str:
        """The same as 56 hexadecimal digits, which is how a job names it."""
        return self.to_bytes().hex()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Randomizer:
        """Return the randomizer that ``raw`` names; raise ``EncodingError`` when it names none."""
        if len(raw) != RANDOMIZER_BYTES:
            raise EncodingError(f"a randomizer is named by {RANDOMIZER_BYTES} bytes")
        size, epsilon, permanent = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20, 24))
        return cls(
            identity=raw[:IDENTITY_BYTES],
            report_bytes=size,
            epsilon_micro=epsilon,
            epsilon_permanent_micro=permanent or None,
        )

    @classmethod
    def from_hex(cls, text: str) -> Randomizer:
        """Return the randomizer that 56 hexadecimal digits name."""
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise EncodingError("a randomizer is named by hexadecimal digits") from None
        return cls.from_bytes(raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpPayload:
    """One local report."""

    randomizer: Randomizer
    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) != self.randomizer.report_bytes:
            raise EncodingError(f"a report of this randomizer has {self.randomizer.report_bytes} bytes")

    def encode(self) -> bytes:
        """Return the canonical bytes of the payload."""
        return _HEAD + _bytes_head(len(self.data)) + self.data + _MIDDLE + self.randomizer.to_bytes()


def _bytes_head(size: int) -> bytes:
    """Return the head of a CBOR byte string of up to 65,535 bytes (RFC 8949, section 3)."""
    if size < 24:
        return bytes([0x40 + size])
    return bytes([0x58, size]) if size < 256 else b"\x59" + size.to_bytes(2, "big")


def decode_ldp_payload(data: bytes) -> LdpPayload:
    """Return the local report of an opened payload, or raise ``PayloadError`` or ``UnsupportedOperationError``."""
    item = decode_item(data)
    operation = item.get("operation") if isinstance(item, dict) else None
    if not isinstance(operation, str):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if operation != LDP:
        raise UnsupportedOperationError
    report, name = item.get("data"), item.get("randomizer")
    if len(item) != 3 or not isinstance(report, bytes) or not isinstance(name, bytes):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    try:
        return LdpPayload(randomizer=Randomizer.from_bytes(name), data=report)
    except EncodingError:
        raise PayloadError(PayloadFlaw.WRONG_SHAPE) from None


def decode_ldp_batch(
    opened: OpenedBatch, randomizer: Randomizer
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.uint8]]:
    """Return the reports of one randomizer (a row of bytes each), which rows they are, and the status of every row.

    A row that is a local report of another randomizer is OK and not among them. Canonical payloads of the randomizer
    all have one length and the same bytes around the report; whatever does not goes to the single decoder.
    """
    spans = opened.plaintexts
    status = opened.status.copy()
    head = np.frombuffer(_HEAD + _bytes_head(randomizer.report_bytes), dtype=np.uint8)
    tail = np.frombuffer(_MIDDLE + randomizer.to_bytes(), dtype=np.uint8)
    width = randomizer.report_bytes
    length = head.size + width + tail.size
    mine = np.zeros(len(spans), dtype=np.bool_)
    sized = np.flatnonzero((status == _OK) & (spans.stops - spans.starts == length))
    rows = spans.buffer[spans.starts[sized, None] + np.arange(length)]
    canonical = (rows[:, : head.size] == head).all(axis=1) & (rows[:, head.size + width :] == tail).all(axis=1)
    mine[sized[canonical]] = True
    data = np.zeros((len(spans), width), dtype=np.uint8)
    data[sized[canonical]] = rows[canonical, head.size : head.size + width]
    for row in np.flatnonzero((status == _OK) & ~mine).tolist():
        try:
            payload = decode_ldp_payload(spans[row])
        except WireError as error:
            status[row] = error.status
            continue
        if payload.randomizer == randomizer:
            mine[row] = True
            data[row] = np.frombuffer(payload.data, dtype=np.uint8)
    return data[mine], mine, status
