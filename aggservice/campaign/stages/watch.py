"""Times the stages of a run, measures their memory and reports their progress."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Called with the stage, the amount done, and the total (0 if unknown).
Progress = Callable[[str, int, int], None]


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Stopwatch:
    """Times stages. A peak is the largest memory so far, in bytes, of this process or of one child."""

    progress: Progress = no_progress
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage. It yields a function that the block may call with the amount done so far."""
        self.progress(name, 0, total)
        start = time.perf_counter()
        yield lambda done: self.progress(name, done, total)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.peaks[name] = {
            "process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "largest_child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        }
        self.progress(name, max(total, 1), max(total, 1))

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "seconds": {name: round(taken, 4) for name, taken in self.seconds.items()},
            "total_seconds": round(sum(self.seconds.values()), 4),
            "peak_bytes_so_far": self.peaks,
        }
