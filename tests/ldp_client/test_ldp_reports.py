"""Reports as bytes and back, and the names of randomizers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ldp_client import METHODS, ReportError, build, decode_report, encode_report, randomizer_id, report_bytes
from ldp_client.bitflip import BitFlipReport, bit_flip
from mechanisms import SeededBits


def make(name: str, k: int = 21) -> Any:
    return build(name, k=k, epsilon_permanent_micro=2_000_000, epsilon_first_micro=800_000, buckets=10)


@pytest.mark.parametrize("name", METHODS)
def test_reports_survive_their_journey(name: str) -> None:
    protocol = make(name)
    client = protocol.client(SeededBits(name))
    for value in (0, 20, 3):
        report = client.report(value)
        data = encode_report(protocol, report)
        assert len(data) == report_bytes(protocol)
        assert decode_report(protocol, data) == report


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(METHODS), st.binary(max_size=60))
def test_whatever_is_decoded_is_a_report(name: str, data: bytes) -> None:
    protocol = make(name)
    for candidate in (data, data[: report_bytes(protocol)].ljust(report_bytes(protocol), b"\0")):
        try:
            report = decode_report(protocol, candidate)
        except ReportError:
            continue
        assert encode_report(protocol, report) == candidate
        protocol.estimate(protocol.columns([report]))


def test_what_is_not_a_report_is_refused() -> None:
    for name in METHODS:
        with pytest.raises(ReportError):
            encode_report(make(name), "no report")
        with pytest.raises(ReportError, match="bytes here, not 0"):
            decode_report(make(name), b"")
    with pytest.raises(ReportError, match=r"in \[0, 21\)"):
        decode_report(make("GRR"), b"\0\0\0\x15")
    with pytest.raises(ReportError, match="not a report of LH"):
        encode_report(make("BLH"), make("OLH").client(SeededBits(1)).report(3))
    flips = bit_flip(k=10, buckets=10, sampled=2, epsilon_permanent_micro=1)
    for sampled in ((3, 3), (4, 3), (3, 10)):
        data = b"".join(bucket.to_bytes(4, "big") for bucket in sampled) + b"\1"
        with pytest.raises(ReportError, match="once each, in order"):
            decode_report(flips, data)
    with pytest.raises(ReportError, match="in \\[0, 10\\)"):
        encode_report(flips, BitFlipReport(sampled=(3, 10), bits=b"\1"))


def test_randomizers_have_one_name_each() -> None:
    names = {randomizer_id(make(name)) for name in METHODS}
    assert len(names) == len(METHODS) - 1
    assert randomizer_id(make("OLOLOHA")) == randomizer_id(make("BiLOLOHA"))  # Eq. 6 says g = 2 here: they are one
    assert randomizer_id(make("OLOLOHA")) != randomizer_id(make("OLOLOHA", k=22))
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
