"""Clients as devices: what they remember, how they are saved, what they refuse, and reports as columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aggservice.mechanisms import ForbiddenBits, SecureBits, SeededBits
from aggservice.mechanisms.errors import RandomnessForbiddenError
from ldp_client import bit_flip, build, l_osue, loloha
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.protocols import methods
from ldp_client.protocols.bitflip import BitFlipReport, sample, sample_batch
from ldp_client.protocols.hashed import HashedReport, UniversalHash
from ldp_client.sampling import ExactDraws

METHODS = tuple(methods())


def make(name: str, k: int = 12) -> Any:
    return build(name, k=k, epsilon_permanent_micro=2_000_000, epsilon_first_micro=800_000, buckets=k // 2)


LONGITUDINAL = [name for name in METHODS if make(name).memoizes]


@pytest.mark.parametrize("name", METHODS)
def test_a_client_saved_and_taken_up_again_reports_as_if_it_had_never_stopped(name: str) -> None:
    protocol = make(name)
    values = [3, 3, 7, 0, 3, 11, 7]
    whole = protocol.client(SeededBits("device"))
    expected = [whole.report(v) for v in values]
    bits = SeededBits("device")
    client = protocol.client(bits)
    found = []
    for v in values:
        found.append(client.report(v))
        client = protocol.restore(client.save(), bits)
    assert found == expected
    assert client.save() == whole.save()
    assert client.memoized == whole.memoized <= len(set(values))


@pytest.mark.parametrize("name", LONGITUDINAL)
def test_a_memoized_answer_is_never_drawn_again(name: str) -> None:
    protocol = make(name)
    client = protocol.client(SecureBits())
    client.report(5)
    before = json.loads(client.save())["memo"]
    for _ in range(20):
        client.report(5)
    assert json.loads(client.save())["memo"] == before
    assert client.memoized == 1
    if "BitFlipPM" in name:
        frozen = protocol.restore(client.save(), ForbiddenBits())
        assert frozen.report(5) == client.report(5)  # no second step: the report itself is what is memoized
        with pytest.raises(RandomnessForbiddenError):
            frozen.report(0 if 5 * 6 // 12 in client.sampled else client.sampled[0] * 2)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_another_protocol_is_refused(name: str) -> None:
    saved = make(name).client(SeededBits(1)).save()
    other = build(name, k=13, epsilon_permanent_micro=2_000_000, epsilon_first_micro=800_000, buckets=6)
    with pytest.raises(StateError, match="answers would not be private"):
        other.restore(saved, SeededBits(1))  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="not a saved client"):
        make(name).restore(b"{", SeededBits(1))
    with pytest.raises(StateError, match="not a saved client"):
        make(name).restore(b'{"memo": {}}', SeededBits(1))


@pytest.mark.parametrize(
    ("name", "memo"),
    [
        ("L-OSUE", {"3": "zz"}),
        ("L-OSUE", {"3": "ff"}),
        ("L-OSUE", {"3": "ffff"}),
        ("L-OSUE", {"12": "ff0f"}),
        ("L-GRR", {"3": 12}),
        ("L-GRR", {"-1": 1}),
        ("L-GRR", {"3": True}),
        ("L-GRR", {"x": 1}),
        ("BiLOLOHA", {"function": ["0", "0"], "answers": {"2": 0}}),
        ("BiLOLOHA", {"function": ["0"], "answers": {}}),
        ("BiLOLOHA", {"function": ["0", "10000000000000000"], "answers": {}}),
        ("BiLOLOHA", {"answers": {}}),
        ("1BitFlipPM", {"sampled": [6], "answers": {}}),
        ("1BitFlipPM", {"sampled": [0, 1], "answers": {}}),
        ("1BitFlipPM", {"sampled": [0], "answers": {"1": "00"}}),
        ("1BitFlipPM", {"sampled": [0], "answers": {"0": "02"}}),
        ("1BitFlipPM", {"answers": {}}),
        ("1BitFlipPM-bucket", {"sampled": [0], "answers": {"6": "00"}}),
        ("1BitFlipPM-bucket", {"sampled": [0], "answers": {"-1": "00"}}),
        ("L-GRR", []),
    ],
)
def test_a_broken_memo_is_refused(name: str, memo: Any) -> None:
    protocol = make(name)
    state = {"protocol": protocol.describe(), "memo": memo}
    with pytest.raises(StateError):
        protocol.restore(json.dumps(state).encode(), SeededBits(1))


@pytest.mark.parametrize("name", METHODS)
def test_values_that_are_not_in_the_domain_are_refused(name: str) -> None:
    protocol = make(name)
    client = protocol.client(SeededBits(1))
    for bad in (-1, 12, 1.0, True, None, float("nan")):
        with pytest.raises(ReportError, match=r"in \[0, 12\)"):
            client.report(bad)
    fleet = protocol.fleet(3, SeededBits(1))
    for bad in ([0, 1], [0, 1, 12], [-1, 0, 0], [0.0, 1.0, 2.0], [[0, 1, 2]]):
        with pytest.raises(ReportError):
            fleet.report(bad)
    for users in (0, -1, True, 1.5):
        with pytest.raises(ReportError, match="users must be"):
            protocol.fleet(users, SeededBits(1))


@pytest.mark.parametrize("name", METHODS)
def test_reports_of_clients_estimate_as_columns(name: str) -> None:
    """Every user holds value 4. Thirty standard errors: no false alarm in practice, and a wrong column is far off."""
    protocol = make(name)
    bits = SecureBits()
    reports = [protocol.client(bits).report(4) for _ in range(400)]
    estimate = protocol.estimate(protocol.columns(reports))
    truth = np.bincount(protocol.cell(np.full(400, 4)), minlength=protocol.cells) / 400
    assert estimate.frequencies.shape == (protocol.cells,)
    error = np.abs(estimate.frequencies - truth)
    assert (error <= 30 * np.sqrt(protocol.support.variance(400, truth)) + 1e-9).all()
    assert estimate.normalised().sum() == pytest.approx(1)
    assert int(np.argmax(protocol.estimate(protocol.columns(reports)).frequencies)) in range(protocol.cells)


@pytest.mark.parametrize("name", METHODS)
def test_a_fleet_counts_its_memoized_answers(name: str) -> None:
    protocol = make(name)
    fleet = protocol.fleet(50, SeededBits(3))
    for v in (1, 1, 1):
        fleet.report(np.full(50, v))
    once = fleet.memoized()
    assert once.tolist() == [int(protocol.memoizes)] * 50
    for v in range(12):
        fleet.report(np.full(50, v))
    flips = {"1BitFlipPM": 2, "1BitFlipPM-bucket": 6, "bBitFlipPM": 6}
    most = {"BiLOLOHA": 2, **flips}.get(name, getattr(protocol, "g", 12))
    assert (fleet.memoized() <= (0 if once[0] == 0 else most)).all()
    if name in (*flips, "RAPPOR", "L-OSUE", "L-GRR"):
        assert (fleet.memoized() == most).all()


def test_columns_that_do_not_fit_are_refused() -> None:
    hashed = loloha(k=12, g=3, epsilon_permanent_micro=2, epsilon_first_micro=1)
    other = HashedReport(function=UniversalHash(multiplier=1, addend=2, g=4), value=1)
    with pytest.raises(ReportError, match="must have 3 values"):
        hashed.columns([other])
    with pytest.raises(ReportError, match="hash to the protocol's 3 values"):
        hashed.client(SeededBits(1), other.function)
    with pytest.raises(ReportError, match="hash values must lie in"):
        hashed.columns([HashedReport(function=UniversalHash(multiplier=1, addend=2, g=3), value=3)])
    unary = l_osue(k=12, epsilon_permanent_micro=2, epsilon_first_micro=1)
    with pytest.raises(ReportError, match="no reports"):
        unary.estimate(unary.columns([]))
    with pytest.raises(ReportError, match="words"):
        unary.estimate(np.zeros((3, 2), np.uint64))
    flips = bit_flip(k=12, buckets=6, sampled=2, epsilon_permanent_micro=2)
    with pytest.raises(LdpParameterError, match="'pattern' or 'bucket', not 'value'"):
        bit_flip(k=12, buckets=6, sampled=2, epsilon_permanent_micro=2, memo="value")  # type: ignore[arg-type]
    with pytest.raises(ReportError, match="different buckets"):
        flips.client(SeededBits(1), [1, 1])
    with pytest.raises(ReportError, match="once each, in order"):
        flips.estimate(flips.columns([BitFlipReport(sampled=(1, 6), bits=b"\1")]))
    with pytest.raises(LdpParameterError, match="there is no method"):
        build("LOLOLOLO", k=3, epsilon_permanent_micro=2, epsilon_first_micro=1)


def test_every_set_of_buckets_is_sampled_alike() -> None:
    """10 sets of 2 of 5, 40,000 draws each way: 20 two-sided tests at 6 standard deviations, 4e-8 in all."""
    draws = ExactDraws(SecureBits())
    for found in (
        [sample(draws, 5, 2) for _ in range(40_000)],
        [tuple(row) for row in sample_batch(SecureBits(), 40_000, 5, 2).tolist()],
    ):
        sets, counts = np.unique(np.array(found), axis=0, return_counts=True)
        assert sets.shape == (10, 2)
        assert (sets[:, 0] < sets[:, 1]).all()
        assert (np.abs(counts - 4000) < 6 * np.sqrt(4000 * 0.9)).all()
