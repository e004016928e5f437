"""Privacy units: opaque 20-byte keys in a canonical set, sorted and without repetition.

``aggservice.wire`` derives the keys (hour ‖ 16 bytes of a hash); the ledger treats them as opaque. Keys of
one hour share their first bytes, so a job's units lie close together in key order; the balances need that for speed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from budget.errors import UnitKeyError

UNIT_BYTES: Final = 20
KEY = np.dtype([("hi", ">u8"), ("mid", ">u8"), ("lo", ">u4")])
"""A key as three big-endian numbers, so that the order of the numbers is the order of the bytes."""

_AT_ONCE: Final = 1 << 16

Words = NDArray[np.uint64]
Tails = NDArray[np.uint32]
Columns = tuple[Words, Words, Tails]
Indexes = NDArray[np.int64]
Units = NDArray[np.uint8] | bytes | bytearray | memoryview


def columns(keys: NDArray[np.uint8]) -> Columns:
    """Return the high, middle and low parts of an (n, 20) array of keys as native numbers."""
    parts = np.ascontiguousarray(keys).view(KEY)[:, 0]
    return parts["hi"].astype(np.uint64), parts["mid"].astype(np.uint64), parts["lo"].astype(np.uint32)


@njit(cache=True)
def ascending(keys: Columns) -> bool:
    """Return whether the keys are in strictly ascending order. O(n)."""
    hi, mid, lo = keys
    for i in range(1, hi.size):
        if hi[i - 1] > hi[i]:
            return False
        if hi[i - 1] == hi[i]:
            if mid[i - 1] > mid[i]:
                return False
            if mid[i - 1] == mid[i] and lo[i - 1] >= lo[i]:
                return False
    return True


@njit(cache=True)
def merge_indexes(left: Columns, right: Columns, index_left: Indexes, index_right: Indexes) -> int:
    """Write the index of each key of two strictly ascending lists in their sorted union; return its size. O(n)."""
    lh, lm, ll = left
    rh, rm, rl = right
    i = 0
    j = 0
    out = 0
    while i < lh.size or j < rh.size:
        side = 0
        if i == lh.size:
            side = 1
        elif j == rh.size:
            side = -1
        elif lh[i] != rh[j]:
            side = -1 if lh[i] < rh[j] else 1
        elif lm[i] != rm[j]:
            side = -1 if lm[i] < rm[j] else 1
        elif ll[i] != rl[j]:
            side = -1 if ll[i] < rl[j] else 1
        if side <= 0:
            index_left[i] = out
            i += 1
        if side >= 0:
            index_right[j] = out
            j += 1
        out += 1
    return out


def contains(held: NDArray[np.uint8], asked: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which of the keys ``asked`` are among ``held``; both strictly ascending. O(n)."""
    index_held, index_asked = np.empty(len(held), np.int64), np.empty(len(asked), np.int64)
    size = merge_indexes(columns(held), columns(asked), index_held, index_asked)
    marked = np.zeros(size, dtype=bool)
    marked[index_held] = True
    return marked[index_asked]


def rows(units: Units) -> NDArray[np.uint8]:
    """Return units as an (n, 20) array of bytes; a buffer holds keys one after another."""
    if isinstance(units, bytes | bytearray | memoryview):
        flat = np.frombuffer(units, dtype=np.uint8)
        if flat.size % UNIT_BYTES:
            raise UnitKeyError(f"{flat.size} bytes are not a whole number of {UNIT_BYTES}-byte unit keys")
        return flat.reshape(-1, UNIT_BYTES)
    if not isinstance(units, np.ndarray) or units.dtype != np.uint8 or units.ndim != 2 or units.shape[1] != UNIT_BYTES:
        raise UnitKeyError(f"unit keys must be an (n, {UNIT_BYTES}) array of uint8, or a buffer of keys")
    return units


def _sorted(keys: NDArray[np.uint8]) -> NDArray[np.uint8]:
    hi, mid, lo = columns(keys)
    if ascending((hi, mid, lo)):
        return np.ascontiguousarray(keys)
    order = np.argsort(hi)
    ties = np.flatnonzero(hi[order[1:]] == hi[order[:-1]])
    if ties.size:
        # Keys of one hour share four bytes, so a few in a million tie in eight: only those need the slower sort.
        tied = np.union1d(ties, ties + 1)
        among = order[tied]
        order[tied] = among[np.lexsort((lo[among], mid[among], hi[among]))]
        hi, mid, lo = hi[order], mid[order], lo[order]
        fresh = np.ones(hi.size, dtype=bool)
        fresh[1:] = (hi[1:] != hi[:-1]) | (mid[1:] != mid[:-1]) | (lo[1:] != lo[:-1])
        order = order[fresh]
    return np.ascontiguousarray(keys[order])


@dataclass(frozen=True, slots=True, eq=False)
class UnitSet:
    """A set of unit keys: ``keys`` is (n, 20) and strictly ascending, else UnitKeyError. ``of`` sorts any keys."""

    keys: NDArray[np.uint8]

    def __post_init__(self) -> None:
        keys = rows(self.keys)
        for start in range(0, len(keys), _AT_ONCE):
            if not ascending(columns(keys[max(start - 1, 0) : start + _AT_ONCE])):
                raise UnitKeyError("the unit keys are not in strictly ascending order: use UnitSet.of to sort them")

    @classmethod
    def of(cls, units: Units | UnitSet) -> UnitSet:
        """Return the set of ``units``, without repeated keys. O(n log n); O(n) if they are sorted."""
        if isinstance(units, UnitSet):
            return units
        keys = _sorted(rows(units))
        if keys is units or keys.base is not None:
            keys = keys.copy()
        keys.setflags(write=False)
        return cls(keys)

    @classmethod
    def packed(cls, raw: bytes) -> UnitSet:
        """Read the packed form: keys one after another, strictly ascending; else UnitKeyError."""
        return cls(rows(raw))

    def __len__(self) -> int:
        return int(self.keys.shape[0])

    def __getitem__(self, index: int) -> bytes:
        return self.keys[index].tobytes()

    def digest(self) -> bytes:
        """Return SHA-256 over the packed form."""
        return hashlib.sha256(np.ascontiguousarray(self.keys).data).digest()
