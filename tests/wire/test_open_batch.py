"""Opening a batch: what fails is a number in a column, never an exception."""

from __future__ import annotations

import numpy as np
import pytest

from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.wire import (
    Api,
    Contribution,
    KeySet,
    OpenedBatch,
    ReportBatch,
    ReportStatus,
    SharedInfo,
    Spans,
    decode_batch,
    make_report,
    open_batch,
    seal,
)
from aggservice.wire.errors import EncodingError

CLOCK = ManualClock(0)
KEYS = KeySet.create(SecureBits(), CLOCK, count=2)
INFO = SharedInfo(
    api=Api.SHARED_STORAGE,
    report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
    reporting_origin="https://report.test",
    scheduled_report_time_s=0,
    debug_mode=True,
)


def test_each_row_has_its_own_fate() -> None:
    reports = [
        make_report(
            [Contribution(bucket=number, value=number)],
            shared_info=INFO,
            keys=KEYS.public(CLOCK),
            bits=SecureBits(),
            maximum=20,
        )
        for number in range(1, 8)
    ]
    batch = ReportBatch.of(reports)
    text = reports[0].shared_info.encode()
    first = reports[0].payloads[0]
    bad = [
        (first.payload, b"unknown", text, ReportStatus.DECRYPTION_KEY_NOT_FOUND),
        (first.payload, KEYS.pairs[first.key_id == KEYS.pairs[0].id].id.encode(), text, ReportStatus.DECRYPTION_ERROR),
        (first.payload, first.key_id.encode(), text + b" ", ReportStatus.DECRYPTION_ERROR),
        (first.payload[:-1], first.key_id.encode(), text, ReportStatus.DECRYPTION_ERROR),
        (first.payload[:40], first.key_id.encode(), text, ReportStatus.DECRYPTION_ERROR),
        (b"", first.key_id.encode(), text, ReportStatus.DECRYPTION_ERROR),
        (bytes(200_000), first.key_id.encode(), text, ReportStatus.REPORT_PARSING_ERROR),
    ]
    key = {pair.id: pair.private.public_key() for pair in KEYS.pairs}[first.key_id]
    for plaintext, status in (
        (b"\xff", ReportStatus.REPORT_PARSING_ERROR),
        (b"\xa2ddata\x80ioperationcldp", ReportStatus.UNSUPPORTED_OPERATION),
    ):
        bad.append((seal(plaintext, shared_info=text, key=key), first.key_id.encode(), text, status))
    whole = ReportBatch(
        payloads=Spans.of([*batch.payloads, *(row[0] for row in bad)]),
        key_ids=Spans.of([*batch.key_ids, *(row[1] for row in bad)]),
        shared_infos=Spans.of([*batch.shared_infos, *(row[2] for row in bad)]),
    )
    opened = open_batch(whole, KEYS.by_id)
    columns, status = decode_batch(opened)
    assert status.tolist() == [0] * 7 + [row[3] for row in bad]
    assert columns.row.tolist() == list(range(7))
    assert columns.value.tolist() == columns.key_low.tolist() == list(range(1, 8))
    assert opened.status.tolist()[-2:] == [0, 0]

    part = open_batch(whole.slice(5, 9), KEYS.by_id)
    assert part.status.tolist() == [0, 0, ReportStatus.DECRYPTION_KEY_NOT_FOUND, ReportStatus.DECRYPTION_ERROR]
    assert part.plaintexts[1] == reports[6].payloads[0].debug_cleartext_payload


def test_debug_cleartexts_need_no_key() -> None:
    report = make_report(
        [Contribution(bucket=5, value=6)], shared_info=INFO, keys=KEYS.public(CLOCK), bits=SecureBits(), maximum=2
    )
    columns, status = decode_batch(OpenedBatch.of_cleartext(ReportBatch.of([report], cleartext=True)), nulls=True)
    assert columns.contributions() == [Contribution(bucket=5, value=6), Contribution(bucket=0, value=0)]
    assert not status.any()


def test_an_empty_batch() -> None:
    opened = open_batch(ReportBatch.of([]), KEYS.by_id)
    columns, status = decode_batch(opened)
    assert len(columns) == len(status) == len(opened.plaintexts) == 0


def test_spans_stay_inside_their_buffer() -> None:
    buffer = np.zeros(4, dtype=np.uint8)
    for start, stop in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(EncodingError):
            Spans(buffer=buffer, starts=np.array([start]), stops=np.array([stop]))
    with pytest.raises(EncodingError):
        Spans(buffer=buffer, starts=np.array([0]), stops=np.array([1, 2]))
    assert list(Spans.of([b"ab", b"", b"c"])) == [b"ab", b"", b"c"]
    with pytest.raises(EncodingError):
        ReportBatch(payloads=Spans.of([b""]), key_ids=Spans.of([]), shared_infos=Spans.of([]))
