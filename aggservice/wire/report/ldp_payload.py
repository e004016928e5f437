"""The payload of a local-DP report: bytes that a device randomized itself, and the name of its randomizer.

``{"data": bytes, "operation": "ldp", "randomizer": 28 bytes}``, canonical CBOR like the histogram payload, with an
optional ``"token"`` of 64 bytes (``device_tokens``) between ``data`` and ``operation``. All reports of one
randomizer with a token have the same length, and so have all without one: the sealed length reveals nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from aggservice.wire.errors import EncodingError, PayloadError, PayloadFlaw, UnsupportedOperationError
from aggservice.wire.report.payload import decode_item
from aggservice.wire.report.registry import TOKEN_BYTES

LDP = "ldp"
IDENTITY_BYTES = 16
RANDOMIZER_BYTES = 28
MAX_LDP_REPORT_BYTES = 60_000
_INDEPENDENT = 1 << 31
"""The highest bit of the length of a report: set if the device's reports share nothing. Names of 0.2 do not set it."""
# The fixed parts of the canonical encoding, in which shorter keys come first (RFC 7049, section 3.9).
HEAD, HEAD_WITH_TOKEN = b"\xa3ddata", b"\xa4ddata"
TOKEN, MIDDLE = b"etoken\x58\x40", b"ioperationcldpjrandomizer\x58\x1c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomizer:
    """Which local randomizer made a report, as the device states it inside the sealed payload.

    Randomizers have the same ``identity`` exactly if mechanism and parameters are the same. ``epsilon_micro`` is ε₀,
    for one report; ``epsilon_permanent_micro`` is ε∞, for all reports of one value, or None if nothing bounds it. Both
    are in millionths. ``independent`` says that a device's reports share nothing: no memoized answer, hash function,
    sample or cohort. Only such reports can be amplified, because a later report then shows nothing of an earlier one.
    """

    identity: bytes
    report_bytes: int
    epsilon_micro: int
    epsilon_permanent_micro: int | None
    independent: bool = False

    def __post_init__(self) -> None:
        if len(self.identity) != IDENTITY_BYTES:
            raise EncodingError(f"the randomizer's identity has {len(self.identity)} bytes: give {IDENTITY_BYTES}")
        if not 1 <= self.report_bytes <= MAX_LDP_REPORT_BYTES:
            raise EncodingError(f"report_bytes is {self.report_bytes}: use 1 to {MAX_LDP_REPORT_BYTES}")
        if not 0 < self.epsilon_micro < 1 << 32:
            raise EncodingError(
                "epsilon_micro is out of range: use a whole number of millionths above 0 and below 2^32"
            )
        permanent = self.epsilon_permanent_micro
        if permanent is not None and not self.epsilon_micro <= permanent < 1 << 32:
            raise EncodingError("the permanent epsilon is out of range: use at least epsilon_micro, and below 2^32")
        if self.independent and permanent is not None:
            raise EncodingError("reports that share nothing have no permanent epsilon: each costs its epsilon anew")

    def to_bytes(self) -> bytes:
        """Return the 28 bytes that a payload carries; an unbounded ε∞ is written as 0."""
        size = self.report_bytes | (_INDEPENDENT if self.independent else 0)
        numbers = (size, self.epsilon_micro, self.epsilon_permanent_micro or 0)
        return self.identity + b"".join(number.to_bytes(4, "big") for number in numbers)

    @property
    def hex(self) -> str:
        """The bytes of ``to_bytes`` as 56 hexadecimal digits, which a job uses to name the randomizer."""
        return self.to_bytes().hex()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Randomizer:
        """Return the randomizer that ``raw`` names; raise ``EncodingError`` if it is invalid."""
        if len(raw) != RANDOMIZER_BYTES:
            raise EncodingError(f"the randomizer's name has {len(raw)} bytes: give {RANDOMIZER_BYTES}")
        size, epsilon, permanent = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20, 24))
        return cls(
            identity=raw[:IDENTITY_BYTES],
            report_bytes=size & ~_INDEPENDENT,
            epsilon_micro=epsilon,
            epsilon_permanent_micro=permanent or None,
            independent=bool(size & _INDEPENDENT),
        )

    @classmethod
    def from_hex(cls, text: str) -> Randomizer:
        """Return the randomizer that 56 hexadecimal digits name."""
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise EncodingError(
                f"the randomizer {text[:80]!r} is not hexadecimal: give 56 hexadecimal digits"
            ) from None
        return cls.from_bytes(raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpPayload:
    """One local report, with or without a device token."""

    randomizer: Randomizer
    data: bytes
    token: bytes | None = None

    def __post_init__(self) -> None:
        if len(self.data) != self.randomizer.report_bytes:
            raise EncodingError(
                f"the report has {len(self.data)} bytes: this randomizer makes {self.randomizer.report_bytes}"
            )
        if self.token is not None and len(self.token) != TOKEN_BYTES:
            raise EncodingError(f"the device token has {len(self.token)} bytes: give {TOKEN_BYTES} bytes")

    def encode(self) -> bytes:
        """Return the canonical bytes of the payload."""
        body = bytes_head(len(self.data)) + self.data
        tail = MIDDLE + self.randomizer.to_bytes()
        if self.token is None:
            return HEAD + body + tail
        return HEAD_WITH_TOKEN + body + TOKEN + self.token + tail


def bytes_head(size: int) -> bytes:
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
