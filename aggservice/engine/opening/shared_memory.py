"""A slot: a piece of shared memory that carries one batch of columns to a worker and back.

Arrays follow one another, each at a multiple of eight bytes. Their positions (``Layout``) are sent in a small message
through a pipe. A batch that does not fit is sent in the message itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray

from aggservice.wire import ReportBatch, Spans

_ALIGNMENT = 8

Layout = tuple[tuple[str, int, int], ...]
"""Per array: its dtype, its position and its number of elements."""
Parcel = Layout | list[NDArray[np.generic]]
"""The positions of the arrays in the slot, or the arrays themselves if they did not fit."""


class Slot:
    """Shared memory of a fixed size, made by the pool and opened by a worker by its name."""

    def __init__(self, memory: SharedMemory, *, owner: bool) -> None:
        self._memory = memory
        self._owner = owner

    @classmethod
    def create(cls, size: int) -> Slot:
        """Make a slot. The process that makes it also frees it."""
        return cls(SharedMemory(create=True, size=size), owner=True)

    @classmethod
    def attach(cls, name: str) -> Slot:
        """Open a slot that another process made."""
        return cls(SharedMemory(name=name), owner=False)

    @property
    def name(self) -> str:
        """The name by which another process opens the slot."""
        return self._memory.name

    def put(self, arrays: Sequence[NDArray[np.generic]]) -> Parcel:
        """Copy the arrays in, flat; return their positions, or the arrays if they do not fit."""
        layout = []
        start = 0
        for array in arrays:
            layout.append((array.dtype.str, start, array.size))
            start += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        if start > self._memory.size:
            return [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        for array, (dtype, begin, size) in zip(arrays, layout, strict=True):
            if size:
                self._view(dtype, begin, size)[:] = array.reshape(-1)
        return tuple(layout)

    def get(self, parcel: Parcel, *, copy: bool) -> list[NDArray[np.generic]]:
        """Return the arrays; without ``copy`` they are views that end with the slot's next use."""
        if isinstance(parcel, list):
            return parcel
        arrays: list[NDArray[np.generic]] = []
        for dtype, begin, size in parcel:
            if size == 0:
                arrays.append(np.empty(0, dtype=dtype))
                continue
            view = self._view(dtype, begin, size)
            arrays.append(view.copy() if copy else view)
        return arrays

    def _view(self, dtype: str, begin: int, size: int) -> NDArray[np.generic]:
        assert self._memory.buf is not None
        return np.frombuffer(self._memory.buf, dtype=dtype, count=size, offset=begin)

    def close(self) -> None:
        """Close the slot; if this process made it, also return its memory to the system."""
        with suppress(BufferError):  # a view of it is still alive somewhere; the memory goes with the last one
            self._memory.close()
        if self._owner:
            self._memory.unlink()


def batch_to_arrays(batch: ReportBatch) -> list[NDArray[np.generic]]:
    """Return a batch as arrays: the bytes of its rows, and the start and stop of each row.

    Bytes that columns share appear once. Bytes before the first row and after the last are left out.
    """
    arrays: list[NDArray[np.generic]] = []
    columns = (batch.payloads, batch.key_ids, batch.shared_infos)
    shared = all(column.buffer is batch.payloads.buffer for column in columns)
    whole = _extent(columns) if shared else None
    for column in columns:
        begin, end = whole or _extent((column,))
        if not shared or not arrays:
            arrays.append(column.buffer[begin:end])
        arrays += [column.starts - begin, column.stops - begin]
    return arrays


def _extent(columns: Sequence[Spans]) -> tuple[int, int]:
    """Return the smallest start and the largest stop of any row."""
    if not len(columns[0]):
        return 0, 0
    return min(int(one.starts.min()) for one in columns), max(int(one.stops.max()) for one in columns)


def batch_from_arrays(arrays: Sequence[NDArray[np.generic]]) -> ReportBatch:
    """Return the batch that ``batch_to_arrays`` turned into arrays, without copying them."""
    per_column = 2 if len(arrays) == 7 else 3
    columns = []
    for number in range(3):
        where = number * per_column + (1 if per_column == 2 else 0)
        buffer = arrays[0] if per_column == 2 else arrays[where]
        starts, stops = (arrays[where], arrays[where + 1]) if per_column == 2 else arrays[where + 1 : where + 3]
        columns.append(Spans(buffer=buffer.view(np.uint8), starts=starts.view(np.int64), stops=stops.view(np.int64)))
    return ReportBatch(payloads=columns[0], key_ids=columns[1], shared_infos=columns[2])
