"""Anything into every protocol's ``columns``, ``estimate`` and ``restore``: an answer or an error of the package."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aggservice.mechanisms import SeededBits
from ldp_client import BitwiseEverlasting, DyadicTree, InnerProduct, LdpError, Rappor, bit_flip, l_grr, l_osue, loloha
from ldp_client.protocols.bitflip import BitFlipReport
from ldp_client.protocols.dyadic import DyadicServer, NodeReport
from ldp_client.protocols.hashed import HashedReport, UniversalHash
from ldp_client.protocols.rappor import RapporReport

PAIR = {"epsilon_permanent_micro": 2_000_000, "epsilon_first_micro": 1_000_000}
TREE = DyadicTree(periods=4, changes=2, epsilon_micro=1_000_000)
RAPPOR = Rappor(size=12, hashes=2, cohorts=3)
PROTOCOLS: dict[str, Any] = {
    "direct": l_grr(k=5, **PAIR),  # type: ignore[arg-type]
    "hashed": loloha(k=12, g=3, **PAIR),  # type: ignore[arg-type]
    "unary": l_osue(k=12, **PAIR),  # type: ignore[arg-type]
    "flips": bit_flip(k=8, buckets=4, sampled=2, epsilon_permanent_micro=1_000_000),
    "all flips": bit_flip(k=8, buckets=4, sampled=4, epsilon_permanent_micro=1_000_000),
    "bit": BitwiseEverlasting(epsilon_permanent_micro=1_000_000, epsilon_report_micro=1_000_000),
    "pairs": InnerProduct(bits=3, stored=2, epsilon_pair_micro=1_000_000),
    "rappor": RAPPOR,
}
NAMES = sorted(PROTOCOLS)
SETTINGS = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(),
    st.just(2**70),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([np.int8(1), np.uint64(2**64 - 1), np.float32(1), np.bool_(True), np.array(1), object()]),
)
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.integer_dtypes(endianness="?"),
        hnp.unsigned_integer_dtypes(endianness="?"),
        hnp.floating_dtypes(),
        hnp.boolean_dtypes(),
        hnp.unicode_string_dtypes(max_len=3),
        hnp.datetime64_dtypes(),
        st.just(np.dtype(np.uint64)),
        st.just(np.dtype(np.int64)),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
SMALL = st.builds(
    lambda array, kind: array.astype(kind),
    hnp.arrays(np.int8, st.sampled_from([(3,), (3, 1), (3, 2), (3, 4)]), elements=st.integers(0, 4)),
    st.sampled_from([np.int8, np.int64, np.uint64, np.float64, np.bool_]),
)


def sequences(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(each, max_size=4), st.tuples(each, each))


ANYTHING = st.one_of(SCALARS, ARRAYS, st.recursive(SCALARS, sequences, max_leaves=6))
REPORTS = st.one_of(
    SCALARS,
    st.builds(BitFlipReport, sampled=st.one_of(ANYTHING, sequences(st.integers(-1, 4))), bits=SCALARS),
    st.builds(
        HashedReport,
        function=st.one_of(SCALARS, st.builds(UniversalHash, multiplier=st.just(7), addend=st.just(1), g=st.just(3))),
        value=SCALARS,
    ),
    st.builds(RapporReport, cohort=SCALARS, row=st.one_of(SCALARS, st.binary(min_size=2, max_size=2))),
    st.builds(NodeReport, level=SCALARS, period=SCALARS, sign=SCALARS),
    st.tuples(SCALARS, SCALARS),
)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 13), st.integers(), st.floats(), st.text(max_size=3), st.just("00")
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["rows", "cohort", "function", "answers", "sampled", "0", "1", "-1", "period", "held"]),
                st.text(max_size=3),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


def estimated(protocol: Any, columns: Any) -> None:
    """Estimate; where that is not refused, every number is one."""
    if isinstance(protocol, Rappor):
        counts = protocol.count(columns)
        assert (counts.set_bits <= counts.reports[:, None]).all()
        return
    found = protocol.estimate(columns)
    assert np.isfinite(found.frequencies).all()


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(reports=st.one_of(ANYTHING, sequences(REPORTS)))
def test_reports_of_any_kind(name: str, reports: Any) -> None:
    with suppress(LdpError):
        estimated(PROTOCOLS[name], PROTOCOLS[name].columns(reports))


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(report=REPORTS, data=st.one_of(SCALARS, st.binary(max_size=20)))
def test_reports_of_any_kind_in_bytes(name: str, report: Any, data: Any) -> None:
    if name == "pairs":
        return
    protocol = PROTOCOLS[name]
    with suppress(LdpError):
        assert len(protocol.encode(report)) == protocol.report_bytes
    with suppress(LdpError):
        assert protocol.encode(protocol.decode(data)) == data


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=st.data())
def test_columns_of_any_kind(name: str, data: st.DataObject) -> None:
    """One column of a good collection, or all of it, is replaced by something else."""
    protocol = PROTOCOLS[name]
    fleet = protocol.fleet(3, SeededBits(1), ["a", "b"]) if name == "rappor" else protocol.fleet(3, SeededBits(1))
    good = fleet.report(np.array([0, 1, 1]))
    estimated(protocol, good)
    other = data.draw(st.one_of(ANYTHING, ARRAYS, SMALL))
    if is_dataclass(good) and data.draw(st.integers(0, 9)):
        column = data.draw(st.sampled_from([each.name for each in fields(good)]))
        other = replace(good, **{column: other})  # type: ignore[type-var]
    with suppress(LdpError):
        estimated(protocol, other)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(values=ANYTHING)
def test_values_of_any_kind(name: str, values: Any) -> None:
    protocol = PROTOCOLS[name]
    fleet = protocol.fleet(2, SeededBits(1), ["a", "b"]) if name == "rappor" else protocol.fleet(2, SeededBits(1))
    with suppress(LdpError):
        estimated(protocol, fleet.report(values))
    client = protocol.client(SeededBits(1))
    with suppress(LdpError):
        estimated(protocol, protocol.columns([client.report(values)]))
    protocol.restore(client.save(), SeededBits(1))  # whatever was refused, the device can be saved


@pytest.mark.parametrize("name", [*NAMES, "tree"])
@SETTINGS
@given(memo=JSON, raw=st.one_of(SCALARS, st.binary(max_size=30)))
def test_states_of_any_kind(name: str, memo: Any, raw: Any) -> None:
    protocol = TREE if name == "tree" else PROTOCOLS[name]
    for saved in (raw, json.dumps(memo), json.dumps({"protocol": protocol.describe(), "memo": memo}).encode()):
        with suppress(LdpError):
            protocol.restore(saved, SeededBits(1)).report("a" if name == "rappor" else 1)


@SETTINGS
@given(reports=st.one_of(ANYTHING, sequences(REPORTS)), sums=ANYTHING, states=st.one_of(ANYTHING, SMALL))
def test_a_server_of_nodes_takes_or_refuses_anything(reports: Any, sums: Any, states: Any) -> None:
    server = DyadicServer(TREE)
    with suppress(LdpError):
        server.add(reports)
    with suppress(LdpError):
        server.add_sums(sums)
    with suppress(LdpError):
        server.add_sums(TREE.fleet_sums(states, SeededBits(1)))
    assert all(math.isfinite(each) for each in server.estimates())


@SETTINGS
@given(candidates=ANYTHING)
def test_candidates_of_any_kind(candidates: Any) -> None:
    protocol = PROTOCOLS["pairs"]
    with suppress(LdpError):
        found = protocol.estimate(protocol.columns([(1, 1), (5, 0)]), candidates)
        assert found.values.size == found.frequencies.size
