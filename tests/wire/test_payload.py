"""The single payload codec, against ``cbor2``."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.wire import Contribution, ReportStatus, decode_payload, encode_payload
from aggservice.wire.errors import EncodingError, PayloadError, PayloadFlaw, UnsupportedOperationError

CONTRIBUTIONS = st.builds(
    Contribution,
    bucket=st.integers(0, 2**128 - 1),
    value=st.integers(0, 2**31 - 1),
    filtering_id=st.integers(0, 255),
)


@given(st.lists(CONTRIBUTIONS, max_size=30), st.integers(1, 8), st.integers(0, 30))
def test_a_payload_comes_back_with_its_padding(
    contributions: list[Contribution], filtering_id_bytes: int, padding: int
) -> None:
    maximum = len(contributions) + padding
    data = encode_payload(contributions, filtering_id_bytes=filtering_id_bytes, maximum=maximum)
    assert data == cbor2.dumps(cbor2.loads(data), canonical=True)
    decoded = decode_payload(data)
    assert list(decoded.contributions) == contributions + [Contribution(bucket=0, value=0)] * padding
    assert decoded.filtering_id_bytes == (filtering_id_bytes if maximum else 0)
    assert decoded.encode() == data


def test_the_bytes_are_canonical_and_of_constant_length() -> None:
    for maximum in (1, 20, 23, 24, 255, 256, 1000):
        data = encode_payload([Contribution(bucket=0x123, value=5, filtering_id=3)], maximum=maximum)
        null = {"id": b"\x00", "value": bytes(4), "bucket": bytes(16)}
        one = {"id": b"\x03", "value": bytes([0, 0, 0, 5]), "bucket": bytes(14) + b"\x01\x23"}
        item = {"data": [one] + [null] * (maximum - 1), "operation": "histogram"}
        assert data == cbor2.dumps(item, canonical=True)
    data = encode_payload([Contribution(bucket=0x123, value=5, filtering_id=3)], maximum=20)
    assert len(data) == len(encode_payload([], maximum=20))
    old = encode_payload([Contribution(bucket=1, value=1)], filtering_id_bytes=0, maximum=2)
    assert cbor2.loads(old)["data"][0] == {"value": bytes([0, 0, 0, 1]), "bucket": bytes(15) + b"\x01"}


def test_what_does_not_fit_is_refused_when_encoding() -> None:
    one = Contribution(bucket=1, value=1)
    big = Contribution(bucket=1, value=1, filtering_id=256)
    for contributions, options in (
        ([one, one], {"maximum": 1}),
        ([one], {"maximum": 1001}),
        ([one] * 1001, {}),
        ([big], {}),
        ([Contribution(bucket=1, value=1, filtering_id=1)], {"filtering_id_bytes": 0}),
        ([one], {"filtering_id_bytes": 9}),
        ([one], {"filtering_id_bytes": -1}),
    ):
        with pytest.raises(EncodingError):
            encode_payload(contributions, **options)
    assert len(decode_payload(encode_payload([big], filtering_id_bytes=2, maximum=1000)).contributions) == 1000
    for fields in ({"bucket": 2**128}, {"bucket": -1}, {"value": 2**31}, {"value": -1}, {"filtering_id": 2**64}):
        with pytest.raises(EncodingError):
            Contribution(**({"bucket": 0, "value": 0} | fields))


GOOD = {"id": b"\x00", "value": bytes(4), "bucket": bytes(16)}


def _payload(*entries: object, **more: object) -> bytes:
    return cbor2.dumps({"data": list(entries), "operation": "histogram"} | more)


MALFORMED = [
    (b"", PayloadFlaw.NOT_CBOR),
    (b"\xff", PayloadFlaw.NOT_CBOR),
    (b"plain text", PayloadFlaw.NOT_CBOR),
    (_payload(GOOD)[:-1], PayloadFlaw.NOT_CBOR),
    (_payload(GOOD) + b"\x00", PayloadFlaw.NOT_CBOR),
    (b"\x81" * 5000, PayloadFlaw.NOT_CBOR),
    (b"\x9b\x7f" + b"\xff" * 7, PayloadFlaw.NOT_CBOR),
    (b"\xd9\xd9\xf7" + _payload(GOOD), PayloadFlaw.NOT_CBOR),
    (b"\xd8\x1c" + _payload(GOOD), PayloadFlaw.NOT_CBOR),
    (b"\x80", PayloadFlaw.WRONG_SHAPE),
    (b"\x00", PayloadFlaw.WRONG_SHAPE),
    (b"\xa0", PayloadFlaw.WRONG_SHAPE),
    (cbor2.dumps({"data": []}), PayloadFlaw.WRONG_SHAPE),
    (cbor2.dumps({"operation": "histogram"}), PayloadFlaw.WRONG_SHAPE),
    (cbor2.dumps({"data": {}, "operation": "histogram"}), PayloadFlaw.WRONG_SHAPE),
    (cbor2.dumps({"data": [], "operation": b"histogram"}), PayloadFlaw.WRONG_SHAPE),
    (cbor2.dumps({"data": [], "operation": 1}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD, padding=b""), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"more": 1}), PayloadFlaw.WRONG_SHAPE),
    (_payload([]), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"id": None}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"id": b""}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"id": bytes(9)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"id": 0}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"value": bytes(3)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"value": bytes(5)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"value": 7}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"value": "0000"}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"bucket": bytes(15)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD | {"bucket": bytes(17)}), PayloadFlaw.WRONG_SHAPE),
    (_payload({"id": b"\x00", "value": bytes(4)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD, {"value": bytes(4), "bucket": bytes(16)}), PayloadFlaw.WRONG_SHAPE),
    (_payload(GOOD, GOOD | {"id": b"\x00\x00"}), PayloadFlaw.WRONG_SHAPE),
    (_payload(*[GOOD] * 1001), PayloadFlaw.OVERSIZED),
    (bytes(1 << 17), PayloadFlaw.OVERSIZED),
    (b"\xa3ddata\x80ddata\x80ioperationihistogram", PayloadFlaw.DUPLICATE_KEY),
    (
        b"\xa2ddata\x81\xa3evalueD\x00\x00\x00\x00evalueD\x00\x00\x00\x00"
        b"fbucketP" + bytes(16) + b"ioperationihistogram",
        PayloadFlaw.DUPLICATE_KEY,
    ),
    (_payload(GOOD | {"value": -1}), PayloadFlaw.NEGATIVE_VALUE),
    (_payload(GOOD | {"value": b"\xff\xff\xff\xff"}), PayloadFlaw.NEGATIVE_VALUE),
    (_payload(GOOD, GOOD | {"value": b"\x80\x00\x00\x00"}), PayloadFlaw.NEGATIVE_VALUE),
]


@pytest.mark.parametrize(("data", "flaw"), MALFORMED)
def test_each_malformed_payload_gives_its_named_error(data: bytes, flaw: PayloadFlaw) -> None:
    with pytest.raises(PayloadError) as caught:
        decode_payload(data)
    assert caught.value.flaw is flaw
    assert caught.value.status is ReportStatus.REPORT_PARSING_ERROR
    assert caught.value.__cause__ is None


def test_another_operation_is_its_own_condition() -> None:
    for data in (cbor2.dumps({"data": [], "operation": "ldp"}), cbor2.dumps({"operation": "sum", "other": 1})):
        with pytest.raises(UnsupportedOperationError) as caught:
            decode_payload(data)
        assert caught.value.status is ReportStatus.UNSUPPORTED_OPERATION


def test_key_order_and_length_encoding_are_free() -> None:
    entry = {"bucket": bytes(15) + b"\x07", "value": bytes([0, 0, 1, 0])}
    expected = (Contribution(bucket=7, value=256),)
    assert decode_payload(cbor2.dumps({"operation": "histogram", "data": [entry]})).contributions == expected
    indefinite = b"\xbfddata\x9f" + cbor2.dumps(entry) + b"\xffioperation\x78\x09histogram\xff"
    assert decode_payload(indefinite).contributions == expected
