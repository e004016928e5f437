"""The error of the client library: what the service answered, as attributes that code can read."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from grpc_status import rpc_status

from aggservice.job.messages import return_code_name
from aggservice.rpc.v1 import common_pb2

#: Statuses after which a retry with the same job id can help; it cannot charge twice.
RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED})


_HUNG_UP = ("Socket closed", "Connection reset", "Broken pipe")


class ClientError(Exception):
    """The service refused a call, or the call did not reach it.

    ``return_code`` is the deployed service's name for the reason; ``units`` holds the first units that could not pay;
    ``error_counts`` says why reports were left out, ``remedy`` what to do.
    """

    def __init__(
        self,
        message: str,
        *,
        status: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        return_code: str = "INTERNAL_ERROR",
        count: int = 0,
        units: tuple[bytes, ...] = (),
        error_counts: Mapping[str, int] | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(f"{return_code}: {message}")
        self.message = message
        self.status = status
        self.return_code = return_code
        self.count = count
        self.units = units
        self.error_counts = dict(error_counts or {})
        self.remedy = remedy

    @property
    def may_retry(self) -> bool:
        """Whether a retry can help."""
        return self.status in RETRIED


def bad_argument(message: str) -> ClientError:
    """Return the error for a bad argument, found before any call is made."""
    return ClientError(message, return_code="INVALID_JOB")


def error_of(problem: grpc.RpcError, *, tls: bool = True) -> ClientError:
    """Return a gRPC error as a ``ClientError``, with the details that the service sent.

    ``tls`` says whether the call went over TLS: a service with TLS hangs up on a client without it.
    """
    code = problem.code() if hasattr(problem, "code") else grpc.StatusCode.UNKNOWN
    text = (problem.details() if hasattr(problem, "details") else None) or str(code)
    detail = common_pb2.ErrorDetail()
    try:
        status = rpc_status.from_call(problem)
    except ValueError:
        status = None
    if status is not None:
        for packed in status.details:
            if packed.Is(common_pb2.ErrorDetail.DESCRIPTOR):
                packed.Unpack(detail)
    if detail.return_code == common_pb2.ReturnCode.RETURN_CODE_UNSPECIFIED:
        if not tls and code == grpc.StatusCode.UNAVAILABLE and any(one in text for one in _HUNG_UP):
            text = f"the service closed the connection ({text}): it may require TLS, which this client does not use"
            return ClientError(
                text, status=code, remedy="Give the root certificates of the service (--root-certificates)."
            )
        # A name with several addresses shows the error of one of them, which may hide that another hung up.
        hint = "" if tls else ", and whether it has TLS: then give its root certificates (--root-certificates)"
        return ClientError(text, status=code, remedy=f"Check the address and that the service is running{hint}.")
    return error_from_detail(text, detail, code)


def error_from_detail(
    text: str, detail: common_pb2.ErrorDetail, status: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
) -> ClientError:
    """Return the error that a detail describes."""
    return ClientError(
        text,
        status=status,
        return_code=return_code_name(detail.return_code),
        count=detail.count,
        units=tuple(detail.units),
        error_counts={one.category: one.count for one in detail.error_counts},
        remedy=detail.remedy,
    )
