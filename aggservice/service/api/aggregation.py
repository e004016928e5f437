"""The servicer of ``AggregationService``: streams, summaries and public keys; ``JobDesk`` answers about jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from aggservice.engine import Engine, Session
from aggservice.engine.release.charging import find_result
from aggservice.job.errors import CancelledError, InvalidJobError
from aggservice.job.messages import (
    ROWS_PER_MESSAGE,
    outcome_header,
    request_of,
    rows_message,
    sealed_messages,
    shuffled_messages,
)
from aggservice.job.request import JobRequest, check_job_id
from aggservice.job.result import Outcome, Rows, ShuffledRows
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import aggregation_service_pb2_grpc as aggregation_grpc
from aggservice.rpc.v1 import common_pb2
from aggservice.service.api.gate import current_caller
from aggservice.service.config.callers import Caller
from aggservice.service.config.keyring import KeyRing
from aggservice.service.config.settings import Limits
from aggservice.service.errors import ProtocolError, StalledError
from aggservice.service.jobs.book import JobRecord
from aggservice.service.jobs.desk import JobDesk
from aggservice.service.jobs.dispatch import JobRunner, scope_of
from aggservice.service.jobs.ends import IN_PROGRESS
from aggservice.service.messages import ContentDigest, batch_of, keys_of, page_size

T = TypeVar("T")

_PROGRESS_EVERY_S = 0.5


class AggregationServicer(aggregation_grpc.AggregationServiceServicer):
    """Answers calls that the gate has authenticated and authorised."""

    def __init__(
        self,
        *,
        engine: Engine,
        runner: JobRunner,
        desk: JobDesk,
        keys: KeyRing,
        limits: Limits,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._desk = desk
        self._keys = keys
        self._limits = limits

    async def _timely(self, waiting: Awaitable[T], what: str) -> T:
        """Return the result of ``waiting``; raise StalledError if the caller stalls longer than is configured."""
        try:
            return await asyncio.wait_for(waiting, self._limits.stall_s)
        except TimeoutError:
            raise StalledError(f"{what} for more than {self._limits.stall_s} s") from None

    async def _read(self, context: grpc.aio.ServicerContext) -> Any:
        return await self._timely(context.read(), "you sent nothing")

    async def _write(self, context: grpc.aio.ServicerContext, message: Any) -> None:
        await self._timely(context.write(message), "you read nothing")

    async def Aggregate(self, _: Any, context: grpc.aio.ServicerContext) -> None:
        """Run one job over one stream."""
        caller = current_caller()
        first = await self._read(context)
        if first is grpc.aio.EOF or first.WhichOneof("part") != "job_parameters":
            raise ProtocolError("the first message of the stream holds no job_parameters")
        request = request_of(first.job_parameters)
        caller.check_scope(attribution_report_to=request.attribution_report_to, reporting_site=request.reporting_site)
        known = await self._runner.blocking(find_result, self._engine.ledger, caller.name, request.job_request_id)
        if known is not None:
            outcome = await self._again(context, caller, request)
        else:
            await self._desk.check_free(caller.name, request.job_request_id)
            asked = aggregation_pb2.CreateJobRequest(job_parameters=first.job_parameters)
            record = self._runner.book.open(caller.name, request, asked)
            outcome = await self._stream(context, caller, record)
        header = outcome_header(outcome, self._engine.ledger.filter)
        await self._send(
            context, aggregation_pb2.AggregateResponse, header, outcome.rows, outcome.shuffled, outcome.sealed
        )

    async def _send(
        self,
        context: grpc.aio.ServicerContext,
        kind: Callable[..., Any],
        header: common_pb2.SummaryHeader,
        rows: Rows | None,
        shuffled: ShuffledRows | None,
        sealed: bytes | None,
        first: int = 0,
    ) -> None:
        """Write a summary in messages of ``kind``: its header, then its rows or reports from ``first`` on.

        Sealed rows are written whole.
        """
        await self._write(context, kind(header=header))
        if rows is not None:
            for page in rows.pages(ROWS_PER_MESSAGE, first):
                await self._write(context, kind(rows=rows_message(page)))
        if shuffled is not None:
            for part in shuffled_messages(shuffled, first):
                await self._write(context, kind(shuffled=part))
        if sealed is not None:
            for piece in sealed_messages(sealed):
                await self._write(context, kind(sealed=piece))

    async def _stream(self, context: grpc.aio.ServicerContext, caller: Caller, record: JobRecord) -> Outcome:
        """Run the engine over a stream, and record in the book how it ended, also after an error."""
        try:
            async with self._runner.slots.take(caller.name):
                session = self._engine.begin(scope_of(caller), record.request)
                record.begin(session)
                self._runner.book.change(record, status=IN_PROGRESS, stage="reading")
                digest = await self._receive(context, session)
                self._runner.book.change(record, stage="charging")
                outcome = await self._runner.step(session, session.finish, content=digest.digest())
        except BaseException as problem:
            ended = CancelledError("the stream ended early") if isinstance(problem, asyncio.CancelledError) else problem
            self._runner.log_lost(record.key, problem)
            self._runner.book.close(record, problem=ended)
            raise
        self._runner.finished(record, outcome)
        return outcome

    async def _parts(
        self, context: grpc.aio.ServicerContext, digest: ContentDigest
    ) -> AsyncIterator[aggregation_pb2.AggregateRequest]:
        """Yield the domain parts and reports of a stream up to its end message, which must give their number.

        A cancelled or lost stream ends just like a complete one, so only the end message shows that it is complete.
        """
        reports = 0
        while (message := await self._read(context)) is not grpc.aio.EOF:
            part = message.WhichOneof("part")
            if part == "end":
                if message.end.report_count != reports:
                    raise ProtocolError(
                        f"the stream held {reports} reports, but its end message says {message.end.report_count}"
                    )
                if await self._read(context) is not grpc.aio.EOF:
                    raise ProtocolError("the stream holds a message after its end message")
                return
            if part == "domain":
                digest.add_domain(message.domain)
            elif part == "reports":
                reports += len(message.reports.payloads)
            else:
                raise ProtocolError("a message of the stream is empty, or holds job_parameters a second time")
            yield message
        raise ProtocolError("the stream was cut short: it has no end message; nothing was charged")

    async def _receive(self, context: grpc.aio.ServicerContext, session: Session) -> ContentDigest:
        digest = ContentDigest()
        loop = asyncio.get_running_loop()
        reported = loop.time()
        async for message in self._parts(context, digest):
            if message.HasField("domain"):
                high, low = keys_of(message.domain)
                await self._runner.step(session, session.declare, high, low)
            else:
                batch = batch_of(message.reports)
                digest.add_reports(batch)
                await self._runner.step(session, session.add, batch)
            if loop.time() - reported >= _PROGRESS_EVERY_S:
                reported = loop.time()
                progress = aggregation_pb2.Progress(reports_read=session.reports_read, stage="reading")
                await self._write(context, aggregation_pb2.AggregateResponse(progress=progress))
        return digest

    async def _again(self, context: grpc.aio.ServicerContext, caller: Caller, request: JobRequest) -> Outcome:
        """Return the summary of a job that is already paid for; refuse a stream that differs from the paid one.

        The stream is read and hashed, but no report is opened.
        """
        digest = ContentDigest()
        async for message in self._parts(context, digest):
            if message.HasField("reports"):
                digest.add_reports(batch_of(message.reports))
        found = await self._runner.blocking(self._engine.find, scope_of(caller), request, digest.digest())
        assert found is not None
        return found.checked

    async def CreateJob(
        self, request: aggregation_pb2.CreateJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """Store a job over files, or return the job that the same request created before."""
        return await self._desk.create(current_caller(), request)

    async def GetJob(
        self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """Return the job as it is now."""
        return await self._desk.get(current_caller().name, request.job_request_id)

    async def ListJobs(
        self, request: aggregation_pb2.ListJobsRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.ListJobsResponse:
        """Return one page of the caller's jobs, newest first."""
        size = page_size(request.page_size)
        jobs, following = await self._desk.page(current_caller().name, request.page_token, size)
        return aggregation_pb2.ListJobsResponse(jobs=jobs, next_page_token=following)

    async def WatchJob(self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the job as it is now, and again at every change until it has finished."""
        async for message in self._desk.watch(current_caller().name, request.job_request_id):
            await self._write(context, message)

    async def CancelJob(
        self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """End a job that has not been committed; a committed job stays as it is."""
        return await self._desk.cancel(current_caller().name, request.job_request_id)

    async def GetSummary(self, request: aggregation_pb2.GetSummaryRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the summary of a finished job: its header, then its rows."""
        caller = current_caller()
        check_job_id(request.job_request_id)
        if not request.first_row >= 0:
            raise InvalidJobError(f"first_row is {request.first_row}: give 0 or more")
        found = await self._runner.blocking(
            find_result, self._engine.ledger, caller.name, request.job_request_id, with_remaining=True
        )
        rows: Rows | None
        if found is not None:
            header, rows = outcome_header(found.checked, self._engine.ledger.filter), found.rows
        else:
            header, rows = await self._desk.unpaid_summary(caller.name, request.job_request_id)
        shuffled, sealed = (None, None) if found is None else (found.shuffled, found.sealed)
        if sealed is not None and request.first_row:
            raise InvalidJobError("a sealed summary is sent whole: give first_row 0")
        await self._send(context, aggregation_pb2.SummaryChunk, header, rows, shuffled, sealed, request.first_row)

    async def ListPublicKeys(
        self, request: aggregation_pb2.ListPublicKeysRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.ListPublicKeysResponse:
        """Return the keys to seal reports with. Open to everyone."""
        public = self._keys.public()
        return aggregation_pb2.ListPublicKeysResponse(
            keys=[aggregation_pb2.PublicKey(id=key.id, key=key.key.public_bytes_raw()) for key in public.keys],
            document=public.serialise(),
        )
