"""Unit keys: fixed length, bound to the origin, and the deployed shared ID to the letter."""

from __future__ import annotations

import dataclasses
from hashlib import sha256

import pytest

from aggservice.wire import Api, SharedInfo
from aggservice.wire.errors import EncodingError
from aggservice.wire.report.units import report_unit, shared_id, shared_id_text, shared_id_unit

INFO = SharedInfo(
    api=Api.ATTRIBUTION_REPORTING,
    report_id="21abd97f-73e8-4b88-9389-a9fee6abda5e",
    reporting_origin="https://report.test",
    scheduled_report_time_s=1_234_486_400,
    attribution_destination="https://conversion.test",
    source_registration_time_s=1_234_483_200,
)


def _with(**changes: object) -> SharedInfo:
    return dataclasses.replace(INFO, **changes)  # type: ignore[arg-type]


def test_the_shared_id_is_the_deployed_one() -> None:
    text = "attribution-reporting-1.0-https://report.test-https://conversion.test-2009-02-13T00:00:00Z-7"
    assert shared_id_text(INFO, 7) == text
    assert shared_id(INFO, 7) == sha256(text.encode()).hexdigest()
    old = _with(version="0.1")
    assert shared_id_text(old, 0) == text.replace("1.0", "0.1")[:-2]
    assert shared_id_text(old, 7) == text.replace("1.0", "0.1")
    assert shared_id_text(_with(source_registration_time_s=None), 0) == (
        "attribution-reporting-1.0-https://report.test-https://conversion.test-0"
    )
    assert "1970-01-01T00:00:00Z" in shared_id_text(_with(source_registration_time_s=0), 0)
    private = SharedInfo(
        api=Api.SHARED_STORAGE,
        report_id=INFO.report_id,
        reporting_origin="https://report.test",
        scheduled_report_time_s=0,
    )
    assert shared_id_text(private, 2**64 - 1) == f"shared-storage-1.0-https://report.test-{2**64 - 1}"


def test_the_shared_id_is_the_digest_that_the_deployed_service_tests_for() -> None:
    """Its AttributionReporting(Debug)PrivacyBudgetKeyGeneratorTest, versions 0.1 and 1.0."""
    info = _with(
        reporting_origin="https://www.origin.com",
        attribution_destination="https://www.destination.com",
        scheduled_report_time_s=1_609_459_200,
        source_registration_time_s=1_609_459_200,
        version="0.1",
    )
    debug = dataclasses.replace(info, api=Api.ATTRIBUTION_REPORTING_DEBUG)
    newer = dataclasses.replace(debug, version="1.0")
    assert shared_id(info) == "7b16c743c6ffe44bc559561b4f457fd3dcf91b797446ed6dc6b01d9fb32d3565"
    assert shared_id(debug) == "56f9dee8fe909ddc293084429e614cc272b8a79090577a7d566aea140ff087a4"
    assert shared_id(newer, 123) == "768bf2420536f93b4cf25ea907711eff43e12e600aa9c7099a7d3aa095b4152f"


def test_a_report_unit_is_hour_and_digest() -> None:
    message = b"\x00\x13https://report.test" + bytes.fromhex("21abd97f73e84b889389a9fee6abda5e") + bytes(7) + b"\x05"
    expected = (1_234_486_400 // 3600).to_bytes(4, "big") + sha256(message).digest()[:16]
    assert report_unit(INFO, 5) == expected
    assert report_unit(_with(report_id=INFO.report_id.upper()), 5) == expected


def test_units_differ_in_everything_that_they_cover_and_in_nothing_else() -> None:
    report_changes = [
        {"reporting_origin": "https://other.test"},
        {"report_id": "31abd97f-73e8-4b88-9389-a9fee6abda5e"},
        {"scheduled_report_time_s": INFO.scheduled_report_time_s + 3600},
    ]
    units = {report_unit(INFO), report_unit(INFO, 1), *(report_unit(_with(**change)) for change in report_changes)}
    assert len(units) == 5
    assert {len(unit) for unit in units} == {20}
    assert report_unit(_with(scheduled_report_time_s=INFO.scheduled_report_time_s + 1)) == report_unit(INFO)

    shared_changes = [
        {"reporting_origin": "https://other.test"},
        {"attribution_destination": "https://other.test"},
        {"source_registration_time_s": None},
        {"scheduled_report_time_s": INFO.scheduled_report_time_s + 3600},
        {"version": "0.1"},
        {"api": Api.ATTRIBUTION_REPORTING_DEBUG},
    ]
    shared = {shared_id_unit(INFO), shared_id_unit(INFO, 1)}
    shared |= {shared_id_unit(_with(**change)) for change in shared_changes}
    assert len(shared) == 8
    assert {len(unit) for unit in shared} == {20}
    assert shared_id_unit(_with(report_id="31abd97f-73e8-4b88-9389-a9fee6abda5e")) == shared_id_unit(INFO)
    assert not shared & units


def test_what_has_no_unit_is_refused() -> None:
    for filtering_id in (-1, 2**64):
        with pytest.raises(EncodingError):
            report_unit(INFO, filtering_id)
        with pytest.raises(EncodingError):
            shared_id_unit(INFO, filtering_id)
    unversioned = SharedInfo(
        api=None,
        version="",
        privacy_budget_key="key",
        report_id=INFO.report_id,
        reporting_origin="https://report.test",
        scheduled_report_time_s=0,
    )
    with pytest.raises(EncodingError):
        shared_id(unversioned)
