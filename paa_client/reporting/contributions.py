"""One histogram contribution, the events it may wait for, why it can be lost, and the conversions of its fields."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from paa_client.effects import WorkletRangeError, WorkletTypeError

BUCKETS = 1 << 128
DEFAULT_FILTERING_ID_MAX_BYTES = 1
MAX_FILTERING_ID_MAX_BYTES = 8


class ErrorEvent(StrEnum):
    """The specification's error events, in the order in which their contributions enter a report."""

    REPORT_SUCCESS = "report-success"
    TOO_MANY_CONTRIBUTIONS = "too-many-contributions"
    EMPTY_REPORT_DROPPED = "empty-report-dropped"
    PENDING_REPORT_LIMIT_REACHED = "pending-report-limit-reached"
    INSUFFICIENT_BUDGET = "insufficient-budget"
    CONTRIBUTION_TIMEOUT_REACHED = "contribution-timeout-reached"
    ALREADY_TRIGGERED_EXTERNAL_ERROR = "already triggered external error"


INTERNAL_ERROR_EVENTS = {
    event.value: event for event in ErrorEvent if event != ErrorEvent.ALREADY_TRIGGERED_EXTERNAL_ERROR
}


class Cause(StrEnum):
    """Why a contribution enters no report. The three causes that end in ``budget`` are denials by a budget."""

    ZERO_VALUE = "zero-value"
    INVALID = "invalid"
    TOO_MANY = "too-many-contributions"
    TEN_MINUTES = "ten-minute-budget"
    DAY = "day-budget"
    NAMED = "named-budget"
    AFTER_TIMEOUT = "after-timeout"
    PENDING_LIMIT = "pending-report-limit"
    NOT_ALLOWED = "not-allowed"
    NO_SIGNAL = "no-signal"


@dataclass(frozen=True, slots=True)
class HistogramContribution:
    """A value added to a bucket. ``named_budget`` is the reservation that pays (None: the unreserved part)."""

    bucket: int
    value: int
    filtering_id: int = 0
    named_budget: str | None = None

    @property
    def merge_key(self) -> tuple[int, int]:
        """Contributions of a report with the same merge key become one."""
        return (self.bucket, self.filtering_id)


RecordLoss = Callable[[Cause, HistogramContribution], None]
"""Called with each contribution that enters no report, and the reason."""


def to_bigint(value: object, name: str) -> int:
    """Convert as Web IDL's ``bigint`` does; throw ``WorkletTypeError`` for anything but an integer."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise WorkletTypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def to_long(value: object, name: str) -> int:
    """Convert as Web IDL's ``long`` does (ToInt32): truncate, then wrap modulo 2³²; NaN and infinities become 0."""
    if isinstance(value, float):
        value = math.trunc(value) if math.isfinite(value) else 0
    whole = to_bigint(value, name)
    return (whole + (1 << 31)) % (1 << 32) - (1 << 31)


def check_filtering_id(filtering_id: int, max_bytes: int) -> int:
    """Return the filtering ID; throw ``WorkletRangeError`` if it does not fit in ``max_bytes`` bytes."""
    if not 0 <= filtering_id < 256**max_bytes:
        raise WorkletRangeError(
            f"filtering_id does not fit in {max_bytes} byte(s): ask for more with filtering_id_max_bytes"
        )
    return filtering_id


def validate(bucket: object, value: object, filtering_id: object, max_bytes: int) -> HistogramContribution:
    """Return the contribution, or throw (specification: validate a histogram contribution).

    >>> validate(5, 2**32 + 7, 0, 1).value
    7
    """
    whole_bucket = to_bigint(bucket, "bucket")
    whole_value = to_long(value, "value")
    whole_id = to_bigint(filtering_id, "filtering_id")
    if not 0 <= whole_bucket < BUCKETS:
        # The message omits the number: Python refuses to print very long ones.
        raise WorkletRangeError("bucket is negative or does not fit in 128 bits: use 0 to 2¹²⁸ - 1")
    if whole_value < 0:
        raise WorkletRangeError(f"value must be 0 or more, got {whole_value}")
    return HistogramContribution(whole_bucket, whole_value, check_filtering_id(whole_id, max_bytes))
