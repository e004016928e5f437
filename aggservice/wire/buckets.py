"""The ways to write a 128-bit bucket: integer, hexadecimal, 16 bytes, base64, and Avro's short form."""

from __future__ import annotations

import base64
import binascii
import re

from aggservice.wire.errors import EncodingError
from aggservice.wire.report.payload import MAX_BUCKET

BUCKET_BYTES = 16
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,32}")
_DECIMAL = re.compile(r"[0-9]{1,39}")


def _checked(bucket: int) -> int:
    if not 0 <= bucket <= MAX_BUCKET:
        raise EncodingError(f"the bucket {bucket} is out of range: use an integer from 0 to 2^128 - 1")
    return bucket


def bucket_from_int(text: str) -> int:
    """Return the bucket written in decimal; raise ``EncodingError`` for other text."""
    if _DECIMAL.fullmatch(text) is None:
        raise EncodingError(f"the bucket {text!r} is not a decimal integer")
    return _checked(int(text))


def bucket_to_hex(bucket: int) -> str:
    """Return ``0x`` and 32 hexadecimal digits.

    >>> bucket_to_hex(255)
    '0x000000000000000000000000000000ff'
    """
    return f"0x{_checked(bucket):032x}"


def bucket_from_hex(text: str) -> int:
    """Return the bucket written as ``0x`` and 1 to 32 hexadecimal digits; otherwise raise ``EncodingError``."""
    if _HEX.fullmatch(text) is None:
        raise EncodingError(f"the bucket {text!r} is not 0x followed by 1 to 32 hexadecimal digits")
    return int(text, 16)


def bucket_to_bytes(bucket: int) -> bytes:
    """Return 16 bytes, big-endian: the form inside a payload and in an output domain."""
    return _checked(bucket).to_bytes(BUCKET_BYTES, "big")


def bucket_from_bytes(raw: bytes) -> int:
    """Return the bucket of 0 to 16 bytes, big-endian: the 16-byte form or the short form."""
    if len(raw) > BUCKET_BYTES:
        raise EncodingError(f"the bucket has {len(raw)} bytes: use at most {BUCKET_BYTES}")
    return int.from_bytes(raw, "big")


def bucket_to_short_bytes(bucket: int) -> bytes:
    """Return the bytes without leading zeros, as in Avro summaries; bucket 0 gives no bytes.

    >>> bucket_to_short_bytes(0), bucket_to_short_bytes(256)
    (b'', b'\\x01\\x00')
    """
    return _checked(bucket).to_bytes((bucket.bit_length() + 7) // 8, "big")


def bucket_to_base64(bucket: int) -> str:
    """Return the 16 bytes of the bucket in base64."""
    return base64.b64encode(bucket_to_bytes(bucket)).decode()


def bucket_from_base64(text: str) -> int:
    """Return the bucket whose 0 to 16 bytes ``text`` gives in base64."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise EncodingError(f"the bucket {text!r} is not base64") from None
    return bucket_from_bytes(raw)
