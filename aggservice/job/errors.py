"""Return codes, errors and counters of jobs: each error has the return code of a job that ends with it."""

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
    """The base of every error of a job. ``code`` is the job's return code; ``remedy`` says what to do."""

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


NUM_REPORTS_WITH_ERRORS = "NUM_REPORTS_WITH_ERRORS"
REPEATED_REPORT_ID = "REPEATED_REPORT_ID"
"""Our own name: reports whose id the job had seen before. They are left out, but are not errors."""

OTHER_RANDOMIZER = "OTHER_RANDOMIZER"
"""Our own name: local reports of another randomizer than the shuffle's. They are left out, but are not errors."""

NO_DEVICE_TOKEN = "NO_DEVICE_TOKEN"
"""Our own name: local reports without the device token that an amplified shuffle needs. Left out, but not errors."""

DESCRIPTIONS = {
    "DECRYPTION_ERROR": "The payload does not open. Pass shared_info on byte for byte, as the browser sent it.",
    "DECRYPTION_KEY_NOT_FOUND": "No private key has this key_id. Check that the report was sealed for this service.",
    "DECRYPTION_KEY_FETCH_ERROR": "The private key could not be loaded. Tell the operator.",
    "REPORT_PARSING_ERROR": "The report is malformed: invalid JSON or CBOR, or an impossible size.",
    "UNSUPPORTED_OPERATION": "The payload's operation is not the job's (histogram, or ldp for a shuffle).",
    "UNSUPPORTED_REPORT_API_TYPE": "shared_info.api is not a supported API, or not the job's: W3C Attribution has jobs "
    "of its own, with an attribution_task.",
    "UNSUPPORTED_SHAREDINFO_VERSION": "shared_info.version is not 0.1 or 1.x.",
    "REQUIRED_SHAREDINFO_FIELD_INVALID": "A field of shared_info that the budget needs is missing or invalid.",
    "INVALID_REPORT_ID": "shared_info.report_id is missing or not a UUID.",
    "ATTRIBUTION_REPORT_TO_MALFORMED": "shared_info.reporting_origin is not a secure origin with a registrable domain.",
    "ATTRIBUTION_REPORT_TO_MISMATCH": "shared_info.reporting_origin is not the job's attribution_report_to.",
    "REPORTING_SITE_MISMATCH": "shared_info.reporting_origin is not part of the job's reporting_site, or not yours.",
    "DEBUG_NOT_ENABLED": "A debug run reads only reports whose shared_info has debug_mode enabled.",
    "ORIGINAL_REPORT_TIME_TOO_OLD": "shared_info.scheduled_report_time is too long ago.",
    "CONTRIBUTIONS_EXCEED_BOUNDS": "The report contributes more than the bounds (l1, l0) of its API allow per report.",
    "ATTRIBUTION_TASK_MISMATCH": "attribution_destination, histogram_size or max_value of a W3C report is not the "
    "job's. Aggregate reports of one attribution_task per job.",
    "REPORT_EPSILON_TOO_LOW": "micro_epsilon of a W3C report is below the job's epsilon. Ask for a smaller epsilon.",
    "INTERNAL_ERROR": "The service failed on this report.",
    NO_DEVICE_TOKEN: "Local reports without a device token of the origin's registry for this collection and report_id, "
    "left out and not charged. Not an error.",
    NUM_REPORTS_WITH_ERRORS: "Reports left out because of an error.",
    OTHER_RANDOMIZER: "Local reports of another randomizer than the job's, left out and not charged. Not an error.",
    REPEATED_REPORT_ID: "Reports left out because an earlier one of this job had the same report_id. Not an error.",
}
"""What each counter means, and what to do."""
