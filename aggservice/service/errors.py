"""The errors of ``aggservice.service``, beside those of the engine and the ledger that it passes on."""

from __future__ import annotations

from aggservice.engine import EngineError, ReturnCode


class ServiceError(EngineError):
    """The base of the service's own errors."""


class ConfigError(ServiceError):
    """The configuration cannot be used; the message names the key and what to write there."""

    code = ReturnCode.INVALID_JOB
    remedy = "Correct the configuration file and start again."


class UnauthenticatedError(ServiceError):
    """Nobody this service knows: no token or certificate, or one that is wrong or has expired."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Send 'authorization: Bearer TOKEN' or a client certificate that the operator has enrolled."


class ForbiddenError(ServiceError):
    """A caller that this service knows asks for what is not his to ask for."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Ask the operator for the role or the reporting origin that this needs."


class PathRefusedError(ServiceError):
    """A path that leads outside the caller's folder, or through a link."""

    code = ReturnCode.PERMISSION_ERROR
    remedy = "Give a path relative to your folder, without '..' and without symbolic links."


class NoSuchJobError(ServiceError):
    """The caller has no job of this id. Other callers' jobs do not exist for him."""

    code = ReturnCode.INVALID_JOB
    remedy = "Check the job_request_id; unfinished jobs do not outlive the service that ran them."


class BusyError(ServiceError):
    """As many jobs wait as this service lets wait."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Ask again later with the same job_request_id."


class NoKeysError(ServiceError):
    """Every key has expired, so that nobody can seal a report to this service."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "The operator makes a new one with 'aggservice keys rotate'; running services read it by themselves."


class StalledError(ServiceError):
    """The other side of a stream has neither sent nor read anything for too long."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Ask again with the same job_request_id, and send or read without long pauses."


class ProtocolError(ServiceError):
    """The messages of a stream came in an order that makes no sense, or too large."""

    code = ReturnCode.INVALID_JOB
    remedy = "Send job_parameters first and once, then domain parts, then reports, then end with their number."
