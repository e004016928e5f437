"""Running jobs: steps that block run in threads, and a cancelled job leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from aggservice.engine import AvroShards, Engine, Outcome, PaidFailureError, ResultWriteError, Scope, Session
from aggservice.service.config.callers import Caller
from aggservice.service.jobs.book import IN_PROGRESS, JobBook, JobRecord
from aggservice.service.jobs.folders import Folder, FolderFile
from aggservice.service.jobs.slots import JobSlots
from aggservice.service.log import EventLog
from aggservice.service.messages import outcome_header
from aggservice.service.status import KNOWN_ERRORS, return_code_of, without_frames

P = ParamSpec("P")
T = TypeVar("T")

_DOMAIN_RECORD_BYTES = 17
"""16 bytes of a bucket and one of its length."""
_MOST_EXPECTED = 100_000_000


def scope_of(caller: Caller) -> Scope:
    """Return the scope that the engine checks reports against."""
    return Scope(caller=caller.name, origins=caller.origins, sites=caller.sites)


class JobRunner:
    """Runs jobs in the engine. Everything that blocks runs in a thread of the pool."""

    def __init__(
        self, *, engine: Engine, book: JobBook, slots: JobSlots, executor: ThreadPoolExecutor, log: EventLog
    ) -> None:
        self.engine = engine
        self.book = book
        self.slots = slots
        self._executor = executor
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing: set[Path] = set()

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

    def reserve(self, job: FileJob) -> None:
        """Reserve a job's output prefix until the job has finished."""
        if job.output.prefix in self._writing:
            raise ResultWriteError(f"another job is writing to {job.output.prefix.name!r}: choose another prefix")
        self._writing.add(job.output.prefix)

    def start(self, record: JobRecord, caller: Caller, job: FileJob) -> None:
        """Run a job over files in the background; its output must be reserved."""
        task = asyncio.get_running_loop().create_task(self._run(record, caller, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._writing.discard(job.output.prefix))

    async def _run(self, record: JobRecord, caller: Caller, job: FileJob) -> None:
        try:
            async with self.slots.take(caller.name):
                session = self.engine.begin(
                    scope_of(caller),
                    record.request,
                    destination=job.output,
                    expected_keys=await self.blocking(job.expected_keys),
                    input_bytes=await self.blocking(job.input_bytes),
                )
                record.begin(session)
                self.book.change(record, status=IN_PROGRESS, stage="reading")
                outcome = await self.step(session, job.run, session)
            self.finished(record, outcome)
        except KNOWN_ERRORS as problem:
            self.log_lost(record, problem)
            self.book.close(record, problem=without_frames(problem))
            self._log_end(record, return_code_of(problem).value)
        except asyncio.CancelledError as problem:
            self.book.close(record, problem=problem)
            raise
        except Exception as problem:  # a fault of the service ends the job, not the service
            self._log.fault("job_failed", problem, caller=record.caller, job=record.request.job_request_id)
            self.book.close(record, problem=without_frames(problem))

    def finished(self, record: JobRecord, outcome: Outcome) -> None:
        """Record a job that ended with a summary."""
        summary = outcome_header(outcome, self.engine.ledger.filter)
        self.book.close(record, summary=summary, debug_rows=outcome.rows if outcome.receipted is None else None)
        self._log_end(record, outcome.header.return_code.value)

    def log_lost(self, record: JobRecord, problem: BaseException) -> None:
        """Log why a summary that was paid for could not be made or kept."""
        if isinstance(problem, PaidFailureError) and problem.__cause__ is not None:
            self._log.fault("summary_lost", problem.__cause__, caller=record.caller, job=record.request.job_request_id)

    def _log_end(self, record: JobRecord, code: str) -> None:
        self._log.event("job", caller=record.caller, job=record.request.job_request_id, return_code=code)

    async def stop(self) -> None:
        """End every job that has not been committed."""
        for record in self.book.running():
            record.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class FileJob:
    """A job over files below a caller's folders."""

    def __init__(
        self,
        *,
        inputs: Folder,
        prefixes: tuple[str, ...],
        domain: str | None,
        output: AvroShards,
        recheck: Callable[[], object] | None = None,
    ) -> None:
        """``recheck`` checks the output path once more before anything is charged."""
        self.output = output
        self._inputs = inputs
        self._prefixes = prefixes
        self._domain = domain
        self._recheck = recheck

    def expected_keys(self) -> int:
        """Estimate how many keys the domain has from the size of its files, so that the table need not grow."""
        size = sum(file.size for file in self.domain_files())
        return min(size // _DOMAIN_RECORD_BYTES, _MOST_EXPECTED)

    def input_bytes(self) -> int:
        """Return how many bytes of reports and keys there are."""
        return sum(file.size for file in (*self.domain_files(), *self.report_files()))

    def domain_files(self) -> list[FolderFile]:
        """Return the files of the domain, in order."""
        if self._domain is None:
            return []
        return [FolderFile(self._inputs, path) for path in self._inputs.files(self._domain)]

    def report_files(self) -> list[FolderFile]:
        """Return the files of reports, in order, each once."""
        paths = dict.fromkeys(path for prefix in self._prefixes for path in self._inputs.files(prefix))
        return [FolderFile(self._inputs, path) for path in paths]

    def run(self, session: Session) -> Outcome:
        """Read domain and reports, and finish. Runs in a thread."""
        session.declare_files(self.domain_files())
        session.add_files(self.report_files())
        if self._recheck is not None:
            self._recheck()
        return session.finish()
