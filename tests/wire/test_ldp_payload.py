"""The payload of local reports: canonical bytes, strict decoding, batches that agree with single ones."""

from __future__ import annotations

import io
import json
import random

import cbor2
import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.wire import OpenedBatch, Randomizer, ReportStatus, Spans, WireError, decode_payload, encode_payload
from aggservice.wire.avro.shuffled import SHUFFLED, read_shuffled, write_shuffled
from aggservice.wire.batch.ldp_payloads import decode_ldp_batch
from aggservice.wire.errors import AvroError, EncodingError, PayloadError, UnsupportedOperationError
from aggservice.wire.report.ldp_payload import LdpPayload, decode_ldp_payload


def randomizer(size: int = 4, epsilon: int = 500_000, permanent: int | None = 2_000_000) -> Randomizer:
    return Randomizer(
        identity=bytes(range(16)), report_bytes=size, epsilon_micro=epsilon, epsilon_permanent_micro=permanent
    )


@given(
    st.binary(min_size=16, max_size=16),
    st.sampled_from([1, 4, 23, 24, 255, 256, 1000]),
    st.integers(1, 2**32 - 1),
    st.booleans(),
    st.one_of(st.none(), st.binary(min_size=64, max_size=64)),
)
def test_what_is_encoded_is_decoded(
    identity: bytes, size: int, epsilon: int, bounded: bool, token: bytes | None
) -> None:
    name = Randomizer(
        identity=identity,
        report_bytes=size,
        epsilon_micro=epsilon,
        epsilon_permanent_micro=2**32 - 1 if bounded else None,
    )
    payload = LdpPayload(randomizer=name, data=bytes(index % 256 for index in range(size)), token=token)
    raw = payload.encode()
    assert decode_ldp_payload(raw) == payload
    assert Randomizer.from_hex(name.hex) == name
    # Canonical: cbor2 reads the same values and writes the same bytes.
    assert cbor2.dumps(cbor2.loads(raw), canonical=True) == raw
    fields = {"data": payload.data, "operation": "ldp", "randomizer": name.to_bytes()}
    assert cbor2.loads(raw) == (fields if token is None else {**fields, "token": token})
    # One length with a token and one without, whatever they say.
    other = LdpPayload(randomizer=name, data=bytes(size), token=None if token is None else bytes(64))
    assert len(other.encode()) == len(raw)


def test_payloads_without_a_token_have_the_bytes_they_always_had() -> None:
    raw = LdpPayload(randomizer=randomizer(), data=b"abcd").encode()
    name = "000102030405060708090a0b0c0d0e0f000000040007a120001e8480"
    assert raw.hex() == (b"\xa3ddataDabcdioperationcldpjrandomizerX\x1c").hex() + name
    token = bytes(range(64))
    signed = LdpPayload(randomizer=randomizer(), data=b"abcd", token=token).encode()
    expected = b"\xa4ddataDabcdetokenX\x40" + token + b"ioperationcldpjrandomizerX\x1c" + bytes.fromhex(name)
    assert signed == expected


def test_each_operation_refuses_the_other() -> None:
    local = LdpPayload(randomizer=randomizer(), data=b"abcd").encode()
    with pytest.raises(UnsupportedOperationError):
        decode_payload(local)
    with pytest.raises(UnsupportedOperationError):
        decode_ldp_payload(encode_payload([]))


@pytest.mark.parametrize(
    "item",
    [
        [],
        {"operation": "ldp"},
        {"operation": "ldp", "data": b"abcd", "randomizer": b"short"},
        {"operation": "ldp", "data": b"abc", "randomizer": randomizer().to_bytes()},
        {"operation": "ldp", "data": "abcd", "randomizer": randomizer().to_bytes()},
        {"operation": "ldp", "data": b"abcd", "randomizer": randomizer().to_bytes(), "more": 1},
        {"operation": "ldp", "data": b"abcd", "randomizer": bytes(28)},
        {"operation": 7, "data": b"abcd", "randomizer": randomizer().to_bytes()},
        {"operation": "ldp", "data": b"abcd", "randomizer": randomizer().to_bytes(), "token": bytes(63)},
        {"operation": "ldp", "data": b"abcd", "randomizer": randomizer().to_bytes(), "token": None},
        {"operation": "ldp", "data": b"abcd", "randomizer": randomizer().to_bytes(), "token": "t" * 64},
        {"operation": "ldp", "data": b"abcd", "token": bytes(64)},
    ],
)
def test_what_no_client_writes_is_refused(item: object) -> None:
    with pytest.raises(PayloadError):
        decode_ldp_payload(cbor2.dumps(item))
    for cut in range(1, 6):
        with pytest.raises(WireError):
            decode_ldp_payload(LdpPayload(randomizer=randomizer(), data=b"abcd").encode()[:-cut])


def test_names_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"size": 0},
        {"size": 60_001},
        {"epsilon": 0},
        {"epsilon": 2**32},
        {"epsilon": 3_000_000, "permanent": 2_000_000},
    ):
        with pytest.raises(EncodingError):
            randomizer(**changes)
    with pytest.raises(EncodingError):
        Randomizer.from_hex("zz")
    with pytest.raises(EncodingError):
        Randomizer.from_hex("00")
    with pytest.raises(EncodingError):
        LdpPayload(randomizer=randomizer(), data=b"too long")
    for token in (b"", bytes(63), bytes(65)):
        with pytest.raises(EncodingError, match="64 bytes"):
            LdpPayload(randomizer=randomizer(), data=b"abcd", token=token)


def flipped(raw: bytes, at: int, mask: int) -> bytes:
    at %= len(raw)
    return raw[:at] + bytes([raw[at] ^ mask]) + raw[at + 1 :]


ROWS = st.one_of(
    st.binary(min_size=4, max_size=4).map(lambda data: LdpPayload(randomizer=randomizer(), data=data).encode()),
    st.binary(min_size=4, max_size=4).map(
        lambda data: LdpPayload(randomizer=randomizer(epsilon=600_000), data=data).encode()
    ),
    st.binary(min_size=4, max_size=4).map(
        lambda data: cbor2.dumps({"randomizer": randomizer().to_bytes(), "data": data, "operation": "ldp"})
    ),
    st.binary(min_size=68, max_size=68).map(
        lambda raw: LdpPayload(randomizer=randomizer(), data=raw[:4], token=raw[4:]).encode()
    ),
    st.binary(min_size=68, max_size=68).map(
        lambda raw: LdpPayload(randomizer=randomizer(epsilon=600_000), data=raw[:4], token=raw[4:]).encode()
    ),
    st.binary(min_size=68, max_size=68).map(
        lambda raw: cbor2.dumps(
            {"token": raw[4:], "randomizer": randomizer().to_bytes(), "data": raw[:4], "operation": "ldp"}
        )
    ),
    st.tuples(st.binary(min_size=68, max_size=68), st.integers(0, 130), st.integers(1, 255)).map(
        lambda drawn: flipped(
            LdpPayload(randomizer=randomizer(), data=drawn[0][:4], token=drawn[0][4:]).encode(), drawn[1], drawn[2]
        )
    ),
    st.just(encode_payload([])),
    st.binary(max_size=150),
)


@settings(deadline=None)
@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=12))
def test_a_batch_is_its_rows(rows: list[tuple[bytes, bool]]) -> None:
    failed = np.array([ReportStatus.DECRYPTION_ERROR if bad else 0 for _, bad in rows], dtype=np.uint8)
    opened = OpenedBatch(plaintexts=Spans.of([raw for raw, _ in rows]), status=failed)
    found = decode_ldp_batch(opened, randomizer())
    mine, status = found.mine, found.status
    expected = []
    for index, (raw, bad) in enumerate(rows):
        if bad:
            assert status[index] == ReportStatus.DECRYPTION_ERROR and not mine[index]
            continue
        try:
            payload = decode_ldp_payload(raw)
        except WireError as error:
            assert status[index] == error.status and not mine[index]
            continue
        assert status[index] == ReportStatus.OK
        assert mine[index] == (payload.randomizer == randomizer())
        if mine[index]:
            expected.append((payload.data, payload.token))
    tokens = [row.tobytes() if has else None for row, has in zip(found.tokens, found.has_token, strict=True)]
    assert list(zip([row.tobytes() for row in found.data], tokens, strict=True)) == expected


def test_shuffled_reports_in_a_file(tmp_path: object) -> None:
    path = tmp_path / "shuffled.avro"  # type: ignore[operator]
    reports = [bytes([index, 255 - index]) for index in range(200)]
    write_shuffled(path, reports)
    with path.open("rb") as file:
        assert list(read_shuffled(file)) == reports
    with pytest.raises(AvroError):
        list(read_shuffled(io.BytesIO(b"not avro")))
    again = path.with_name("again.avro")
    write_shuffled(again, iter(reports))
    assert again.read_bytes() == path.read_bytes()


def test_no_mutated_file_of_shuffled_reports_does_anything_but_read_or_refuse() -> None:
    draw = random.Random(5)
    records = [{"report": bytes([index] * index)} for index in range(20)]
    refused = 0
    for codec in ("null", "deflate"):
        stream = io.BytesIO()
        fastavro.writer(stream, json.loads(SHUFFLED.to_json()), records, codec=codec, sync_interval=50)
        assert list(read_shuffled(io.BytesIO(stream.getvalue()))) == [one["report"] for one in records]
        for _ in range(2000):
            data = bytearray(stream.getvalue())
            data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                list(read_shuffled(io.BytesIO(bytes(data[: draw.choice((len(data), draw.randrange(len(data))))]))))
            except AvroError:
                refused += 1
    assert refused > 2000
