"""The hash tables of a fleet: groups of sources by device, reporter and destination, and dedup keys by source.

Open addressing with linear probing. A group lies in one row of its table, so that finding it touches one cache line.
Tables are kept at most half full: whoever fills them asks for a larger one in time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numba import njit

from ara_client.fleet_columns import Ints, Words

#: No source. An empty row has this other number in place of one.
NONE: Final = -1
EMPTY: Final = -2

#: Columns of a table of groups; ``HEAD`` is the best (or newest) source, or that the row is empty.
DEVICE: Final = 0
REPORTER: Final = 1
DESTINATION: Final = 2
HEAD: Final = 3
GROUP_WIDTH: Final = 4


class DedupKeys(NamedTuple):
    """Hash set of (source, dedup key)."""

    source: Ints
    key: Words


@njit(cache=True)
def _mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    """Return one step of a hash: multiply, xor, shift (the constants are splitmix64's)."""
    z = (np.uint64(state) ^ np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def group_slot(groups: Ints, device: int, reporter: int, destination: int) -> int:
    """Return the row that holds the group, or the empty one where it belongs."""
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
def dedup_slot(dedup: DedupKeys, source: int, key: int) -> tuple[int, bool]:
    """Return the slot of (source, key) or where it belongs, and whether it is there."""
    mask = np.uint64(dedup.source.size - 1)
    slot = _mixed(_mixed(np.uint64(1), np.uint64(source)), np.uint64(key)) & mask
    while dedup.source[slot] != EMPTY:
        if dedup.source[slot] == source and dedup.key[slot] == key:
            return slot, True
        slot = (slot + np.uint64(1)) & mask
    return slot, False


@njit(cache=True)
def move_groups(old: Ints, new: Ints) -> None:
    """Enter every group into an empty, larger table."""
    for index in range(old.shape[0]):
        if old[index, HEAD] != EMPTY:
            slot = group_slot(new, old[index, DEVICE], old[index, REPORTER], old[index, DESTINATION])
            new[slot] = old[index]


@njit(cache=True)
def move_dedup_keys(old: DedupKeys, new: DedupKeys) -> None:
    """Enter every dedup key into an empty, larger set."""
    for index in range(old.source.size):
        if old.source[index] != EMPTY:
            slot = dedup_slot(new, old.source[index], old.key[index])[0]
            new.source[slot] = old.source[index]
            new.key[slot] = old.key[index]


def empty_groups(size: int) -> Ints:
    """Return an empty table of groups; ``size`` is a power of two."""
    return np.full((size, GROUP_WIDTH), EMPTY, dtype=np.int64)


def empty_dedup_keys(size: int) -> DedupKeys:
    """Return an empty set of dedup keys; ``size`` is a power of two."""
    return DedupKeys(np.full(size, EMPTY, dtype=np.int64), np.zeros(size, dtype=np.uint64))
