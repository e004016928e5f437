"""Kernels against their plain twins, and unit sets against Python's own sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import Spend, UnitSet
from budget.audit.replay import ChargedTally
from budget.errors import UnitKeyError
from budget.units import ascending, columns, contains, merge_indexes, rows
from twins.budget_kernels import TallyPlain, ascending_plain, merge_indexes_plain

# Few distinct bytes in few places, so that keys tie in their first eight bytes, in sixteen, and altogether.
KEYS = st.lists(
    st.tuples(st.sampled_from([0, 1, 255]), st.sampled_from([0, 7]), st.sampled_from([0, 1, 128, 255])), max_size=40
).map(lambda picks: b"".join(bytes([a]) + bytes(9) + bytes([b]) + bytes(8) + bytes([c]) for a, b, c in picks))


def as_rows(raw: bytes) -> list[bytes]:
    return [raw[i : i + 20] for i in range(0, len(raw), 20)]


@settings(deadline=None)
@given(KEYS)
def test_a_unit_set_is_the_sorted_set_of_its_keys(raw: bytes) -> None:
    units = UnitSet.of(raw)
    assert units.keys.tobytes() == b"".join(sorted(set(as_rows(raw))))
    assert UnitSet.packed(units.keys.tobytes()).digest() == units.digest()


@settings(deadline=None)
@given(KEYS)
def test_ascending_equals_its_twin(raw: bytes) -> None:
    keys = columns(rows(raw))
    assert bool(ascending(keys)) == ascending_plain(keys)
    if not ascending_plain(keys):
        with pytest.raises(UnitKeyError):
            UnitSet.packed(raw)
        with pytest.raises(UnitKeyError):
            UnitSet(rows(raw))


@settings(deadline=None)
@given(KEYS, KEYS)
def test_merge_indexes_equals_its_twin(left: bytes, right: bytes) -> None:
    a, b = UnitSet.of(left), UnitSet.of(right)
    index_a, index_b = np.empty(len(a), np.int64), np.empty(len(b), np.int64)
    size = merge_indexes(columns(a.keys), columns(b.keys), index_a, index_b)
    assert (index_a.tolist(), index_b.tolist(), size) == merge_indexes_plain(columns(a.keys), columns(b.keys))
    held = set(as_rows(left))
    assert contains(a.keys, b.keys).tolist() == [b[i] in held for i in range(len(b))]


LIMIT = Spend(loss_micro=10, delta_atto=20, uses=5)
CHARGES = st.lists(
    st.tuples(KEYS, st.integers(0, 4), st.integers(0, 8), st.integers(0, 2), st.sampled_from([1, 1, 1, -1])), max_size=8
)


@settings(deadline=None)
@given(CHARGES)
def test_the_tally_equals_its_twin(charges: list[tuple[bytes, int, int, int, int]]) -> None:
    tally, twin = ChargedTally(LIMIT), TallyPlain(LIMIT)
    for raw, loss, delta, uses, sign in charges:
        keys = columns(UnitSet.of(raw).keys)
        cost = Spend(loss_micro=loss, delta_atto=delta, uses=uses)
        assert tally.charge(keys, cost, sign) == twin.charge(keys, cost, sign)
    everything = np.array(sorted(twin.spent), dtype=np.uint64).reshape(-1, 3)
    asked = (everything[:, 0].copy(), everything[:, 1].copy(), everything[:, 2].astype(np.uint32))
    known, loss_, delta_, uses_ = tally.amounts(asked)
    assert bool(known.all()) and tally.used == len(twin.spent)
    assert list(zip(loss_.tolist(), delta_.tolist(), uses_.tolist(), strict=True)) == [
        twin.spent[key] for key in sorted(twin.spent)
    ]


def test_the_tally_grows_past_its_first_size_and_knows_strangers() -> None:
    tally, cost = ChargedTally(LIMIT), Spend(loss_micro=1, delta_atto=2, uses=1)
    keys = np.random.default_rng(3).integers(0, 256, (50_000, 20), np.uint8)
    units = UnitSet.of(keys)
    for start in range(0, len(units), 7_001):
        assert tally.charge(columns(units.keys[start : start + 7_001]), cost) == -1
    known, loss, delta, uses = tally.amounts(columns(units.keys))
    assert bool(known.all()) and tally.used == len(units)
    assert set(loss.tolist()) == {1} and set(delta.tolist()) == {2} and set(uses.tolist()) == {1}
    stranger = tally.amounts(columns(np.zeros((1, 20), np.uint8)))
    assert [column.tolist() for column in stranger] == [[False], [0], [0], [0]]


@pytest.mark.parametrize(
    "bad",
    [bytes(19), np.zeros((3, 19), np.uint8), np.zeros((3, 20), np.int64), np.zeros(40, np.uint8), [bytes(20)], None],
    ids=repr,
)
def test_keys_of_another_shape_are_refused(bad: object) -> None:
    with pytest.raises(UnitKeyError):
        UnitSet.of(bad)  # type: ignore[arg-type]


def test_a_unit_set_keeps_its_keys_when_the_array_changes() -> None:
    keys = np.zeros((2, 20), np.uint8)
    keys[1, 19] = 1
    units = UnitSet.of(keys)
    keys[0, 0] = 9
    assert units[0] == bytes(20)
    with pytest.raises(ValueError, match="read-only"):
        units.keys[0, 0] = 1
