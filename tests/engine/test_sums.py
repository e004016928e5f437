"""Sums, report ids and unit lists against their plain-Python twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.engine import ReleasePlan
from aggservice.engine.release.noise import release
from aggservice.engine.tables.report_ids import ReportIds
from aggservice.engine.tables.sums import KeySums
from aggservice.engine.tables.units import UnitList
from aggservice.job.request import KeyMask
from budget import LaplaceNoise, Sensitivity
from twins.engine_tables import fresh_twin, sums_twin, units_twin

WORD = (1 << 64) - 1
# Few distinct keys, some of which differ in one half only, so that collisions and repetitions happen.
KEYS = st.builds(lambda high, low: high << 64 | low, st.integers(0, 3), st.integers(0, 40)) | st.integers(
    0, (1 << 128) - 1
)


def split(keys: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([key >> 64 for key in keys], dtype=np.uint64),
        np.array([key & WORD for key in keys], dtype=np.uint64),
    )


def add(
    sums: KeySums, contributions: list[tuple[int, int]], rows: list[int] | None = None, fresh: list[bool] | None = None
) -> None:
    high, low = split([key for key, _ in contributions])
    values = np.array([value for _, value in contributions], dtype=np.uint32)
    row = np.array(rows if rows is not None else [0] * len(contributions), dtype=np.int32)
    sums.add(high, low, values, row, np.array(fresh or [True], dtype=np.bool_))


def as_dict(sums: KeySums) -> dict[int, int]:
    keys = (high << 64 | low for high, low in zip(sums.high.tolist(), sums.low.tolist(), strict=True))
    return dict(zip(keys, sums.sums.tolist(), strict=True))


@settings(deadline=None, max_examples=200)
@given(
    declared=st.lists(KEYS, max_size=60),
    batches=st.lists(st.lists(st.tuples(KEYS, st.integers(0, (1 << 31) - 1)), max_size=80), max_size=6),
    discover=st.booleans(),
    mask=st.sampled_from([(1 << 128) - 1, WORD, 0xF, 3 << 64 | 7]),
    salt=st.integers(0, WORD),
)
def test_sums_equal_their_twin(
    declared: list[int], batches: list[list[tuple[int, int]]], discover: bool, mask: int, salt: int
) -> None:
    sums = KeySums(salt=salt, discover=discover, mask=KeyMask.of(mask))
    sums.declare(*split(declared))
    for batch in batches:
        add(sums, batch)
    sums._check()
    expected, outside = sums_twin(declared, [one for batch in batches for one in batch], discover=discover, mask=mask)
    assert as_dict(sums) == expected
    assert sums.outside == outside
    assert list(as_dict(sums))[: sums.declared] == list(dict.fromkeys(declared))


def test_a_table_grows_and_keeps_every_key() -> None:
    keys = [index << 70 | index for index in range(5000)]
    sums = KeySums(salt=7, discover=True)
    for start in range(0, 5000, 617):
        add(sums, [(key, index + 1) for index, key in enumerate(keys[start : start + 617])])
    sums._check()
    assert len(sums) == 5000


def test_contributions_of_repeated_reports_are_left_out() -> None:
    sums = KeySums(salt=1, discover=True)
    add(sums, [(1, 10), (1, 100), (2, 5)], rows=[0, 1, 1], fresh=[True, False])
    assert as_dict(sums) == {1: 10}


def test_noisy_sums_end_at_the_ends_of_64_bits_and_no_error_tells() -> None:
    """A noisy sum beyond what 64 bits hold is the largest that they hold; so are the totals."""

    class Huge:
        def draw(self, noise: object, size: int) -> np.ndarray:
            return np.full(size, (1 << 63) - 1, dtype=np.int64)

    plan = ReleasePlan(
        mechanism=LaplaceNoise.parse(epsilon="1"),
        others=LaplaceNoise.parse(epsilon="1"),
        sensitivity=Sensitivity(),
    )
    sums = KeySums(salt=1)
    sums.declare(*split([9, 10]))
    add(sums, [(9, 5), (11, 7)])
    summary = release(sums.columns(), plan, Huge())
    assert summary.metrics.tolist() == [(1 << 63) - 1] * 2
    assert summary.others == (1 << 63) - 1


IDS = st.lists(st.integers(0, 40) | st.integers(0, (1 << 128) - 1), max_size=200)


@settings(deadline=None, max_examples=200)
@given(batches=st.lists(IDS, max_size=5), salt=st.integers(0, WORD))
def test_report_ids_equal_their_twin(batches: list[list[int]], salt: int) -> None:
    seen = ReportIds(salt=salt)
    found: list[bool] = []
    for batch in batches:
        found += seen.add(np.stack(split(batch), axis=1)).tolist()
    flat = [one for batch in batches for one in batch]
    assert found == fresh_twin(flat)
    assert len(seen) == len(set(flat))


def test_report_ids_are_known_after_their_table_grew() -> None:
    ids = np.random.default_rng(6).integers(0, 1 << 63, size=(5000, 2), dtype=np.uint64)
    seen = ReportIds(salt=4)
    assert seen.add(ids).all()
    assert not seen.add(ids[::-1].copy()).any()
    assert len(seen) == 5000


def test_report_ids_cost_at_most_44_bytes_each_while_they_grow() -> None:
    rng = np.random.default_rng(5)
    seen = ReportIds(salt=3)
    worst = 0.0
    for _ in range(100):
        before = seen._table.nbytes
        seen.add(rng.integers(0, 1 << 63, size=(1000, 2), dtype=np.uint64))
        peak = seen._table.nbytes + (before if seen._table.nbytes != before else 0)
        worst = max(worst, peak / len(seen)) if len(seen) > 5000 else worst
    assert worst <= 44.5


def alike() -> st.SearchStrategy[bytes]:
    """Units that differ in one byte, at any place."""
    return st.tuples(st.integers(0, 19), st.integers(0, 255)).map(
        lambda at: bytes(at[0]) + bytes([at[1]]) + bytes(19 - at[0])
    )


@settings(deadline=None, max_examples=100)
@given(
    batches=st.lists(
        st.lists(st.binary(min_size=20, max_size=20) | alike() | st.sampled_from([bytes(20), b"\xff" * 20]))
    ),
    distinct=st.booleans(),
)
def test_unit_lists_equal_their_twin(batches: list[list[bytes]], distinct: bool) -> None:
    units = UnitList(distinct=distinct)
    for batch in batches:
        units.add(np.frombuffer(b"".join(batch), dtype=np.uint8).reshape(-1, 20), None, 1)
    found = units.take()
    assert [row.tobytes() for row in found] == units_twin([one for batch in batches for one in batch])
    assert len(units) == 0


def test_a_long_unit_list_is_sorted_and_rid_of_repetitions() -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, size=(150_000, 20), dtype=np.uint8)
    raw[:, :3] = 7  # units of one hour share their first bytes
    raw[75_000:] = raw[:75_000]
    for distinct in (False, True):
        units = UnitList(distinct=distinct)
        for start in range(0, len(raw), 999):
            units.add(raw[start : start + 999], None, 1)
        found = units.take()
        assert found.tobytes() == np.unique(raw, axis=0).tobytes()


def test_units_that_differ_in_their_last_byte_pay_each() -> None:
    raw = np.zeros((256, 20), dtype=np.uint8)
    raw[:, 19] = np.arange(256)[::-1]
    units = UnitList(distinct=False)
    units.add(raw, None, 1)
    assert units.take().tobytes() == raw[::-1].tobytes()


def test_units_of_repeated_reports_do_not_pay() -> None:
    raw = np.arange(6 * 20, dtype=np.uint8).reshape(6, 20)
    units = UnitList(distinct=False)
    units.add(raw, np.array([True, False, True]), 2)
    assert units.take().tobytes() == raw[[0, 1, 4, 5]].tobytes()
