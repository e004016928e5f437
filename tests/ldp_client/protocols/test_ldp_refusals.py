"""What is not a report, a column, a parameter or a state is refused by name, and no refusal shows what a user holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client import (
    BitwiseEverlasting,
    DyadicTree,
    InnerProduct,
    LdpError,
    Rappor,
    bit_flip,
    l_grr,
    l_osue,
    loloha,
    optimal_hashing,
    permanent_untrackable,
    trackability,
)
from ldp_client.errors import DataError, LdpParameterError, ReportError, StateError
from ldp_client.estimation import Support
from ldp_client.experiments.datasets import counters, synthetic_dataset
from ldp_client.finite_state import FiniteState
from ldp_client.protocols.bitflip import BitFlipColumns, BitFlipReport
from ldp_client.protocols.dyadic import DyadicServer, NodeReport
from ldp_client.protocols.hashed import HashedColumns, HashedReport, UniversalHash
from ldp_client.protocols.inner_product import PairColumns
from ldp_client.protocols.rappor import RapporColumns, RapporCounts, RapporReport
from ldp_client.protocols.rappor_decoding import decode
from ldp_client.tracking import several_untrackable

PAIR = {"epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}
GRR = l_grr(k=5, **PAIR)  # type: ignore[arg-type]
HASH = loloha(k=12, g=3, **PAIR)  # type: ignore[arg-type]
UNARY = l_osue(k=12, **PAIR)  # type: ignore[arg-type]
FLIPS = bit_flip(k=8, buckets=4, sampled=2, epsilon_permanent_micro=1_000_000)
ALL_FLIPS = bit_flip(k=8, buckets=4, sampled=4, epsilon_permanent_micro=1_000_000)
BIT = BitwiseEverlasting(epsilon_permanent_micro=1_000_000, epsilon_report_micro=1_000_000)
PAIRS = InnerProduct(bits=3, stored=4, epsilon_pair_micro=1_000_000)
RAPPOR = Rappor(size=16, hashes=2, cohorts=4)
TREE = DyadicTree(periods=4, changes=2, epsilon_micro=1_000_000)
FUNCTION = UniversalHash(multiplier=3, addend=5, g=3)
SUPPORT = Support(p=0.7, q=0.2)


def test_hash_words_must_be_unsigned() -> None:
    """A signed word less an unsigned one is a float64, whose last eleven bits are gone: the counts were wrong."""
    fleet = HASH.fleet(300, SeededBits("words"))
    columns = fleet.report(np.arange(300) % 12)
    assert HASH.estimate(columns).frequencies.shape == (12,)
    for name in ("multipliers", "addends"):
        for kind in (np.int64, np.float64, ">u8", object):
            with pytest.raises(ReportError, match="uint64"):
                HASH.estimate(replace(columns, **{name: getattr(columns, name).astype(kind)}))
        with pytest.raises(ReportError, match="numpy array"):
            HASH.estimate(replace(columns, **{name: getattr(columns, name).tolist()}))
        with pytest.raises(ReportError, match="shape"):
            HASH.estimate(replace(columns, **{name: getattr(columns, name)[1:]}))
    for values in (columns.values.astype(np.float64), columns.values + 3, columns.values - 1, columns.values[:, None]):
        with pytest.raises(ReportError, match="hash values"):
            HASH.estimate(replace(columns, values=values))
    narrow = HASH.estimate(replace(columns, values=columns.values.astype(np.uint8)))
    assert (narrow.frequencies == HASH.estimate(columns).frequencies).all()


def flips(*sampled: Any, bits: bytes = b"\1") -> list[BitFlipReport]:
    return [BitFlipReport(sampled=sampled, bits=bits)]


def flip_columns(sampled: Any, words: int = 1, kind: Any = np.uint64) -> BitFlipColumns:
    return BitFlipColumns(sampled=np.array(sampled, dtype=np.int32), rows=np.ones((1, words), dtype=kind))


def pair_columns(vectors: Any, products: Any, kind: Any = np.uint64) -> PairColumns:
    return PairColumns(vectors=np.array(vectors, dtype=kind), products=np.array(products))


def hashed(value: Any, function: Any = FUNCTION) -> list[HashedReport]:
    return [HashedReport(function=function, value=value)]


STRANGE: list[Callable[[], object]] = [
    lambda: GRR.columns([1.7, 2.9]),  # type: ignore[list-item]
    lambda: GRR.columns(["a"]),  # type: ignore[list-item]
    lambda: GRR.columns([float("nan")]),  # type: ignore[list-item]
    lambda: GRR.columns([2**70]),
    lambda: GRR.columns([True]),
    lambda: GRR.columns([-1]),
    lambda: GRR.columns(3),  # type: ignore[arg-type]
    lambda: GRR.columns(np.array([1.0])),  # type: ignore[arg-type]
    lambda: GRR.columns(np.array([[1]])),  # type: ignore[arg-type]
    lambda: GRR.columns(np.array([2**64 - 1], dtype=np.uint64)),  # type: ignore[arg-type]
    lambda: GRR.estimate(np.array([1.0, 2.0])),  # type: ignore[arg-type]
    lambda: GRR.estimate([1, 2]),  # type: ignore[arg-type]
    lambda: GRR.estimate(np.ma.array([1, 2], mask=[0, 1])),
    lambda: GRR.estimate(np.array([5])),
    lambda: GRR.estimate(np.zeros(0, np.int64)),
    lambda: GRR.fleet(2, SeededBits("x")).report([[1], [2, 3]]),
    lambda: BIT.columns([0.9]),  # type: ignore[list-item]
    lambda: BIT.estimate(np.array([0.0, 1.0])),  # type: ignore[arg-type]
    lambda: BIT.estimate(np.array([2])),
    lambda: HASH.columns(hashed(1.9)),
    lambda: HASH.columns(hashed(1, function=None)),
    lambda: HASH.columns([1]),  # type: ignore[list-item]
    lambda: HASH.estimate(np.zeros(3)),  # type: ignore[arg-type]
    lambda: HASH.client(SeededBits("x"), 3),  # type: ignore[arg-type]
    lambda: UniversalHash(multiplier=1, addend=1, g=2.5),  # type: ignore[arg-type]
    lambda: UNARY.columns([5]),  # type: ignore[list-item]
    lambda: UNARY.columns(5),  # type: ignore[arg-type]
    lambda: UNARY.estimate(np.zeros((3, 1))),  # type: ignore[arg-type]
    lambda: UNARY.estimate(np.zeros((3, 1), np.int64)),  # type: ignore[arg-type]
    lambda: UNARY.estimate(np.uint64(3)),  # type: ignore[arg-type]
    lambda: UNARY.estimate([[1]]),  # type: ignore[arg-type]
    lambda: FLIPS.columns(flips(1, 1)),
    lambda: FLIPS.columns(flips(2, 1)),
    lambda: FLIPS.columns(flips(1)),
    lambda: FLIPS.columns(flips(-1, 1)),
    lambda: FLIPS.columns(flips(0.0, 1)),
    lambda: FLIPS.columns(flips(0, 4)),
    lambda: FLIPS.columns(flips(0, 1, bits=b"\4")),
    lambda: FLIPS.columns([BitFlipReport(sampled=3, bits=b"\1")]),  # type: ignore[arg-type]
    lambda: FLIPS.columns([7]),  # type: ignore[list-item]
    lambda: FLIPS.estimate(flip_columns([[1, 1]])),
    lambda: FLIPS.estimate(flip_columns([[2, 1]])),
    lambda: FLIPS.estimate(flip_columns([[-1, 1]])),
    lambda: FLIPS.estimate(flip_columns([[1, 4]])),
    lambda: FLIPS.estimate(flip_columns([[1, 2, 3]])),
    lambda: FLIPS.estimate(flip_columns([1, 2])),
    lambda: FLIPS.estimate(flip_columns([[0, 1]], kind=np.int64)),
    lambda: FLIPS.estimate(flip_columns([[0, 1]], words=2)),
    lambda: FLIPS.estimate(BitFlipColumns(sampled=np.array([[0, 1]], np.int32), rows=np.full((1, 1), 4, np.uint64))),
    lambda: FLIPS.estimate(BitFlipColumns(sampled=np.array([[0.0, 1.0]]), rows=np.ones((1, 1), np.uint64))),  # type: ignore[arg-type]
    lambda: FLIPS.client(SeededBits("x"), [0.0, 1]),  # type: ignore[list-item]
    lambda: FLIPS.client(SeededBits("x"), 3),  # type: ignore[arg-type]
    lambda: ALL_FLIPS.columns(flips(3, 2, 1, 0)),
    lambda: ALL_FLIPS.estimate(flip_columns([[3, 2, 1, 0]])),
    lambda: FLIPS.encode(flips(1, 1)[0]),
    lambda: FLIPS.encode(flips(2, 1)[0]),
    lambda: FLIPS.decode("text"),  # type: ignore[arg-type]
    lambda: PAIRS.columns([(1.7, 1)]),  # type: ignore[list-item]
    lambda: PAIRS.columns([(1, 1.0)]),  # type: ignore[list-item]
    lambda: PAIRS.columns([(0, 1)]),
    lambda: PAIRS.columns([(1, 1, 1)]),  # type: ignore[list-item]
    lambda: PAIRS.columns([5]),  # type: ignore[list-item]
    lambda: PAIRS.estimate(pair_columns([-2], [True], np.int64)),
    lambda: PAIRS.estimate(pair_columns([2.0], [True], np.float64)),
    lambda: PAIRS.estimate(pair_columns([2], [1])),
    lambda: PAIRS.estimate(pair_columns([0], [True])),
    lambda: PAIRS.estimate(pair_columns([8], [True])),
    lambda: PAIRS.estimate(pair_columns([[2]], [[True]])),
    lambda: PAIRS.estimate(pair_columns([2], [True, False])),
    lambda: PAIRS.estimate(PAIRS.columns([])),
    lambda: PAIRS.estimate(PAIRS.columns([(1, 1)]), [1.7]),
    lambda: PAIRS.estimate(PAIRS.columns([(1, 1)]), [-1]),
    lambda: PAIRS.estimate(PAIRS.columns([(1, 1)]), [8]),
    lambda: PAIRS.estimate(PAIRS.columns([(1, 1)]), 3),
    lambda: PAIRS.fleet(2, SeededBits("x")).report([1, 8]),
    lambda: RAPPOR.columns([RapporReport(cohort=4, row=b"\0\0")]),
    lambda: RAPPOR.columns([RapporReport(cohort=1.5, row=b"\0\0")]),  # type: ignore[arg-type]
    lambda: RAPPOR.columns([RapporReport(cohort=1, row=3)]),  # type: ignore[arg-type]
    lambda: RAPPOR.columns([b"\0\0"]),  # type: ignore[list-item]
    lambda: RAPPOR.count(RapporColumns(cohorts=np.array([-1]), rows=np.zeros((1, 1), np.uint64))),
    lambda: RAPPOR.count(RapporColumns(cohorts=np.array([0.0]), rows=np.zeros((1, 1), np.uint64))),  # type: ignore[arg-type]
    lambda: RAPPOR.count(RapporColumns(cohorts=np.array([0]), rows=np.zeros((1, 1), np.int64))),  # type: ignore[arg-type]
    lambda: RAPPOR.count(3),  # type: ignore[arg-type]
    lambda: RAPPOR.client(SeededBits("x")).report(5),  # type: ignore[arg-type]
    lambda: RAPPOR.client(SeededBits("x")).report(["a"]),  # type: ignore[arg-type]
    lambda: RAPPOR.positions("a", 1.0),  # type: ignore[arg-type]
    lambda: RAPPOR.fleet(2, SeededBits("x")),
    lambda: RAPPOR.fleet(2, 5, SeededBits("x")),  # type: ignore[arg-type]
    lambda: RAPPOR.fleet(2, SeededBits("x"), [5]),  # type: ignore[list-item]
    lambda: decode(RAPPOR, counted([5] * 4, 6), ["a", "b"]),
    lambda: decode(RAPPOR, counted([5] * 4, 1), [1, 2]),  # type: ignore[list-item]
    lambda: decode(RAPPOR, counted([5.0] * 4, 1), ["a"]),
    lambda: counted([5] * 4, 1) + counted([5] * 3, 1),
    lambda: TREE.fleet_sums([[0, 1, 0, 1]], SeededBits("x")),  # type: ignore[arg-type]
    lambda: TREE.fleet_sums(np.zeros(4, np.int8), SeededBits("x")),
    lambda: TREE.fleet_sums(np.zeros((0, 4), np.int8), SeededBits("x")),
    lambda: DyadicServer(TREE).add_sums(np.zeros(8)),  # type: ignore[arg-type]
    lambda: DyadicServer(TREE).add_sums(1.5),  # type: ignore[arg-type]
    lambda: DyadicServer(TREE).add([5]),  # type: ignore[list-item]
    lambda: DyadicServer(TREE).add([NodeReport(level=1.0, period=1, sign=1)]),  # type: ignore[arg-type]
    lambda: DyadicServer(TREE).add([NodeReport(level=1, period=1, sign=True)]),
    lambda: DyadicServer(TREE).estimate(1.5),  # type: ignore[arg-type]
    lambda: TREE.client(SeededBits("x")).report(2),  # type: ignore[arg-type]
    lambda: TREE.client(SeededBits("x")).report(np.zeros(2)),  # type: ignore[arg-type]
    lambda: UNARY.stream_law(12),
    lambda: GRR.stream_law(5),
    lambda: BIT.stream_law(2),
    lambda: PAIRS.stream_law(8),
    lambda: RAPPOR.stream_law(5),
]


def counted(reports: list[Any], ones: int) -> RapporCounts:
    return RapporCounts(reports=np.array(reports), set_bits=np.full((len(reports), 16), ones))


@pytest.mark.parametrize("number", range(len(STRANGE)))
def test_what_no_client_sends_is_refused(number: int) -> None:
    with pytest.raises(ReportError):
        STRANGE[number]()


HUGE = 10**5000
PARAMETERS: list[Callable[[], object]] = [
    lambda: Rappor(size=8.0),  # type: ignore[arg-type]
    lambda: Rappor(hashes=1.5),  # type: ignore[arg-type]
    lambda: Rappor(cohorts=True),
    lambda: Rappor(size=HUGE),
    lambda: Rappor(f=Fraction(1, HUGE)),
    lambda: Rappor(q=Fraction(HUGE)),
    lambda: InnerProduct(bits=2.5, stored=1, epsilon_pair_micro=1),  # type: ignore[arg-type]
    lambda: InnerProduct(bits=2, stored=1.5, epsilon_pair_micro=1),  # type: ignore[arg-type]
    lambda: InnerProduct(bits=2, stored=1, epsilon_pair_micro=HUGE),
    lambda: DyadicTree(periods=4, changes=1.5, epsilon_micro=1),  # type: ignore[arg-type]
    lambda: DyadicTree(periods=4.0, changes=1, epsilon_micro=1),  # type: ignore[arg-type]
    lambda: l_grr(k=HUGE, **PAIR),  # type: ignore[arg-type]
    lambda: l_grr(k=3, epsilon_permanent_micro=HUGE, epsilon_first_micro=1),
    lambda: loloha(k=3, g=2.0, **PAIR),  # type: ignore[arg-type]
    lambda: Support(p=0.2, q=0.7),
    lambda: SUPPORT.error_bound(0, 3, 0.1),
    lambda: SUPPORT.error_bound(10, 0, 0.1),
    lambda: SUPPORT.error_bound(10, 3, 1.0),
    lambda: SUPPORT.error_bound(10, 3, "a"),  # type: ignore[arg-type]
    lambda: SUPPORT.variance(0),
    lambda: SUPPORT.approximate_variance(1.5),  # type: ignore[arg-type]
    lambda: GRR.estimate(np.array([1])).interval(1.0),
    lambda: PAIRS.estimate(PAIRS.columns([(1, 1)])).interval(0),
    lambda: PAIRS.error_bound(0, 0.1),
    lambda: PAIRS.untrackable(1.5),  # type: ignore[arg-type]
    lambda: BIT.error_bound(1.5, 0.1),  # type: ignore[arg-type]
    lambda: BIT.untrackable_at_least(0),
    lambda: TREE.error_bound(1.5, 0.1),  # type: ignore[arg-type]
    lambda: permanent_untrackable(2.5, 1.0),  # type: ignore[arg-type]
    lambda: several_untrackable(2.5, 1.0),  # type: ignore[arg-type]
    lambda: trackability(BIT.stream_law(1), 2.5, 3, SeededBits("x")),  # type: ignore[arg-type]
    lambda: trackability(BIT.stream_law(1), 2, 1.5, SeededBits("x")),  # type: ignore[arg-type]
    lambda: FiniteState(states=[[1.0]], symbols=[[1.0]]),  # type: ignore[arg-type]
    lambda: BIT.finite_state().everlasting(1.5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(PARAMETERS)))
def test_parameters_that_mean_nothing_are_refused(number: int) -> None:
    with pytest.raises(LdpParameterError) as caught:
        PARAMETERS[number]()
    assert isinstance(caught.value, ValueError)  # as they were before they had a name
    assert len(str(caught.value)) < 250


def test_an_interval_of_no_candidates_is_empty() -> None:
    low, high = PAIRS.estimate(PAIRS.columns([(1, 1)]), []).interval(simultaneous=True)
    assert low.size == high.size == 0


def test_a_server_takes_all_reports_of_a_batch_or_none() -> None:
    """Else the sender of a refused batch, who sends it again without the strange report, is counted twice."""
    server = DyadicServer(TREE)
    good = [NodeReport(level=1, period=1, sign=1), NodeReport(level=3, period=4, sign=-1)]
    before = server.estimates().tolist()
    with pytest.raises(ReportError):
        server.add([*good, NodeReport(level=2, period=3, sign=1)])
    assert server.estimates().tolist() == before
    server.add(iter(good))
    assert server.estimates().tolist() != before


def test_a_refused_state_leaves_a_device_where_it_was() -> None:
    client = TREE.client(SeededBits("x"))
    for _ in range(4):
        client.report(False)
    before = client.save()
    with pytest.raises(ReportError, match="periods have passed"):
        client.report(True)
    assert client.save() == before


def chained(error: BaseException) -> str:
    """Return all that an error and those it is chained to hold."""
    found, held = [error], ""
    while found:
        each = found.pop()
        held += "".join(map(repr, (each, each.args, vars(each), getattr(each, "object", ""), getattr(each, "doc", ""))))
        found += [other for other in (each.__context__, each.__cause__) if other is not None]
    return held


def test_no_error_holds_what_the_user_holds(tmp_path: Path) -> None:
    state = json.dumps({"protocol": GRR.describe(), "memo": {"77123": 1}}).encode()
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n3,77123x\n")
    strings = json.dumps({"protocol": RAPPOR.describe(), "memo": {"cohort": 9, "rows": {"77123": "00"}}}).encode()
    for attempt in (
        lambda: RAPPOR.client(SeededBits("x")).report("77123\ud800"),
        lambda: RAPPOR.client(SeededBits("x")).report(77123),  # type: ignore[arg-type]
        lambda: RAPPOR.fleet(1, SeededBits("x"), ["77123\ud800"]),
        lambda: GRR.client(SeededBits("x")).report(77123),
        lambda: GRR.fleet(2, SeededBits("x")).report([0, 77123]),
        lambda: GRR.fleet(2, SeededBits("x")).report([0, "77123"]),  # type: ignore[list-item]
        lambda: PAIRS.fleet(2, SeededBits("x")).report([0, 77123]),
        lambda: TREE.client(SeededBits("x")).report(77123),  # type: ignore[arg-type]
        lambda: GRR.encode(77123),
        lambda: RAPPOR.encode("77123"),
        lambda: GRR.stream_law(77123),
        lambda: GRR.restore(state, SeededBits("x")),
        lambda: GRR.restore(state[:-1], SeededBits("x")),
        lambda: GRR.restore(state[:-1] + b"\xff", SeededBits("x")),
        lambda: RAPPOR.restore(strings, SeededBits("x")),
        lambda: counters(table, "table"),
    ):
        with pytest.raises(LdpError) as caught:
            attempt()
        assert "77123" not in chained(caught.value)


@pytest.mark.parametrize("protocol", [GRR, HASH, UNARY, FLIPS, BIT, PAIRS, RAPPOR, TREE])
def test_states_that_are_none_are_refused(protocol: Any) -> None:
    deep = b'{"memo": {}, "protocol": ' + b"[" * 900 + b"]" * 900 + b"}"
    digits = json.dumps({"protocol": protocol.describe(), "memo": {"9" * 5000: 1, "rows": {}, "cohort": "9" * 5000}})
    for saved in (b"[" * 100_000, b"\xff", b"3", b"[]", b"1" * 5000, None, 3, deep, digits.encode(), "{}"):
        with pytest.raises(StateError):
            protocol.restore(saved, SeededBits("x"))


def test_tables_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    for text in (
        "a,b\n99999999999999999999999,1\n",
        f"a,b\n{'1' * 140_000},1\n",
        f"a,b\n{'1' * 5_000},1\n",
        f"{'a' * 140_000},b\n1,2\n",
        "a,b\n1,é\n",
        "a,b\n\n",
        "a,b\n1,2\n3\n",
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=r"bad\.csv") as caught:
            counters(path, "bad")
        assert len(str(caught.value)) < 300
    for sizes in ({"users": 0}, {"k": 1}, {"collections": 0}, {"users": 1.5}):
        with pytest.raises(DataError):
            synthetic_dataset(SecureBits(), **sizes)  # type: ignore[arg-type]


def test_intervals_are_computed_for_the_reported_hash_values_only() -> None:
    """ε = 20 hashes to 485,165,196 values: a table of all of them would take gigabytes.

    A standard deviation is 0.0224 for the value held; 0.15 is 6.7 of them, an alarm of 2e-11. Another value
    would need ten collisions, of which one alone has odds of 4e-6.
    """
    protocol = optimal_hashing(k=10, epsilon_micro=20_000_000)
    assert protocol.g == 485_165_196
    columns = protocol.fleet(2_000, SecureBits()).report(np.full(2_000, 4))
    assert isinstance(columns, HashedColumns)
    found = protocol.estimate(columns).frequencies
    assert abs(found[4] - 1) < 0.15
    assert np.abs(np.delete(found, 4)).max() < 0.01
