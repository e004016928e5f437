"""The errors of ``aggservice.engine``: each has the return code of a job that ends with it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from budget import BudgetExhaustedError, Release


class ReturnCode(StrEnum):
    """How a job ends. The names are those of the deployed service."""

    SUCCESS = "SUCCESS"
    SUCCESS_WITH_ERRORS = "SUCCESS_WITH_ERRORS"
    PRIVACY_BUDGET_EXHAUSTED = "PRIVACY_BUDGET_EXHAUSTED"
    PRIVACY_BUDGET_ERROR = "PRIVACY_BUDGET_ERROR"
    INVALID_JOB = "INVALID_JOB"
    INPUT_DATA_READ_FAILED = "INPUT_DATA_READ_FAILED"
    RESULT_WRITE_ERROR = "RESULT_WRITE_ERROR"
    REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD = "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD"
    UNSUPPORTED_REPORT_VERSION = "UNSUPPORTED_REPORT_VERSION"
    PERMISSION_ERROR = "PERMISSION_ERROR"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    PRIVACY_BUDGET_AUTHENTICATION_ERROR = "PRIVACY_BUDGET_AUTHENTICATION_ERROR"
    PRIVACY_BUDGET_AUTHORIZATION_ERROR = "PRIVACY_BUDGET_AUTHORIZATION_ERROR"
    DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_ERROR = "DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_ERROR"
    DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_EXHAUSTED = "DEBUG_SUCCESS_WITH_PRIVACY_BUDGET_EXHAUSTED"


class EngineError(Exception):
    """The base of every error this package raises. ``code`` is the job's return code; ``remedy`` says what to do."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Send the job again with the same job_request_id; if it fails again, tell the operator."


class InvalidJobError(EngineError):
    """A parameter of the job is invalid, by itself or together with others."""

    code = ReturnCode.INVALID_JOB
    remedy = "Correct the parameter that the message names and send the job again."


class DomainError(InvalidJobError):
    """The declared keys or the key mask cannot be used."""


class InputReadError(EngineError):
    """Reports or domain could not be read."""

    code = ReturnCode.INPUT_DATA_READ_FAILED
    remedy = "Check that the files exist below the service's input folder and are Avro of the right schema."


class ResultWriteError(EngineError):
    """The summary could not be written."""

    code = ReturnCode.RESULT_WRITE_ERROR
    remedy = "Choose an output_data_blob_prefix below the service's output folder that does not exist yet."


class ReportVersionError(EngineError):
    """A report has a newer major version than this service knows: the whole job fails before any charge."""

    code = ReturnCode.UNSUPPORTED_REPORT_VERSION
    remedy = "Update the service, or leave the newer reports out."


class TooManyBadReportsError(EngineError):
    """More reports had errors than the job's threshold allows; nothing was charged."""

    code = ReturnCode.REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD
    remedy = "Look at error_counts, correct or leave out those reports, or raise report_error_threshold_percentage."

    def __init__(self, *, bad: int, read: int, threshold: str, counts: Mapping[str, int]) -> None:
        super().__init__(f"{bad} of {read} reports had errors, more than the {threshold} % that the job allows")
        self.bad = bad
        self.read = read
        self.counts = dict(counts)


class UnpaidError(EngineError):
    """At least one privacy unit cannot pay: nothing was charged and nothing was released.

    ``listed_in`` names the file in the caller's output that lists the reports, if one was written.
    """

    code = ReturnCode.PRIVACY_BUDGET_EXHAUSTED
    remedy = "List the units with ListUnpaidUnits, leave their reports out, or ask for less. Nothing was charged."

    def __init__(self, problem: BudgetExhaustedError, release: Release) -> None:
        why = ": another job has used their reports, which can be used once" if release.final else ""
        super().__init__(f"{problem.count} of {problem.total} privacy units cannot pay for this job{why}")
        self.count = problem.count
        self.total = problem.total
        self.first = tuple(one.unit for one in problem.first)
        self.units = problem.units
        self.release = release
        self.listed_in = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.listed_in} lists their reports" if self.listed_in else text


class JobIdTakenError(InvalidJobError):
    """The caller has used this job id for another request."""

    remedy = "Use a new job_request_id for a new request; the same id with the same request gives the same summary."


class PaidFailureError(EngineError):
    """The job was charged, but its summary was lost. The ledger keeps this answer, and it stays the same.

    After the first report is opened, a failure without a charge could reveal what reports contain (docs/design.md,
    semantics 8).
    """

    remedy = "Remove the cause and send the job under a new job_request_id. Nothing more is charged for this one."

    def __init__(self, code: ReturnCode) -> None:
        super().__init__(_LOST[code])
        self.code = code


_LOST = {
    ReturnCode.RESULT_WRITE_ERROR: "the job was charged, but its summary could not be stored",
    ReturnCode.INTERNAL_ERROR: "the job was charged, but the service failed while computing the summary",
}
"""What a caller reads about a paid failure. The texts are constant; details go to the operator's log."""


class CancelledError(EngineError):
    """The job was cancelled before its commit: nothing was charged, nothing is left."""

    code = ReturnCode.INTERNAL_ERROR
    remedy = "Send the job again when you want it, with the same job_request_id if you like."


class WorkerLostError(EngineError):
    """Several worker processes died while they opened the same batch."""

    code = ReturnCode.RETRIES_EXHAUSTED
    remedy = "Tell the operator: a batch of these reports ends every worker process that opens it."
