"""One seeded scheduler: an event loop with its own time, and blocking calls as fibers that it alone resumes.

Exactly one thread runs at any moment. A blocking call of a service runs in a fiber; at every point (a write, a query, a
message) it hands control back, and is resumed after a drawn delay, or ends there because its service was killed.
"""

from __future__ import annotations

import _thread
import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ClassVar


class Killed(BaseException):
    """The process that runs this code was killed: nothing that it does from here on has an effect."""


def _closed_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class _Jump(selectors.BaseSelector):
    """A selector without files: waiting moves the loop's time."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> Any:
        return None

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for something that never happens")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Any:
        return {}


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in which only waiting takes time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.set_exception_handler(lambda loop, context: None)  # tasks of killed processes end with ``Killed``

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._jump.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass at once."""
        self._jump.now += seconds

    def _write_to_self(self) -> None:
        """Nothing to wake: there is one thread at a time."""


class _Worker:
    """A thread that runs one fiber after the other; threads are kept, because starting one takes long."""

    idle: ClassVar[list[_Worker]] = []

    def __init__(self) -> None:
        self._lock = _closed_lock()
        self._fiber: Fiber | None = None
        _thread.start_new_thread(self._work, ())

    def begin(self, fiber: Fiber) -> None:
        """Let the thread run a fiber to its first point."""
        self._fiber = fiber
        self._lock.release()

    def _work(self) -> None:
        while True:
            self._lock.acquire()
            assert self._fiber is not None
            self._fiber.run()
            self.idle.append(self)
            self._fiber.back.release()


class Fiber:
    """A blocking call of one process, run on a thread that is only ever alone."""

    def __init__(self, scheduler: Scheduler, process: Process, call: Callable[[], Any], future: Future[Any]) -> None:
        self.process = process
        self.back = _closed_lock()
        self._scheduler = scheduler
        self._call = call
        self._future = future
        self._go = _closed_lock()
        self._begun = False
        self._outcome: tuple[Any, BaseException | None] | None = None

    def resume(self) -> None:
        """Run until the next point or the end. Called by the loop."""
        if self._outcome is not None:
            return
        self._scheduler.current, before = self, self._scheduler.current
        if self._begun:
            self._go.release()
        else:
            self._begun = True
            (_Worker.idle.pop() if _Worker.idle else _Worker()).begin(self)
        self.back.acquire()
        self._scheduler.current = before
        if self._outcome is not None:
            self.process.fibers.pop(self, None)
            result, problem = self._outcome
            if not self._future.cancelled():
                if problem is None:
                    self._future.set_result(result)
                else:
                    self._future.set_exception(problem)

    def wait(self, delay_s: float) -> None:
        """Hand control back for some time. Called inside the fiber."""
        self._scheduler.loop.call_later(delay_s, self.resume)
        self.back.release()
        self._go.acquire()

    def run(self) -> None:
        """Run the call; the body of the thread."""
        try:
            if not self.process.alive:
                raise Killed
            self._outcome = (self._call(), None)
        except BaseException as problem:
            self._outcome = (None, problem)


class Process:
    """A process that can be killed: its fibers and tasks end where they are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.fibers: dict[Fiber, None] = {}  # in order, so that a seed decides everything
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.on_kill: list[Callable[[], None]] = []

    def kill(self) -> None:
        """End the process. Fibers unwind without effect: every point raises ``Killed`` from now on."""
        if not self.alive:
            return
        self.alive = False
        for release in self.on_kill:
            release()
        for task in list(self.tasks):
            task.cancel()
        for fiber in list(self.fibers):
            asyncio.get_event_loop().call_soon(fiber.resume)


class Scheduler:
    """Draws every choice of one history from its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = SimulatedLoop()
        self.current: Fiber | None = None
        self.crash_rate = self.random.choice((0.0, 0.002, 0.005, 0.01, 0.02))
        self.fault_rate = self.random.choice((0.0, 0.01, 0.03, 0.1))
        self.slow_rate = self.random.choice((0.0, 0.0, 0.01, 0.05, 0.15))
        self.calm = False
        self.points = self.kills = self.faults = 0
        self.trace: deque[str] = deque(maxlen=400)

    @property
    def process(self) -> Process | None:
        """The process whose fiber runs now."""
        return None if self.current is None else self.current.process

    def note(self, text: str) -> None:
        """Remember what happened, for a failing history."""
        who = self.process.name if self.process else "-"
        self.trace.append(f"{self.loop.time():9.3f} {who}: {text}")

    def point(self, what: str) -> None:
        """A place where anything may happen: the process is killed, waits, or goes on. Outside a fiber, nothing."""
        fiber = self.current
        if fiber is None:
            return
        if not fiber.process.alive:
            raise Killed
        self.points += 1
        self.note(what)
        if not self.calm:
            if self.random.random() < self.crash_rate:
                self.note(f"KILLED at {what}")
                self.kills += 1
                self.loop.call_soon(fiber.process.kill)
                fiber.wait(0.001)
            elif self.random.random() < self.slow_rate:
                fiber.wait(self.random.uniform(0.1, 12.0))  # a slow disk or network; leases may run out meanwhile
            else:
                fiber.wait(self.random.uniform(0.0001, 0.02))
        else:
            fiber.wait(0.0001)
        if not fiber.process.alive:
            raise Killed

    def fault(self) -> bool:
        """Draw whether this operation fails."""
        fails = not self.calm and self.random.random() < self.fault_rate
        self.faults += fails
        return fails


class FiberExecutor(Executor):
    """Runs the blocking calls of one process as fibers."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call soon; every await of a blocking call is a point too."""
        future: Future[Any] = Future()
        fiber = Fiber(self._scheduler, self._process, lambda: call(*args, **kwargs), future)
        self._process.fibers[fiber] = None
        self._scheduler.loop.call_later(self._scheduler.random.uniform(0.0, 0.005), fiber.resume)
        return future
