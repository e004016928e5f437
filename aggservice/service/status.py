"""From an error to what a caller sees. Only this module chooses gRPC status codes.

Every error carries a google.rpc.Status with an ``ErrorDetail``: return code, count and the first 20 units. gRPC
trailers lose details beyond a few kilobytes, so the size of a detail is bounded.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

from aggservice.job.errors import (
    CancelledError,
    EngineError,
    JobIdTakenError,
    ReturnCode,
    TooManyBadReportsError,
    UnpaidError,
    WorkerLostError,
)
from aggservice.job.messages import error_counts
from aggservice.rpc.v1 import common_pb2
from aggservice.service.errors import (
    BusyError,
    ForbiddenError,
    NoKeysError,
    NoSuchJobError,
    NoSuchPathError,
    PathRefusedError,
    RememberedError,
    RetriesExhaustedError,
    StalledError,
    UnauthenticatedError,
)
from aggservice.wire import WireError
from budget import BudgetError

_MAX_MESSAGE_CHARACTERS = 1024
_FIRST_UNITS = 20

#: The first class that matches decides, so subclasses stand before their base classes.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UnauthenticatedError, code_pb2.UNAUTHENTICATED),
    (ForbiddenError, code_pb2.PERMISSION_DENIED),
    (PathRefusedError, code_pb2.PERMISSION_DENIED),
    (NoSuchJobError, code_pb2.NOT_FOUND),
    (NoSuchPathError, code_pb2.NOT_FOUND),
    (BusyError, code_pb2.RESOURCE_EXHAUSTED),
    (StalledError, code_pb2.DEADLINE_EXCEEDED),
    (NoKeysError, code_pb2.FAILED_PRECONDITION),
    (JobIdTakenError, code_pb2.ALREADY_EXISTS),
    (CancelledError, code_pb2.CANCELLED),
    (WorkerLostError, code_pb2.UNAVAILABLE),
    (RetriesExhaustedError, code_pb2.UNAVAILABLE),
)
_BY_RETURN_CODE = {
    ReturnCode.INVALID_JOB: code_pb2.INVALID_ARGUMENT,
    ReturnCode.INPUT_DATA_READ_FAILED: code_pb2.FAILED_PRECONDITION,
    ReturnCode.RESULT_WRITE_ERROR: code_pb2.FAILED_PRECONDITION,
    ReturnCode.REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD: code_pb2.FAILED_PRECONDITION,
    ReturnCode.UNSUPPORTED_REPORT_VERSION: code_pb2.FAILED_PRECONDITION,
    ReturnCode.PRIVACY_BUDGET_EXHAUSTED: code_pb2.FAILED_PRECONDITION,
    ReturnCode.PRIVACY_BUDGET_ERROR: code_pb2.UNAVAILABLE,
    ReturnCode.PERMISSION_ERROR: code_pb2.PERMISSION_DENIED,
}

KNOWN_ERRORS = (EngineError, BudgetError, WireError)
"""Errors whose message is meant for the caller. Any other error is a fault of the service; its message stays hidden."""


def return_code_of(problem: BaseException) -> ReturnCode:
    """Return the return code of an error."""
    if isinstance(problem, EngineError):
        return problem.code
    if isinstance(problem, BudgetError):
        return ReturnCode(problem.code)
    if isinstance(problem, WireError):
        return ReturnCode.INVALID_JOB
    return ReturnCode.INTERNAL_ERROR


def message_of(problem: BaseException) -> str:
    """Return the message that the caller sees."""
    if isinstance(problem, KNOWN_ERRORS):
        return str(problem)[:_MAX_MESSAGE_CHARACTERS]
    return "the service failed: ask its operator, whose log says where"


def without_frames(problem: BaseException) -> BaseException:
    """Remove the stack frames from an error and from its causes; return the error.

    Frames would keep everything alive that the failed job held: its sums, its units, its unpaid noise.
    """
    left: list[BaseException | None] = [problem]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [one.__cause__, one.__context__]
    return problem


def detail_of(problem: BaseException, job_request_id: str = "") -> common_pb2.ErrorDetail:
    """Return the detail of an error; its size is bounded."""
    detail = common_pb2.ErrorDetail(
        return_code=common_pb2.ReturnCode.Code.Value(return_code_of(problem).value),
        job_request_id=job_request_id,
        remedy=problem.remedy if isinstance(problem, EngineError) else EngineError.remedy,
    )
    if isinstance(problem, UnpaidError):
        detail.count = problem.count
        detail.units.extend(problem.first[:_FIRST_UNITS])
    if isinstance(problem, TooManyBadReportsError):
        detail.count = problem.bad
        detail.error_counts.extend(error_counts(problem.counts))
    return detail


def status_of(problem: BaseException, job_request_id: str = "") -> status_pb2.Status:
    """Return the google.rpc.Status of an error."""
    if isinstance(problem, RememberedError):
        return problem.status
    code = next((code for kind, code in _CODES if isinstance(problem, kind)), None)
    if code is None:
        code = _BY_RETURN_CODE.get(return_code_of(problem), code_pb2.INTERNAL)
    packed = any_pb2.Any()
    packed.Pack(detail_of(problem, job_request_id))
    return status_pb2.Status(code=code, message=message_of(problem), details=[packed])


async def abort(context: grpc.aio.ServicerContext, problem: BaseException, job_request_id: str = "") -> None:
    """End a call with the status of an error. Does not return."""
    status = rpc_status.to_status(status_of(problem, job_request_id))
    await context.abort(status.code, status.details, status.trailing_metadata)
