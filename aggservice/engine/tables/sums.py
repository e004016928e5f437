"""Sums over 128-bit keys, in columns: an open-addressing table of (key high, key low) with a 64-bit sum each.

Predeclared keys come first and keep the order in which they were declared. Other keys are added behind them when the
job discovers keys, or only counted in ``outside`` when it does not. Sums cannot overflow: a job has at most 2³¹ - 1
reports, and none of them contributes more than 2³² (``opening``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.engine.errors import DomainError

MOST_KEYS = (1 << 31) - 2
"""Declared and discovered keys of one job: the table's slots are 32-bit indexes."""
_SMALLEST_TABLE = 1 << 10
#: A table is rebuilt twice as large when it is half full: a key is then seldom compared with another's.
_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 1, 2
#: Keys whose places in memory are read ahead of their use, so that the waits for memory overlap.
_AHEAD = 256

DONE, GROW = 0, 1
ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMask:
    """Which keys may be discovered: those without a bit outside the mask. All keys unless said otherwise."""

    high: int = ALL_BITS
    low: int = ALL_BITS

    def __post_init__(self) -> None:
        if not (0 <= self.high <= ALL_BITS and 0 <= self.low <= ALL_BITS):
            raise DomainError("a key mask has 128 bits")

    @classmethod
    def of(cls, mask: int) -> KeyMask:
        """Return the mask of a 128-bit number."""
        if not 0 <= mask < 1 << 128:
            raise DomainError("a key mask has 128 bits")
        return cls(high=mask >> 64, low=mask & ALL_BITS)


class KeySums:
    """The sums of one job.

    ``salt`` keys the hash, so that nobody who chooses keys can choose collisions. ``discover`` adds keys that were not
    declared, as far as ``mask`` lets them; without it their values go to ``outside``. Amortised O(1) a contribution;
    24 bytes a key and 8 to 16 for the table.
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
        self._places = np.empty(_AHEAD, dtype=np.int64)
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
        """The sums, a key each."""
        return self._sums[: self._count]

    @property
    def outside(self) -> int:
        """The sum of contributions whose key is neither declared nor discovered."""
        return self._outside

    def __len__(self) -> int:
        return self._count

    def declare(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> None:
        """Add keys that the summary will have whatever the reports say; one that is there already is left alone.

        Must come before the first contribution: a key that was discovered first would be taken for a declared one. The
        session sees to that by the order of calls, because an error from here would tell what reports hold.
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
                self._places,
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
        values: NDArray[np.uint32],
        rows: NDArray[np.int32],
        fresh: NDArray[np.bool_],
    ) -> None:
        """Add contributions of the reports that are ``fresh`` (``rows`` says which report each is of).

        A value of 0 is a null and leaves no trace.
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
                self._places,
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
    """Mix 128 bits and a salt into 64; plain multiplication wraps, which is what a hash wants."""
    h = (low ^ salt) * np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(32)
    h = (h ^ high ^ (salt >> np.uint64(7))) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    h *= np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True, inline="always")
def find_slot(slots, slot, high, low, key_high, key_low):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Return the slot that holds the key, or the empty one where it would go, from the slot of its hash on.

    Some slot is always empty.
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
    slots, salt, high, low, sums, count, keys_high, keys_low, position, places, seen
):  # pragma: no cover - compiled
    """Enter keys with a sum of 0 from ``position`` on; return (state, next position, count).

    ``places`` and ``seen`` are scratch: what is read ahead is written there, which brings it near.
    """
    limit = slots.size // _LOAD_DENOMINATOR * _LOAD_NUMERATOR
    wrap = np.uint64(slots.size - 1)
    start = position
    while start < keys_high.size:
        stop = min(start + places.size, keys_high.size)
        for i in range(start, stop):
            places[i - start] = np.int64(hash_key(keys_high[i], keys_low[i], salt) & wrap)
        for i in range(stop - start):
            seen[i] = np.uint64(slots[places[i]])
        for i in range(start, stop):
            slot = find_slot(slots, places[i - start], high, low, keys_high[i], keys_low[i])
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
    places,
    seen,
):  # pragma: no cover - compiled
    """Add contributions from ``position`` on; return (state, next position, count, outside).

    Sums stay in 0..2⁶³-1: a job's contributions add up to at most (2³¹-1)·2³². Reads ahead, as ``declare_kernel`` does.
    """
    limit = slots.size // _LOAD_DENOMINATOR * _LOAD_NUMERATOR
    wrap = np.uint64(slots.size - 1)
    start = position
    while start < keys_high.size:
        stop = min(start + places.size, keys_high.size)
        for i in range(start, stop):
            places[i - start] = np.int64(hash_key(keys_high[i], keys_low[i], salt) & wrap)
        for i in range(stop - start):
            seen[i] = np.uint64(slots[places[i]])
        for i in range(stop - start):
            index = slots[places[i]]
            if index >= 0:
                seen[i] = low[index] ^ high[index] ^ np.uint64(sums[index])
        for i in range(start, stop):
            value = np.int64(values[i])
            if value == 0 or not fresh[rows[i]]:
                continue
            slot = find_slot(slots, places[i - start], high, low, keys_high[i], keys_low[i])
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


def sums_twin(
    declared: list[int],
    contributions: list[tuple[int, int]],
    *,
    discover: bool = False,
    mask: int = (1 << 128) - 1,
) -> tuple[dict[int, int], int]:
    """Return (sums by key, outside) in plain Python: what ``KeySums`` must give for the same contributions."""
    sums = dict.fromkeys(declared, 0)
    outside = 0
    for key, value in contributions:
        if value == 0:
            continue
        if key in sums or (discover and key & ~mask == 0):
            sums[key] = sums.get(key, 0) + value
        else:
            outside += value
    return sums, outside
