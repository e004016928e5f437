"""The client library: a typed, synchronous client of both services, with retries that cannot charge twice.

A job id belongs to one request: if the same request comes again after a lost connection, the service returns the same
summary. The library can therefore retry every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from aggservice.client import answers
from aggservice.client.credentials import Credentials
from aggservice.client.errors import ClientError, bad_argument, error_from_detail, error_of
from aggservice.client.values import Balance, BudgetCheck, Job, LedgerEntry, UnpaidUnit, Verification
from aggservice.job.errors import EngineError, InvalidJobError
from aggservice.job.messages import parameters_message, summary_of
from aggservice.job.parameters import JobParameters
from aggservice.job.result import Summary
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import aggregation_service_pb2_grpc as aggregation_grpc
from aggservice.rpc.v1 import budget_service_pb2 as budget_pb2
from aggservice.rpc.v1 import budget_service_pb2_grpc as budget_grpc
from aggservice.wire import AggregatableReport, PublicKeySet, ReportBatch

T = TypeVar("T")
OnProgress = Callable[[int, str], None]
Reports = Iterable[AggregatableReport] | Iterable[ReportBatch]
Domain = Iterable[int] | tuple[NDArray[np.uint64], NDArray[np.uint64]]

_MESSAGE_BYTES = 1 << 20
_MESSAGE_REPORTS = 1024
_DOMAIN_KEYS = 1 << 16
_MAX_RECEIVED_BYTES = 64 << 20


class Client:
    """A connection to a service. Close it, or use it in a ``with`` statement."""

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials | None = None,
        attempts: int = 5,
        first_wait_s: float = 0.2,
        longest_wait_s: float = 5.0,
        timeout_s: float | None = None,
    ) -> None:
        if not attempts >= 1:
            raise bad_argument("attempts must be at least 1")
        self._attempts = attempts
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._timeout_s = timeout_s
        credentials = credentials or Credentials()
        credentials.check_address(address)
        options = [
            ("grpc.max_receive_message_length", _MAX_RECEIVED_BYTES),
            # By default a channel waits for up to two minutes before it connects to a restarted service again.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", round(1000 * longest_wait_s)),
        ]
        self._tls = credentials.root_certificates is not None
        if credentials.root_certificates is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            tls = grpc.ssl_channel_credentials(
                credentials.root_certificates, credentials.private_key, credentials.certificate
            )
            self._channel = grpc.secure_channel(address, tls, options=options)
        self._metadata = (("authorization", f"Bearer {credentials.token}"),) if credentials.token else ()
        self._aggregation: Any = aggregation_grpc.AggregationServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._budget: Any = budget_grpc.BudgetServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _retry(self, call: Callable[[], T]) -> T:
        """Call, and retry while that can help; each wait is twice the one before, up to a limit."""
        wait = self._first_wait_s
        for attempt in range(self._attempts):
            try:
                return call()
            except grpc.RpcError as problem:
                error = error_of(problem, tls=self._tls)
                if not error.may_retry or attempt + 1 == self._attempts:
                    raise error from problem
            time.sleep(wait)
            wait = min(2 * wait, self._longest_wait_s)
        raise AssertionError("unreachable")

    def _send(self, method: Any, request: Any) -> Any:
        return method(request, metadata=self._metadata, timeout=self._timeout_s)

    def _call(self, method: Any, request: Any) -> Any:
        return self._retry(lambda: self._send(method, request))

    def public_keys(self) -> PublicKeySet:
        """Return the keys under which reports are sealed."""
        response = self._call(self._aggregation.ListPublicKeys, aggregation_pb2.ListPublicKeysRequest())
        return PublicKeySet.parse(response.document)

    def aggregate(
        self,
        job_request_id: str,
        parameters: JobParameters,
        reports: Reports,
        *,
        domain: Domain = (),
        progress: OnProgress | None = None,
    ) -> Summary:
        """Stream a job and return its summary.

        Each attempt reads ``reports`` and ``domain`` again; an iterator can be read only once, so it is not retried.
        An exception that they raise ends the job before it is charged, and is raised here. ``progress`` is called with
        the number of reports opened and the stage.
        """
        once = isinstance(reports, Iterator) or isinstance(domain, Iterator)

        def attempt() -> Summary:
            problems: list[Exception] = []
            requests = _remembering(_requests(_asked(parameters, job_request_id), domain, reports), problems)
            responses = self._send(self._aggregation.Aggregate, requests)
            try:
                return _summary(_watched(responses, progress))
            except grpc.RpcError:
                if problems:
                    raise problems[0] from None
                raise

        if not once:
            return self._retry(attempt)
        try:
            return attempt()
        except grpc.RpcError as problem:
            raise error_of(problem, tls=self._tls) from problem

    def create_job(
        self,
        job_request_id: str,
        parameters: JobParameters,
        *,
        input_data_blob_prefix: str | Sequence[str],
        output_data_blob_prefix: str,
        output_domain_blob_prefix: str = "",
    ) -> Job:
        """Create a job over files that the service can read, or return the job that the same request created."""
        single = isinstance(input_data_blob_prefix, str)
        request = aggregation_pb2.CreateJobRequest(
            job_request_id=job_request_id,
            input_data_blob_prefix=input_data_blob_prefix if isinstance(input_data_blob_prefix, str) else "",
            input_data_blob_prefixes=() if single else list(input_data_blob_prefix),
            output_data_blob_prefix=output_data_blob_prefix,
            output_domain_blob_prefix=output_domain_blob_prefix,
            job_parameters=_asked(parameters, job_request_id),
        )
        return answers.job(self._call(self._aggregation.CreateJob, request))

    def get_job(self, job_request_id: str) -> Job:
        """Return a job as it is now."""
        request = aggregation_pb2.GetJobRequest(job_request_id=job_request_id)
        return answers.job(self._call(self._aggregation.GetJob, request))

    def jobs(self, page_size: int = 100) -> Iterator[Job]:
        """Yield your jobs over files and your streams on this service, newest first."""
        request = aggregation_pb2.ListJobsRequest(page_size=page_size)
        for page in self._pages(self._aggregation.ListJobs, request):
            yield from map(answers.job, page.jobs)

    def cancel_job(self, job_request_id: str) -> Job:
        """End a job that has not been paid for yet."""
        request = aggregation_pb2.GetJobRequest(job_request_id=job_request_id)
        return answers.job(self._call(self._aggregation.CancelJob, request))

    def watch_job(self, job_request_id: str, progress: OnProgress | None = None) -> Job:
        """Wait until a job has finished and return it; raise ``ClientError`` if it failed."""
        request = aggregation_pb2.GetJobRequest(job_request_id=job_request_id)

        def watch() -> aggregation_pb2.Job:
            last = None
            for last in self._send(self._aggregation.WatchJob, request):
                if progress is not None:
                    progress(last.progress.reports_read, last.progress.stage)
            if last is None:
                raise ClientError("the service ended the stream before the job finished: call watch_job again")
            return last

        found = self._retry(watch)
        if not found.HasField("summary"):
            raise error_from_detail(found.result_info.return_message, found.result_info.detail)
        return answers.job(found)

    def summary(self, job_request_id: str) -> Summary:
        """Return the summary of a finished job."""
        request = aggregation_pb2.GetSummaryRequest(job_request_id=job_request_id)
        return self._retry(lambda: _summary(self._send(self._aggregation.GetSummary, request)))

    def balances(self, shared_infos: Sequence[str], filtering_ids: Sequence[int] = ()) -> list[Balance]:
        """Return what the units of these reports have spent and have left, in the order of the reports."""
        request = budget_pb2.GetBalanceRequest(
            shared_infos=shared_infos, filtering_ids=",".join(map(str, filtering_ids))
        )
        return [answers.balance(one) for one in self._call(self._budget.GetBalance, request).balances]

    def unit_balances(self, units: Sequence[bytes]) -> list[Balance]:
        """Return what units have spent, by unit key: for auditors and operators."""
        request = budget_pb2.GetBalanceRequest(units=units)
        return [answers.balance(one) for one in self._call(self._budget.GetBalance, request).balances]

    def check_budget(self, parameters: JobParameters, shared_infos: Sequence[str]) -> BudgetCheck:
        """Return whether a job over these reports would be paid. Nothing is charged."""
        asked = _asked(parameters, "dry-run")
        request = budget_pb2.CheckBudgetRequest(job_parameters=asked, shared_infos=list(shared_infos))
        return answers.budget_check(self._call(self._budget.CheckBudget, request))

    def unpaid_units(self, job_request_id: str, page_size: int = 1000) -> Iterator[UnpaidUnit]:
        """Yield every unit that could not pay for a refused job."""
        request = budget_pb2.ListUnpaidUnitsRequest(job_request_id=job_request_id, page_size=page_size)
        for page in self._pages(self._budget.ListUnpaidUnits, request):
            yield from map(answers.unpaid_unit, page.units)

    def entries(
        self,
        *,
        job_request_id: str = "",
        caller: str = "",
        unit: bytes = b"",
        not_before_ms: int | None = None,
        before_ms: int | None = None,
        page_size: int = 1000,
    ) -> Iterator[LedgerEntry]:
        """Yield the log entries that this caller may see and that meet every given condition."""
        request = budget_pb2.ListEntriesRequest(
            job_request_id=job_request_id,
            caller=caller,
            unit=unit,
            not_before=answers.timestamp(not_before_ms),
            before=answers.timestamp(before_ms),
            page_size=page_size,
        )
        for page in self._pages(self._budget.ListEntries, request):
            yield from map(answers.ledger_entry, page.entries)

    def _pages(self, method: Any, request: Any) -> Iterator[Any]:
        """Yield every page of an answer."""
        while True:
            page = self._call(method, request)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def verify_ledger(self, receipts: Sequence[bytes] = ()) -> Verification:
        """Have the service replay its ledger. To check it independently, export the log and audit it yourself.

        Receipts that do not fit into one message go into further ones, with one replay per message; the first failed
        audit is returned.
        """
        asked = budget_pb2.VerifyLedgerRequest()
        for receipt in receipts:
            if asked.receipts and asked.ByteSize() + len(receipt) > _MESSAGE_BYTES:
                found = self._call(self._budget.VerifyLedger, asked)
                if not found.ok:
                    return answers.verification(found)
                asked = budget_pb2.VerifyLedgerRequest()
            asked.receipts.append(receipt)
        return answers.verification(self._call(self._budget.VerifyLedger, asked))


def _watched(
    responses: Iterable[aggregation_pb2.AggregateResponse], progress: OnProgress | None
) -> Iterator[aggregation_pb2.AggregateResponse]:
    """Yield ``responses``; call ``progress`` for each one that holds the progress of the job."""
    for response in responses:
        if progress is not None and response.HasField("progress"):
            progress(response.progress.reports_read, response.progress.stage)
        yield response


def _remembering(
    requests: Iterator[aggregation_pb2.AggregateRequest], problems: list[Exception]
) -> Iterator[aggregation_pb2.AggregateRequest]:
    """Yield ``requests``; append an exception that they raise to ``problems``, because gRPC would hide it."""
    try:
        yield from requests
    except Exception as problem:
        problems.append(problem)
        raise


def _requests(
    parameters: aggregation_pb2.JobParameters, domain: Domain, reports: Reports
) -> Iterator[aggregation_pb2.AggregateRequest]:
    """Yield the messages of a stream, each of bounded size."""
    yield aggregation_pb2.AggregateRequest(job_parameters=parameters)
    for part in _domain_parts(domain):
        yield aggregation_pb2.AggregateRequest(domain=part)
    count = 0
    for message in _report_messages(reports):
        count += len(message.payloads)
        yield aggregation_pb2.AggregateRequest(reports=message)
    yield aggregation_pb2.AggregateRequest(end=aggregation_pb2.EndOfReports(report_count=count))


def _domain_parts(domain: Domain) -> Iterator[bytes]:
    if isinstance(domain, tuple) and len(domain) == 2 and isinstance(domain[0], np.ndarray):
        high, low = domain
        for start in range(0, len(high), _DOMAIN_KEYS):
            both = np.empty((min(_DOMAIN_KEYS, len(high) - start), 2), dtype=">u8")
            both[:, 0], both[:, 1] = high[start : start + _DOMAIN_KEYS], low[start : start + _DOMAIN_KEYS]
            yield both.tobytes()
        return
    held: list[bytes] = []
    for bucket in domain:
        try:
            held.append(int(bucket).to_bytes(16, "big"))
        except OverflowError:
            raise bad_argument(f"bucket {bucket} of the domain is outside 0 to 2^128 - 1") from None
        if len(held) == _DOMAIN_KEYS:
            yield b"".join(held)
            held = []
    if held:
        yield b"".join(held)


def _report_messages(reports: Reports) -> Iterator[aggregation_pb2.ReportBatch]:
    payloads: list[bytes] = []
    key_ids: list[str] = []
    shared_infos: list[str] = []
    size = 0
    for payload, key_id, shared_info in _fields(reports):
        payloads.append(payload)
        key_ids.append(key_id)
        shared_infos.append(shared_info)
        size += len(payload) + len(key_id) + len(shared_info)
        if size >= _MESSAGE_BYTES or len(payloads) == _MESSAGE_REPORTS:
            yield aggregation_pb2.ReportBatch(payloads=payloads, key_ids=key_ids, shared_infos=shared_infos)
            payloads, key_ids, shared_infos, size = [], [], [], 0
    if payloads:
        yield aggregation_pb2.ReportBatch(payloads=payloads, key_ids=key_ids, shared_infos=shared_infos)


def _fields(reports: Reports) -> Iterator[tuple[bytes, str, str]]:
    for one in reports:
        if isinstance(one, ReportBatch):
            for payload, key_id, info in zip(one.payloads, one.key_ids, one.shared_infos, strict=True):
                # Text in a message is UTF-8. Other bytes do not open, and the service counts them like any bad report.
                yield payload, key_id.decode(errors="replace"), info.decode(errors="replace")
        else:
            sealed = one.payloads[0]
            yield sealed.payload, sealed.key_id, one.shared_info


def _asked(parameters: JobParameters, job_request_id: str) -> aggregation_pb2.JobParameters:
    try:
        return parameters_message(parameters, job_request_id)
    except InvalidJobError as problem:
        raise bad_argument(str(problem)) from None


def _summary(parts: Iterable[Any]) -> Summary:
    try:
        return summary_of(parts)
    except EngineError as problem:
        raise ClientError(str(problem)) from None
