"""Progress of work in the background: events that a page follows as a stream (server-sent events).

A feed keeps its events, so that a page that connects late or again sees all of them. The number of open
streams is limited; a page needs one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from aggservice.studio.errors import TooManyError, UnknownItemError

MAX_STREAMS: Final = 16
MAX_FEEDS: Final = 200
_POLL_S: Final = 0.1
_KEEP_ALIVE_POLLS: Final = 150
_MAX_EVENTS: Final = 10_000


class Feed:
    """The events of one piece of work. ``close`` ends it with a last event, whose ``state`` says how."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._latest: dict[str, int] = {}
        self.closed = False

    def add(self, event: dict[str, Any]) -> None:
        """Add an event; past the limit a stage keeps its latest event only."""
        stage = str(event.get("stage", ""))
        if len(self._events) >= _MAX_EVENTS and stage in self._latest:
            self._events[self._latest[stage]] = event
        else:
            self._latest[stage] = len(self._events)
            self._events.append(event)

    def close(self, **last: Any) -> None:
        """Add the last event."""
        if not self.closed:
            self._events.append(last)
            self.closed = True

    def after(self, count: int) -> list[dict[str, Any]]:
        """Return the events after the first ``count``."""
        return self._events[count:]

    @property
    def last(self) -> dict[str, Any]:
        """The latest event."""
        return self._events[-1] if self._events else {}


class Feeds:
    """Feeds by id, oldest forgotten first once they are closed, and the number of open streams."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._streams = 0
        self._lock = Lock()

    def open(self, name: str) -> Feed:
        """Return a new feed under an id."""
        with self._lock:
            done = [one for one, feed in self._feeds.items() if feed.closed]
            if len(self._feeds) >= MAX_FEEDS:
                if not done:
                    raise TooManyError(f"{MAX_FEEDS} pieces of work are running: wait for one to end")
                del self._feeds[done[0]]
            return self._feeds.setdefault(name, Feed())

    def get(self, name: str) -> Feed:
        """Return a feed."""
        try:
            return self._feeds[name]
        except KeyError:
            raise UnknownItemError(
                "this work is unknown, because it ended long ago or in another studio: start it again"
            ) from None

    @contextmanager
    def _stream(self) -> Any:
        with self._lock:
            if self._streams >= MAX_STREAMS:
                raise TooManyError(f"{MAX_STREAMS} streams are open: close another page of this studio")
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1

    def reserve(self, name: str) -> AsyncIterator[str]:
        """Return the stream of a feed, or refuse it before the answer begins."""
        feed, slot = self.get(name), self._stream()
        slot.__enter__()

        async def events() -> AsyncIterator[str]:
            try:
                sent, quiet = 0, 0
                while True:
                    closed = feed.closed
                    fresh = feed.after(sent)
                    for event in fresh:
                        yield f"data: {json.dumps(event)}\n\n"
                    sent += len(fresh)
                    if closed and not feed.after(sent):
                        return
                    quiet = 0 if fresh else quiet + 1
                    if quiet == _KEEP_ALIVE_POLLS:
                        quiet = 0
                        yield ": still here\n\n"
                    await asyncio.sleep(_POLL_S)
            finally:
                slot.__exit__(None, None, None)

        return events()
