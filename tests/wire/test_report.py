"""Report bodies of both APIs, whole from contributions to contributions."""

from __future__ import annotations

import json

import pytest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire import (
    AggregatableReport,
    Api,
    Contribution,
    KeySet,
    SharedInfo,
    decode_payload,
    make_report,
    open_report,
)
from aggservice.wire.errors import EncodingError, KeyNotFoundError, ReportBodyError
from aggservice.wire.report.body import SealedPayload

CLOCK = ManualClock(1_700_000_000_000)
KEYS = KeySet.create(SeededBits("report keys"), CLOCK, count=3)
PUBLIC = KEYS.public(CLOCK)


def _info(api: Api, *, version: str = "1.0", debug: bool = False) -> SharedInfo:
    return SharedInfo(
        api=api,
        report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
        reporting_origin="https://report.test",
        scheduled_report_time_s=1_700_000_000,
        attribution_destination="https://conversion.test" if api.has_destination else None,
        version=version,
        debug_mode=debug,
    )


def test_a_report_is_made_posted_parsed_and_opened() -> None:
    contributions = [Contribution(bucket=2**127 + 5, value=1664, filtering_id=3)]
    report = make_report(
        contributions,
        shared_info=_info(Api.ATTRIBUTION_REPORTING, debug=True),
        keys=PUBLIC,
        bits=SecureBits(),
        maximum=20,
        trigger_context_id="context",
        source_debug_key=123,
        trigger_debug_key=2**64 - 1,
    )
    text = report.to_json()
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert json.loads(text)["trigger_debug_key"] == str(2**64 - 1)
    again = AggregatableReport.from_json(text)
    assert again == report
    opened = open_report(again, KEYS)
    assert opened == report.payloads[0].debug_cleartext_payload
    decoded = decode_payload(opened)
    assert len(decoded.contributions) == 20
    assert [one for one in decoded.contributions if one.value] == contributions


def test_private_aggregation_and_old_versions() -> None:
    report = make_report(
        [],
        shared_info=_info(Api.SHARED_STORAGE, version="0.1"),
        keys=PUBLIC,
        bits=SeededBits(1),
        maximum=20,
        context_id="example",
        debug_key=7,
    )
    assert report.payloads[0].debug_cleartext_payload is None
    assert set(report.to_dict()) == {
        "aggregation_coordinator_origin",
        "aggregation_service_payloads",
        "context_id",
        "debug_key",
        "shared_info",
    }
    assert decode_payload(open_report(report, KEYS)).filtering_id_bytes == 0
    with pytest.raises(EncodingError):
        make_report(
            [],
            shared_info=_info(Api.SHARED_STORAGE, version="0.1"),
            keys=PUBLIC,
            bits=SeededBits(1),
            maximum=20,
            filtering_id_bytes=1,
        )


def test_seeded_reports_repeat_to_the_byte() -> None:
    info = _info(Api.PROTECTED_AUDIENCE)

    def made(seed: int) -> str:
        return make_report([], shared_info=info, keys=PUBLIC, bits=SeededBits(seed), maximum=100).to_json()

    assert made(1) == made(1) != made(2)


def test_a_report_for_another_service_names_a_key_we_do_not_have() -> None:
    report = make_report([], shared_info=_info(Api.SHARED_STORAGE), keys=PUBLIC, bits=SecureBits(), maximum=20)
    with pytest.raises(KeyNotFoundError):
        open_report(report, KeySet.create(SecureBits(), CLOCK))


GOOD = {"shared_info": "{}", "aggregation_service_payloads": [{"payload": "AAAA", "key_id": "a"}]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shared_info": None}, "shared_info"),
        ({"aggregation_service_payloads": {}}, "aggregation_service_payloads"),
        ({"aggregation_service_payloads": []}, "aggregation_service_payloads"),
        ({"aggregation_service_payloads": [1]}, "aggregation_service_payloads"),
        ({"aggregation_service_payloads": [{"payload": "*", "key_id": "a"}]}, "payload is not base64"),
        ({"aggregation_service_payloads": [{"payload": "AAAA"}]}, "key_id"),
        ({"trigger_context_id": 1}, "trigger_context_id"),
        ({"source_debug_key": 123}, "source_debug_key"),
        ({"trigger_debug_key": "-1"}, "trigger_debug_key"),
        ({"debug_key": str(2**64)}, "debug_key"),
        ({"context_id": []}, "context_id"),
        ({"shared_info": "\ud800"}, "shared_info contains half of a surrogate pair"),
        ({"aggregation_service_payloads": [{"payload": "AAAA", "key_id": "\udfff"}]}, "key_id contains half"),
    ],
)
def test_a_bad_body_names_the_field(change: dict[str, object], field: str) -> None:
    AggregatableReport.from_dict(GOOD)
    with pytest.raises(ReportBodyError, match=field):
        AggregatableReport.from_json(json.dumps(GOOD | change))


def test_bodies_that_are_not_json_or_too_long() -> None:
    for text in ("", "{", "[]", "1", '{"x":"' + "a" * 300_000 + '"}', b"\xff"):
        with pytest.raises(ReportBodyError):
            AggregatableReport.from_json(text)
    with pytest.raises(ReportBodyError):
        AggregatableReport(shared_info="{}", payloads=(SealedPayload(payload=b"", key_id="a"),) * 17)
