"""Slots for jobs: limits on running and queued jobs, in all and per caller."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aggservice.service.errors import BusyError
from aggservice.service.metrics import Metrics


class JobSlots:
    """A bounded number of running jobs, and a bounded queue of jobs that wait for a slot, first come, first served.

    One caller holds at most ``per_caller`` slots. If that is fewer than all, one caller may also fill at most half of
    the queue: a job that reads a slow stream holds its slot for as long as its caller likes. Used only
    from the event loop.
    """

    def __init__(self, *, jobs: int, per_caller: int, waiting: int, metrics: Metrics) -> None:
        self.jobs = jobs
        self._free = jobs
        self._per_caller = per_caller
        self._queue_limit = waiting
        self.queue_limit_per_caller = waiting if per_caller >= jobs else -(-waiting // 2)
        self._held: Counter[str] = Counter()
        self._queue: deque[tuple[str, asyncio.Future[None], bool]] = deque()
        self._metrics = metrics

    @asynccontextmanager
    async def take(self, caller: str, *, queued: bool = False) -> AsyncIterator[None]:
        """Wait for a slot and hold it; raise ``BusyError`` if too many wait.

        ``queued`` is for a job that is stored in a queue with limits of its own.
        """
        if self._is_free_for(caller):
            self._hold(caller)
        else:
            await self._wait(caller, queued)
        self._metrics.jobs_running.inc()
        try:
            yield
        finally:
            self._metrics.jobs_running.dec()
            self._release(caller)

    def free(self, caller: str | None = None) -> int:
        """Return how many slots are free now, in all or for one caller."""
        return self._free if caller is None else min(self._free, self._per_caller - self._held[caller])

    def _is_free_for(self, caller: str) -> bool:
        return self.free(caller) > 0

    def _hold(self, caller: str) -> None:
        self._free -= 1
        self._held[caller] += 1

    async def _wait(self, caller: str, stored: bool) -> None:
        streams = [one for one, _, in_queue in self._queue if not in_queue]
        own = streams.count(caller)
        if not stored and (len(streams) >= self._queue_limit or own >= self.queue_limit_per_caller):
            raise BusyError(own)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queued = (caller, granted, stored)
        self._queue.append(queued)
        if not stored:
            self._metrics.jobs_waiting.inc()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(caller)  # the slot was granted in the same moment
            else:
                self._queue.remove(queued)
            raise
        finally:
            if not stored:
                self._metrics.jobs_waiting.dec()

    def _release(self, caller: str) -> None:
        """Free a slot, and grant free slots to the first callers in the queue that may have them."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        for queued in list(self._queue):
            if not self._free:
                return
            waiting, granted, _ = queued
            if not granted.done() and self._is_free_for(waiting):
                self._queue.remove(queued)
                self._hold(waiting)
                granted.set_result(None)
