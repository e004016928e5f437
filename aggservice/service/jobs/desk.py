"""The one implementation behind every API of jobs over files: create, get, list, watch, cancel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from aggservice.engine.release.charging import find_result
from aggservice.job.errors import CancelledError, InvalidJobError, JobIdTakenError
from aggservice.job.request import check_job_id
from aggservice.job.result import Rows
from aggservice.mechanisms import Clock
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.config.callers import Caller
from aggservice.service.config.settings import Limits
from aggservice.service.errors import NoSuchJobError
from aggservice.service.jobs.asked import AskedJob, file_job
from aggservice.service.jobs.book import JobRecord
from aggservice.service.jobs.dispatch import Dispatcher, JobRunner, scope_of
from aggservice.service.jobs.ends import FINISHED, committed_message, failed_end, remembered, row_message
from aggservice.service.jobs.places import Places
from aggservice.service.queue.queue import Room
from aggservice.service.queue.rows import JobState, NewJob, QueuedJob

_LOOK_EVERY_S = 0.5
_PAGE_BYTES = 1 << 20
_LATEST = 10**18
Found = JobRecord | QueuedJob | aggregation_pb2.Job
"""A stream of this service, a stored job, or a job that only the ledger knows."""


class _Cursor(NamedTuple):
    """A position in a caller's list of jobs, newest first. ``stream`` is 1 for a stream and 0 for a stored job.

    Jobs received at the same time are ordered by the other fields.
    """

    received_ms: int
    stream: int
    seq: int
    job_id: str

    @classmethod
    def of(cls, found: JobRecord | QueuedJob) -> _Cursor:
        """Return the position of a job."""
        if isinstance(found, JobRecord):
            return cls(found.received_ms, 1, 0, found.request.job_request_id)
        return cls(found.received_ms, 0, found.seq, "")

    @classmethod
    def parse(cls, token: str) -> _Cursor:
        """Return the position that a page token names; an empty token names the start, before the newest job."""
        if not token:
            return cls(_LATEST, 0, 0, "")
        parts = token.split(":", 3)
        if len(parts) != 4 or not all(re.fullmatch("[0-9]{1,18}", one) for one in parts[:3]):
            raise InvalidJobError("page_token is wrong: give the next_page_token of the page before")
        received_ms, stream, seq = map(int, parts[:3])
        return cls(received_ms, stream, seq, parts[3])

    @property
    def row(self) -> tuple[int, int]:
        """The bound of this position: stored jobs after it have a smaller (received_ms, seq). Streams come first."""
        return self.received_ms, _LATEST if self.stream else self.seq

    def __str__(self) -> str:
        return ":".join(map(str, self))


class JobDesk:
    """Answers questions about jobs. Streams are in the book of their service, jobs over files in the queue.

    A job belongs to its caller: other callers' jobs do not exist for them.
    """

    def __init__(
        self, *, runner: JobRunner, dispatcher: Dispatcher, places: Places, clock: Clock, limits: Limits
    ) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._dispatcher = dispatcher
        self._queue = dispatcher.queue
        self._places = places
        self._clock = clock
        self._limits = limits

    async def create(
        self, caller: Caller, message: aggregation_pb2.CreateJobRequest, *, again: bool = True
    ) -> aggregation_pb2.Job:
        """Store a job over files and return it, or return the job that the same request created before.

        Without ``again``, an id that any job of the caller has is refused, as the deployed service does. Once this
        returns, the job survives the service: some service ends it.
        """
        self._places.check()
        asked = AskedJob.of(message)
        asked.check_scope(caller)
        job_id = asked.request.job_request_id
        self._runner.book.check_free(caller.name, job_id)
        if not again:
            await self._check_new(caller.name, job_id)
        row = await self._runner.blocking(self._queue.find, caller.name, job_id)
        if row is not None and (row.state is not JobState.FINISHED or row.succeeded):
            return self._same(row, asked, again=again)
        paid = await self._runner.blocking(self._engine.find, scope_of(caller), asked.request)
        if paid is not None:
            return committed_message(job_id, paid, self._engine.ledger.filter)
        job = await self._runner.blocking(file_job, self._places, caller, asked)
        message.DiscardUnknownFields()  # they could fill a whole message
        new = NewJob(
            caller=caller.name,
            job_id=job_id,
            request=message.SerializeToString(),
            output=job.output.location,
            received_ms=self._clock.now_ms(),
        )
        stored, added = await self._runner.blocking(self._queue.add, new, self._room(caller))
        if not added:
            return self._same(stored, asked, again=again)
        self._dispatcher.wake()
        return row_message(stored)

    def _room(self, caller: Caller) -> Room:
        """Return how many jobs may wait: the configured number, and one per slot that is free now."""
        slots = self._runner.slots
        return Room(
            jobs=self._limits.waiting + slots.free(),
            of_caller=slots.queue_limit_per_caller + slots.free(caller.name),
        )

    async def _check_new(self, caller: str, job_id: str) -> None:
        """Refuse the id of any job of the caller, finished or not."""
        try:
            await self.find(caller, job_id)
        except NoSuchJobError:
            return
        raise JobIdTakenError(f"you already have a job {job_id!r}: use another id, or ask for that job")

    def _same(self, row: QueuedJob, asked: AskedJob, *, again: bool) -> aggregation_pb2.Job:
        """Return a stored job if it is of the same request; refuse the id otherwise, and always without ``again``."""
        if not again:
            raise JobIdTakenError(f"you already have a job {row.job_id!r}: use another id, or ask for that job")
        if AskedJob.of(aggregation_pb2.CreateJobRequest.FromString(row.request)).request != asked.request:
            raise JobIdTakenError(f"job id {row.job_id!r} was used for another request")
        return self._message(row)

    def _message(self, found: Found) -> aggregation_pb2.Job:
        if isinstance(found, JobRecord):
            return found.message()
        if isinstance(found, QueuedJob):
            return row_message(found, self._dispatcher.reports_read(found))
        return found

    async def check_free(self, caller: str, job_id: str) -> None:
        """Refuse the id of a job that is under way, as a stream or in the queue."""
        row = await self._runner.blocking(self._queue.find, caller, job_id)
        self._runner.book.check_free(caller, job_id)
        if (row is not None and row.state is not JobState.FINISHED) or self._dispatcher.runs(caller, job_id):
            raise JobIdTakenError(f"job {job_id!r} is under way: wait for it with WatchJob")

    async def find(self, caller: str, job_id: str) -> Found:
        """Return a caller's job. The ledger decides: a job that failed here may have been paid for before."""
        check_job_id(job_id)
        stream = self._runner.book.find(caller, job_id)
        if stream is not None and stream.problem is None:
            return stream
        row = await self._runner.blocking(self._queue.find, caller, job_id)
        if row is not None and not row.status:
            return row
        paid = await self._runner.blocking(find_result, self._engine.ledger, caller, job_id)
        if paid is not None:
            return committed_message(job_id, paid, self._engine.ledger.filter)
        found = stream if row is None or (stream and stream.updated_ms > row.updated_ms) else row
        if found is None:
            raise NoSuchJobError(f"you have no job {job_id!r}")
        return found

    async def get(self, caller: str, job_id: str) -> aggregation_pb2.Job:
        """Return a caller's job as it is now."""
        return self._message(await self.find(caller, job_id))

    async def page(self, caller: str, token: str, size: int) -> tuple[list[aggregation_pb2.Job], str]:
        """Return one page of a caller's streams and stored jobs, newest first, and the token of the next.

        Each id appears once, with the job that ``get`` returns. The page ends early when it is large enough for a
        message.
        """
        cursor = _Cursor.parse(token)
        rows = await self._runner.blocking(self._queue.page, caller, cursor.row, size + 1)
        streams = [one for one in self._runner.book.of_caller(caller) if _Cursor.of(one) < cursor]
        both: list[JobRecord | QueuedJob] = [*rows, *streams]
        found = sorted(both, key=_Cursor.of, reverse=True)
        jobs: list[aggregation_pb2.Job] = []
        size_bytes = 0
        for one in found[:size]:
            if size_bytes > _PAGE_BYTES:
                break
            cursor = _Cursor.of(one)
            shown: Found = one
            failed = one.problem is not None if isinstance(one, JobRecord) else bool(one.status)
            if failed:
                shown = await self.find(caller, one.key[1])
            if shown is one or isinstance(shown, aggregation_pb2.Job) or _Cursor.of(shown) == cursor:
                jobs.append(self._message(shown))
                size_bytes += jobs[-1].ByteSize()
        more = bool(found) and cursor != _Cursor.of(found[-1])
        return jobs, str(cursor) if more else ""

    async def watch(self, caller: str, job_id: str) -> AsyncIterator[aggregation_pb2.Job]:
        """Yield a job as it is now, and again at every change until it has finished."""
        while True:
            change = self._dispatcher.change((caller, job_id))
            found = await self.find(caller, job_id)
            change = found.changed if isinstance(found, JobRecord) else change
            message = self._message(found)
            yield message
            if message.job_status == FINISHED:
                return
            try:
                await asyncio.wait_for(change.wait(), _LOOK_EVERY_S)
            except TimeoutError:
                continue

    async def cancel(self, caller: str, job_id: str) -> aggregation_pb2.Job:
        """End a job that has not been committed, whichever service runs it; a committed job stays as it is."""
        found = await self.find(caller, job_id)
        if isinstance(found, JobRecord):
            found.cancel()
        elif isinstance(found, QueuedJob) and found.state is not JobState.FINISHED:
            problem = CancelledError("the job was cancelled while it waited; nothing was charged")
            end = failed_end(job_id, problem, self._clock.now_ms())
            found = await self._runner.blocking(self._queue.cancel, caller, job_id, end) or found
            self._dispatcher.cancel(found)
            self._dispatcher.notify(found.key)
        return self._message(found)

    async def unpaid_summary(self, caller: str, job_id: str) -> tuple[common_pb2.SummaryHeader, Rows | None]:
        """Return the summary of a job that the ledger does not know, such as a debug run; raise what it failed with."""
        found = await self.find(caller, job_id)
        if isinstance(found, JobRecord) and found.problem is not None:
            raise found.problem
        if isinstance(found, QueuedJob) and found.status:
            raise remembered(found)
        message = self._message(found)
        if message.job_status != FINISHED:
            raise NoSuchJobError(f"job {job_id!r} has not finished: wait for it with WatchJob")
        return message.summary, found.debug_rows if isinstance(found, JobRecord) else None
