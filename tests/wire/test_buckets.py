"""Bucket conversions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.wire.buckets import (
    bucket_from_base64,
    bucket_from_bytes,
    bucket_from_hex,
    bucket_from_int,
    bucket_to_base64,
    bucket_to_bytes,
    bucket_to_hex,
    bucket_to_short_bytes,
)
from aggservice.wire.errors import EncodingError


@given(st.integers(0, 2**128 - 1))
def test_every_form_comes_back(bucket: int) -> None:
    assert bucket_from_int(str(bucket)) == bucket
    assert bucket_from_hex(bucket_to_hex(bucket)) == bucket
    assert bucket_from_bytes(bucket_to_bytes(bucket)) == bucket
    assert bucket_from_bytes(bucket_to_short_bytes(bucket)) == bucket
    assert bucket_from_base64(bucket_to_base64(bucket)) == bucket
    assert len(bucket_to_bytes(bucket)) == 16
    assert not bucket_to_short_bytes(bucket).startswith(b"\x00")


def test_what_is_no_bucket_is_refused() -> None:
    for text in ("", "-1", "1.0", "0x1", " 1", "٣", str(2**128)):
        with pytest.raises(EncodingError):
            bucket_from_int(text)
    for text in ("", "12", "0x", "0xg", "0x" + "0" * 33):
        with pytest.raises(EncodingError):
            bucket_from_hex(text)
    for text in ("*", "AAA", "A" * 24):
        with pytest.raises(EncodingError):
            bucket_from_base64(text)
    for bucket in (-1, 2**128):
        for convert in (bucket_to_hex, bucket_to_bytes, bucket_to_short_bytes, bucket_to_base64):
            with pytest.raises(EncodingError):
                convert(bucket)
    with pytest.raises(EncodingError):
        bucket_from_bytes(bytes(17))
