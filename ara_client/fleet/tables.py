"""The hash tables of a fleet: groups of sources by device, reporter and destination, and dedup keys by source.

Open addressing with linear probing. Each entry is one row, so that a lookup touches one cache line.
Tables stay at most half full: the caller replaces them by larger ones in time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from ara_client.fleet.columns import Ints, Words

#: NONE is no source; EMPTY marks an empty row.
NONE: Final = -1
EMPTY: Final = -2

#: Columns of a table of groups; ``HEAD`` is the best (or newest) source, ``NONE``, or ``EMPTY``.
DEVICE, REPORTER, DESTINATION, HEAD = range(4)
GROUP_WIDTH: Final = 4

#: Columns of a set of dedup keys.
SOURCE, DEDUP_KEY = range(2)
DEDUP_WIDTH: Final = 2
_NO_SOURCE: Final = (1 << 64) - 1


@njit(cache=True)
def _mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    """Return one step of a hash: multiply, xor, shift (the constants are splitmix64's)."""
    z = (np.uint64(state) ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def group_slot(groups: Ints, device: int, reporter: int, destination: int) -> int:
    """Return the row of the group, or the empty row to put it in."""
    mask = np.uint64(groups.shape[0] - 1)
    hashed = _mixed(np.uint64(0), np.uint64(device))
    slot = _mixed(_mixed(hashed, np.uint64(reporter)), np.uint64(destination)) & mask
    while groups[slot, HEAD] != EMPTY and not (
        groups[slot, DEVICE] == device
        and groups[slot, REPORTER] == reporter
        and groups[slot, DESTINATION] == destination
    ):
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True)
def dedup_row(dedup: Words, source: int, key: int) -> tuple[int, bool]:
    """Return the row of (source, key), or the empty row to put it in, and whether it was found."""
    mask = np.uint64(dedup.shape[0] - 1)
    wanted = np.uint64(source)
    slot = _mixed(_mixed(np.uint64(1), wanted), np.uint64(key)) & mask
    while dedup[slot, SOURCE] != np.uint64(_NO_SOURCE):
        if dedup[slot, SOURCE] == wanted and dedup[slot, DEDUP_KEY] == key:
            return slot, True
        slot = (slot + np.uint64(1)) & mask
    return slot, False


@njit(cache=True)
def move_groups(old: Ints, new: Ints) -> None:
    """Copy every group into an empty, larger table."""
    for index in range(old.shape[0]):
        if old[index, HEAD] != EMPTY:
            slot = group_slot(new, old[index, DEVICE], old[index, REPORTER], old[index, DESTINATION])
            new[slot] = old[index]


@njit(cache=True)
def move_dedup(old: Words, new: Words) -> None:
    """Copy every dedup key into an empty, larger set."""
    for index in range(old.shape[0]):
        if old[index, SOURCE] != np.uint64(_NO_SOURCE):
            new[dedup_row(new, old[index, SOURCE], old[index, DEDUP_KEY])[0]] = old[index]


def empty_groups(size: int) -> Ints:
    """Return an empty table of groups; ``size`` is a power of two."""
    return np.full((size, GROUP_WIDTH), EMPTY, dtype=np.int64)


def empty_dedup_keys(size: int) -> Words:
    """Return an empty set of dedup keys; ``size`` is a power of two."""
    return np.full((size, DEDUP_WIDTH), _NO_SOURCE, dtype=np.uint64)
