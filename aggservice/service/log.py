"""Structured logs: one JSON object a line, with who, what and how it ended, and never what a report holds."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import suppress
from typing import Any, TextIO

from aggservice.mechanisms import Clock

_LOGGER = "aggservice"


class EventLog:
    """Writes events as lines of JSON. Fields are names, ids, codes and durations; there is no field for contents."""

    def __init__(self, clock: Clock, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._clock = clock
        self._stream = stream
        self._quiet = quiet

    def event(self, name: str, **fields: str | int | float | bool | None) -> None:
        """Write one event. A log that cannot be written (full disk, reader gone) ends no call and no job."""
        if self._quiet:
            return
        line: dict[str, Any] = {"time_ms": self._clock.now_ms(), "event": name, **fields}
        with suppress(OSError, ValueError):
            print(json.dumps(line, sort_keys=False), file=self._stream or sys.stderr, flush=True)

    def fault(self, name: str, problem: BaseException, **fields: str | int | float | bool | None) -> None:
        """Write a fault of our own: the kind of error and where it arose, not its message, which may quote input."""
        frames = traceback.extract_tb(problem.__traceback__)
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-6:]]
        self.event(name, error=type(problem).__name__, where=" < ".join(reversed(where)), **fields)


def silence_libraries() -> None:
    """Keep libraries' own log lines, which may quote what they choke on, out of the service's log."""
    for name in ("grpc", "asyncio", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger(_LOGGER).setLevel(logging.INFO)
