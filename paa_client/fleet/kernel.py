"""The loop behind ``Fleet``: storage and budgets of many devices, event by event.

The plain-Python twin is ``twins.paa_fleet`` of the tests.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from paa_client.config import LARGER_WINDOW_MINUTES, MINUTE_MS, SMALLER_WINDOW_MINUTES

#: The outcome of an event.
SENT, NOT_ASKED, CUT_TEN_MINUTES, CUT_DAY = range(4)

_EMPTY = -1
_HASH = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def group_by_device(
    device: NDArray[np.int64], time_ms: NDArray[np.int64], slices: NDArray[np.int64], devices: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:  # pragma: no cover - compiled
    """Return the rows of the events sorted by device (stable), the start of each device's rows, and the times and
    slices in that order; linear time.
    """
    starts = np.zeros(devices + 1, dtype=np.int64)
    for index in range(device.size):
        starts[device[index] + 1] += 1
    for index in range(devices):
        starts[index + 1] += starts[index]
    next_slot = starts[:-1].copy()
    order = np.empty(device.size, dtype=np.int64)
    times = np.empty(device.size, dtype=np.int64)
    names = np.empty(device.size, dtype=np.int64)
    for index in range(device.size):
        at = next_slot[device[index]]
        order[at] = index
        times[at] = time_ms[index]
        names[at] = slices[index]
        next_slot[device[index]] = at + 1
    return order, starts, times, names


@njit(cache=True)
def run_kernel(
    starts: NDArray[np.int64],
    time_ms: NDArray[np.int64],
    slices: NDArray[np.int64],
    threshold_index: NDArray[np.int64],
    refresh: bool,
    lifetime_ms: int,
    value: int,
    smaller_budget: int,
    larger_budget: int,
    outcome: NDArray[np.int8],
    reached: NDArray[np.int8],
) -> None:  # pragma: no cover - compiled
    """Write for each event, grouped by device, whether it contributes, and if so which threshold it reached.

    ``threshold_index[c]`` is the index of the threshold that a count of c reaches, or -1; counts beyond its end reach
    none. With ``refresh`` every view is a write and renews the entry. Times of a device must not decrease or be
    negative; sums stay below ``larger_budget`` + ``value`` < 2⁶².
    """
    devices = starts.size - 1
    most = 0
    for owner in range(devices):
        most = max(most, starts[owner + 1] - starts[owner])
    room = 2
    while room < 2 * most:
        room *= 2
    keys = np.empty(room, dtype=np.int64)
    counts = np.empty(room, dtype=np.int64)
    written = np.empty(room, dtype=np.int64)
    minutes = np.empty(max(most, 1), dtype=np.int64)
    used = np.empty(max(most, 1), dtype=np.int64)
    for owner in range(devices):
        first, last = starts[owner], starts[owner + 1]
        if first == last:
            continue
        size = 2
        while size < 2 * (last - first):
            size *= 2
        mask = np.uint64(size - 1)
        for blank in range(size):
            counts[blank] = _EMPTY
        head, tail, day = 0, 0, 0
        for event in range(first, last):
            now = time_ms[event]
            name = slices[event]
            hashed = np.uint64(name) * _HASH
            slot = np.int64((hashed ^ (hashed >> np.uint64(32))) & mask)
            while counts[slot] != _EMPTY and keys[slot] != name:
                slot = np.int64(np.uint64(slot + 1) & mask)
            if counts[slot] == _EMPTY or written[slot] + lifetime_ms <= now:
                keys[slot] = name
                counts[slot] = 1
                written[slot] = now
            else:
                counts[slot] += 1
                if refresh:
                    written[slot] = now
            count = counts[slot]
            index = threshold_index[count] if count < threshold_index.size else np.int64(-1)
            reached[event] = index
            if index < 0:
                outcome[event] = NOT_ASKED
                continue
            minute = now // MINUTE_MS
            while head < tail and minutes[head] <= minute - LARGER_WINDOW_MINUTES:
                day -= used[head]
                head += 1
            recent = 0
            back = tail - 1
            while back >= head and minutes[back] > minute - SMALLER_WINDOW_MINUTES:
                recent += used[back]
                back -= 1
            if recent + value > smaller_budget:
                outcome[event] = CUT_TEN_MINUTES
            elif day + value > larger_budget:
                outcome[event] = CUT_DAY
            else:
                outcome[event] = SENT
                day += value
                if tail > head and minutes[tail - 1] == minute:
                    used[tail - 1] += value
                else:
                    minutes[tail] = minute
                    used[tail] = value
                    tail += 1
