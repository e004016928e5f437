"""The JSON of the deployed service's createJob and getJob, to and from the messages of this one.

Names and shapes are those of docs/api.md in privacysandbox/aggregation-service. Numbers are read as decimal text, so
that an ε reaches the engine exactly as it was written.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal
from typing import Any, Final, NoReturn

from google.protobuf import timestamp_pb2
from google.rpc import code_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from aggservice.job.errors import InvalidJobError, JobIdTakenError
from aggservice.rpc.v1 import aggregation_service_pb2 as aggregation_pb2
from aggservice.rpc.v1 import common_pb2
from aggservice.service.api.gate import Gate, current_caller
from aggservice.service.config.settings import BUCKET_NAME
from aggservice.service.errors import ForbiddenError, NoSuchJobError, NoSuchPathError, StalledError
from aggservice.service.http.app import STALLED, BodyError, Hosts, read_body
from aggservice.service.jobs.desk import JobDesk
from aggservice.service.jobs.places import BUCKET
from aggservice.service.status import KNOWN_ERRORS, detail_of, status_of
from aggservice.wire.errors import KeySetError
from aggservice.wire.hpke.summaries import parse_output_key

_JOB_ID = re.compile(r"[!-{}~]{1,128}", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_MOST_PLACES: Final = 30
_HTTP = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status of a google.rpc.Code; 500 for all others."""


def _text(found: Any, name: str) -> str:
    """Return ``found`` if it is printable text; refuse anything else. Printable text can always be encoded."""
    if not isinstance(found, str) or not found.isprintable():
        raise InvalidJobError(f"{name} is not text, or has characters that cannot be printed: give printable text")
    return found


class _Fields:
    """The members of a JSON object, taken one by one; ``done`` refuses those that are left."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise InvalidJobError(f"{where} is not a JSON object")
        self._left = dict(found)
        self._where = where

    def take(self, name: str) -> Any:
        """Return a member, or None."""
        return self._left.pop(name, None)

    def text(self, name: str, *, required: bool = False) -> str:
        """Return a text; empty if it is missing."""
        found = self.take(name)
        if required and (found is None or found == ""):
            raise InvalidJobError(f"{name} is missing from {self._where}")
        return _text("" if found is None else found, name)

    def amount(self, name: str) -> str:
        """Return a number as decimal text, from a number or a text; empty if it is missing."""
        found = self.take(name)
        if isinstance(found, Decimal):
            exponent = found.as_tuple().exponent
            if not isinstance(exponent, int) or exponent < -_MOST_PLACES or found.adjusted() > _MOST_PLACES:
                raise InvalidJobError(
                    f"{name} is out of range: give at most {_MOST_PLACES} digits on each side of the point"
                )
            return f"{found:f}"
        return _text("" if found is None else found, name)

    def whole(self, name: str) -> int:
        """Return a whole number, from a number or a text; 0 if it is missing."""
        found = self.amount(name)
        if found and _WHOLE.fullmatch(found) is None:
            raise InvalidJobError(f"{name} is not a whole number: give 0 or more")
        return int(found or "0")

    def flag(self, name: str) -> bool:
        """Return true or false, from either or from its text; false if it is missing."""
        found = self.take(name)
        known = {True: True, False: False, "true": True, "false": False, None: False, "": False}
        if isinstance(found, bool | str | None) and found in known:
            return known[found]
        raise InvalidJobError(f"{name} is neither true nor false: give one of them")

    def done(self) -> None:
        """Refuse members that were not taken: a job with a misspelt debug_run would spend budget."""
        for name in self._left:
            raise InvalidJobError(f"{self._where} has an unknown name {name[:100]!r}: check its spelling")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidJobError("a JSON object of the request has the same name twice: give each name once")
    return found


def _in_bucket(bucket: str, name: str, prefix: str) -> str:
    """Return a prefix in a bucket as ``Places`` reads it."""
    if BUCKET_NAME.fullmatch(bucket) is None:
        raise InvalidJobError(f"{name} is not the name of a bucket: use letters, digits, '.', '_' and '-'")
    return f"{BUCKET}{bucket}/{prefix}"


def _output_key(text: str) -> bytes:
    """Return the bytes of a public key in base64; empty if it is missing."""
    try:
        return parse_output_key(text) if text else b""
    except KeySetError as problem:
        raise InvalidJobError(f"output_public_key: {problem}") from None


def check_id(job_request_id: str) -> None:
    """Refuse a job id with characters that the deployed service does not take."""
    if _JOB_ID.fullmatch(job_request_id) is None:
        raise InvalidJobError(
            "job_request_id is missing, too long or has other characters: use 1 to 128 ASCII letters, digits and "
            "punctuation, without '|' and spaces"
        )


def create_message(body: bytes) -> aggregation_pb2.CreateJobRequest:
    """Return the message of a createJob body; InvalidJobError naming what is wrong with it."""
    try:
        document = json.loads(
            body,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_members,
        )
    except (ValueError, ArithmeticError, RecursionError):
        raise InvalidJobError("the request body is not valid JSON") from None
    top = _Fields(document, "the request")
    inner = _Fields(top.take("job_parameters"), "job_parameters")
    message = aggregation_pb2.CreateJobRequest(
        job_request_id=top.text("job_request_id"),
        job_parameters=aggregation_pb2.JobParameters(
            attribution_report_to=inner.text("attribution_report_to"),
            reporting_site=inner.text("reporting_site"),
            debug_privacy_epsilon=inner.amount("debug_privacy_epsilon"),
            report_error_threshold_percentage=inner.amount("report_error_threshold_percentage"),
            input_report_count=inner.whole("input_report_count"),
            filtering_ids=inner.amount("filtering_ids"),
            debug_run=inner.flag("debug_run"),
            output_public_key=_output_key(inner.text("output_public_key")),
        ),
    )
    check_id(message.job_request_id)
    bucket = top.text("input_data_bucket_name", required=True)
    many = top.take("input_data_blob_prefixes") or []
    if not isinstance(many, list) or not all(_text(one, "input_data_blob_prefixes") for one in many):
        raise InvalidJobError("input_data_blob_prefixes is not a list of prefixes")
    single = top.text("input_data_blob_prefix", required=not many)
    if single:
        message.input_data_blob_prefix = _in_bucket(bucket, "input_data_bucket_name", single)
    message.input_data_blob_prefixes.extend(_in_bucket(bucket, "input_data_bucket_name", one) for one in many)
    message.output_data_blob_prefix = _in_bucket(
        top.text("output_data_bucket_name", required=True),
        "output_data_bucket_name",
        top.text("output_data_blob_prefix", required=True),
    )
    domain, bucket = inner.text("output_domain_blob_prefix"), inner.text("output_domain_bucket_name")
    if domain or bucket or not message.job_parameters.debug_run:
        for name, given in (("output_domain_blob_prefix", domain), ("output_domain_bucket_name", bucket)):
            if not given:
                raise InvalidJobError(f"{name} is missing from job_parameters")
        message.output_domain_blob_prefix = _in_bucket(bucket, "output_domain_bucket_name", domain)
    top.text("postback_url")  # the deployed service accepts it and does not use it
    top.done()
    inner.done()
    return message


def _place(prefix: str, name: str) -> dict[str, str]:
    """Return a prefix and its bucket under their names; a prefix given over gRPC may have no bucket."""
    bucket, path = "", prefix
    if prefix.startswith(BUCKET):
        bucket, _, path = prefix.removeprefix(BUCKET).partition("/")
    return {f"{name}_blob_prefix": path, f"{name}_bucket_name": bucket}


def _times(found: Iterable[tuple[str, bool, timestamp_pb2.Timestamp]]) -> dict[str, str]:
    return {name: time.ToJsonString() for name, known, time in found if known}


def job_document(job: aggregation_pb2.Job) -> dict[str, Any]:
    """Return a job as getJob shows it, with all its parameters as texts.

    A job that only the ledger knows is shown without its request.
    """
    asked, given = job.request, job.request.job_parameters
    inputs = [asked.input_data_blob_prefix, *asked.input_data_blob_prefixes]
    parameters = _place(asked.output_domain_blob_prefix, "output_domain")
    names = (
        "attribution_report_to",
        "reporting_site",
        "debug_privacy_epsilon",
        "report_error_threshold_percentage",
        "filtering_ids",
    )
    parameters |= {name: getattr(given, name) for name in names if getattr(given, name)}
    if given.input_report_count:
        parameters["input_report_count"] = str(given.input_report_count)
    if given.debug_run:
        parameters["debug_run"] = "true"
    if given.output_public_key:
        parameters["output_public_key"] = base64.b64encode(given.output_public_key).decode()
    document: dict[str, Any] = {
        "job_request_id": job.job_request_id,
        "job_status": aggregation_pb2.Job.Status.Name(job.job_status),
        **_times(
            (name, job.HasField(name), getattr(job, name))
            for name in ("request_received_at", "request_updated_at", "request_processing_started_at")
        ),
        **_place(next(filter(None, inputs), ""), "input_data"),
        **_place(asked.output_data_blob_prefix, "output_data"),
        "job_parameters": parameters,
    }
    if asked.input_data_blob_prefixes:
        document["input_data_blob_prefix"] = ""
        document["input_data_blob_prefixes"] = [
            _place(one, "one")["one_blob_prefix"] for one in asked.input_data_blob_prefixes
        ]
    if job.HasField("result_info"):
        info = job.result_info
        document["result_info"] = {
            "return_code": common_pb2.ReturnCode.Code.Name(info.return_code),
            "return_message": info.return_message,
            "finished_at": info.finished_at.ToJsonString(),
            "error_summary": {
                "error_counts": [
                    {"category": one.category, "count": one.count, "description": one.description}
                    for one in info.error_summary.error_counts
                ],
                "error_messages": [],
            },
        }
    return document


def error_document(problem: BaseException, job_request_id: str = "") -> tuple[int, dict[str, Any]]:
    """Return the HTTP status of an error and its body, which follows Google's error model."""
    status, detail = status_of(problem, job_request_id), detail_of(problem, job_request_id)
    reason = common_pb2.ReturnCode.Code.Name(detail.return_code)
    if isinstance(problem, JobIdTakenError):
        reason = "DUPLICATE_JOB_KEY"
    elif isinstance(problem, NoSuchJobError):
        reason = "JOB_NOT_FOUND"
    metadata = {"remedy": detail.remedy} | ({"job_request_id": job_request_id} if job_request_id else {})
    return _HTTP.get(status.code, 500), {
        "error": {
            "code": status.code,
            "message": status.message,
            "status": code_pb2.Code.Name(status.code),
            "details": [{"reason": reason, "domain": "aggservice", "metadata": metadata}],
        }
    }


CREATE_PATH: Final = "/v1alpha/createJob"
GET_PATH: Final = "/v1alpha/getJob"
_SERVICE: Final = "/aggservice.v1.AggregationService"
_MAX_BODY_BYTES: Final = 1 << 18
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_SHOWN: Final = 100
Work = Callable[[Request], Awaitable[tuple[int, dict[str, Any]]]]


def _no_pages(request: Request) -> None:
    """Refuse web pages: a page in a browser on the service's machine could otherwise use a service without callers."""
    if "origin" in request.headers:
        raise ForbiddenError("the request has an Origin header, so a web page sent it: send it from a program")


async def _elsewhere(request: Request) -> Response:
    """Answer every other path and method of the API with an error that its tools can read."""
    problem = NoSuchPathError(f"there is no {request.method} {request.url.path[:_SHOWN]!r} here")
    status, document = error_document(problem)
    return JSONResponse(document, status_code=status, headers={"Cache-Control": "no-store"})


def job_routes(desk: JobDesk, gate: Gate, *, hosts: Hosts, stall_s: int) -> list[BaseRoute]:
    """Return the two routes, and one for mistaken paths.

    The gate authenticates, authorises, counts and logs calls of the two as it does gRPC's.
    """

    async def create(request: Request) -> tuple[int, dict[str, Any]]:
        try:
            body = await read_body(request, most=_MAX_BODY_BYTES, within_s=stall_s, what="request body")
        except BodyError as problem:
            if problem.status == STALLED:
                raise StalledError(str(problem)) from None
            raise InvalidJobError(str(problem)) from None
        await desk.create(current_caller(), create_message(body), again=False)
        return 202, {}

    async def get(request: Request) -> tuple[int, dict[str, Any]]:
        given = request.query_params.multi_items()
        if [name for name, _ in given] != ["job_request_id"]:
            raise InvalidJobError(f"the query is not of the form {GET_PATH}?job_request_id=ID")
        check_id(given[0][1])
        return 200, job_document(await desk.get(current_caller().name, given[0][1]))

    def guarded(name: str, work: Work) -> Callable[[Request], Awaitable[Response]]:
        method = f"{_SERVICE}/{name}"

        async def answer(request: Request) -> Response:
            with gate.counted(method) as call:
                try:
                    hosts.check(request)
                    gate.admit(call, method, request.headers.get("authorization"), ())
                    _no_pages(request)
                    status, document = await work(request)
                except KNOWN_ERRORS as problem:
                    status, document = error_document(problem)
                    call.ended = document["error"]["status"]
                except Exception as problem:
                    gate.fault(call, method, problem)
                    status, document = error_document(problem)
                headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                return JSONResponse(document, status_code=status, headers={"Cache-Control": "no-store"} | headers)

        return answer

    return [
        Route(CREATE_PATH, guarded("CreateJob", create), methods=["POST"]),
        Route(GET_PATH, guarded("GetJob", get), methods=["GET"]),
        Route("/v1alpha/{rest:path}", _elsewhere, methods=_METHODS),
    ]
