"""createJob and getJob over HTTP, as the deployed service has them, for the same callers and the same jobs as gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from aggservice.engine import InvalidJobError
from aggservice.service.api.deployed import check_id, create_message, error_document, job_document
from aggservice.service.api.gate import Gate, current_caller
from aggservice.service.errors import ForbiddenError, NoSuchPathError, StalledError
from aggservice.service.http.bodies import STALLED, BodyError, read_body
from aggservice.service.http.hosts import Hosts
from aggservice.service.jobs.desk import JobDesk
from aggservice.service.status import KNOWN_ERRORS

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
