"""The payload of a local-DP report: bytes that a device randomized itself, and the name of what randomized them.

``{"data": bytes, "operation": "ldp", "randomizer": 28 bytes}``, canonical CBOR as the histogram payload is, with an
optional ``"token"`` of 64 bytes (``device_tokens``) between ``data`` and ``operation``. All reports of one randomizer
with a token have one length, and so have all without, so that the length of what is sealed tells nothing of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire.batch.opening import OpenedBatch
from aggservice.wire.errors import EncodingError, PayloadError, PayloadFlaw, UnsupportedOperationError, WireError
from aggservice.wire.report.device_tokens import TOKEN_BYTES
from aggservice.wire.report.payload import decode_item
from aggservice.wire.status import ReportStatus

LDP = "ldp"
IDENTITY_BYTES = 16
RANDOMIZER_BYTES = 28
MAX_LDP_REPORT_BYTES = 60_000
_OK = int(ReportStatus.OK)
# The fixed parts of the canonical encoding, in which shorter keys come first (RFC 7049, section 3.9).
_HEAD, _HEAD_WITH_TOKEN = b"\xa3ddata", b"\xa4ddata"
_TOKEN, _MIDDLE = b"etoken\x58\x40", b"ioperationcldpjrandomizer\x58\x1c"


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
    """One local report, with the device token that vouches for it or without one."""

    randomizer: Randomizer
    data: bytes
    token: bytes | None = None

    def __post_init__(self) -> None:
        if len(self.data) != self.randomizer.report_bytes:
            raise EncodingError(f"a report of this randomizer has {self.randomizer.report_bytes} bytes")
        if self.token is not None and len(self.token) != TOKEN_BYTES:
            raise EncodingError(f"a device token has {TOKEN_BYTES} bytes")

    def encode(self) -> bytes:
        """Return the canonical bytes of the payload."""
        body = _bytes_head(len(self.data)) + self.data
        tail = _MIDDLE + self.randomizer.to_bytes()
        if self.token is None:
            return _HEAD + body + tail
        return _HEAD_WITH_TOKEN + body + _TOKEN + self.token + tail


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
    report, name, token = item.get("data"), item.get("randomizer"), item.get("token")
    if not isinstance(report, bytes) or not isinstance(name, bytes) or len(item) != 3 + ("token" in item):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if "token" in item and not isinstance(token, bytes):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    try:
        return LdpPayload(randomizer=Randomizer.from_bytes(name), data=report, token=token)
    except EncodingError:
        raise PayloadError(PayloadFlaw.WRONG_SHAPE) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpColumns:
    """The local reports of one randomizer in a batch, in order.

    ``status`` has one ``ReportStatus`` per row of the batch and ``mine`` says which rows are such reports; ``data``,
    ``tokens`` and ``has_token`` have a row for each of those only. A report without a token has 64 zero bytes.
    """

    status: NDArray[np.uint8]
    mine: NDArray[np.bool_]
    data: NDArray[np.uint8]
    tokens: NDArray[np.uint8]
    has_token: NDArray[np.bool_]


def decode_ldp_batch(opened: OpenedBatch, randomizer: Randomizer) -> LdpColumns:
    """Return the reports of one randomizer among the opened payloads.

    A row that is a local report of another randomizer is OK and not among them. Canonical payloads of the randomizer
    have one length with a token and one without, and the same bytes around report and token; every other payload goes
    to the single decoder.
    """
    spans = opened.plaintexts
    status = opened.status.copy()
    mine = np.zeros(len(spans), dtype=np.bool_)
    has_token = np.zeros(len(spans), dtype=np.bool_)
    data = np.zeros((len(spans), randomizer.report_bytes), dtype=np.uint8)
    tokens = np.zeros((len(spans), TOKEN_BYTES), dtype=np.uint8)
    length = _bytes_head(randomizer.report_bytes)
    tail = _MIDDLE + randomizer.to_bytes()
    rows, (found,) = _canonical(opened, (_HEAD + length, tail), (randomizer.report_bytes,))
    mine[rows], data[rows] = True, found
    rows, (found, signed) = _canonical(
        opened, (_HEAD_WITH_TOKEN + length, _TOKEN, tail), (randomizer.report_bytes, TOKEN_BYTES)
    )
    mine[rows], data[rows], has_token[rows], tokens[rows] = True, found, True, signed
    for row in np.flatnonzero((status == _OK) & ~mine).tolist():
        try:
            payload = decode_ldp_payload(spans[row])
        except WireError as error:
            status[row] = error.status
            continue
        if payload.randomizer == randomizer:
            mine[row] = True
            data[row] = np.frombuffer(payload.data, dtype=np.uint8)
            if payload.token is not None:
                has_token[row] = True
                tokens[row] = np.frombuffer(payload.token, dtype=np.uint8)
    return LdpColumns(status=status, mine=mine, data=data[mine], tokens=tokens[mine], has_token=has_token[mine])


def _canonical(
    opened: OpenedBatch, fixed: tuple[bytes, ...], widths: tuple[int, ...]
) -> tuple[NDArray[np.int64], list[NDArray[np.uint8]]]:
    """Return the rows that are ``fixed[0]``, a field, ``fixed[1]`` and so on, and their fields, of these ``widths``."""
    spans = opened.plaintexts
    length = sum(map(len, fixed)) + sum(widths)
    sized = np.flatnonzero((opened.status == _OK) & (spans.stops - spans.starts == length))
    rows = spans.buffer[spans.starts[sized, None] + np.arange(length)]
    same = np.ones(sized.size, dtype=np.bool_)
    fields = []
    at = 0
    for part, width in zip(fixed, (*widths, 0), strict=True):
        same &= (rows[:, at : at + len(part)] == np.frombuffer(part, dtype=np.uint8)).all(axis=1)
        at += len(part)
        fields.append(rows[:, at : at + width])
        at += width
    return sized[same], [field[same] for field in fields[:-1]]
