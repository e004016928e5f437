"""Sums over 128-bit keys, in columns: an open-addressing table of (key high, key low) with one 64-bit sum per key.

Predeclared keys come first and keep the order in which they were declared. Other keys are added behind them when the
job discovers keys, or only counted in ``outside`` when it does not. Sums cannot overflow: a job has at most 2³¹ - 1
reports, and each contributes at most 2³² (``opening``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.job.request import ALL_BITS, KeyMask

MOST_KEYS = (1 << 31) - 2
"""Declared and discovered keys of one job: the table's slots are 32-bit indexes."""
_SMALLEST_TABLE = 1 << 10
#: A table is rebuilt twice as large when it is half full, so that keys seldom collide.
_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 1, 2
#: Keys whose slots are read ahead of their use, so that the waits for memory overlap.
_AHEAD = 256

DONE, GROW = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SumColumns:
    """Keys with their sums: the first ``declared`` of them were declared. ``outside`` is the sum of all other keys."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    sums: NDArray[np.int64]
    declared: int = 0
    outside: int = 0

    def __len__(self) -> int:
        return self.sums.size

    def split(self) -> tuple[SumColumns, SumColumns]:
        """Return declared and undeclared keys, without copying."""
        at = self.declared
        return (
            SumColumns(high=self.high[:at], low=self.low[:at], sums=self.sums[:at], declared=at),
            SumColumns(high=self.high[at:], low=self.low[at:], sums=self.sums[at:]),
        )


class KeySums:
    """The sums of one job.

    ``salt`` keys the hash, so that a client cannot choose keys that collide. ``discover`` adds undeclared keys that
    ``mask`` allows; without it, their values go to ``outside``. Amortised O(1) per contribution; 24 bytes per key, and
    8 to 16 for the table.
    """

    def __init__(self, *, salt: int, discover: bool = False, mask: KeyMask | None = None, expected: int = 0) -> None:
        self._salt = np.uint64(salt & ALL_BITS)
        self._discover = discover
        self._mask = mask or KeyMask()
        self._count = 0
        self._declared = 0
        self._outside = 0
        capacity = _SMALLEST_TABLE
        while capacity * _LOAD_NUMERATOR < expected * _LOAD_DENOMINATOR:
            capacity *= 2
        self._slots = np.full(capacity, -1, dtype=np.int32)
        room = max(expected, _SMALLEST_TABLE)
        self._high = np.empty(room, dtype=np.uint64)
        self._low = np.empty(room, dtype=np.uint64)
        self._sums = np.empty(room, dtype=np.int64)
        self._first_slots = np.empty(_AHEAD, dtype=np.int64)
        self._seen = np.empty(_AHEAD, dtype=np.uint64)

    @property
    def declared(self) -> int:
        """How many keys were declared; they are the first ones."""
        return self._declared

    @property
    def high(self) -> NDArray[np.uint64]:
        """The high halves of the keys."""
        return self._high[: self._count]

    @property
    def low(self) -> NDArray[np.uint64]:
        """The low halves of the keys."""
        return self._low[: self._count]

    @property
    def sums(self) -> NDArray[np.int64]:
        """The sums, one per key."""
        return self._sums[: self._count]

    @property
    def outside(self) -> int:
        """The sum of contributions whose key is neither declared nor discovered."""
        return self._outside

    def __len__(self) -> int:
        return self._count

    def columns(self) -> SumColumns:
        """Return keys and sums as they are now, without copying."""
        return SumColumns(high=self.high, low=self.low, sums=self.sums, declared=self._declared, outside=self._outside)

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Add keys that the summary will always have; a key that was declared before is ignored.

        Must come before the first contribution, because keys discovered before would count as declared. The session
        checks the order of calls, because an error from here would reveal what reports contain.
        """
        position = 0
        while position < high.size:
            state, position, count = declare_kernel(
                self._slots,
                self._salt,
                self._high,
                self._low,
                self._sums,
                self._count,
                high,
                low,
                position,
                self._first_slots,
                self._seen,
            )
            self._count = int(count)
            if state == GROW:
                self._grow()
        self._declared = self._count

    def add(
        self,
        high: NDArray[np.uint64],
        low: NDArray[np.uint64],
        values: NDArray[np.uint32] | NDArray[np.int64],
        rows: NDArray[np.int32],
        fresh: NDArray[np.bool_],
    ) -> None:
        """Add the contributions of reports that are ``fresh``; ``rows`` gives the report of each contribution.

        A value of 0 is null and is ignored.
        """
        position = 0
        while position < high.size:
            state, position, count, outside = add_kernel(
                self._slots,
                self._salt,
                self._high,
                self._low,
                self._sums,
                self._count,
                high,
                low,
                values,
                rows,
                fresh,
                position,
                np.uint64(self._mask.high),
                np.uint64(self._mask.low),
                self._discover,
                self._outside,
                self._first_slots,
                self._seen,
            )
            self._count, self._outside = int(count), int(outside)
            if state == GROW:
                self._grow()

    def _grow(self) -> None:
        if self._count == self._high.size:
            room = self._count + self._count // 2
            self._high = np.concatenate((self._high, np.empty(room - self._count, dtype=np.uint64)))
            self._low = np.concatenate((self._low, np.empty(room - self._count, dtype=np.uint64)))
            self._sums = np.concatenate((self._sums, np.empty(room - self._count, dtype=np.int64)))
        if self._count * _LOAD_DENOMINATOR >= self._slots.size * _LOAD_NUMERATOR:
            slots = np.full(2 * self._slots.size, -1, dtype=np.int32)
            self._slots = slots
            rebuild_kernel(slots, self._salt, self._high, self._low, self._count)

    def _check(self) -> None:
        """Assert every invariant: each key is found once, where its hash says, and the table is not too full."""
        assert 0 <= self._declared <= self._count <= self._high.size == self._low.size == self._sums.size
        assert self._count * _LOAD_DENOMINATOR <= self._slots.size * _LOAD_NUMERATOR
        used = self._slots[self._slots >= 0]
        assert np.array_equal(np.sort(used), np.arange(self._count))
        pairs = np.stack((self.high, self.low), axis=1)
        assert np.unique(pairs, axis=0).shape[0] == self._count
        for index in range(self._count):
            high, low = self._high[index], self._low[index]
            start = int(hash_key(high, low, self._salt)) & (self._slots.size - 1)
            assert self._slots[find_slot(self._slots, start, self._high, self._low, high, low)] == index
        assert (self.sums >= 0).all()


@njit(cache=True, nogil=True, inline="always")
def hash_key(high, low, salt):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Mix 128 bits and a salt into 64 bits; the multiplications wrap around."""
    h = (low ^ salt) * np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(32)
    h = (h ^ high ^ (salt >> np.uint64(7))) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True, inline="always")
def find_slot(slots, slot, high, low, key_high, key_low):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Return the slot that holds the key, or the first empty slot if the key is new.

    The search begins at ``slot``, the hash of the key. The table always has an empty slot.
    """
    wrap = np.int64(slots.size - 1)
    while True:
        index = slots[slot]
        if index < 0 or (low[index] == key_low and high[index] == key_high):
            return slot
        slot = (slot + 1) & wrap


@njit(cache=True, nogil=True)
def rebuild_kernel(slots, salt, high, low, count):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Enter ``count`` distinct keys into an empty table."""
    wrap = np.uint64(slots.size - 1)
    for index in range(count):
        slot = np.int64(hash_key(high[index], low[index], salt) & wrap)
        while slots[slot] >= 0:
            slot = (slot + 1) & np.int64(wrap)
        slots[slot] = index


@njit(cache=True, nogil=True)
def declare_kernel(  # type: ignore[no-untyped-def]
    slots, salt, high, low, sums, count, keys_high, keys_low, position, first_slots, seen
):  # pragma: no cover - compiled
    """Enter keys with a sum of 0 from ``position`` on; return (state, next position, count).

    ``first_slots`` and ``seen`` are scratch space: reading slots ahead loads them into the cache.
    """
    limit = slots.size // _LOAD_DENOMINATOR * _LOAD_NUMERATOR
    wrap = np.uint64(slots.size - 1)
    start = position
    while start < keys_high.size:
        stop = min(start + first_slots.size, keys_high.size)
        for i in range(start, stop):
            first_slots[i - start] = np.int64(hash_key(keys_high[i], keys_low[i], salt) & wrap)
        for i in range(stop - start):
            seen[i] = np.uint64(slots[first_slots[i]])
        for i in range(start, stop):
            slot = find_slot(slots, first_slots[i - start], high, low, keys_high[i], keys_low[i])
            if slots[slot] < 0:
                if count >= limit or count >= high.size:
                    return GROW, i, count
                slots[slot] = count
                high[count] = keys_high[i]
                low[count] = keys_low[i]
                sums[count] = 0
                count += 1
        start = stop
    return DONE, keys_high.size, count


@njit(cache=True, nogil=True)
def add_kernel(  # type: ignore[no-untyped-def]
    slots,
    salt,
    high,
    low,
    sums,
    count,
    keys_high,
    keys_low,
    values,
    rows,
    fresh,
    position,
    mask_high,
    mask_low,
    discover,
    outside,
    first_slots,
    seen,
):  # pragma: no cover - compiled
    """Add contributions from ``position`` on; return (state, next position, count, outside).

    Sums stay in 0..2⁶³-1: a job's contributions add up to at most (2³¹-1)·2³². Reads ahead, as ``declare_kernel`` does.
    """
    limit = slots.size // _LOAD_DENOMINATOR * _LOAD_NUMERATOR
    wrap = np.uint64(slots.size - 1)
    start = position
    while start < keys_high.size:
        stop = min(start + first_slots.size, keys_high.size)
        for i in range(start, stop):
            first_slots[i - start] = np.int64(hash_key(keys_high[i], keys_low[i], salt) & wrap)
        for i in range(stop - start):
            seen[i] = np.uint64(slots[first_slots[i]])
        for i in range(stop - start):
            index = slots[first_slots[i]]
            if index >= 0:
                seen[i] = low[index] ^ high[index] ^ np.uint64(sums[index])
        for i in range(start, stop):
            value = np.int64(values[i])
            if value == 0 or not fresh[rows[i]]:
                continue
            slot = find_slot(slots, first_slots[i - start], high, low, keys_high[i], keys_low[i])
            index = np.int64(slots[slot])
            if index < 0:
                if not discover or (keys_high[i] & ~mask_high) != 0 or (keys_low[i] & ~mask_low) != 0:
                    outside += value
                    continue
                if count >= limit or count >= high.size:
                    return GROW, i, count, outside
                slots[slot] = count
                high[count] = keys_high[i]
                low[count] = keys_low[i]
                sums[count] = value
                count += 1
                continue
            sums[index] += value
        start = stop
    return DONE, keys_high.size, count, outside
