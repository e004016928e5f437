"""The hash family: its collision bound, its independence, and the count kernel against its twin."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client.errors import ReportError
from ldp_client.protocols.hashed import (
    UniversalHash,
    bucket_starts,
    count_matches,
    draw_hash,
    draw_hashes,
    hash_twin,
    hash_values,
)
from ldp_client.sampling import ExactDraws
from twins.ldp_kernels import collision_bound, collision_probability, count_matches_twin

WORDS = st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize("g", range(2, 9))
def test_the_whole_small_family_has_exactly_the_stated_collision_probability(g: int) -> None:
    """Words of 6 bits, hashes of 3, values below 16: 6 ≥ 4 + 3 − 1, as 64 ≥ 32 + 32 − 1. All 4,096 functions."""
    size = {"word_bits": 6, "hash_bits": 3}
    functions = [(a, b) for a in range(64) for b in range(64)]
    tables = np.array([[hash_twin(a, b, v, g, **size) for v in range(16)] for a, b in functions])
    whole = {(a, b): Fraction(0) for a in range(g) for b in range(g)}
    cuts = Counter((h * g) >> 3 for h in range(8))
    for pair in whole:
        whole[pair] = Fraction(cuts[pair[0]] * cuts[pair[1]], 64)
    for v in range(16):
        for w in range(v):
            pairs = Counter(zip(tables[:, v].tolist(), tables[:, w].tolist(), strict=True))
            assert {pair: Fraction(pairs[pair], len(functions)) for pair in whole} == whole
            collisions = Fraction(int(np.sum(tables[:, v] == tables[:, w])), len(functions))
            assert collisions == collision_probability(g, hash_bits=3) <= collision_bound(g, hash_bits=3)
    if g in (2, 4, 8):
        assert collision_probability(g, hash_bits=3) == Fraction(1, g)


@given(st.integers(2, (1 << 32) - 1))
def test_the_collision_probability_is_within_its_bound_for_every_g(g: int) -> None:
    excess = collision_probability(g) - Fraction(1, g)
    assert 0 <= excess <= collision_bound(g) - Fraction(1, g) == Fraction(g, 1 << 66)
    assert (excess == 0) == (2**32 % g == 0)


@pytest.mark.parametrize("g", [2, 3, 5, 7, 17])
def test_drawn_functions_collide_at_the_stated_rate(g: int) -> None:
    """Twelve pairs of values, 200,000 functions each: 60 two-sided tests at 1e-8, so a false alarm in 1.7 million."""
    count = 200_000
    a, b = draw_hashes(SecureBits(), count)
    p = float(collision_probability(g))
    for v, w in [(0, 1), (0, 2), (1, 2), (5, 1411), (7, 8), (100, 200), (0, 2**31), (3, 2**32 - 1)] + [
        (2**i, 2 ** (i + 1)) for i in (4, 10, 20, 30)
    ]:
        same = hash_values(a, b, np.full(count, v), g) == hash_values(a, b, np.full(count, w), g)
        assert abs(int(same.sum()) - count * p) < 5.73 * math.sqrt(count * p * (1 - p)) + 1


@given(WORDS, WORDS, st.integers(0, (1 << 32) - 1), st.integers(2, 5000))
def test_the_column_hash_and_the_bucket_starts_agree_with_the_function(a: int, b: int, v: int, g: int) -> None:
    function = UniversalHash(multiplier=a, addend=b, g=g)
    x = function(v)
    assert 0 <= x < g
    assert hash_values(np.array([a], np.uint64), np.array([b], np.uint64), np.array([v]), g).tolist() == [x]
    edges = bucket_starts(np.arange(g + 1), g).tolist()
    assert edges == [(-(-(x << 32) // g) << 32) % (1 << 64) for x in range(g + 1)]
    starts = [*edges[:-1], 1 << 64]
    assert starts[x] <= (a * v + b) % (1 << 64) < starts[x + 1]


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(1, 70), st.integers(0, 12), st.integers(0, 2**32), st.booleans())
def test_the_count_kernel_equals_its_twin(g: int, size: int, users: int, seed: int, aligned: bool) -> None:
    bits = SeededBits(seed)
    a, b = draw_hashes(bits, users)
    if aligned and users:  # start on the edges of buckets, where an off-by-one would show
        b = bucket_starts((bits.words(users) % np.uint64(g)).astype(np.int64), g) - (bits.words(users) & np.uint64(1))
        a &= np.uint64(0xFFFFFFFF00000001)
    x = (bits.words(users) % np.uint64(g)).astype(np.int64)
    np.testing.assert_array_equal(count_matches(a, b, x, g, size), count_matches_twin(a, b, x, g, size))


def test_hash_functions_are_checked() -> None:
    with pytest.raises(ReportError, match="two words of 64 bits"):
        UniversalHash(multiplier=1 << 64, addend=0, g=2)
    with pytest.raises(ReportError, match="between 2"):
        UniversalHash(multiplier=1, addend=0, g=1)
    one = np.ones(1, np.uint64)
    with pytest.raises(ReportError, match="must lie in"):
        count_matches(one, one, np.array([3]), 3, 4)
    assert draw_hash(ExactDraws(SeededBits(1)), 5) == draw_hash(ExactDraws(SeededBits(1)), 5)
