"""Worker processes that open batches: fed through shared memory, watched, and replaced when they die.

They fork from a server process that has imported this module once and has no threads.

One thread per worker takes tasks from a queue of bounded length (back-pressure: ``submit`` waits). It keeps two
batches with the worker, so that the worker never waits, and retries a batch whose worker ended or hangs.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from aggservice.engine.opening.histogram_columns import JudgedBatch
from aggservice.engine.opening.judging import LdpBatch, Opener, OpeningSpec
from aggservice.engine.opening.shared_memory import Parcel, Slot, batch_from_arrays, batch_to_arrays
from aggservice.job.errors import EngineError, WorkerLostError
from aggservice.wire import KeySet, ReportBatch

PRELOADED = (__name__, "aggservice.engine.opening.preload")
"""What the server imports before workers fork from it."""
SLOT_BYTES = 4 << 20
_AHEAD = 2
_ATTEMPTS = 3
_BATCH_TIMEOUT_S = 300.0
_BATCHES_PER_COLLECTION = 256
_PAUSE_S = 0.5

Columns = JudgedBatch | LdpBatch
"""What a worker returns for a batch: contributions, or local reports for a shuffle."""


class BatchOpener(Protocol):
    """Opens batches: in worker processes (``WorkerPool``) or in the caller's own thread (``InlineOpener``)."""

    def submit(self, spec: OpeningSpec, batch: ReportBatch) -> Future[Columns]:
        """Begin to open a batch; may wait until there is room."""

    @property
    def window(self) -> int:
        """How many batches of one job may be in progress at once."""

    def use_keys(self, keys: KeySet) -> None:
        """Open batches submitted from now on with these keys."""

    def close(self) -> None:
        """Stop. Batches in progress fail."""


class InlineOpener:
    """Opens a batch when it is submitted, in the thread that submits it. For small jobs and embedded services."""

    window = 1

    def __init__(self, keys: KeySet) -> None:
        self._opener = Opener(keys)

    def submit(self, spec: OpeningSpec, batch: ReportBatch) -> Future[Columns]:
        future: Future[Columns] = Future()
        future.set_result(self._opener.open(spec, batch))
        return future

    def use_keys(self, keys: KeySet) -> None:
        self._opener = Opener(keys)

    def close(self) -> None:
        """Do nothing: there is no process to stop."""


@dataclass(slots=True, kw_only=True)
class _Task:
    spec: OpeningSpec
    batch: ReportBatch
    keys: str = field(repr=False)
    future: Future[Columns] = field(default_factory=Future)
    attempts: int = 0


class _Worker:
    """One process with its pipe and its two slots."""

    def __init__(self, start: Callable[[Connection, list[str]], Any], slots: list[Slot]) -> None:
        self.slots = slots
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        try:
            self.process = start(theirs, [slot.name for slot in slots])
        except OSError:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.keys = ""

    def end(self) -> None:
        self.pipe.close()
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class WorkerPool:
    """A fixed number of worker processes that open batches."""

    def __init__(self, keys: KeySet, *, processes: int, slot_bytes: int = SLOT_BYTES) -> None:
        if not processes >= 1:
            raise EngineError("the pool has no worker process: use at least one, or InlineOpener")
        self._keys = keys.serialise()
        self._tasks: queue.Queue[_Task | None] = queue.Queue(maxsize=processes)
        self._closed = threading.Event()
        self._workers: dict[int, _Worker] = {}
        self.replaced = 0
        self._slot_bytes = slot_bytes
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"worker-{number}", daemon=True)
            for number in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def window(self) -> int:
        """Enough batches to keep every worker busy, and one more per worker in the queue."""
        return len(self._threads) * (_AHEAD + 1)

    def submit(self, spec: OpeningSpec, batch: ReportBatch) -> Future[Columns]:
        """Hand over a batch; waits while the queue is full."""
        task = _Task(spec=spec, batch=batch, keys=self._keys)
        while True:
            if self._closed.is_set():
                raise EngineError("the service is shutting down: send the job again later")
            try:
                self._tasks.put(task, timeout=0.5)
                return task.future
            except queue.Full:
                continue

    def use_keys(self, keys: KeySet) -> None:
        """Open batches submitted from now on with these keys."""
        self._keys = keys.serialise()

    def close(self) -> None:
        """Stop every worker. Batches in progress fail with an ``EngineError``."""
        self._closed.set()
        for _ in self._threads:
            try:
                self._tasks.put_nowait(None)
            except queue.Full:
                break
        for thread in self._threads:
            thread.join(timeout=10)
        while True:
            try:
                left = self._tasks.get_nowait()
            except queue.Empty:
                return
            if left is not None and not left.future.cancelled():
                left.future.set_exception(EngineError("the service is shutting down: send the job again later"))

    def _start(self, pipe: Connection, slots: list[str]) -> Any:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", *PRELOADED])  # has no effect once the server runs
        process = context.Process(target=_work, args=(pipe, slots), daemon=True, name="aggservice-worker")
        process.start()
        return process

    def _serve(self, number: int) -> None:
        """Feed one worker until the pool closes."""
        slots = [Slot.create(self._slot_bytes) for _ in range(_AHEAD)]
        worker = self._first(slots)
        if worker is None:
            for slot in slots:
                slot.close()
            return
        self._workers[number] = worker
        pending: deque[_Task] = deque()
        turn = 0
        try:
            while not self._closed.is_set():
                try:
                    while len(pending) < _AHEAD:
                        task = self._next(block=not pending)
                        if task is None:
                            break
                        pending.append(task)
                        self._send(worker, task, (turn + len(pending) - 1) % _AHEAD)
                    if not pending:
                        continue
                    parcel = self._receive(worker)
                except (EOFError, OSError, WorkerLostError):
                    worker = self._replace(number, worker, pending)
                    turn = 0
                    continue
                done = pending.popleft()
                slot = slots[turn]
                turn = (turn + 1) % _AHEAD
                if isinstance(parcel, BaseException):
                    done.future.set_exception(parcel)
                else:
                    arrays = slot.get(parcel, copy=True)
                    is_shuffle = done.spec.randomizer is not None
                    done.future.set_result(
                        LdpBatch.from_arrays(arrays) if is_shuffle else JudgedBatch.from_arrays(arrays)
                    )
        finally:
            worker.end()
            self._workers.pop(number, None)
            for slot in slots:
                slot.close()
            for task in pending:
                task.future.set_exception(EngineError("the service is shutting down: send the job again later"))

    def _first(self, slots: list[Slot]) -> _Worker | None:
        """Start a process, and retry while the system refuses; return None if the pool closes first."""
        while not self._closed.is_set():
            try:
                return _Worker(self._start, slots)
            except OSError:
                self._closed.wait(_PAUSE_S)
        return None

    def _next(self, *, block: bool) -> _Task | None:
        try:
            task = self._tasks.get(block=block, timeout=0.5 if block else None)
        except queue.Empty:
            return None
        if task is None or not task.future.set_running_or_notify_cancel():
            return None
        return task

    def _send(self, worker: _Worker, task: _Task, slot: int) -> None:
        if worker.keys != task.keys:
            worker.pipe.send(("keys", task.keys))
            worker.keys = task.keys
        worker.pipe.send(("batch", slot, worker.slots[slot].put(batch_to_arrays(task.batch)), task.spec))

    def _receive(self, worker: _Worker) -> Parcel | BaseException:
        if not worker.pipe.poll(_BATCH_TIMEOUT_S):
            raise WorkerLostError(f"a worker needed more than {_BATCH_TIMEOUT_S:.0f} s for one batch")
        return worker.pipe.recv()

    def _replace(self, number: int, worker: _Worker, pending: deque[_Task]) -> _Worker:
        """Start another process and send it the batches of the lost one; a batch that ends several workers fails.

        If the system cannot start a process, the pool keeps retrying; each try counts as an attempt at the first batch.
        """
        worker.process.kill()
        worker.end()
        while True:
            self.replaced += 1
            if pending:
                pending[0].attempts += 1
                if pending[0].attempts >= _ATTEMPTS:
                    pending.popleft().future.set_exception(
                        WorkerLostError(f"{_ATTEMPTS} worker processes ended while opening the same batch")
                    )
            try:
                worker = _Worker(self._start, worker.slots)
            except OSError:  # no process or memory now; if this thread ended, nothing would retry
                if self._closed.wait(_PAUSE_S):
                    return worker
                continue
            self._workers[number] = worker
            try:
                for slot, task in enumerate(pending):
                    self._send(worker, task, slot)
                return worker
            except OSError:
                worker.process.kill()
                worker.end()


def _work(pipe: Connection, slot_names: list[str]) -> None:
    """Open batches, in a worker process, until the pool closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    slots = [Slot.attach(name) for name in slot_names]
    opener = Opener(KeySet(()))
    # Opening makes thousands of short-lived objects and no cycles, so frequent cycle collection wastes some percent.
    gc.freeze()
    gc.disable()
    for number in itertools.count(1):
        if number % _BATCHES_PER_COLLECTION == 0:
            gc.collect()
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if message[0] == "keys":
            opener = Opener(KeySet.parse(message[1]))
            continue
        _, slot, parcel, spec = message
        batch = batch_from_arrays(slots[slot].get(parcel, copy=False))
        try:
            reply: Parcel | BaseException = slots[slot].put(opener.open(spec, batch).arrays())
        except EngineError as problem:
            reply = problem
        del batch  # its arrays are views of the slot, which cannot be closed while they exist
        try:
            pipe.send(reply)
        except OSError:
            return
