"""Coins in lanes, packed rows and the memo table: kernels against their plain twins."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, SecureBits, SeededBits, exp
from aggservice.mechanisms.words import Tape
from ldp_client.errors import ReportError
from ldp_client.estimation import ResponseStep
from ldp_client.sampling import (
    ROUNDS,
    LaneCoins,
    MemoizedAnswers,
    MemoTable,
    RowStore,
    bits_of,
    count_bits,
    live_mask,
    next_word,
    one_hot,
    pack,
    rows_from_bytes,
    unpack,
    words_of,
)
from twins.ldp_kernels import count_bits_twin, lane_twin, row_bytes

HALF_BITS = (1 << 32) - 1


class Script(Bits):
    """Gives the words it was told to, then fails."""

    private = False

    def __init__(self, words: list[int]) -> None:
        self.left = words

    def read(self, count: int) -> bytes:
        return b"".join(word.to_bytes(8, "little") for word in self.words(-(-count // 8)).tolist())[:count]

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count <= len(self.left)
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)

    def child(self, label: str) -> Bits:
        return self


def script(
    data: st.DataObject, p: Real, q: Real, base: list[int], live: list[int]
) -> tuple[list[int], list[list[bool]]]:
    """Return words that make many lanes tie for long, and the outcomes that the twin makes of them, lane by lane."""
    width = len(base)
    rounds: list[list[int]] = []
    for index in range(ROUNDS):
        row = []
        for word in base:
            prefix_p, prefix_q = ((real.floor(ROUNDS) >> (ROUNDS - 1 - index)) & 1 for real in (p, q))
            threshold = (word if prefix_p else 0) | (~word & (2**64 - 1) if prefix_q else 0)
            noise = data.draw(st.sampled_from([0, 1, 1 << 63, 0xFF00])) if index < 7 else data.draw(st.integers(0, 255))
            row.append(threshold ^ noise)
        rounds.append(row)
    further: list[int] = []
    last: list[int] = []
    outcomes: list[list[bool]] = []
    for place in range(width):
        lanes = []
        for lane in range(64):
            if not (live[place] >> lane) & 1:
                lanes.append(False)
                continue
            is_set = bool((base[place] >> lane) & 1)
            threshold = p if is_set else q
            columns = [(rounds[index][place] >> lane) & 1 for index in range(ROUNDS)]
            mine: list[int] = []
            if int("".join(map(str, columns)), 2) == threshold.floor(ROUNDS):
                edge = next_word(threshold)
                first = data.draw(st.sampled_from([edge, max(edge - 1, 0), min(edge + 1, 2**64 - 1), 12345]))
                mine = [first]
                further.append(first)
                if first == edge:
                    beyond = data.draw(st.sampled_from([0, 2**64 - 1]))
                    mine.append(beyond)
                    last.append(beyond)
            lanes.append(lane_twin(columns, Tape(Script(mine)), is_set, p, q))
        outcomes.append(lanes)
    return [*(word for row in rounds for word in row), *further, *last], outcomes


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 200), st.integers(1, 60))
def test_coins_in_lanes_equal_the_twin_even_through_ties(data: st.DataObject, size: int, tenth: int) -> None:
    p, q = exp(Fraction(-tenth, 20)), 1 / (exp(Fraction(tenth, 10)) + 1)
    base = [data.draw(st.integers(0, 2**64 - 1)) & int(word) for word in live_mask(size)]
    live = [int(word) for word in live_mask(size)]
    words, outcomes = script(data, p, q, base, live)
    bits = Script(words)
    out = LaneCoins(ResponseStep(p=p, q=q)).flip(bits, np.array([base], dtype=np.uint64), size)
    assert bits.left == []
    assert bits_of(out, size)[0].tolist() == [bit for lanes in outcomes for bit in lanes][:size]
    assert (out & ~live_mask(size) == 0).all()


@pytest.mark.parametrize(("p", "q"), [(Fraction(1, 2), Fraction(1, 1000)), (Fraction(999, 1000), Fraction(1, 3))])
def test_coins_in_lanes_come_up_at_their_rates(p: Fraction, q: Fraction) -> None:
    """Four two-sided tests at 1e-7 on 6.4 million coins: a false alarm in 2.5 million runs."""
    rows = np.full((50_000, 2), HALF_BITS, dtype=np.uint64)
    out = LaneCoins(ResponseStep(p=Real.of(p), q=Real.of(q))).flip(SecureBits(), rows, 128)
    kept = int(np.bitwise_count(out & np.uint64(HALF_BITS)).sum())
    made = int(np.bitwise_count(out >> np.uint64(32)).sum())
    for seen, chance in ((kept, float(p)), (made, float(q))):
        n = 50_000 * 64
        assert abs(seen - n * chance) < 5.33 * math.sqrt(n * chance * (1 - chance)) + 1


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 150), st.integers(0, 600), st.integers(0, 2**32))
def test_counting_rows_equals_its_twin(size: int, rows: int, seed: int) -> None:
    table = SeededBits(seed).words(rows * words_of(size)).reshape(rows, words_of(size)) & live_mask(size)
    if seed % 3 == 0:
        table[:] = live_mask(size)  # every counter at its highest: 255 rows must not overflow a plane
    np.testing.assert_array_equal(count_bits(table, size), count_bits_twin(table, size))


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_rows_survive_packing(bits: list[bool]) -> None:
    row = pack(np.array(bits))
    assert unpack(row, len(bits)).tolist() == bits
    words = rows_from_bytes([row], len(bits))
    assert row_bytes(words[0], len(bits)) == row
    assert bits_of(words, len(bits))[0].tolist() == bits


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ReportError, match="has 2 bytes, not 1"):
        unpack(b"\1", 9)
    with pytest.raises(ReportError, match="beyond its end"):
        unpack(b"\0\2", 9)
    with pytest.raises(ReportError, match="beyond its end"):
        count_bits(np.full((1, 1), 1 << 9, np.uint64), 9)
    assert one_hot(np.array([-1, 0, 64]), 65).tolist() == [[0, 0], [1, 0], [0, 1]]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.integers(0, 2**62 - 1) | st.integers(0, 30) | st.integers(0, 30).map(lambda key: key << 40), max_size=60
        ),
        max_size=8,
    )
)
def test_the_memo_table_numbers_keys_as_a_dictionary_would(batches: list[list[int]]) -> None:
    table, known = MemoTable(), dict[int, int]()
    store = RowStore(1)
    for batch in batches:
        expected = [known.setdefault(key, len(known)) for key in batch]
        before = store.count
        rows, fresh = table.rows(np.array(batch, dtype=np.int64))
        assert rows.tolist() == expected
        assert [batch[position] for position in fresh] == list(known)[before:]
        store.append(np.array([[key] for key in list(known)[before:]], dtype=np.uint64).reshape(-1, 1))
        table._check()
    assert table.keys().tolist() == list(known)
    assert store.all()[:, 0].tolist() == list(known)


def test_answers_are_drawn_once_for_each_user_and_key() -> None:
    answers, drawn = MemoizedAnswers(3, 10, 1), list[list[int]]()

    def draw(fresh: NDArray[np.int64]) -> NDArray[np.uint64]:
        drawn.append(fresh.tolist())
        return np.array([[100 * len(drawn) + user] for user in fresh], dtype=np.uint64)

    assert answers.get(np.array([1, 1, 2]), draw)[:, 0].tolist() == [100, 101, 102]
    assert answers.get(np.array([1, 9, 2]), draw)[:, 0].tolist() == [100, 201, 102]
    assert answers.get(np.array([1, 1, 2]), draw)[:, 0].tolist() == [100, 101, 102]
    assert drawn == [[0, 1, 2], [1]]
    assert answers.counts().tolist() == [1, 2, 1]
    answers.get(np.array([5, 5, 5]), lambda fresh: np.full((3, 1), 100, np.uint64))
    assert answers.counts().tolist() == [2, 3, 2]
    assert answers.distinct_counts().tolist() == [1, 3, 2]
    with pytest.raises(ReportError, match="too large"):
        MemoizedAnswers(1 << 30, 1 << 32, 1)


def test_the_memo_table_grows_past_its_first_size() -> None:
    table = MemoTable()
    keys = np.arange(10_000, dtype=np.int64) * 4096
    for start in range(0, keys.size, 700):
        table.rows(keys[start : start + 700])
    table._check()
    assert table.rows(keys)[0].tolist() == list(range(10_000))
