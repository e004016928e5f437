"""Places for jobs: so many at once, so many that wait, and no caller with all of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aggservice.service.errors import BusyError
from aggservice.service.metrics import Metrics


class Places:
    """A bounded number of jobs at once, and a bounded number that wait for a place, first come, first served.

    One caller has at most ``a_caller`` places and, where that is not all of them, half of the waiting ones: a job that
    reads a slow stream holds its place for as long as the caller likes. Used from the event loop alone.
    """

    def __init__(self, *, jobs: int, a_caller: int, waiting: int, metrics: Metrics) -> None:
        self._free = jobs
        self._share = a_caller
        self._most_waiting = waiting
        self._most_waiting_of_one = waiting if a_caller >= jobs else -(-waiting // 2)
        self._held: Counter[str] = Counter()
        self._queue: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._metrics = metrics

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place and hold it; refuse when too many wait already."""
        if self._open_to(caller):
            self._hold(caller)
        else:
            await self._wait(caller)
        self._metrics.move("jobs_running", 1)
        try:
            yield
        finally:
            self._metrics.move("jobs_running", -1)
            self._leave(caller)

    def _open_to(self, caller: str) -> bool:
        return self._free > 0 and self._held[caller] < self._share

    def _hold(self, caller: str) -> None:
        self._free -= 1
        self._held[caller] += 1

    async def _wait(self, caller: str) -> None:
        mine = sum(one == caller for one, _ in self._queue)
        if len(self._queue) >= self._most_waiting or mine >= self._most_waiting_of_one:
            raise BusyError(f"{len(self._queue)} jobs wait already, {mine} of them yours")
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (caller, granted)
        self._queue.append(place)
        self._metrics.move("jobs_waiting", 1)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._leave(caller)  # it was given in the same moment
            else:
                self._queue.remove(place)
            raise
        finally:
            self._metrics.move("jobs_waiting", -1)

    def _leave(self, caller: str) -> None:
        """Give a place back, and the free ones to the first who may have them."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        for place in list(self._queue):
            if not self._free:
                return
            waiting, granted = place
            if not granted.done() and self._open_to(waiting):
                self._queue.remove(place)
                self._hold(waiting)
                granted.set_result(None)
