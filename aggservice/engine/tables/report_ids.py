"""Which report ids a job has seen: a set of 128-bit ids that needs little memory per report.

Of the reports of one job with equal ids, the first counts. The table holds the ids themselves and grows by two fifths
when it is nine tenths full: at most 44 bytes per id while it grows, 18 to 28 otherwise.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.engine.tables.sums import hash_key
from aggservice.engine.tables.units import mapped_zeros
from aggservice.job.request import ALL_BITS

_SMALLEST_TABLE = 1 << 10
_LOAD_NUMERATOR, _LOAD_DENOMINATOR = 9, 10


class ReportIds:
    """A set of report ids. ``salt`` keys the hash, so that a client cannot choose ids that collide."""

    def __init__(self, *, salt: int) -> None:
        self._salt = np.uint64(salt & ALL_BITS)
        self._table = mapped_zeros((_SMALLEST_TABLE, 2), np.uint64).view(np.uint64)
        self._count = 0
        self._zero = False

    def __len__(self) -> int:
        return self._count + self._zero

    def add(self, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add ids (one per row: high, low) in order; return which of them are new."""
        fresh = np.zeros(ids.shape[0], dtype=np.bool_)
        position = 0
        while True:
            position, self._count, zero = insert_kernel(
                self._table, self._salt, self._count, self._zero, ids, position, fresh
            )
            self._zero = bool(zero)
            if position >= ids.shape[0]:
                return fresh
            self._grow()

    def _grow(self) -> None:
        larger = mapped_zeros((self._table.shape[0] * 7 // 5, 2), np.uint64).view(np.uint64)
        move_kernel(self._table, larger, self._salt)
        self._table = larger


@njit(cache=True, nogil=True, inline="always")
def first_slot(high, low, salt, size):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Return the first slot to try: the hash scaled to the table's size, which need not be a power of two."""
    return np.int64(((hash_key(high, low, salt) >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def insert_kernel(table, salt, count, zero, ids, position, fresh):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Insert from ``position`` on until done or full; return (next position, count, whether id 0 is in).

    An empty slot is all zeros, so the id of all zeros is kept aside. Tables stay below 2³² slots: the hash is scaled
    by a 32-bit product.
    """
    size = table.shape[0]
    limit = size // _LOAD_DENOMINATOR * _LOAD_NUMERATOR
    for i in range(position, ids.shape[0]):
        high, low = ids[i, 0], ids[i, 1]
        if high == 0 and low == 0:
            fresh[i] = not zero
            zero = True
            continue
        slot = first_slot(high, low, salt, size)
        while True:
            if table[slot, 0] == high and table[slot, 1] == low:
                break
            if table[slot, 0] == 0 and table[slot, 1] == 0:
                if count >= limit:
                    return i, count, zero
                table[slot, 0] = high
                table[slot, 1] = low
                count += 1
                fresh[i] = True
                break
            slot += 1
            if slot == size:
                slot = 0
    return ids.shape[0], count, zero


@njit(cache=True, nogil=True)
def move_kernel(table, larger, salt):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Copy every id into a larger, empty table."""
    size = larger.shape[0]
    for i in range(table.shape[0]):
        high, low = table[i, 0], table[i, 1]
        if high == 0 and low == 0:
            continue
        slot = first_slot(high, low, salt, size)
        while larger[slot, 0] != 0 or larger[slot, 1] != 0:
            slot += 1
            if slot == size:
                slot = 0
        larger[slot, 0] = high
        larger[slot, 1] = low
