"""Sealed summaries: opened by an independent reader of the documented format, and by nobody else."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire import KeySet
from aggservice.wire.errors import KeySetError, SealedSummaryError
from aggservice.wire.hpke.summaries import (
    CHUNK_BYTES,
    SealedKind,
    SummarySealer,
    check_output_key,
    open_document,
    open_totals,
    parse_output_key,
    read_label,
)

KEYS = KeySet.create(SecureBits(), ManualClock(1))
OTHER = KeySet.create(SecureBits(), ManualClock(1))
PUBLIC = KEYS.pairs[0].public.key.public_bytes_raw()
SEALER = SummarySealer(output_public_key=PUBLIC, job_request_id="job", bits=SecureBits())


def document(body: bytes, width: int = 24, name: str = "summary-1-of-1.avro.sealed") -> bytes:
    return b"".join(SEALER.document(name, SealedKind.HISTOGRAM, rows=len(body) // width, body=body))


def opened_by_hand(raw: bytes) -> bytes:
    """Open a document as docs/wire.md describes it, with ``cryptography`` alone."""
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    assert raw[:11] == b"aggsealed1\n"
    size = int.from_bytes(raw[11:15], "big")
    label, rest = raw[15 : 15 + size], raw[15 + size :]
    plain, number = b"", 0
    while rest:
        info = b"aggservice sealed summary\0" + label + number.to_bytes(8, "big")
        chunk, rest = rest[: (1 << 20) + 48], rest[(1 << 20) + 48 :]
        plain += suite.decrypt(chunk, KEYS.pairs[0].private, info)
        number += 1
    fields = json.loads(label)
    assert len(plain) == fields["rows"] * fields["width"] and fields["job_request_id"] == "job"
    return plain


@pytest.mark.parametrize("rows", [0, 1, CHUNK_BYTES // 24, CHUNK_BYTES // 24 + 1, 3 * CHUNK_BYTES // 24])
def test_what_is_sealed_opens_by_the_documented_format(rows: int) -> None:
    body = random.Random(rows).randbytes(24 * rows)
    raw = document(body)
    assert opened_by_hand(raw) == open_document(raw, KEYS) == body
    assert rows == 0 or body[:24] not in raw


def test_chunks_of_exactly_one_mebibyte_open() -> None:
    body = bytes(CHUNK_BYTES)
    raw = document(body, width=16)
    assert open_document(raw, KEYS) == opened_by_hand(raw) == body


def test_only_its_key_opens_it() -> None:
    raw = document(bytes(48))
    with pytest.raises(SealedSummaryError, match="your key file does not have"):
        open_document(raw, OTHER)
    label, at = read_label(raw)
    other = replace(label, output_public_key=OTHER.pairs[0].public.key.public_bytes_raw()).to_bytes()
    with pytest.raises(SealedSummaryError, match="changed after sealing"):
        open_document(raw[:11] + len(other).to_bytes(4, "big") + other + raw[at:], OTHER)


def test_every_change_is_found() -> None:
    raw = document(random.Random(1).randbytes(24 * 2))
    place = random.Random(2)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1 << place.randrange(8)
        with pytest.raises(SealedSummaryError):
            open_document(bytes(changed), KEYS)
        with pytest.raises(SealedSummaryError):
            open_document(raw[:at], KEYS)
    with pytest.raises(SealedSummaryError, match="bytes added"):
        open_document(raw + b"x", KEYS)


def test_chunks_belong_to_their_place_and_documents_to_their_name() -> None:
    body = random.Random(3).randbytes(2 * CHUNK_BYTES)
    raw = document(body, width=16)
    _, at = read_label(raw)
    size = CHUNK_BYTES + 48
    with pytest.raises(SealedSummaryError, match="changed"):
        open_document(raw[:at] + raw[at + size :] + raw[at : at + size], KEYS)
    with pytest.raises(SealedSummaryError, match="renamed"):
        open_document(raw, KEYS, name="summary-2-of-2.avro.sealed")
    with pytest.raises(SealedSummaryError, match="job 'job'"):
        open_document(raw, KEYS, job_request_id="another")
    assert open_document(raw, KEYS, job_request_id="job", name="summary-1-of-1.avro.sealed") == body


def test_totals_and_their_range() -> None:
    for pair in ((0, -1), (-(1 << 63), (1 << 63) - 1)):
        assert open_totals(SEALER.totals(*pair), KEYS, job_request_id="job") == pair
    assert len(SEALER.totals(0, 0)) == len(SEALER.totals(-(1 << 63), 1 << 40))


def test_a_document_says_nothing_by_its_size_but_the_number_of_rows() -> None:
    assert len({len(document(random.Random(seed).randbytes(240))) for seed in range(5)}) == 1


def test_sealing_is_fresh_and_seeded_sealing_repeats() -> None:
    assert document(bytes(24)) != document(bytes(24))
    seeded = [replace(SEALER, bits=SeededBits("run")) for _ in range(2)]
    first, second = (b"".join(one.document("a", SealedKind.SHUFFLE, rows=1, body=b"x")) for one in seeded)
    other = b"".join(seeded[0].document("b", SealedKind.SHUFFLE, rows=1, body=b"x"))
    assert first == second and first[-49:-17] != other[-49:-17]
    assert open_document(first, KEYS) == b"x"


#: Points of order 1 to 8 as X25519 reads them (D. J. Bernstein, "Curve25519: how to validate public keys").
SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
]


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_that_everyone_can_open_is_refused(point: str) -> None:
    with pytest.raises(KeySetError, match="small order"):
        check_output_key(bytes.fromhex(point))


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", "A" * 43, "Á" * 44])
def test_a_malformed_key_is_refused(text: str) -> None:
    with pytest.raises(KeySetError, match="public key"):
        parse_output_key(text)
