"""Clocks: the system's, and one for simulations. This is the only module that reads the wall clock."""

from __future__ import annotations

import time
from typing import Protocol

from aggservice.mechanisms.errors import ParameterError


class Clock(Protocol):
    """A source of time, in milliseconds since the Unix epoch."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved, and never goes back."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move to ``now_ms``."""
        if now_ms < self._now_ms:
            raise ParameterError(f"the clock cannot go back from {self._now_ms} ms to {now_ms} ms: use a later time")
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Move forward by ``by_ms``."""
        self.advance_to(self._now_ms + by_ms)
