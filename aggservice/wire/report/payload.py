"""The histogram payload: contributions as CBOR, encoded and decoded one payload at a time.

``{"data": [{"id": bytes, "value": 4 bytes, "bucket": 16 bytes}, ...], "operation": "histogram"}``, integers
big-endian, keys in canonical order, padded with null contributions so that the length reveals nothing (WICG
attribution-reporting-api, "obtain the aggregatable report payload"). ``aggservice.wire.batch.payloads`` decodes
thousands at once and agrees with this module on every byte string.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import cbor2

from aggservice.wire.errors import EncodingError, PayloadError, PayloadFlaw, UnsupportedOperationError
from aggservice.wire.limits import MAX_CONTRIBUTIONS, MAX_PAYLOAD_BYTES

HISTOGRAM = "histogram"
MAX_BUCKET = (1 << 128) - 1
MAX_VALUE = (1 << 31) - 1
"""Chrome holds values as signed 32-bit integers; four bytes with the top bit set are a negative value."""

MAX_FILTERING_ID_BYTES = 8
DEFAULT_FILTERING_ID_BYTES = 1

_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """An amount for a 128-bit bucket, under a filtering ID. A value of 0 is a null contribution."""

    bucket: int
    value: int
    filtering_id: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.bucket <= MAX_BUCKET:
            raise EncodingError(f"the bucket {self.bucket} is out of range: use an integer from 0 to 2^128 - 1")
        if not 0 <= self.value <= MAX_VALUE:
            raise EncodingError(f"the value {self.value} is out of range: use an integer from 0 to 2^31 - 1")
        if not 0 <= self.filtering_id < 1 << 64:
            raise EncodingError(
                f"the filtering ID {self.filtering_id} is out of range: use an integer from 0 to 2^64 - 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The contributions of one report, nulls included. ``filtering_id_bytes`` is 0 if they have no ID (version 0.1)."""

    contributions: tuple[Contribution, ...]
    filtering_id_bytes: int

    def encode(self) -> bytes:
        """Return the canonical bytes of this payload, without adding nulls."""
        return encode_payload(self.contributions, filtering_id_bytes=self.filtering_id_bytes)


def encode_payload(
    contributions: Sequence[Contribution],
    *,
    filtering_id_bytes: int = DEFAULT_FILTERING_ID_BYTES,
    maximum: int | None = None,
) -> bytes:
    """Return the payload of ``contributions``, padded with nulls up to ``maximum``; the bytes Chrome would write.

    ``filtering_id_bytes`` is 0 for version 0.1 and 1 to 8 from 1.0; an ID that does not fit is refused.
    """
    if not 0 <= filtering_id_bytes <= MAX_FILTERING_ID_BYTES:
        raise EncodingError(f"filtering_id_bytes is {filtering_id_bytes}: use 0 to {MAX_FILTERING_ID_BYTES}")
    size = len(contributions) if maximum is None else maximum
    if not len(contributions) <= size <= MAX_CONTRIBUTIONS:
        raise EncodingError(
            f"{len(contributions)} contributions do not fit into a report of {size}: send at most {MAX_CONTRIBUTIONS}"
        )
    limit = 1 << (8 * filtering_id_bytes)
    parts = [_HEAD, _array_head(size)]
    opening = _ENTRY_WITH_ID + bytes([0x40 + filtering_id_bytes]) if filtering_id_bytes else _ENTRY
    for contribution in contributions:
        if contribution.filtering_id >= limit:
            raise EncodingError(
                f"the filtering ID {contribution.filtering_id} does not fit into {filtering_id_bytes} bytes: use more"
            )
        parts += (
            opening,
            contribution.filtering_id.to_bytes(filtering_id_bytes, "big"),
            _VALUE,
            contribution.value.to_bytes(4, "big"),
            _BUCKET,
            contribution.bucket.to_bytes(16, "big"),
        )
    null = opening + bytes(filtering_id_bytes) + _VALUE + bytes(4) + _BUCKET + bytes(16)
    parts += (null * (size - len(contributions)), _TAIL)
    return b"".join(parts)


# The fixed parts of the canonical encoding: maps of two and three entries, and their keys with the type that follows.
_HEAD, _TAIL = b"\xa2ddata", b"ioperationi" + HISTOGRAM.encode()
_ENTRY, _ENTRY_WITH_ID, _VALUE, _BUCKET = b"\xa2", b"\xa3bid", b"evalueD", b"fbucketP"


def _array_head(size: int) -> bytes:
    """Return the head of a CBOR array of up to 65,535 items (RFC 8949, section 3)."""
    if size < 24:
        return bytes([0x80 + size])
    return bytes([0x98, size]) if size < 256 else b"\x99" + size.to_bytes(2, "big")


def decode_payload(data: bytes) -> Payload:
    """Return the contributions of an opened payload, or raise ``PayloadError`` or ``UnsupportedOperationError``.

    Map keys may stand in any order and lengths in any encoding; tags, unknown or repeated keys, trailing bytes, and
    IDs that differ in length within a payload are refused.
    """
    item = decode_item(data)
    if not isinstance(item, dict):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    operation = item.get("operation")
    if not isinstance(operation, str):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if operation != HISTOGRAM:
        raise UnsupportedOperationError
    entries = item.get("data")
    if len(item) != 2 or not isinstance(entries, list):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if len(entries) > MAX_CONTRIBUTIONS:
        raise PayloadError(PayloadFlaw.OVERSIZED)
    widths = set()
    contributions = []
    for entry in entries:
        contribution, width = _decode_entry(entry)
        contributions.append(contribution)
        widths.add(width)
    if len(widths) > 1:
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    return Payload(contributions=tuple(contributions), filtering_id_bytes=widths.pop() if widths else 0)


def decode_item(data: bytes) -> Any:
    """Return the one CBOR item in ``data``, refusing tags and repeated keys; used for every type of payload."""
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadError(PayloadFlaw.OVERSIZED)
    stream = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(
        stream,
        semantic_decoders=_NO_TAGS,
        max_depth=_MAX_DEPTH,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
    try:
        item = decoder.decode()
    except cbor2.CBORDecodeError as error:
        flaw = PayloadFlaw.DUPLICATE_KEY if "Duplicate map key" in str(error) else PayloadFlaw.NOT_CBOR
        raise PayloadError(flaw) from None
    if stream.tell() != len(data):
        raise PayloadError(PayloadFlaw.NOT_CBOR)
    return item


def _refuse_tag(decoder: cbor2.CBORDecoder) -> NoReturn:
    raise cbor2.CBORDecodeError("a payload must not have CBOR tags")


class _NoTags(Mapping[int, Callable[..., Any]]):
    """A mapping that gives every CBOR tag a decoder that refuses the tag."""

    def __getitem__(self, tag: int) -> Callable[..., Any]:
        return _refuse_tag

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


_NO_TAGS = _NoTags()


def _decode_entry(entry: Any) -> tuple[Contribution, int]:
    """Return one contribution and how many bytes its filtering ID took."""
    if not isinstance(entry, dict):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    value, bucket, identity = entry.get("value"), entry.get("bucket"), entry.get("id", b"")
    if type(value) is int and value < 0:
        raise PayloadError(PayloadFlaw.NEGATIVE_VALUE)
    if not isinstance(value, bytes) or len(value) != 4 or not isinstance(bucket, bytes) or len(bucket) != 16:
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if not isinstance(identity, bytes) or not ("id" in entry) <= len(identity) <= MAX_FILTERING_ID_BYTES:
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if len(entry) != 2 + ("id" in entry):
        raise PayloadError(PayloadFlaw.WRONG_SHAPE)
    if value[0] & 0x80:
        raise PayloadError(PayloadFlaw.NEGATIVE_VALUE)
    contribution = Contribution(
        bucket=int.from_bytes(bucket, "big"),
        value=int.from_bytes(value, "big"),
        filtering_id=int.from_bytes(identity, "big"),
    )
    return contribution, len(identity)
