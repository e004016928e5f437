"""``BrowserFleet``: many devices as a plain loop over real browsers, for any API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, ManualClock

B = TypeVar("B")


class BrowserFleet(Generic[B]):
    """One browser per device, each with a clock of its own.

    ``new`` makes the browser of a device when its first event happens; events of a device come in order of time. The
    fleets in columns must equal this loop, so a rule that changes in a browser shows in a campaign.
    """

    def __init__(self, new: Callable[[int, ManualClock], B]) -> None:
        self._new = new
        self._devices: dict[int, tuple[B, ManualClock]] = {}

    def at(self, device: int, time_ms: int) -> B:
        """Return the browser of a device, with its clock at a time."""
        if device not in self._devices:
            clock = ManualClock(time_ms)
            self._devices[device] = self._new(device, clock), clock
        browser, clock = self._devices[device]
        clock.advance_to(max(time_ms, clock.now_ms()))
        return browser

    @staticmethod
    def in_order(*columns: Sequence[int]) -> list[tuple[int, int]]:
        """Return (column, row) of all events in order of time; at the same time columns count in their order."""
        events = [(int(time), place, row) for place, times in enumerate(columns) for row, time in enumerate(times)]
        return [(place, row) for _, place, row in sorted(events)]


class LateBits(Bits):
    """Zeros in place of the ids and delays of browsers, which a device draws in columns after they have run."""

    private = False

    def read(self, count: int) -> bytes:
        return bytes(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.zeros(count, dtype=np.uint64)

    def child(self, label: str) -> Bits:
        return self
