"""The batch decoder against the single one, on good payloads and on 100,000 mutated ones."""

from __future__ import annotations

import random
from collections import Counter

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.wire import (
    Contribution,
    OpenedBatch,
    ReportStatus,
    Spans,
    WireError,
    decode_batch,
    decode_payload,
    encode_payload,
)
from aggservice.wire.batch.payloads import ContributionColumns, decode_kernel
from aggservice.wire.report.payload import Payload

UNRECOGNISED = 255
MUTATIONS = 100_000


def _opened(payloads: list[bytes]) -> OpenedBatch:
    return OpenedBatch(plaintexts=Spans.of(payloads), status=np.zeros(len(payloads), dtype=np.uint8))


def _single(data: bytes) -> Payload | ReportStatus:
    try:
        return decode_payload(data)
    except WireError as error:
        return error.status


def _compare(payloads: list[bytes]) -> Counter[str]:
    """Assert that kernel, batch decoder and single decoder agree on every payload; count what they said."""
    opened = _opened(payloads)
    kernel_status = opened.status.copy()
    room = sum(len(data) for data in payloads)
    scratch = ContributionColumns.make(lambda _, kind: np.empty(room, dtype=kind))
    spans = opened.plaintexts
    decode_kernel(
        spans.buffer,
        spans.starts,
        spans.stops,
        True,
        kernel_status,
        scratch.key_high,
        scratch.key_low,
        scratch.value,
        scratch.filtering_id,
        scratch.row,
    )
    columns, status = decode_batch(opened, nulls=True)
    contributions = columns.contributions()
    bounds = np.searchsorted(columns.row, np.arange(len(payloads) + 1))
    seen: Counter[str] = Counter()
    for row, data in enumerate(payloads):
        single = _single(data)
        batch = contributions[bounds[row] : bounds[row + 1]]
        if isinstance(single, Payload):
            assert status[row] == ReportStatus.OK, data.hex()
            assert tuple(batch) == single.contributions, data.hex()
            canonical = single.encode() == data
            assert kernel_status[row] == (0 if canonical else UNRECOGNISED), data.hex()
            seen["canonical" if canonical else "other form"] += 1
        else:
            assert status[row] == single, data.hex()
            assert not batch, data.hex()
            assert kernel_status[row] == UNRECOGNISED, data.hex()
            seen[single.name] += 1
    return seen


CONTRIBUTIONS = st.builds(
    Contribution, bucket=st.integers(0, 2**128 - 1), value=st.integers(0, 2**31 - 1), filtering_id=st.just(0)
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(CONTRIBUTIONS, max_size=4), st.integers(0, 8), st.sampled_from([0, 1, 20, 21, 252, 300])),
        max_size=5,
    )
)
def test_good_payloads_are_read_by_the_kernel(batch: list[tuple[list[Contribution], int, int]]) -> None:
    payloads = [
        encode_payload(contributions, filtering_id_bytes=width, maximum=len(contributions) + padding)
        for contributions, width, padding in batch
    ]
    seen = _compare(payloads)
    assert seen["canonical"] == len(payloads)
    columns, _ = decode_batch(_opened(payloads))
    assert columns.contributions() == [one for contributions, _, _ in batch for one in contributions if one.value]


def test_filtering_ids_of_every_width() -> None:
    payloads = [
        encode_payload(
            [Contribution(bucket=2**128 - 1, value=2**31 - 1, filtering_id=256**width - 1)], filtering_id_bytes=width
        )
        for width in range(1, 9)
    ]
    columns, status = decode_batch(_opened(payloads))
    assert columns.filtering_id.tolist() == [256**width - 1 for width in range(1, 9)]
    assert columns.key_high.tolist() == columns.key_low.tolist() == [2**64 - 1] * 8
    assert columns.value.tolist() == [2**31 - 1] * 8
    assert not status.any()


def test_rows_keep_their_order_when_some_go_to_the_single_decoder() -> None:
    entry = {"bucket": bytes(16), "value": bytes([0, 0, 0, 9])}
    other = cbor2.dumps({"operation": "histogram", "data": [entry, entry]})
    good = encode_payload([Contribution(bucket=1, value=1)])
    columns, status = decode_batch(_opened([good, other, b"", other, good]))
    assert columns.row.tolist() == [0, 1, 1, 3, 3, 4]
    assert columns.value.tolist() == [1, 9, 9, 9, 9, 1]
    assert status.tolist() == [0, 0, ReportStatus.REPORT_PARSING_ERROR, 0, 0]


def test_rows_that_did_not_open_are_left_alone() -> None:
    opened = OpenedBatch(
        plaintexts=Spans.of([encode_payload([Contribution(bucket=1, value=1)])] * 2),
        status=np.array([ReportStatus.DECRYPTION_ERROR, 0], dtype=np.uint8),
    )
    columns, status = decode_batch(opened)
    assert columns.row.tolist() == [1]
    assert status.tolist() == [ReportStatus.DECRYPTION_ERROR, 0]


class Mutator:
    """Makes payloads that are nearly right: bytes altered, cut, moved and joined, and structures changed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        one = self.random.randrange
        self.seeds = [
            encode_payload(
                [Contribution(bucket=one(2**128), value=one(2**31)) for _ in range(min(size, 3))],
                filtering_id_bytes=width,
                maximum=size,
            )
            for size in (0, 1, 2, 5, 20, 23, 24, 30)
            for width in (0, 1, 2, 8)
        ]
        self.large = [
            encode_payload([], filtering_id_bytes=width, maximum=size)
            for size, width in ((255, 1), (256, 0), (1000, 1), (1000, 8))
        ]

    def payload(self) -> bytes:
        draw = self.random
        if draw.random() < 0.15:
            return self._structured()
        data = bytearray(draw.choice(self.large if draw.random() < 0.002 else self.seeds))
        if draw.random() < 0.15:
            data = bytearray(self._structured())
        for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 3))):
            self._alter(data)
        return bytes(data)

    def _alter(self, data: bytearray) -> None:
        draw = self.random
        at = draw.randrange(len(data)) if data else 0
        match draw.randrange(8):
            case 0 | 1 if data:
                data[at] ^= 1 << draw.randrange(8)
            case 2 if data:
                data[at] = draw.choice((0x00, 0x40, 0x44, 0x50, 0x80, 0x97, 0x98, 0x99, 0xA2, 0xA3, 0xBF, 0xF6, 0xFF))
            case 3:
                del data[at:]
            case 4:
                del data[at : at + draw.choice((1, 1, 2, 4, 36, 41))]
            case 5:
                data[at:at] = draw.randbytes(draw.choice((1, 1, 2, 4)))
            case 6:
                data[at:at] = data[at : at + draw.choice((5, 12, 23, 36, 41))]
            case _:
                data += draw.choice((b"\x00", b"\xff", b"\xf6", bytes(data)))

    def _structured(self) -> bytes:
        draw = self.random
        values = (bytes(4), b"\x00\x00\x00\x07", b"\x80\x00\x00\x00", b"\xff" * 4, bytes(3), bytes(5), 0, 7, -1, "0000")
        ids = (b"\x00", b"\x07", b"", bytes(2), bytes(8), bytes(9), 0, None)
        entries: list[object] = []
        for _ in range(draw.choice((0, 1, 2, 3))):
            pairs: list[tuple[object, object]] = [
                ("value", draw.choice(values[:2] * 6 + values)),
                ("bucket", draw.choice((bytes(16), draw.randbytes(16), draw.randbytes(16), bytes(15), 5))),
            ]
            if draw.random() < 0.6:
                pairs.append(("id", draw.choice(ids[:2] * 6 + ids)))
            if draw.random() < 0.05:
                pairs.append((draw.choice(("more", 1, b"id")), 0))
            draw.shuffle(pairs)
            entries.append(dict(pairs) if draw.random() < 0.97 else draw.choice(([], 1, "entry", b"entry")))
        operation = draw.choice(("histogram",) * 12 + ("ldp", "", 1, b"histogram", None))
        top: list[tuple[object, object]] = [("data", entries if draw.random() < 0.97 else {}), ("operation", operation)]
        draw.shuffle(top)
        if draw.random() < 0.03:
            top.append(("padding", b""))
        if draw.random() < 0.03:
            top.pop(0)
        item: object = dict(top)
        if draw.random() < 0.03:
            item = cbor2.CBORTag(draw.choice((24, 28, 55799)), item)
        return cbor2.dumps(item, indefinite_containers=draw.random() < 0.1)


def _fuzz(seed: int, count: int) -> Counter[str]:
    mutator = Mutator(seed)
    seen: Counter[str] = Counter()
    for start in range(0, count, 5000):
        seen += _compare([mutator.payload() for _ in range(min(5000, count - start))])
    return seen


def test_no_mutated_payload_tells_the_decoders_apart() -> None:
    seen = _fuzz(20_260_801, MUTATIONS)
    assert seen.total() == MUTATIONS
    # Every outcome must have been met often, or the fuzz shows nothing.
    assert set(seen) == {"canonical", "other form", "REPORT_PARSING_ERROR", "UNSUPPORTED_OPERATION"}
    assert min(seen.values()) > 1000, seen


@pytest.mark.soak
def test_no_mutated_payload_tells_the_decoders_apart_in_two_million() -> None:
    seed = random.SystemRandom().getrandbits(64)
    print(f"seed {seed}")
    seen = _fuzz(seed, 2_000_000)
    print(dict(seen))
    assert seen.total() == 2_000_000
