"""Taking up stored jobs: a service claims one when it has a free slot, renews its lease while it runs, and ends it.

Several services may do this over one queue. Whatever happens to them, the ledger decides what was released: it is
asked before a job runs, and each job id commits once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from aggservice.engine import Engine, Scope, Session
from aggservice.job.errors import CancelledError, PaidFailureError, UnpaidError
from aggservice.job.messages import outcome_header
from aggservice.job.result import Outcome
from aggservice.mechanisms import Clock
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.config.callers import Caller, Register
from aggservice.service.errors import RetriesExhaustedError
from aggservice.service.jobs.asked import AskedJob, FileJob, file_job
from aggservice.service.jobs.book import JobBook, JobRecord
from aggservice.service.jobs.ends import failed_end, finished_end
from aggservice.service.jobs.places import Places
from aggservice.service.jobs.slots import JobSlots
from aggservice.service.log import EventLog
from aggservice.service.metrics import Metrics
from aggservice.service.queue.databases import PostgresQueue
from aggservice.service.queue.queue import JobQueue
from aggservice.service.queue.rows import JobEnd, QueuedJob
from aggservice.service.status import KNOWN_ERRORS, return_code_of, without_frames
from budget import BudgetError
from budget.errors import LeaseLostError, RemoteError, StoreError
from budget.stores.postgres import Guard

P = ParamSpec("P")
T = TypeVar("T")


def scope_of(caller: Caller) -> Scope:
    """Return the scope that the engine checks reports against."""
    return Scope(caller=caller.name, origins=caller.origins, sites=caller.sites)


class JobRunner:
    """Runs steps of jobs. Everything that blocks runs in a thread of the pool."""

    def __init__(self, *, engine: Engine, book: JobBook, slots: JobSlots, executor: Executor, log: EventLog) -> None:
        self.engine = engine
        self.book = book
        self.slots = slots
        self._executor = executor
        self._log = log

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: call(*args, **kwargs))

    async def step(self, session: Session, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run one step of a job in a thread. Cancellation cancels the job, and returns once the step has ended."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            session.cancel()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    def finished(self, record: JobRecord, outcome: Outcome) -> None:
        """Record a stream that ended with a summary."""
        summary = outcome_header(outcome, self.engine.ledger.filter)
        self.book.close(record, summary=summary, debug_rows=outcome.rows if outcome.committed is None else None)
        self.log_end(record.key, str(outcome.header.return_code))

    def log_lost(self, key: tuple[str, str], problem: BaseException) -> None:
        """Log why a summary that was paid for could not be made or kept."""
        if isinstance(problem, PaidFailureError) and problem.__cause__ is not None:
            self._log.fault("summary_lost", problem.__cause__, caller=key[0], job=key[1])

    def log_end(self, key: tuple[str, str], code: str) -> None:
        """Log how a job ended."""
        self._log.event("job", caller=key[0], job=key[1], return_code=code)

    def stop(self) -> None:
        """End every stream that has not been committed."""
        for record in self.book.running():
            record.cancel()


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    """A job that this service runs. Changed from the event loop only."""

    row: QueuedJob
    session: Session | None = None
    cancelled: bool = False
    lost: bool = False
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)

    def end(self) -> None:
        """End the job at its next step, unless it has been committed by then."""
        if self.session is not None:
            self.session.cancel()

    def begin(self, session: Session) -> None:
        """Record the session; CancelledError if the job was cancelled, or its lease lost, before it began."""
        if self.cancelled or self.lost:
            raise CancelledError("the job was cancelled before it began; nothing was charged")
        self.session = session


class Dispatcher:
    """Runs the jobs of a queue in one service, from its event loop; ``start`` also looks at the queue regularly."""

    def __init__(
        self,
        *,
        runner: JobRunner,
        queue: JobQueue,
        places: Places,
        register: Register,
        clock: Clock,
        log: EventLog,
        metrics: Metrics,
        owner: str,
        attempts: int,
        poll_s: float,
    ) -> None:
        """``owner`` names this service in leases. A job is taken up at most ``attempts`` times."""
        self.queue = queue
        self._runner = runner
        self._places = places
        self._register = register
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._owner = owner
        self._attempts = attempts
        self._poll_s = poll_s
        self._running: dict[int, _Running] = {}
        self._claiming = asyncio.Lock()
        self._asking: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: WeakValueDictionary[tuple[str, str], asyncio.Event] = WeakValueDictionary()
        self._taking = True
        self._stopping = False

    async def start(self) -> None:
        """Take up what a service that ended has left, and look at the queue from now on."""
        await self._runner.blocking(self.queue.take_over)
        self._spawn(self._watch())
        self.wake()

    def wake(self) -> None:
        """Look for jobs to take up, soon."""
        if self._taking:
            self._spawn(self._look())

    def rest(self) -> None:
        """Stop taking up jobs; running jobs continue."""
        self._taking = False

    def reports_read(self, row: QueuedJob) -> int | None:
        """Return how many reports of a job this service has opened; None if it does not run the job."""
        found = self._running.get(row.seq)
        return None if found is None or found.session is None else found.session.reports_read

    def runs(self, caller: str, job_id: str) -> bool:
        """Return whether this service runs this job."""
        return any(one.row.key == (caller, job_id) for one in self._running.values())

    def guard(self, database: PostgresQueue) -> Guard:
        """Return a check for commits of jobs that this service runs: no other service has taken them over."""

        def check(connection: Any, caller: str, job_id: str) -> None:
            for running in list(self._running.values()):
                if running.row.key == (caller, job_id):
                    database.hold(connection, running.row.seq, self._owner)

        return check

    def cancel(self, row: QueuedJob) -> None:
        """End a job at its next step if this service runs it; other services notice when they renew its lease."""
        found = self._running.get(row.seq)
        if found is not None:
            found.cancelled = True
            found.end()

    def change(self, key: tuple[str, str]) -> asyncio.Event:
        """Return an event that is set when this service next changes the job."""
        event = self._changes.get(key)
        if event is None:
            event = self._changes[key] = asyncio.Event()
        return event

    def notify(self, key: tuple[str, str]) -> None:
        """Wake the calls that watch a job."""
        event = self._changes.pop(key, None)
        if event is not None:
            event.set()

    async def stop(self) -> None:
        """End every job that has not been committed, and give it back to the queue."""
        self.rest()
        self._stopping = True
        for running in self._running.values():
            running.end()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Renew leases and look for jobs that other services accepted or dropped."""
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self._renew()
            except BudgetError as problem:
                self._log.fault("queue_unreachable", problem)
                continue
            await self._look()

    async def _renew(self) -> None:
        read = {seq: one.session.reports_read if one.session else 0 for seq, one in self._running.items()}
        if not read:
            return
        held = await self._runner.blocking(self.queue.renew, self._owner, read)
        for seq in read:
            running = self._running.get(seq)
            if running is not None:
                running.lost = seq not in held
                running.cancelled = running.cancelled or held.get(seq, False)
                if running.lost or running.cancelled:
                    running.end()

    async def _look(self) -> None:
        try:
            waiting = await self._runner.blocking(self.queue.waiting)
        except BudgetError as problem:
            self._log.fault("queue_unreachable", problem)
            return
        self._metrics.jobs_queued.set(sum(waiting.values()))
        for caller, count in waiting.items():
            for _ in range(min(count, self._runner.slots.jobs) - self._asking[caller]):
                self._asking[caller] += 1
                self._spawn(self._serve(caller))

    async def _serve(self, caller: str) -> None:
        """Wait for a slot, take up one job of the caller, and run it to its end."""
        asking = True
        try:
            async with self._runner.slots.take(caller, queued=True):
                claimed = await self._claim(caller) if self._taking else None
                self._asking[caller] -= 1
                asking = False
                if claimed is None:
                    return
                self.wake()
                await self._run(claimed)
        except BudgetError as problem:
            self._log.fault("queue_unreachable", problem)
            return
        finally:
            if asking:
                self._asking[caller] -= 1
        self.wake()

    async def _claim(self, caller: str) -> _Running | None:
        """Take up one job of the caller, and count it as running here before anything else is taken up.

        Otherwise, if an answer took longer than its lease, this service would take up the same job twice.
        """
        async with self._claiming:
            claiming = asyncio.ensure_future(
                self._runner.blocking(
                    self.queue.claim, caller, self._owner, now_ms=self._clock.now_ms(), held=tuple(self._running)
                )
            )
            try:
                row = await asyncio.shield(claiming)
            except asyncio.CancelledError:
                row = await claiming
                if row is not None:
                    await self._runner.blocking(self.queue.give_back, row.seq, self._owner)
                raise
            if row is None:
                return None
            running = self._running[row.seq] = _Running(row=row)
            return running

    async def _run(self, running: _Running) -> None:
        row = running.row
        self.notify(row.key)
        try:
            end = await self._end(row, running)
            if end is not None:
                await self._runner.blocking(self.queue.finish, row.seq, self._owner, end)
        except asyncio.CancelledError:
            await self._runner.blocking(self.queue.give_back, row.seq, self._owner)
            raise
        finally:
            del self._running[row.seq]
            self.notify(row.key)

    async def _end(self, row: QueuedJob, running: _Running) -> JobEnd | None:
        """Run a job and return how it ended; None if another service will end it."""
        try:
            summary = await self._summary(row, running)
        except KNOWN_ERRORS as problem:
            self._runner.log_lost(row.key, problem)
            if self._stopping:
                raise asyncio.CancelledError from None
            if running.lost or isinstance(problem, LeaseLostError) or self._may_pass(problem, row):
                self._log.event("job_left", caller=row.caller, job=row.job_id, attempt=row.attempts)
                return None
            if isinstance(problem, UnpaidError):
                self._runner.book.refuse(row.key, problem)
            self._runner.log_end(row.key, return_code_of(problem).value)
            return failed_end(row.job_id, without_frames(problem), self._clock.now_ms())
        except Exception as problem:  # a fault of the service ends the job, not the service
            self._log.fault("job_failed", problem, caller=row.caller, job=row.job_id)
            return failed_end(row.job_id, without_frames(problem), self._clock.now_ms())
        self._runner.log_end(row.key, common_pb2.ReturnCode.Code.Name(summary.return_code))
        return finished_end(summary, self._clock.now_ms())

    def _may_pass(self, problem: BaseException, row: QueuedJob) -> bool:
        """Return whether the same job may succeed later: the database server or the object storage was unavailable."""
        away = isinstance(problem, StoreError) and not self._runner.engine.ledger.store.definite
        return (away or isinstance(problem, RemoteError)) and row.attempts <= self._attempts

    async def _summary(self, row: QueuedJob, running: _Running) -> common_pb2.SummaryHeader:
        """Run a job; return the header of its summary, or of the one that it was paid for before."""
        runner, engine = self._runner, self._runner.engine
        caller = self._register.named(row.caller)
        asked = AskedJob.of(aggregation_pb2.CreateJobRequest.FromString(row.request))
        if row.attempts > 1:
            await runner.blocking(engine.ledger.recover_staged)
        known = await runner.blocking(engine.find, scope_of(caller), asked.request)
        if known is not None:
            return outcome_header(known.checked, engine.ledger.filter)
        if row.cancelled:
            raise CancelledError("the job was cancelled; nothing was charged")
        if row.attempts > self._attempts:
            raise RetriesExhaustedError(f"the job was started {self._attempts} times; each time its service stopped")
        asked.check_scope(caller)
        job = await runner.blocking(file_job, self._places, caller, asked)
        session = engine.begin(
            scope_of(caller),
            asked.request,
            destination=job.output,
            expected_keys=await runner.blocking(job.expected_keys),
            input_bytes=await runner.blocking(job.input_bytes),
        )
        running.begin(session)
        try:
            outcome = await runner.step(session, job.run, session)
        except UnpaidError as problem:
            await self._list_unpaid(job, asked, row, problem)
            raise
        return outcome_header(outcome, engine.ledger.filter)

    async def _list_unpaid(self, job: FileJob, asked: AskedJob, row: QueuedJob, problem: UnpaidError) -> None:
        """Write which reports cannot pay into the caller's output. The refusal stands if that cannot be done."""
        if not asked.request.has_domain:
            return
        unit = self._runner.engine.unit
        try:
            name = await self._runner.blocking(job.list_unpaid, problem, asked.request, unit, row.received_ms)
        except KNOWN_ERRORS as fault:
            self._log.fault("unpaid_not_listed", fault, caller=row.caller, job=row.job_id)
            return
        problem.listed_in = f"{asked.output.removesuffix('.avro')}/{name}"
