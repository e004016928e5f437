"""``shared_info``: exactly Chrome's text, and a counter for each thing that can be wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.wire import Api, ReportStatus, SharedInfo
from aggservice.wire.errors import SharedInfoError
from aggservice.wire.limits import MAX_SHARED_INFO_BYTES

ARA = {
    "api": "attribution-reporting",
    "attribution_destination": "https://conversion.test",
    "debug_mode": "enabled",
    "report_id": "21abd97f-73e8-4b88-9389-a9fee6abda5e",
    "reporting_origin": "https://report.test",
    "scheduled_report_time": "1234486400",
    "source_registration_time": "1234483200",
    "version": "1.0",
}


def _dump(fields: dict[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def test_the_text_is_chromes() -> None:
    info = SharedInfo.parse(_dump(ARA))
    assert info == SharedInfo(
        api=Api.ATTRIBUTION_REPORTING,
        attribution_destination="https://conversion.test",
        debug_mode=True,
        report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
        reporting_origin="https://report.test",
        scheduled_report_time_s=1234486400,
        source_registration_time_s=1234483200,
        version="1.0",
    )
    assert info.serialise() == _dump(ARA)
    assert SharedInfo.parse(_dump(ARA).encode()) == info


@given(
    api=st.sampled_from(Api),
    report_id=st.uuids(version=4).map(str),
    time=st.integers(0, 253_402_300_799),
    source=st.none() | st.integers(0, 10**10),
    version=st.sampled_from(["0.1", "1.0"]),
    debug=st.booleans(),
)
def test_every_shared_info_comes_back(
    *, api: Api, report_id: str, time: int, source: int | None, version: str, debug: bool
) -> None:
    info = SharedInfo(
        api=api,
        report_id=report_id,
        reporting_origin="https://a.example:8443",
        scheduled_report_time_s=time,
        attribution_destination="https://shop.example" if api.has_destination else None,
        source_registration_time_s=source if api.has_source_time else None,
        **(dict.fromkeys(("histogram_size", "max_value", "epsilon_micro"), 7) if api is Api.W3C_ATTRIBUTION else {}),
        version=version,
        debug_mode=debug,
    )
    text = info.serialise()
    assert SharedInfo.parse(text) == info
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert info.has_filtering_ids == (version == "1.0")
    assert info.report_id_bytes.hex() == report_id.replace("-", "")


BAD = [
    ("", ReportStatus.REPORT_PARSING_ERROR),
    ("[]", ReportStatus.REPORT_PARSING_ERROR),
    ("[" * 4000, ReportStatus.REPORT_PARSING_ERROR),
    (_dump(ARA)[:-1], ReportStatus.REPORT_PARSING_ERROR),
    (_dump(ARA | {"x": "y" * 5000}), ReportStatus.REPORT_PARSING_ERROR),
    ({"version": None}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"version": "0.0"}, ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION),
    ({"version": "1"}, ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION),
    ({"version": "one"}, ReportStatus.UNSUPPORTED_SHAREDINFO_VERSION),
    ({"version": "2.0"}, ReportStatus.UNSUPPORTED_REPORT_VERSION),
    ({"version": ""}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"api": None}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"api": ""}, ReportStatus.UNSUPPORTED_REPORT_API_TYPE),
    ({"api": "topics"}, ReportStatus.UNSUPPORTED_REPORT_API_TYPE),
    ({"report_id": None}, ReportStatus.INVALID_REPORT_ID),
    ({"report_id": 7}, ReportStatus.INVALID_REPORT_ID),
    ({"report_id": "21abd97f73e84b889389a9fee6abda5e"}, ReportStatus.INVALID_REPORT_ID),
    ({"report_id": "21abd97f-73e8-4b88-9389-a9fee6abda5e\n"}, ReportStatus.INVALID_REPORT_ID),
    ({"reporting_origin": None}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"reporting_origin": ""}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"reporting_origin": "http://report.test"}, ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED),
    ({"reporting_origin": "https://report.test/"}, ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED),
    ({"reporting_origin": "https://report.test:0"}, ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED),
    ({"reporting_origin": "report.test"}, ReportStatus.ATTRIBUTION_REPORT_TO_MALFORMED),
    ({"scheduled_report_time": None}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"scheduled_report_time": 1234486400}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"scheduled_report_time": "-1"}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"scheduled_report_time": "1e9"}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"scheduled_report_time": "NaN"}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"scheduled_report_time": "253402300800"}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"attribution_destination": None}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"attribution_destination": ""}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"source_registration_time": "soon"}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
    ({"source_registration_time": 0}, ReportStatus.REQUIRED_SHAREDINFO_FIELD_INVALID),
]


W3C = {
    "api": "w3c-attribution",
    "attribution_destination": "https://shop.example",
    "histogram_size": "4",
    "max_value": "10",
    "micro_epsilon": "1000000",
    "report_id": "21abd97f-73e8-4b88-9389-a9fee6abda5e",
    "reporting_origin": "https://adtech.example",
    "scheduled_report_time": "1234486400",
    "version": "1.0",
}


def test_a_w3c_text_names_its_three_numbers() -> None:
    info = SharedInfo.parse(_dump(W3C))
    assert (info.histogram_size, info.max_value, info.epsilon_micro) == (4, 10, 1_000_000)
    assert info.serialise() == _dump(W3C)
    assert SharedInfo.parse(_dump(W3C | {"source_registration_time": "soon"})) == info
    for name, most in (("histogram_size", 2**32 - 1), ("max_value", 2**31 - 1), ("micro_epsilon", 2**32 - 1)):
        assert SharedInfo.parse(_dump(W3C | {name: str(most)}))
        for bad in ("0", str(most + 1), "1.0", 4, None):
            with pytest.raises(SharedInfoError, match=name):
                SharedInfo.parse(_dump({key: value for key, value in (W3C | {name: bad}).items() if value is not None}))
    with pytest.raises(SharedInfoError, match="attribution_destination"):
        SharedInfo.parse(_dump({key: value for key, value in W3C.items() if key != "attribution_destination"}))
    with pytest.raises(SharedInfoError, match="only W3C"):
        replace(SharedInfo.parse(_dump(ARA)), max_value=3)


@pytest.mark.parametrize(("change", "status"), BAD)
def test_each_fault_has_its_counter(change: str | dict[str, object], status: ReportStatus) -> None:
    if isinstance(change, dict):
        fields = {name: value for name, value in (ARA | change).items() if value is not None}
        change = _dump(fields)
    with pytest.raises(SharedInfoError) as caught:
        SharedInfo.parse(change)
    assert caught.value.status is status


def test_a_text_is_measured_in_bytes_and_has_no_half_characters() -> None:
    short, long, half = (json.dumps(ARA | {"x": x}, ensure_ascii=False) for x in ("é" * 1000, "é" * 2500, "\ud800"))
    assert len(long) < MAX_SHARED_INFO_BYTES < len(long.encode())
    assert SharedInfo.parse(short) == SharedInfo.parse(short.encode())
    for text in (long, long.encode(), half):
        with pytest.raises(SharedInfoError) as caught:
            SharedInfo.parse(text)
        assert caught.value.status is ReportStatus.REPORT_PARSING_ERROR


def test_old_and_local_reports_are_read() -> None:
    zero = SharedInfo.parse(_dump(ARA | {"version": "0.1", "source_registration_time": "0"}))
    assert zero.source_registration_time_s == 0
    assert SharedInfo.parse(_dump(ARA | {"reporting_origin": "http://localhost:8080"})).reporting_origin
    assert SharedInfo.parse(_dump(ARA | {"reporting_origin": "https://[2001:db8::1]:8443"})).reporting_origin
    assert SharedInfo.parse(_dump(ARA | {"reporting_origin": "http://[::1]:8080"})).reporting_origin
    assert SharedInfo.parse(_dump(ARA | {"debug_mode": "disabled"})).debug_mode is False
    paa = {name: value for name, value in ARA.items() if name != "source_registration_time"}
    assert SharedInfo.parse(_dump(paa | {"api": "shared-storage"})).attribution_destination is None
