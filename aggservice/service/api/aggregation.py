"""The servicer of ``AggregationService``: streams, jobs over files, summaries and public keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from aggservice.engine import (
    AvroShards,
    CancelledError,
    Engine,
    InvalidJobError,
    JobIdTakenError,
    JobRequest,
    Outcome,
    PaidFailureError,
    Rows,
    Session,
)
from aggservice.engine.release.charging import Receipted, find_result
from aggservice.engine.request import check_job_id
from aggservice.engine.shuffle.rows import ShuffledRows
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import aggregation_service_pb2_grpc as aggregation_grpc
from aggservice.rpc.v1 import common_pb2
from aggservice.service.api.gate import current_caller
from aggservice.service.config.callers import Caller
from aggservice.service.config.keyring import KeyRing
from aggservice.service.config.settings import Limits
from aggservice.service.errors import NoSuchJobError, PathRefusedError, ProtocolError, StalledError
from aggservice.service.jobs.book import FINISHED, IN_PROGRESS, JobRecord, fail_message, finish_message
from aggservice.service.jobs.folders import Folder
from aggservice.service.jobs.runner import FileJob, JobRunner, scope_of
from aggservice.service.messages import (
    ROWS_PER_MESSAGE,
    ContentDigest,
    batch_of,
    header_message,
    keys_of,
    outcome_header,
    request_of,
    rows_message,
    shuffled_messages,
)

T = TypeVar("T")

_MAX_PREFIXES = 50
_PROGRESS_EVERY_S = 0.5


class AggregationServicer(aggregation_grpc.AggregationServiceServicer):
    """Answers calls that the gate has authenticated and authorised."""

    def __init__(
        self,
        *,
        engine: Engine,
        runner: JobRunner,
        keys: KeyRing,
        limits: Limits,
        inputs: Folder | None,
        outputs: Folder | None,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._keys = keys
        self._limits = limits
        self._inputs = inputs
        self._outputs = outputs

    async def _timely(self, waiting: Awaitable[T], what: str) -> T:
        """Wait for the caller, for at most the configured time."""
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
            record = self._open(caller, request, aggregation_pb2.CreateJobRequest(job_parameters=first.job_parameters))
            outcome = await self._stream(context, caller, record)
        header = outcome_header(outcome, self._engine.ledger.filter)
        await self._send(context, aggregation_pb2.AggregateResponse, header, outcome.rows, outcome.shuffled)

    async def _send(
        self,
        context: grpc.aio.ServicerContext,
        kind: Callable[..., Any],
        header: common_pb2.SummaryHeader,
        rows: Rows | None,
        shuffled: ShuffledRows | None,
        first: int = 0,
    ) -> None:
        """Write a summary in messages of ``kind``: its header, then its rows or reports from ``first`` on."""
        await self._write(context, kind(header=header))
        if rows is not None:
            for page in rows.pages(ROWS_PER_MESSAGE, first):
                await self._write(context, kind(rows=rows_message(page)))
        if shuffled is not None:
            for part in shuffled_messages(shuffled, first):
                await self._write(context, kind(shuffled=part))

    def _open(self, caller: Caller, request: JobRequest, asked: aggregation_pb2.CreateJobRequest) -> JobRecord:
        """Enter a job into the book, unless a job of the same id is under way."""
        found = self._runner.book.find(caller.name, request.job_request_id)
        if found is not None and found.status != FINISHED:
            raise JobIdTakenError(f"job {request.job_request_id!r} is under way: wait for it with WatchJob")
        return self._runner.book.open(caller.name, request, asked)

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
            self._runner.log_lost(record, problem)
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
        """Read a stream whose job is paid for, without opening reports; return its summary if it is the same."""
        digest = ContentDigest()
        async for message in self._parts(context, digest):
            if message.HasField("reports"):
                digest.add_reports(batch_of(message.reports))
        found = await self._runner.blocking(self._engine.find, scope_of(caller), request, digest.digest())
        assert found is not None
        return Outcome.of(found)

    async def CreateJob(
        self, request: aggregation_pb2.CreateJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """Begin a job over files, or return the one that the same request began before."""
        caller = current_caller()
        if self._inputs is None or self._outputs is None:
            raise PathRefusedError(
                "this service has no folders for jobs over files: stream the reports with Aggregate instead"
            )
        prefixes = tuple(request.input_data_blob_prefixes) or (request.input_data_blob_prefix,)
        if bool(request.input_data_blob_prefix) == bool(request.input_data_blob_prefixes):
            raise InvalidJobError("give exactly one of input_data_blob_prefix and input_data_blob_prefixes")
        if len(prefixes) > _MAX_PREFIXES:
            raise InvalidJobError(f"input_data_blob_prefixes has {len(prefixes)} entries: give at most {_MAX_PREFIXES}")
        parameters = aggregation_pb2.JobParameters()
        parameters.CopyFrom(request.job_parameters)
        parameters.job_request_id = request.job_request_id or parameters.job_request_id
        domain = request.output_domain_blob_prefix or None
        asked = request_of(parameters, (*prefixes, "->", request.output_data_blob_prefix, "domain", domain or ""))
        caller.check_scope(attribution_report_to=asked.attribution_report_to, reporting_site=asked.reporting_site)
        without_domain = asked.shuffle is not None or asked.task is not None
        if domain is None and asked.discovery is None and not asked.debug_run and not without_domain:
            raise InvalidJobError("the job names no keys: give output_domain_blob_prefix or key_discovery")
        if domain is not None and without_domain:
            raise InvalidJobError(
                "shuffles and jobs with an attribution_task have no output domain: leave output_domain_blob_prefix out"
            )
        found = self._begun(caller, asked)
        if found is not None:
            return found.message()
        again = await self._runner.blocking(self._engine.find, scope_of(caller), asked)
        if again is not None:
            return self._committed_message(asked.job_request_id, again)
        job = await self._runner.blocking(self._file_job, caller, prefixes, domain, request.output_data_blob_prefix)
        found = self._begun(caller, asked)  # a second copy of the same call may have begun it meanwhile
        if found is not None:
            return found.message()
        self._runner.reserve(job)
        record = self._open(caller, asked, request)
        self._runner.start(record, caller, job)
        return record.message()

    def _begun(self, caller: Caller, asked: JobRequest) -> JobRecord | None:
        """Return the job of this request if it runs or has a summary; refuse the id if another request has it."""
        found = self._runner.book.find(caller.name, asked.job_request_id)
        if found is None or (found.status == FINISHED and found.summary is None):
            return None
        if found.request != asked:
            raise JobIdTakenError(f"job id {asked.job_request_id!r} was used for another request")
        return found

    def _file_job(self, caller: Caller, prefixes: tuple[str, ...], domain: str | None, output: str) -> FileJob:
        """Check every path before the job begins, so that the caller learns of a mistake at once."""
        assert self._inputs is not None and self._outputs is not None
        inputs, outputs = self._inputs.below(caller.folder), self._outputs.below(caller.folder)
        for prefix in prefixes + ((domain,) if domain is not None else ()):
            inputs.files(prefix)
        return FileJob(
            inputs=inputs,
            prefixes=prefixes,
            domain=domain,
            output=AvroShards(prefix=outputs.prepare(output)),
            recheck=lambda: outputs.prepare(output),
        )

    def _committed_message(self, job_request_id: str, paid: Receipted) -> aggregation_pb2.Job:
        """Return a job that the ledger has, with its summary or its paid failure."""
        message = aggregation_pb2.Job(job_request_id=job_request_id, job_status=FINISHED)
        if paid.header.failed:
            fail_message(message, PaidFailureError(paid.header.return_code), paid.header.finished_ms)
        else:
            finish_message(message, outcome_header(Outcome.of(paid), self._engine.ledger.filter))
        message.request_updated_at.CopyFrom(message.result_info.finished_at)
        return message

    async def _find(self, job_request_id: str) -> JobRecord | aggregation_pb2.Job:
        """Return a caller's job. The ledger decides: a job that failed here may have been paid for before."""
        caller = current_caller()
        check_job_id(job_request_id)
        record = self._runner.book.find(caller.name, job_request_id)
        if record is not None and record.problem is None:
            return record
        found = await self._runner.blocking(find_result, self._engine.ledger, caller.name, job_request_id)
        if found is not None:
            return self._committed_message(job_request_id, found)
        if record is None:
            raise NoSuchJobError(f"you have no job {job_request_id!r}")
        return record

    async def GetJob(
        self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """Return the job as it is now."""
        found = await self._find(request.job_request_id)
        return found.message() if isinstance(found, JobRecord) else found

    async def WatchJob(self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the job as it is now, and again at every change until it has finished."""
        found = await self._find(request.job_request_id)
        if not isinstance(found, JobRecord):
            await self._write(context, found)
            return
        while True:
            changed = found.changed
            message = found.message()
            if found.problem is not None:
                last = await self._find(request.job_request_id)
                message = last.message() if isinstance(last, JobRecord) else last
            await self._write(context, message)
            if message.job_status == FINISHED:
                return
            try:
                await asyncio.wait_for(changed.wait(), _PROGRESS_EVERY_S)
            except TimeoutError:
                continue

    async def CancelJob(
        self, request: aggregation_pb2.GetJobRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.Job:
        """End a job that has not been committed; a committed job stays as it is."""
        found = await self._find(request.job_request_id)
        if not isinstance(found, JobRecord):
            return found
        found.cancel()
        return found.message()

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
            if found.header.failed:
                raise PaidFailureError(found.header.return_code)
            header, rows = header_message(found.header, found, self._engine.ledger.filter, repeated=True), found.rows
        else:
            record = self._runner.book.find(caller.name, request.job_request_id)
            if record is None:
                raise NoSuchJobError(f"you have no job {request.job_request_id!r}")
            if record.problem is not None:
                raise record.problem
            if record.summary is None:
                raise NoSuchJobError(f"job {request.job_request_id!r} has not finished: wait for it with WatchJob")
            header, rows = record.summary, record.debug_rows
        shuffled = None if found is None else found.shuffled
        await self._send(context, aggregation_pb2.SummaryChunk, header, rows, shuffled, request.first_row)

    async def ListPublicKeys(
        self, request: aggregation_pb2.ListPublicKeysRequest, context: grpc.aio.ServicerContext
    ) -> aggregation_pb2.ListPublicKeysResponse:
        """Return the keys to seal reports with. Open to everyone."""
        public = self._keys.public()
        return aggregation_pb2.ListPublicKeysResponse(
            keys=[aggregation_pb2.PublicKey(id=key.id, key=key.key.public_bytes_raw()) for key in public.keys],
            document=public.serialise(),
        )
