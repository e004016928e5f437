"""Structured logs through ``logging``: one JSON object per line, and never what a report holds."""

from __future__ import annotations

import json
import logging
import traceback
from typing import TextIO

from aggservice.mechanisms import Clock

Field = str | int | float | bool | None


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: its time, its event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Its time is that of the service's clock if the record holds it, otherwise the machine's."""
        line = {"time_ms": round(1000 * record.created), "event": record.getMessage()}
        return json.dumps(line | getattr(record, "fields", {}))


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line: a log that cannot be written (full disk, reader gone) ends no call and no job."""


class EventLog:
    """Logs events. Their fields are names, ids, codes and durations; there is no field for contents.

    Each service has a logger of its own, outside the tree of ``logging.getLogger``: one process can run several
    services, and no other handler mixes its lines in. Without ``stream`` it writes to standard error.
    """

    def __init__(self, clock: Clock, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._clock = clock
        self.logger = logging.Logger("aggservice.service", logging.INFO)
        self.logger.disabled = quiet
        handler = _Handler(stream)
        handler.setFormatter(JsonFormatter())
        self.logger.addHandler(handler)

    def event(self, name: str, level: int = logging.INFO, **fields: Field) -> None:
        """Log one event."""
        self.logger.log(level, name, extra={"fields": {"time_ms": self._clock.now_ms(), **fields}})

    def fault(self, name: str, problem: BaseException, **fields: Field) -> None:
        """Log a fault of the service: the kind of error and where it arose, not its message, which may quote input."""
        frames = traceback.extract_tb(problem.__traceback__)
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-6:]]
        self.event(name, logging.ERROR, error=type(problem).__name__, where=" < ".join(reversed(where)), **fields)


def silence_libraries() -> None:
    """Keep libraries' own log lines out of the service's log: they may quote the input that they fail on."""
    for name in ("grpc", "asyncio", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
