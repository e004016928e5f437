"""Avro's numbers inside kernels: read and write a zigzag varint in a byte array.

``read_long`` returns the number and where it ended; an end of -1 means that it is truncated or longer than 64 bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LONG_BYTES = 10
"""The most bytes that a 64-bit number takes."""


@njit(cache=True)
def read_long(buffer, at, stop):  # type: ignore[no-untyped-def]
    """Return (number, position after it), reading no further than ``stop``; the position is -1 on failure."""
    zigzag = np.uint64(0)
    for index in range(LONG_BYTES):
        if at >= stop:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(buffer[at])
        at += 1
        if index == LONG_BYTES - 1 and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        zigzag |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            half = np.int64(zigzag >> np.uint64(1))
            return half ^ -np.int64(zigzag & np.uint64(1)), np.int64(at)
    return np.int64(0), np.int64(-1)


@njit(cache=True)
def write_long(number, buffer, at):  # type: ignore[no-untyped-def]
    """Write ``number`` at ``at`` and return the position after it; there must be room for ten bytes."""
    wide = np.int64(number)
    zigzag = np.uint64(wide << np.int64(1)) ^ np.uint64(wide >> np.int64(63))
    while zigzag > np.uint64(0x7F):
        buffer[at] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        zigzag >>= np.uint64(7)
        at += 1
    buffer[at] = np.uint8(zigzag)
    return at + 1
