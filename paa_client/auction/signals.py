"""Buckets and values that depend on an auction's outcome: a base value, times a scale, plus an offset."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paa_client.config import Rules
from paa_client.errors import WorkletTypeError
from paa_client.reporting.contributions import BUCKETS

MAX_BUCKET = BUCKETS - 1
MAX_VALUE = (1 << 31) - 1
_MAX_PERCENT = 110.0
_MAX_SCALE = sys.float_info.max


class BaseValue(StrEnum):
    """A number that the browser knows after an auction (Protected Audience specification, "Signal base value")."""

    WINNING_BID = "winning-bid"
    HIGHEST_SCORING_OTHER_BID = "highest-scoring-other-bid"
    SCRIPT_RUN_TIME = "script-run-time"
    SIGNALS_FETCH_TIME = "signals-fetch-time"
    BID_REJECT_REASON = "bid-reject-reason"
    AVERAGE_CODE_FETCH_TIME = "average-code-fetch-time"
    PARTICIPATING_IG_COUNT = "participating-ig-count"
    PERCENT_SCRIPTS_TIMEOUT = "percent-scripts-timeout"
    REGULAR_IGS_COUNT = "regular-igs-count"
    PERCENT_REGULAR_IG_COUNT_QUOTA_USED = "percent-regular-ig-count-quota-used"
    NEGATIVE_IGS_COUNT = "negative-igs-count"
    PERCENT_NEGATIVE_IG_COUNT_QUOTA_USED = "percent-negative-ig-count-quota-used"
    IG_STORAGE_USED = "ig-storage-used"
    PERCENT_IG_STORAGE_QUOTA_USED = "percent-ig-storage-quota-used"
    CUMULATIVE_BUYER_TIME = "cumulative-buyer-time"
    PERCENT_IGS_CUMULATIVE_TIMEOUT = "percent-igs-cumulative-timeout"


class RejectReason(StrEnum):
    """Why a seller rejected a bid, in the order of the numbers that reports carry (0 for not-available)."""

    NOT_AVAILABLE = "not-available"
    INVALID_BID = "invalid-bid"
    BID_BELOW_AUCTION_FLOOR = "bid-below-auction-floor"
    PENDING_APPROVAL_BY_EXCHANGE = "pending-approval-by-exchange"
    DISAPPROVED_BY_EXCHANGE = "disapproved-by-exchange"
    BLOCKED_BY_PUBLISHER = "blocked-by-publisher"
    LANGUAGE_EXCLUSIONS = "language-exclusions"
    CATEGORY_EXCLUSIONS = "category-exclusions"

    @property
    def number(self) -> int:
        """The number that a report carries for this reason."""
        return list(RejectReason).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A bucket or value to be filled in after the auction (``signalBucket``, ``signalValue``)."""

    base_value: str
    scale: float = 1.0
    offset: int = 0

    def __post_init__(self) -> None:
        if self.base_value not in set(BaseValue):
            raise WorkletTypeError(f"{self.base_value!r} is not a base value: use one of BaseValue")
        # Web IDL's double: finite, and a whole number only as far as a double holds it.
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float) or not abs(self.scale) <= _MAX_SCALE:
            raise WorkletTypeError("scale must be a finite number")
        if isinstance(self.offset, bool) or not isinstance(self.offset, int):
            raise WorkletTypeError("offset must be an integer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The base values for one execution of a worklet function; ``participant`` holds those of its participant."""

    winning_bid: float = 0.0
    highest_scoring_other_bid: float = 0.0
    script_run_time_ms: float = 0.0
    signals_fetch_time_ms: float = 0.0
    reject_reason: RejectReason | None = None
    participant: Mapping[BaseValue, float] = field(default_factory=dict)

    def number(self, base: BaseValue, rules: Rules) -> float | None:
        """Return the number of a base value; None if Chromium has no number and drops the contribution."""
        match base:
            case BaseValue.WINNING_BID:
                return self.winning_bid
            case BaseValue.HIGHEST_SCORING_OTHER_BID:
                return self.highest_scoring_other_bid
            case BaseValue.SCRIPT_RUN_TIME:
                return self.script_run_time_ms
            case BaseValue.SIGNALS_FETCH_TIME:
                return self.signals_fetch_time_ms
            case BaseValue.BID_REJECT_REASON:
                if self.reject_reason is None:
                    return None if rules is Rules.CHROMIUM else 0.0
                return float(self.reject_reason.number)
        return self.participant.get(base, 0.0)


def percentage(numerator: float, denominator: float) -> float:
    """Return a percentage of at most 110; 0 if the denominator is 0."""
    return min(100.0 * numerator / denominator, _MAX_PERCENT) if denominator else 0.0


def resolve_signal(signal: Signal, measurements: Measurements, largest: int, rules: Rules) -> int | None:
    """Return the bucket or value that ``signal`` gives, clamped to [0, largest]; None if it is not a number.

    The product is truncated before the offset is added (Protected Audience specification, "fill in the signal
    value"); Chromium adds the offset first when it computes a value.
    """
    base = measurements.number(BaseValue(signal.base_value), rules)
    if base is None:
        return None
    product = base * signal.scale
    if math.isnan(product):
        return None
    if math.isinf(product):
        return largest if product > 0 else 0
    if rules is Rules.CHROMIUM and largest == MAX_VALUE:
        total = product + signal.offset
        whole = math.trunc(total) if math.isfinite(total) else (largest if total > 0 else 0)
    else:
        whole = math.trunc(product) + signal.offset
    return min(max(whole, 0), largest)
