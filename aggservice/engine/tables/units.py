"""The privacy units that a job will pay with: 20 bytes each, sorted in place, so that a charge needs no second copy.

In report mode, every report has its own units. In shared-ID mode, many reports share one: whenever the list has
doubled, it is sorted and repetitions are removed, so that it grows with the number of distinct units.
"""

from __future__ import annotations

import math
import mmap

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from aggservice.wire import UNIT_BYTES


def mapped_zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """Return an array of zeros over pages that are taken when first written to and freed with the array."""
    sizes = (shape,) if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    count = math.prod(sizes)
    if count == 0:
        return np.zeros(sizes, dtype=kind)
    memory = mmap.mmap(-1, count * kind.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=kind, count=count).reshape(sizes)


_CHUNK_UNITS = 1 << 15
_SMALL = 24


class UnitList:
    """Unit keys, in chunks, so that nothing is copied while the list grows. Set ``distinct`` if many units repeat."""

    def __init__(self, *, distinct: bool) -> None:
        self._distinct = distinct
        self._chunks: list[NDArray[np.uint8]] = []
        self._fill = _CHUNK_UNITS
        self._count = 0
        self._compact_at = 4 * _CHUNK_UNITS

    def __len__(self) -> int:
        return self._count

    def add(self, units: NDArray[np.uint8], fresh: NDArray[np.bool_] | None, per_report: int) -> None:
        """Add the units of the reports that are ``fresh`` (None: all); each report has ``per_report`` of them."""
        if fresh is not None:
            units = units.reshape(-1, per_report, UNIT_BYTES)[fresh].reshape(-1, UNIT_BYTES)
        self._append(units)
        if self._distinct and self._count >= self._compact_at:
            kept = self.take()
            self._append(kept)
            self._compact_at = max(4 * _CHUNK_UNITS, 2 * self._count)

    def _append(self, units: NDArray[np.uint8]) -> None:
        start = 0
        while start < len(units):
            if self._fill == _CHUNK_UNITS:
                self._chunks.append(mapped_zeros((_CHUNK_UNITS, UNIT_BYTES), np.uint8).view(np.uint8))
                self._fill = 0
            count = min(_CHUNK_UNITS - self._fill, len(units) - start)
            self._chunks[-1][self._fill : self._fill + count] = units[start : start + count]
            self._fill += count
            start += count
        self._count += len(units)

    def take(self) -> NDArray[np.uint8]:
        """Return the distinct units in ascending order and forget them; each chunk is freed once it is copied."""
        out = mapped_zeros((self._count, UNIT_BYTES), np.uint8).view(np.uint8)
        filled = 0
        self._chunks.reverse()
        while self._chunks:
            chunk = self._chunks.pop()
            count = _CHUNK_UNITS if self._chunks else self._fill
            out[filled : filled + count] = chunk[:count]
            filled += count
        self._fill, self._count = _CHUNK_UNITS, 0
        sort_units(out)
        return out[: squeeze(out)]


@njit(cache=True, nogil=True)
def _less(a, b, byte):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for index in range(byte, UNIT_BYTES):
        if a[index] != b[index]:
            return a[index] < b[index]
    return False


@njit(cache=True, nogil=True)
def _swap(units, i, j):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for index in range(UNIT_BYTES):
        kept = units[i, index]
        units[i, index] = units[j, index]
        units[j, index] = kept


@njit(cache=True, nogil=True)
def _insertion(units, start, stop, byte):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for i in range(start + 1, stop):
        j = i
        while j > start and _less(units[j], units[j - 1], byte):
            _swap(units, j, j - 1)
            j -= 1


@njit(cache=True, nogil=True)
def sort_units(units):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Sort rows of 20 bytes in place: a radix sort from the first byte, without a second array.

    The stack holds ranges that are equal up to a byte; at most 256 are pushed for each of 20 bytes.
    """
    stack = np.empty((UNIT_BYTES * 256 + 1, 3), dtype=np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, units.shape[0], 0
    depth = 1
    counts = np.empty(256, dtype=np.int64)
    ends = np.empty(256, dtype=np.int64)
    heads = np.empty(256, dtype=np.int64)
    while depth > 0:
        depth -= 1
        start, stop, byte = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        if stop - start <= _SMALL:
            _insertion(units, start, stop, byte)
            continue
        counts[:] = 0
        for i in range(start, stop):
            counts[units[i, byte]] += 1
        at = start
        for value in range(256):
            heads[value] = at
            at += counts[value]
            ends[value] = at
        for value in range(256):
            while heads[value] < ends[value]:
                i = heads[value]
                where = units[i, byte]
                if where == value:
                    heads[value] += 1
                else:
                    _swap(units, i, heads[where])
                    heads[where] += 1
        if byte + 1 == UNIT_BYTES:
            continue
        begin = start
        for value in range(256):
            if counts[value] > 1:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = begin, begin + counts[value], byte + 1
                depth += 1
            begin += counts[value]


@njit(cache=True, nogil=True)
def squeeze(units):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Move the distinct rows of a sorted array to its front; return their number."""
    if units.shape[0] == 0:
        return 0
    kept = 1
    for i in range(1, units.shape[0]):
        if _less(units[kept - 1], units[i], 0):
            if kept != i:
                for index in range(UNIT_BYTES):
                    units[kept, index] = units[i, index]
            kept += 1
    return kept
