"""Running steps of jobs in threads: a cancelled job leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from aggservice.engine import Engine, Outcome, PaidFailureError, Scope, Session
from aggservice.service.config.callers import Caller
from aggservice.service.jobs.book import JobBook, JobRecord
from aggservice.service.jobs.slots import JobSlots
from aggservice.service.log import EventLog
from aggservice.service.messages import outcome_header

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
        self.book.close(record, summary=summary, debug_rows=outcome.rows if outcome.receipted is None else None)
        self.log_end(record.key, outcome.header.return_code.value)

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
