"""The memoized answers of a fleet: an open-addressing table from (user, value) to row, and a store of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ldp_client.errors import ReportError

_EMPTY = -1
_SMALLEST = 1 << 10


class MemoTable:
    """Numbers distinct keys 0, 1, 2, … in the order in which they first occur. Amortized O(1) per key.

    Keys are integers in [0, 2^62).
    """

    def __init__(self) -> None:
        self._table = _empty(_SMALLEST)
        self.size = 0

    def rows(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row of each key and, in the order of their rows, the positions of keys that were new."""
        if 2 * (self.size + keys.size) > self._table.shape[1]:
            self._grow(2 * (self.size + keys.size))
        rows = np.empty(keys.size, dtype=np.int64)
        fresh = np.empty(keys.size, dtype=np.int64)
        found = _find_kernel(keys, self._table, self.size, rows, fresh)
        self.size += found
        return rows, fresh[:found]

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each row."""
        keys, rows = self._table
        used = keys != _EMPTY
        out = np.empty(self.size, dtype=np.int64)
        out[rows[used]] = keys[used]
        return out

    def _grow(self, least: int) -> None:
        keys = self.keys()
        self._table = _empty(1 << (2 * least - 1).bit_length())
        scratch = np.empty(keys.size, dtype=np.int64)
        _find_kernel(keys, self._table, 0, scratch, scratch.copy())

    def _check(self) -> None:
        """Assert the invariants: each row once, no key twice, at most half full."""
        keys, rows = self._table
        used = keys[keys != _EMPTY]
        assert used.size == self.size == np.unique(used).size
        assert np.array_equal(np.sort(rows[keys != _EMPTY]), np.arange(self.size))
        assert 2 * self.size <= keys.size


class RowStore:
    """An append-only store of rows of 64-bit words, by index. Amortized O(1) per row."""

    def __init__(self, width: int) -> None:
        self._rows: NDArray[np.uint64] = np.empty((_SMALLEST, width), dtype=np.uint64)
        self.count = 0

    def append(self, rows: NDArray[np.uint64]) -> None:
        """Add rows at the end."""
        needed = self.count + rows.shape[0]
        if needed > self._rows.shape[0]:
            # In place: copying hundreds of megabytes would cost more than the coins that filled them.
            self._rows.resize((needed + needed // 2, self._rows.shape[1]), refcheck=False)
        self._rows[self.count : needed] = rows
        self.count = needed

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return a copy of the rows with these numbers."""
        return self._rows[numbers]

    def all(self) -> NDArray[np.uint64]:
        """Return a copy of every row, in order."""
        return self._rows[: self.count].copy()


class MemoizedAnswers:
    """The memoized answers of a fleet: a row of words for each (user, key) that has occurred, keys below ``span``."""

    def __init__(self, users: int, span: int, width: int) -> None:
        if users * span >= 1 << 62:
            raise ReportError(f"a fleet of {users} users with {span} possible answers each is too large for one table")
        self._table = MemoTable()
        self._store = RowStore(width)
        self._users, self._span = users, span
        self._base = np.arange(users, dtype=np.int64) * span

    def get(
        self, keys: NDArray[np.int64], draw: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
    ) -> NDArray[np.uint64]:
        """Return each user's answer to their key; ``draw`` makes the answers of users whose key is new."""
        rows, fresh = self._table.rows(self._base + keys)
        if fresh.size:
            self._store.append(draw(fresh))
        return self._store.take(rows)

    def counts(self) -> NDArray[np.int64]:
        """Return how many answers each user has."""
        return np.bincount(self._table.keys() // self._span, minlength=self._users)

    def distinct_counts(self) -> NDArray[np.int64]:
        """Return how many different answers each user has: two keys may have the same answer."""
        owners = (self._table.keys() // self._span).astype(np.uint64)
        rows = np.unique(np.column_stack((owners, self._store.all())), axis=0)
        return np.bincount(rows[:, 0].astype(np.int64), minlength=self._users)


def _empty(capacity: int) -> NDArray[np.int64]:
    """Return a table without keys: one line of keys and one line of their rows."""
    table = np.zeros((2, capacity), dtype=np.int64)
    table[0] = _EMPTY
    return table


@njit(cache=True)
def _find_kernel(
    keys: NDArray[np.int64], table: NDArray[np.int64], known: int, rows: NDArray[np.int64], fresh: NDArray[np.int64]
) -> int:  # pragma: no cover - compiled
    """Write each key's row, adding new keys; linear probing from a multiplicative hash of the key."""
    mask = np.uint64(table.shape[1] - 1)
    table_keys, table_rows = table[0], table[1]
    found = 0
    for index in range(keys.size):
        key = keys[index]
        mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
        slot = (mixed ^ (mixed >> np.uint64(32))) & mask
        while table_keys[slot] != _EMPTY and table_keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if table_keys[slot] == _EMPTY:
            table_keys[slot] = key
            table_rows[slot] = known + found
            fresh[found] = index
            found += 1
        rows[index] = table_rows[slot]
    return found
