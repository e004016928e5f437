"""Exact draws, packed rows of bits, sixty-four coins at a time, and the memoized answers of a fleet.

Clients draw only through ``ExactDraws``, so that the same client code runs on random bits in production and along every
branch in ``ldp_client.enumeration``, which computes its exact output distribution.

Fleets flip rows of bits with ``LaneCoins``. A coin of bias p is U < p for a uniform U: compare the bits of U and p from
the top until they differ. Here a random word holds one bit of U for each of 64 lanes. Eight rounds leave one lane in
256 undecided; each of those compares one more word with the next 64 bits of p; a tie there, once in 2^72 lanes, is
decided by ``settle_ties``, which draws as many bits as needed. So the outcome has probability exactly p, for any
``Real`` p.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli, bernoulli_batch, uniform_below, uniform_below_batch
from aggservice.mechanisms.words import Tape, below
from ldp_client.errors import ReportError
from ldp_client.estimation import ResponseStep

Words = NDArray[np.uint64]

ROUNDS = 8
_ONES = (1 << 64) - 1
_PLANES = 8
_BLOCK = 4096
_EMPTY = -1
_SMALLEST = 1 << 10


class ExactDraws:
    """Exact draws from ``bits``, without floats between a probability and an outcome."""

    def __init__(self, bits: Bits) -> None:
        self._bits = bits

    def coin(self, p: Real) -> bool:
        """Return True with probability p."""
        return bernoulli(self._bits, p)

    def below(self, n: int) -> int:
        """Return a uniform integer in [0, n)."""
        return uniform_below(self._bits, n)

    def word(self) -> int:
        """Return 64 uniform bits."""
        return self._bits.word()


def randomized_value(draws: ExactDraws, value: int, size: int, keep: Real) -> int:
    """Return ``value`` with probability ``keep``, else one of the other ``size`` − 1 values uniformly (GRR)."""
    if draws.coin(keep):
        return value
    other = draws.below(size - 1)
    return other + (other >= value)


def randomized_values(bits: Bits, values: NDArray[np.int64], size: int, keep: Real) -> NDArray[np.int64]:
    """Return an independent ``randomized_value`` for each of ``values``."""
    kept = bernoulli_batch(bits, keep, values.size)
    others = uniform_below_batch(bits, size - 1, values.size)
    return np.where(kept, values, others + (others >= values))


def sample(draws: ExactDraws, buckets: int, sampled: int) -> tuple[int, ...]:
    """Return ``sampled`` different buckets, every set with the same probability (Floyd's method)."""
    chosen: set[int] = set()
    for last in range(buckets - sampled, buckets):
        pick = draws.below(last + 1)
        chosen.add(last if pick in chosen else pick)
    return tuple(sorted(chosen))


def sample_batch(bits: Bits, users: int, buckets: int, sampled: int) -> NDArray[np.int32]:
    """Return a sorted ``sample`` for each user."""
    if sampled == buckets:
        return np.broadcast_to(np.arange(buckets, dtype=np.int32), (users, buckets))
    chosen = np.empty((users, sampled), dtype=np.int32)
    for index, last in enumerate(range(buckets - sampled, buckets)):
        pick = uniform_below_batch(bits, last + 1, users).astype(np.int32)
        taken = (chosen[:, :index] == pick[:, None]).any(axis=1)
        chosen[:, index] = np.where(taken, last, pick)
    chosen.sort(axis=1)
    return chosen


def words_of(size: int) -> int:
    """Return the number of words in a row of ``size`` bits."""
    return -(-size // 64)


def live_mask(size: int) -> Words:
    """Return a row with the ``size`` bits in use set, and the rest of its last word clear."""
    mask = np.full(words_of(size), _ONES, dtype=np.uint64)
    if size % 64:
        mask[-1] = np.uint64((1 << (size % 64)) - 1)
    return mask


def one_hot(positions: NDArray[np.int64], size: int) -> Words:
    """Return a row for each position with only that bit set; a position of −1 gives an empty row."""
    rows = np.zeros((positions.size, words_of(size)), dtype=np.uint64)
    set_rows = np.flatnonzero(positions >= 0)
    at = positions[set_rows]
    rows[set_rows, at // 64] = np.uint64(1) << (at % 64).astype(np.uint64)
    return rows


def pack(bits: NDArray[np.bool_]) -> bytes:
    """Return a row as bytes, first bit lowest."""
    return np.packbits(bits, bitorder="little").tobytes()


def unpack(row: bytes, size: int) -> NDArray[np.bool_]:
    """Return the bits of a packed row; ReportError if its length is wrong or bits beyond its end are set."""
    if not isinstance(row, bytes | bytearray):
        raise ReportError(f"a row of {size} bits must be {-(-size // 8)} bytes, not a {type(row).__name__}")
    if len(row) != -(-size // 8):
        raise ReportError(f"a row of {size} bits has {-(-size // 8)} bytes, not {len(row)}")
    bits = np.unpackbits(np.frombuffer(row, dtype=np.uint8), bitorder="little").astype(np.bool_)
    if bits[size:].any():
        raise ReportError(f"a row of {size} bits has bits set beyond its end")
    return bits[:size]


def rows_from_bytes(rows: list[bytes], size: int) -> Words:
    """Return packed rows as an array of words."""
    out = np.zeros((len(rows), words_of(size) * 8), dtype=np.uint8)
    for index, row in enumerate(rows):
        unpack(row, size)
        out[index, : len(row)] = np.frombuffer(row, dtype=np.uint8)
    return out.view("<u8").astype(np.uint64, copy=False)


def bits_of(rows: Words, size: int) -> NDArray[np.bool_]:
    """Return rows of words as rows of bits."""
    flat = np.ascontiguousarray(rows).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(flat, axis=-1, bitorder="little")[..., :size].astype(np.bool_)


def count_bits(rows: Words, size: int) -> NDArray[np.int64]:
    """Return how many rows have each of the ``size`` bits set."""
    counts = np.zeros(rows.shape[1] * 64, dtype=np.int64)
    _count_kernel(np.ascontiguousarray(rows), counts)
    if counts[size:].any():
        raise ReportError(f"a row of {size} bits has bits set beyond its end")
    return counts[:size]


@njit(cache=True)
def _count_kernel(rows: Words, counts: NDArray[np.int64]) -> None:  # pragma: no cover - compiled
    """Add rows into eight bit-planes of counters with carries, a word of 64 counters at a time.

    A plane counter holds at most 255, so the planes are emptied into ``counts`` after every 255 rows.
    """
    width = rows.shape[1]
    planes = np.zeros((_PLANES, width), dtype=np.uint64)
    carry = np.empty(width, dtype=np.uint64)
    held = 0
    for index in range(rows.shape[0]):
        for word in range(width):
            carry[word] = rows[index, word]
        for plane in range(_PLANES):
            for word in range(width):
                before = planes[plane, word]
                planes[plane, word] = before ^ carry[word]
                carry[word] &= before
        held += 1
        if held == 255 or index == rows.shape[0] - 1:
            for plane in range(_PLANES):
                for word in range(width):
                    left = planes[plane, word]
                    for bit in range(64):
                        counts[word * 64 + bit] += np.int64((left >> np.uint64(bit)) & np.uint64(1)) << plane
                    planes[plane, word] = 0
            held = 0


class LaneCoins:
    """Flips every bit of packed rows: a set bit stays set with probability p, a clear bit becomes set with q.

    Both must lie strictly between 0 and 1.
    """

    def __init__(self, step: ResponseStep) -> None:
        self._p, self._q = step.p, step.q
        self._masks = np.array([round_masks(step.p), round_masks(step.q)], dtype=np.uint64)
        self._next = np.array([next_word(step.p), next_word(step.q)], dtype=np.uint64)

    def flip(self, bits: Bits, rows: Words, size: int) -> Words:
        """Return rows of ``size`` bits, each bit drawn from the coin that its bit in ``rows`` selects."""
        base = np.ascontiguousarray(rows).reshape(-1)
        live = np.broadcast_to(live_mask(size), rows.shape).reshape(-1)
        out = np.empty_like(base)
        for start in range(0, base.size, _BLOCK):
            stop = min(start + _BLOCK, base.size)
            self._flip_block(bits, base[start:stop], live[start:stop], out[start:stop])
        return out.reshape(rows.shape)

    def _flip_block(self, bits: Bits, base: Words, live: Words, out: Words) -> None:
        open_lanes = live.copy()
        words = bits.words(ROUNDS * base.size).reshape(ROUNDS, base.size)
        decide_kernel(words, base, self._masks, open_lanes, out)
        further = bits.words(int(np.bitwise_count(open_lanes).sum()))
        if settle_kernel(further, base, self._next, open_lanes, out):
            settle_ties(Tape(bits), base, (self._p, self._q), open_lanes, out)


def round_masks(p: Real) -> list[int]:
    """Return one word per round: all ones if that bit of p is 1, else zero."""
    prefix = p.floor(ROUNDS)
    return [_ONES if (prefix >> (ROUNDS - 1 - index)) & 1 else 0 for index in range(ROUNDS)]


def next_word(p: Real) -> int:
    """Return the 64 bits of p that follow those of the rounds."""
    return p.floor(ROUNDS + 64) & _ONES


def settle_ties(tape: Tape, base: Words, step: tuple[Real, Real], open_lanes: Words, out: Words) -> None:
    """Draw further bits for each lane whose first 72 bits equal those of its threshold."""
    p, q = step
    width = ROUNDS + 64
    for index in np.flatnonzero(open_lanes):
        lanes = int(open_lanes[index])
        while lanes:
            lane = lanes & -lanes
            lanes ^= lane
            threshold = p if int(base[index]) & lane else q
            if below(tape, threshold.floor(width), width, threshold):
                out[index] |= np.uint64(lane)


@njit(cache=True, inline="always")
def _round(left: int, word: int, threshold: int, result: int) -> tuple[int, int]:  # pragma: no cover - compiled
    """Decide the open lanes whose bits of word and threshold differ; return the result and the lanes left open."""
    differ = left & (word ^ threshold)
    return result | (differ & threshold), left & ~differ


@njit(cache=True)
def decide_kernel(
    words: Words, base: Words, masks: Words, open_lanes: Words, out: Words
) -> None:  # pragma: no cover - compiled
    """Run eight rounds over every word; leave in ``open_lanes`` the lanes that equalled their threshold in all of them.

    ``words`` has one row per round; ``masks`` has the rounds of p and of q. Unrolled so that it runs in vectors.
    """
    w0, w1, w2, w3, w4, w5, w6, w7 = (
        words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7],
    )  # fmt: skip
    p, q = masks[0], masks[1]
    p0, p1, p2, p3, p4, p5, p6, p7 = p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]
    q0, q1, q2, q3, q4, q5, q6, q7 = q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]
    for index in range(base.size):
        x = base[index]
        left = open_lanes[index]
        result, left = _round(left, w0[index], (x & p0) | (~x & q0), np.uint64(0))
        result, left = _round(left, w1[index], (x & p1) | (~x & q1), result)
        result, left = _round(left, w2[index], (x & p2) | (~x & q2), result)
        result, left = _round(left, w3[index], (x & p3) | (~x & q3), result)
        result, left = _round(left, w4[index], (x & p4) | (~x & q4), result)
        result, left = _round(left, w5[index], (x & p5) | (~x & q5), result)
        result, left = _round(left, w6[index], (x & p6) | (~x & q6), result)
        result, left = _round(left, w7[index], (x & p7) | (~x & q7), result)
        out[index] = result
        open_lanes[index] = left


@njit(cache=True)
def settle_kernel(
    further: Words, base: Words, thresholds: Words, open_lanes: Words, out: Words
) -> bool:  # pragma: no cover - compiled
    """Compare one further word per open lane, lowest lane first; leave ties open, and return whether there are any."""
    used = 0
    tied = False
    for index in range(base.size):
        left = open_lanes[index]
        while left != 0:
            lane = left & (~left + np.uint64(1))
            left ^= lane
            threshold = thresholds[0] if base[index] & lane != 0 else thresholds[1]
            if further[used] < threshold:
                out[index] |= lane
            if further[used] == threshold:
                tied = True
            else:
                open_lanes[index] ^= lane
            used += 1
    return tied


class MemoTable:
    """Numbers distinct keys 0, 1, 2, … in the order in which they first occur. Amortized O(1) per key.

    Keys are integers in [0, 2^62).
    """

    def __init__(self) -> None:
        self._table = _empty(_SMALLEST)
        self.size = 0

    def rows(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row of each key and, in the order of their rows, the positions of keys that were new."""
        if 2 * (self.size + keys.size) > self._table.shape[1]:
            self._grow(2 * (self.size + keys.size))
        rows = np.empty(keys.size, dtype=np.int64)
        fresh = np.empty(keys.size, dtype=np.int64)
        found = _find_kernel(keys, self._table, self.size, rows, fresh)
        self.size += found
        return rows, fresh[:found]

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each row."""
        keys, rows = self._table
        used = keys != _EMPTY
        out = np.empty(self.size, dtype=np.int64)
        out[rows[used]] = keys[used]
        return out

    def _grow(self, least: int) -> None:
        keys = self.keys()
        self._table = _empty(1 << (2 * least - 1).bit_length())
        scratch = np.empty(keys.size, dtype=np.int64)
        _find_kernel(keys, self._table, 0, scratch, scratch.copy())

    def _check(self) -> None:
        """Assert the invariants: each row once, no key twice, at most half full."""
        keys, rows = self._table
        used = keys[keys != _EMPTY]
        assert used.size == self.size == np.unique(used).size
        assert np.array_equal(np.sort(rows[keys != _EMPTY]), np.arange(self.size))
        assert 2 * self.size <= keys.size


class RowStore:
    """An append-only store of rows of 64-bit words, by index. Amortized O(1) per row."""

    def __init__(self, width: int) -> None:
        self._rows: NDArray[np.uint64] = np.empty((_SMALLEST, width), dtype=np.uint64)
        self.count = 0

    def append(self, rows: NDArray[np.uint64]) -> None:
        """Add rows at the end."""
        needed = self.count + rows.shape[0]
        if needed > self._rows.shape[0]:
            # In place: copying hundreds of megabytes would cost more than the coins that filled them.
            self._rows.resize((needed + needed // 2, self._rows.shape[1]), refcheck=False)
        self._rows[self.count : needed] = rows
        self.count = needed

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return a copy of the rows with these numbers."""
        return self._rows[numbers]

    def all(self) -> NDArray[np.uint64]:
        """Return a copy of every row, in order."""
        return self._rows[: self.count].copy()


class MemoizedAnswers:
    """The memoized answers of a fleet: a row of words for each (user, key) that has occurred, keys below ``span``."""

    def __init__(self, users: int, span: int, width: int) -> None:
        if users * span >= 1 << 62:
            raise ReportError(f"a fleet of {users} users with {span} possible answers each is too large for one table")
        self._table = MemoTable()
        self._store = RowStore(width)
        self._users, self._span = users, span
        self._base = np.arange(users, dtype=np.int64) * span

    def get(
        self, keys: NDArray[np.int64], draw: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
    ) -> NDArray[np.uint64]:
        """Return each user's answer to their key; ``draw`` makes the answers of users whose key is new."""
        rows, fresh = self._table.rows(self._base + keys)
        if fresh.size:
            self._store.append(draw(fresh))
        return self._store.take(rows)

    def counts(self) -> NDArray[np.int64]:
        """Return how many answers each user has."""
        return np.bincount(self._table.keys() // self._span, minlength=self._users)

    def distinct_counts(self) -> NDArray[np.int64]:
        """Return how many different answers each user has: two keys may have the same answer."""
        owners = (self._table.keys() // self._span).astype(np.uint64)
        rows = np.unique(np.column_stack((owners, self._store.all())), axis=0)
        return np.bincount(rows[:, 0].astype(np.int64), minlength=self._users)


def _empty(capacity: int) -> NDArray[np.int64]:
    """Return a table without keys: one line of keys and one line of their rows."""
    table = np.zeros((2, capacity), dtype=np.int64)
    table[0] = _EMPTY
    return table


@njit(cache=True)
def _find_kernel(
    keys: NDArray[np.int64], table: NDArray[np.int64], known: int, rows: NDArray[np.int64], fresh: NDArray[np.int64]
) -> int:  # pragma: no cover - compiled
    """Write each key's row, adding new keys; linear probing from a multiplicative hash of the key."""
    mask = np.uint64(table.shape[1] - 1)
    table_keys, table_rows = table[0], table[1]
    found = 0
    for index in range(keys.size):
        key = keys[index]
        mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
        slot = (mixed ^ (mixed >> np.uint64(32))) & mask
        while table_keys[slot] != _EMPTY and table_keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if table_keys[slot] == _EMPTY:
            table_keys[slot] = key
            table_rows[slot] = known + found
            fresh[found] = index
            found += 1
        rows[index] = table_rows[slot]
    return found
