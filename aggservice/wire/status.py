"""The status of a report, as the deployed service counts it.

The names are counters of the deployed Aggregation Service (2.14, ``ErrorCounter``). The numbers are our own; a column
of them holds the status of each row of a batch.
"""

from __future__ import annotations

from enum import IntEnum


class ReportStatus(IntEnum):
    """The status of a report: ``OK``, or the counter of its first problem."""

    OK = 0
    DECRYPTION_ERROR = 1
    DECRYPTION_KEY_NOT_FOUND = 2
    DECRYPTION_KEY_FETCH_ERROR = 3
    REPORT_PARSING_ERROR = 4
    UNSUPPORTED_OPERATION = 5
    UNSUPPORTED_REPORT_API_TYPE = 6
    UNSUPPORTED_SHAREDINFO_VERSION = 7
    REQUIRED_SHAREDINFO_FIELD_INVALID = 8
    INVALID_REPORT_ID = 9
    ATTRIBUTION_REPORT_TO_MALFORMED = 10
    ATTRIBUTION_REPORT_TO_MISMATCH = 11
    REPORTING_SITE_MISMATCH = 12
    DEBUG_NOT_ENABLED = 13
    ORIGINAL_REPORT_TIME_TOO_OLD = 14
    INTERNAL_ERROR = 15
    UNSUPPORTED_REPORT_VERSION = 16
    """A major version above the newest we know: the deployed service fails the whole job with this return code."""
    CONTRIBUTIONS_EXCEED_BOUNDS = 17
    """Our own name: the report contributes more than its API allows, which no honest browser sends."""
    ATTRIBUTION_TASK_MISMATCH = 18
    """Our own name: a W3C report of another conversion site, histogram size or maximum value than the job's."""
    REPORT_EPSILON_TOO_LOW = 19
    """Our own name: a W3C report whose page asked for a smaller ε than the job's."""
