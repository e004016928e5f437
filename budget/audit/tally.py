"""Balances computed from the log alone: a hash table over unit keys, independent of the stored balances.

It exists for the audit, which must not trust the code that charges. It needs 50 to 100 bytes per unit and one or two
memory accesses per charge. The audit of a large database takes one range of keys after the other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from budget.filters import Spend
from budget.units import Columns, Indexes, Words

_START: Final = 1 << 12
_MIX_A: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_B: Final = np.uint64(0xD6E8FEB86659FD93)
_AHEAD: Final = 128
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)

Rows = NDArray[np.uint64]
"""One row per unit: high, middle, low ‖ uses (32 bits each), loss, delta."""
Slots = NDArray[np.int32]
Amounts = NDArray[np.int64]


@njit(cache=True)
def _slot_of(hi: np.uint64, mid: np.uint64, lo: np.uint64, mask: np.uint64) -> np.uint64:
    mixed = (hi ^ (mid * _MIX_A) ^ (lo * _MIX_B)) * _MIX_A
    return (mixed ^ (mixed >> _HALF)) & mask


@njit(cache=True)
def _find(slots: Slots, rows: Rows, hi: np.uint64, mid: np.uint64, lo: np.uint64) -> np.uint64:
    """Return the slot that holds the key, or the empty slot for it. The table is never full."""
    mask = np.uint64(slots.size - 1)
    slot = _slot_of(hi, mid, lo, mask)
    while slots[slot] >= 0:
        row = slots[slot]
        if rows[row, 0] == hi and rows[row, 1] == mid and (rows[row, 2] >> _HALF) == lo:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True)
def _touch(slots: Slots, hi: Words, mid: Words, lo: Words) -> np.int64:
    """Load the slots of several keys together, so that the waits for memory overlap."""
    mask = np.uint64(slots.size - 1)
    seen = np.int64(0)
    for i in range(hi.size):
        seen += slots[_slot_of(hi[i], mid[i], np.uint64(lo[i]), mask)]
    return seen


@njit(cache=True)
def rehash(slots: Slots, rows: Rows, used: int) -> np.int64:
    """Put the first ``used`` rows, all of different keys, into an empty table of slots."""
    mask = np.uint64(slots.size - 1)
    seen = np.int64(0)
    for start in range(0, used, _AHEAD):
        stop = min(start + _AHEAD, used)
        seen += _touch(slots, rows[start:stop, 0], rows[start:stop, 1], rows[start:stop, 2] >> _HALF)
        for row in range(start, stop):
            slot = _slot_of(rows[row, 0], rows[row, 1], rows[row, 2] >> _HALF, mask)
            while slots[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            slots[slot] = row
    return seen


@njit(cache=True)
def apply(slots: Slots, rows: Rows, used: int, keys: Columns, cost: Amounts, limit: Amounts) -> tuple[int, int, int]:
    """Add ``cost`` (loss, delta, uses; each may be negative) to every key.

    Return the rows used, the first key that would go below 0 or above ``limit`` (−1 if none), and the sum of
    ``_touch``, so that the compiler keeps it. Sums stay below 2⁶² because amounts and limits do.
    """
    hi, mid, lo = keys
    seen = np.int64(0)
    for i in range(hi.size):
        if i % _AHEAD == 0:
            seen += _touch(slots, hi[i : i + _AHEAD], mid[i : i + _AHEAD], lo[i : i + _AHEAD])
        low = np.uint64(lo[i])
        slot = _find(slots, rows, hi[i], mid[i], low)
        row = slots[slot]
        if row < 0:
            row = used
            used += 1
            slots[slot] = row
            rows[row, 0] = hi[i]
            rows[row, 1] = mid[i]
            rows[row, 2] = low << _HALF
        uses = np.int64(rows[row, 2] & _LOW) + cost[2]
        loss = np.int64(rows[row, 3]) + cost[0]
        delta = np.int64(rows[row, 4]) + cost[1]
        if loss < 0 or delta < 0 or uses < 0 or loss > limit[0] or delta > limit[1] or uses > limit[2]:
            return used, i, int(seen)
        rows[row, 2] = (low << _HALF) | np.uint64(uses)
        rows[row, 3] = np.uint64(loss)
        rows[row, 4] = np.uint64(delta)
    return used, -1, int(seen)


@njit(cache=True)
def look_up(slots: Slots, rows: Rows, keys: Columns, found: Indexes) -> np.int64:
    """Write the row of each key into ``found``, −1 for an unknown key."""
    hi, mid, lo = keys
    seen = np.int64(0)
    for i in range(hi.size):
        if i % _AHEAD == 0:
            seen += _touch(slots, hi[i : i + _AHEAD], mid[i : i + _AHEAD], lo[i : i + _AHEAD])
        found[i] = slots[_find(slots, rows, hi[i], mid[i], np.uint64(lo[i]))]
    return seen


EVERY_KEY: Final = (0, 1 << 64)
"""The range of all keys, by their first eight bytes as a number: the first bound is included, the second is not."""


def within(keys: Columns, span: tuple[int, int]) -> slice:
    """Return the slice of ``keys``, which are ascending, that lies in the range ``span``."""
    high = keys[0]
    begin = 0 if span[0] == 0 else int(np.searchsorted(high, np.uint64(span[0])))
    return slice(begin, high.size if span[1] >= 1 << 64 else int(np.searchsorted(high, np.uint64(span[1]))))


class Tally:
    """The balances that a log implies, for the units of one range of keys.

    Call ``charge`` for each entry in the order of the log, then ``amounts`` to compare the balances.
    """

    def __init__(self, limit: Spend, span: tuple[int, int] = EVERY_KEY) -> None:
        self.span = span
        self._limit = np.array([limit.loss_micro, limit.delta_atto, limit.uses], dtype=np.int64)
        self._rows: Rows = np.zeros((_START, 5), dtype=np.uint64)
        self._slots: Slots = np.full(2 * _START, -1, dtype=np.int32)
        self.used = 0

    def _reserve(self, more: int) -> None:
        """Make room for ``more`` new keys."""
        needed = self.used + more
        if needed > self._rows.shape[0]:
            size = max(needed, self._rows.shape[0] + self._rows.shape[0] // 2)
            # In place, so that the system remaps a large array instead of copying it.
            self._rows.resize((size, 5), refcheck=False)
        if 2 * needed > self._slots.size:
            size = self._slots.size
            while 2 * needed > size:
                size *= 4
            self._slots = np.full(size, -1, dtype=np.int32)
            rehash(self._slots, self._rows, self.used)

    def charge(self, keys: Columns, cost: Spend, sign: int = 1) -> int:
        """Charge every key of the range (sign 1) or refund it (sign −1).

        Keys are ascending. Returns the first key that leaves [0, limit], or −1.
        """
        chosen = within(keys, self.span)
        mine = (keys[0][chosen], keys[1][chosen], keys[2][chosen])
        self._reserve(mine[0].size)
        step = sign * np.array([cost.loss_micro, cost.delta_atto, cost.uses], dtype=np.int64)
        self.used, bad, _ = apply(self._slots, self._rows, self.used, mine, step, self._limit)
        return bad + chosen.start if bad >= 0 else bad

    def amounts(self, keys: Columns) -> tuple[NDArray[np.bool_], Words, Words, Words]:
        """Return for each key whether the log charged it, and its loss, delta and uses (0 if not)."""
        found = np.empty(keys[0].size, dtype=np.int64)
        look_up(self._slots, self._rows, keys, found)
        known = found >= 0
        rows = self._rows[np.maximum(found, 0)]
        rows[~known] = 0
        return known, rows[:, 3], rows[:, 4], rows[:, 2] & _LOW

    def totals(self) -> tuple[Words, Words, Words]:
        """Return loss, delta and uses of every unit, in the order in which the log first charged them."""
        rows = self._rows[: self.used]
        return rows[:, 3], rows[:, 4], rows[:, 2] & _LOW
