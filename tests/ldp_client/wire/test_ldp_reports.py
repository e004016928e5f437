"""Reports as bytes and back, and the names of randomizers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import SeededBits
from ldp_client import BitwiseEverlasting, Rappor, bit_flip, build, columns_of, randomizer_of
from ldp_client.errors import LdpParameterError, ReportError
from ldp_client.protocols import methods
from ldp_client.protocols.bitflip import BitFlipReport
from ldp_client.wire import _micro

METHODS = tuple(methods())


def make(name: str, k: int = 21) -> Any:
    return build(name, k=k, epsilon_permanent_micro=2_000_000, epsilon_first_micro=800_000, buckets=10)


@pytest.mark.parametrize("name", METHODS)
def test_reports_survive_their_journey(name: str) -> None:
    protocol = make(name)
    client = protocol.client(SeededBits(name))
    for value in (0, 20, 3):
        report = client.report(value)
        data = protocol.encode(report)
        assert len(data) == protocol.report_bytes
        assert protocol.decode(data) == report


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(METHODS), st.binary(max_size=60))
def test_whatever_is_decoded_is_a_report(name: str, data: bytes) -> None:
    protocol = make(name)
    for candidate in (data, data[: protocol.report_bytes].ljust(protocol.report_bytes, b"\0")):
        try:
            report = protocol.decode(candidate)
        except ReportError:
            continue
        assert protocol.encode(report) == candidate
        protocol.estimate(protocol.columns([report]))


def test_what_is_not_a_report_is_refused() -> None:
    for name in METHODS:
        with pytest.raises(ReportError):
            make(name).encode("no report")
        with pytest.raises(ReportError, match="bytes, not 0"):
            make(name).decode(b"")
    with pytest.raises(ReportError, match=r"in \[0, 21\)"):
        make("GRR").decode(b"\0\0\0\x15")
    with pytest.raises(ReportError, match="not a report of LH"):
        make("BLH").encode(make("OLH").client(SeededBits(1)).report(3))
    flips = bit_flip(k=10, buckets=10, sampled=2, epsilon_permanent_micro=1)
    for sampled in ((3, 3), (4, 3), (3, 10)):
        data = b"".join(bucket.to_bytes(4, "big") for bucket in sampled) + b"\1"
        with pytest.raises(ReportError, match="once each, in order"):
            flips.decode(data)
    with pytest.raises(ReportError, match="in \\[0, 10\\)"):
        flips.encode(BitFlipReport(sampled=(3, 10), bits=b"\1"))


def test_randomizers_have_one_name_each() -> None:
    names = {make(name).randomizer_id for name in METHODS}
    assert len(names) == len(METHODS) - 1
    assert make("OLOLOHA").randomizer_id == make("BiLOLOHA").randomizer_id  # Eq. 6 says g = 2 here: they are one
    assert make("OLOLOHA").randomizer_id != make("OLOLOHA", k=22).randomizer_id
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_reports_of_rappor_and_bep_survive_theirs() -> None:
    rappor = Rappor(size=21, hashes=2, cohorts=7)
    report = rappor.client(SeededBits("rappor")).report("word")
    data = rappor.encode(report)
    assert len(data) == rappor.report_bytes == 7
    assert rappor.decode(data) == report
    bit = BitwiseEverlasting(epsilon_permanent_micro=1_000_000, epsilon_report_micro=500_000)
    assert [bit.decode(bit.encode(value)) for value in (0, 1)] == [0, 1]
    for protocol, bad in ((rappor, b"\0\0\0\x07" + data[4:]), (rappor, data[:6] + b"\xff"), (bit, b"\2")):
        with pytest.raises(ReportError):
            protocol.decode(bad)
    assert rappor.randomizer_id != Rappor(size=21, hashes=2, cohorts=8).randomizer_id


def test_a_randomizer_names_what_it_leaks() -> None:
    """ε₀ rounded up to a millionth, and ε∞ only where something is memoized."""
    once = randomizer_of(make("GRR"))
    assert (once.epsilon_micro, once.epsilon_permanent_micro) == (2_000_000, None)
    twice = randomizer_of(make("L-OSUE"))
    assert (twice.epsilon_micro, twice.epsilon_permanent_micro) == (800_000, 2_000_000)
    paper = make("L-GRR")
    assert 0 <= randomizer_of(paper).epsilon_micro / 1e6 - paper.privacy.first < 1e-6
    rappor = Rappor(size=21, hashes=2, cohorts=7)
    name = randomizer_of(rappor)
    assert 0 <= name.epsilon_micro / 1e6 - rappor.privacy.first < 1e-6
    assert name.epsilon_permanent_micro == 4_394_450
    for method in METHODS:
        name = randomizer_of(make(method))
        assert name.epsilon_micro / 1e6 >= make(method).privacy.first - 1e-12
        assert name.report_bytes == make(method).report_bytes
    with pytest.raises(LdpParameterError, match="cannot be charged"):
        randomizer_of(Rappor(f=Fraction(0), p=Fraction(0), q=Fraction(1)))


def test_a_randomizers_epsilon_is_never_below_what_it_leaks() -> None:
    """Half a millionth of a millionth more than one is two: only what is a whole number but for rounding stays one."""
    assert [_micro(each) for each in (1.0000005e-6, 0.1 + 0.2, 0.8, 1.2e-15)] == [2, 300_000, 800_000, 1]
    for k in (2, 3, 5, 17, 360):
        for permanent, first in ((2, 1), (7, 3), (40, 39), (1_000_000, 500_000), (3_000_001, 2_999_999)):
            for method in ("L-GRR", "L-GRR-exact", "L-OSUE"):
                protocol = build(method, k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first)
                named = randomizer_of(protocol).epsilon_micro / 1e6  # type: ignore[arg-type]
                assert named >= protocol.privacy.first * (1 - 1e-12)
                if method != "L-GRR":
                    assert named == first / 1e6


@pytest.mark.parametrize("name", METHODS)
def test_what_a_device_sends_instead_of_a_report_costs_only_itself(name: str) -> None:
    protocol = make(name)
    bits = SeededBits(name)
    good = [protocol.encode(protocol.client(bits).report(3)) for _ in range(20)]
    strange = [b"", b"\xff" * (protocol.report_bytes + 1)]
    with pytest.raises(ReportError):
        columns_of(protocol, [*good, *strange])
    refused: list[bytes] = []
    found = protocol.estimate(columns_of(protocol, [strange[0], *good, strange[1]], refused=refused))
    assert refused == strange
    assert (found.frequencies == protocol.estimate(columns_of(protocol, good)).frequencies).all()
