"""Epochs: one time line per browser. Its start is drawn when an epoch is first needed."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from w3c_client.config import Config
from w3c_client.randomness import Draws

HOUR_MS = 3_600_000


class Epochs:
    """Numbers epochs from a random start; epochs before it have negative numbers.

    ``last_clear_ms`` is the latest moment of a clear of browsing history: attribution starts after its epoch.
    """

    def __init__(self, config: Config, draws: Draws) -> None:
        self._length_ms = config.epoch_ms
        self._lookback_ms = config.max_lookback_ms
        self.draws = draws
        self.start_ms: int | None = None
        self.last_clear_ms: int | None = None

    def index(self, time_ms: int) -> int:
        """Return the epoch of a moment (specification, "get the current epoch").

        The first call draws the start of epoch 0: a random moment within one epoch before ``time_ms``, rounded down to
        a whole hour. The specification rounds towards zero, which differs before 1970 and contradicts its vectors.
        """
        if self.start_ms is None:
            moment = time_ms - Fraction(self.draws.epoch_offset_ms(self._length_ms))
            self.start_ms = floor(moment / HOUR_MS) * HOUR_MS
        return (time_ms - self.start_ms) // self._length_ms

    def starting(self, now_ms: int) -> int:
        """Return the first epoch that attribution may use (specification, "get the starting epoch")."""
        earliest = self.index(now_ms - self._lookback_ms)
        if self.last_clear_ms is None:
            return earliest
        return max(earliest, self.index(self.last_clear_ms) + 1)
