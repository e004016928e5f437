"""Rows of bits in 64-bit words: packing, unpacking and counting by position."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ldp_client.errors import ReportError

Words = NDArray[np.uint64]

_ONES = (1 << 64) - 1
_PLANES = 8


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
