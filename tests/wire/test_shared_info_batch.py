"""The batch parser of ``shared_info`` and the units of a batch, against the single ones."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest

from aggservice.wire import Api, ReportStatus, SharedInfo, Spans, parse_shared_info_batch, report_units, shared_id_units
from aggservice.wire.batch import shared_infos
from aggservice.wire.errors import EncodingError, SharedInfoError
from aggservice.wire.report.units import report_unit, shared_id_unit

BASE = {
    "api": "attribution-reporting",
    "attribution_destination": "https://conversion.test",
    "debug_mode": "enabled",
    "report_id": "21abd97f-73e8-4b88-9389-a9fee6abda5e",
    "reporting_origin": "https://report.test",
    "scheduled_report_time": "1234486400",
    "source_registration_time": "1234483200",
    "version": "1.0",
}
W3C = {"api": "w3c-attribution", "histogram_size": "4", "max_value": "10", "micro_epsilon": "1000000"}
CHOICES: dict[str, list[object]] = {
    "api": [*Api, "attribution-reporting", "", "topics", None, 1],
    "attribution_destination": ["https://a.test", "https://b.test", "", "two words", "https://é.test", "a\\b", None, 1],
    "debug_mode": ["enabled", "disabled", "", "Enabled", None, True],
    "report_id": ["21ABD97F-73e8-4b88-9389-a9fee6abda5e", "21abd97f", "", "g1abd97f-73e8-4b88-9389-a9fee6abda5e", None],
    "reporting_origin": ["https://report.test", "https://b.test:99", "http://b.test", "", "b.test", None, []],
    "scheduled_report_time": ["0", "01", "253402300799", "253402300800", "", "-1", "1e3", "٣", None, 5],
    "source_registration_time": ["0", "1234483200", "soon", "", None, 0],
    "version": ["0.1", "1.0", "1.7", "0.2", "0.0", "2.0", "", "1", "10.0", None, 1.0],
    "histogram_size": ["1", "4294967295", "4294967296", "0", "04", "-1", "", None, 5],
    "max_value": ["1", "2147483647", "2147483648", "0", "1.0", None, 5],
    "micro_epsilon": ["1", "4294967295", "4294967296", "0", " 1", None, 5],
    "more": ["x"],
}


def _text(draw: random.Random) -> bytes:
    fields: dict[str, object] = dict(BASE) | (W3C if draw.random() < 0.3 else {})
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        name = draw.choice(list(CHOICES))
        value = draw.choice(CHOICES[name])
        fields[name] = value
        if value is None:
            del fields[name]
    names = list(fields)
    if draw.random() < 0.1:
        draw.shuffle(names)
    text = json.dumps(
        {name: fields[name] for name in names},
        separators=(",", ":") if draw.random() < 0.9 else None,
        ensure_ascii=draw.random() < 0.5,
    )
    raw = bytearray(text.encode())
    if draw.random() < 0.3:
        at = draw.randrange(len(raw))
        match draw.randrange(4):
            case 0:
                raw[at] ^= 1 << draw.randrange(8)
            case 1:
                del raw[at:]
            case 2:
                del raw[at]
            case _:
                raw[at:at] = raw[at : at + draw.choice((1, 20, 60))]
    return bytes(raw)


def _single(raw: bytes) -> SharedInfo | ReportStatus:
    try:
        info = SharedInfo.parse(raw)
    except SharedInfoError as error:
        return error.status
    return info if info.version else ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION


def test_the_batch_parser_agrees_with_the_single_one_on_mutated_texts() -> None:
    draw = random.Random(7)
    texts = [_text(draw) for _ in range(20_000)]
    columns = parse_shared_info_batch(Spans.of(texts))
    seen: Counter[str] = Counter()
    for row, raw in enumerate(texts):
        single = _single(raw)
        if isinstance(single, SharedInfo):
            assert columns.status[row] == ReportStatus.OK, raw
            found = columns.row(row)
            assert found.report_id == single.report_id.lower()
            assert found == SharedInfo.parse(raw.replace(single.report_id.encode(), found.report_id.encode())), raw
            seen["OK"] += 1
        else:
            assert columns.status[row] == single, raw
            seen[single.name] += 1
    assert set(seen) == {
        "OK",
        "REPORT_PARSING_ERROR",
        "UNSUPPORTED_REPORT_API_TYPE",
        "UNSUPPORTED_SHAREDINFO_VERSION",
        "UNSUPPORTED_REPORT_VERSION",
        "REQUIRED_SHAREDINFO_FIELD_INVALID",
        "INVALID_REPORT_ID",
        "ATTRIBUTION_REPORT_TO_MALFORMED",
    }
    assert min(seen.values()) > 50, seen


def test_the_units_of_a_batch_are_the_units_of_its_rows() -> None:
    draw = random.Random(8)
    texts = [_text(draw) for _ in range(3000)]
    columns = parse_shared_info_batch(Spans.of(texts))
    filtering_ids = (0, 7, 2**64 - 1)
    reports, shared = report_units(columns, filtering_ids), shared_id_units(columns, filtering_ids)
    assert reports.shape == shared.shape == (3000, 3, 20)
    good = 0
    for row in range(3000):
        if columns.status[row] != ReportStatus.OK:
            assert not reports[row].any()
            assert not shared[row].any()
            continue
        info = SharedInfo.parse(texts[row])
        good += 1
        for place, filtering_id in enumerate(filtering_ids):
            assert reports[row, place].tobytes() == report_unit(info, filtering_id)
            assert shared[row, place].tobytes() == shared_id_unit(info, filtering_id)
    assert good > 500


def test_empty_batches_and_bad_filtering_ids() -> None:
    columns = parse_shared_info_batch(Spans.of([]))
    assert report_units(columns).shape == shared_id_units(columns).shape == (0, 1, 20)
    refused = parse_shared_info_batch(Spans.of([b"", b"{}", b"\xff\xfe{\x00}\x00"]))
    assert refused.status.tolist() == [
        ReportStatus.REPORT_PARSING_ERROR,
        ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID,
        ReportStatus.REPORT_PARSING_ERROR,
    ]
    assert not shared_id_units(refused).any()
    for units in (report_units, shared_id_units):
        with pytest.raises(EncodingError):
            units(columns, [2**64])


def test_texts_of_equal_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is no secret: a report whose origin collides with a caller's must not be taken for theirs.

    Here all texts have the same hash, and every other text is of another origin or destination.
    """
    monkeypatch.setattr(shared_infos, "hash_texts", lambda buffer, starts, stops: np.zeros(starts.size, np.uint64))
    hosts = ["https://a.test", "https://b.test", "https://b.test:99", "https://a.test", "https://aa.test"]
    texts = [
        json.dumps(BASE | {"reporting_origin": first, "attribution_destination": second}, separators=(",", ":"))
        for first in hosts
        for second in hosts
    ]
    columns = parse_shared_info_batch(Spans.of([text.encode() for text in texts]))
    assert not columns.status.any()
    assert [columns.row(at) for at in range(len(texts))] == [SharedInfo.parse(text) for text in texts]
    assert sorted(columns.origins) == sorted(columns.destinations) == sorted(set(hosts))
    single = [report_unit(SharedInfo.parse(text), 0) for text in texts]
    assert [one.tobytes() for one in report_units(columns, (0,))[:, 0]] == single
