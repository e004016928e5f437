"""How long each stage of a run took and how much memory it needed, and telling somebody about it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: Called with the stage, how much of it is done, and how much there is (0: not known).
Progress = Callable[[str, int, int], None]


def quiet(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class Stopwatch:
    """Times stages. Peaks are of this process and of its children so far, in bytes, as the kernel counts them."""

    progress: Progress = quiet
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """Time a stage; the block may call what it gets with how much is done."""
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
