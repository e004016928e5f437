"""The errors of ``aggservice.service``. It also passes on errors of the engine and of the ledger."""

from __future__ import annotations

from google.rpc import status_pb2

from aggservice.job.errors import EngineError, ReturnCode


class ServiceError(EngineError):
    """The base of the service's own errors."""


class ConfigError(ServiceError):
    """The configuration cannot be used; the message names the key and what to write there."""

    code = ReturnCode.INVALID_JOB
    remedy = "Correct the configuration file and start again."


class UnauthenticatedError(ServiceError):
    """The caller is unknown: no token or certificate, or one that is wrong or has expired."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Send 'authorization: Bearer TOKEN' or a client certificate that the operator has enrolled."


class ForbiddenError(ServiceError):
    """A known caller asks for something that they have no right to."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Ask the operator for the role or the reporting origin that this needs."


class PathRefusedError(ServiceError):
    """A path leads outside the caller's folder, or through a symbolic link."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Give a path relative to your folder, without '..' and without symbolic links."


class NoFoldersError(PathRefusedError):
    """The service has no folders, so it cannot run jobs over files."""

    remedy = (
        "Stream the reports: 'aggservice job aggregate' sends files of your machine, Aggregate is the call behind it. "
        "Jobs over files need [folders] in the service's configuration."
    )


class NoSuchJobError(ServiceError):
    """The caller has no job of this id. Other callers' jobs are invisible to them."""

    code = ReturnCode.INVALID_JOB
    remedy = "Check the job_request_id. A restart of the service ends unfinished streams: send them again."


class NoSuchPathError(ServiceError):
    """The HTTP API has no such method and path."""

    code = ReturnCode.INVALID_JOB
    remedy = "Use POST /v1alpha/createJob or GET /v1alpha/getJob?job_request_id=ID."


class RetriesExhaustedError(ServiceError):
    """A job was started as often as allowed, and each time its service stopped before the job finished."""

    code = ReturnCode.RETRIES_EXHAUSTED
    remedy = "Tell the operator: the job may need more memory than a service has. Nothing was charged."


class RememberedError(ServiceError):
    """The error with which a stored job ended, as its caller saw it then."""

    def __init__(self, status: status_pb2.Status, code: ReturnCode, text: str, remedy: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.remedy = remedy


class BusyError(ServiceError):
    """The queue of waiting jobs is full. The caller hears of their own ``waiting`` jobs only."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Ask again later with the same job_request_id."

    def __init__(self, waiting: int) -> None:
        super().__init__(f"the queue of jobs is full; {waiting} of your jobs wait in it")


class NoKeysError(ServiceError):
    """Every key has expired, so no client can seal a report to this service."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Ask the operator to run 'aggservice keys rotate'; a running service reads new keys by itself."


class StalledError(ServiceError):
    """The caller has neither sent nor read anything on a stream for too long."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Ask again with the same job_request_id, and send or read without long pauses."


class ProtocolError(ServiceError):
    """A message of a stream is malformed or comes in the wrong order."""

    code = ReturnCode.INVALID_JOB
    remedy = "Send job_parameters first and once, then domain parts, then reports, then end with their number."
