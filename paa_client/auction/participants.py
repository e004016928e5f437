"""The participants of a Protected Audience auction, and the arguments and results of their functions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Unpack

from paa_client.config import Config, ContextType, Rules
from paa_client.effects import Emit, WorkletError, WorkletTypeError
from paa_client.reporting.contributions import (
    BUCKETS,
    INTERNAL_ERROR_EVENTS,
    Cause,
    ErrorEvent,
    HistogramContribution,
    check_filtering_id,
    to_bigint,
    to_long,
)
from paa_client.reporting.scopes import BatchingScope, ReportOptions, ReportParameters
from paa_client.worklet import RESERVED, UNCAUGHT_ERROR, PrivateAggregation

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
        if base is BaseValue.BID_REJECT_REASON:
            if self.reject_reason is None:
                return None if rules is Rules.CHROMIUM else 0.0
            return float(self.reject_reason.number)
        own = {
            BaseValue.WINNING_BID: self.winning_bid,
            BaseValue.HIGHEST_SCORING_OTHER_BID: self.highest_scoring_other_bid,
            BaseValue.SCRIPT_RUN_TIME: self.script_run_time_ms,
            BaseValue.SIGNALS_FETCH_TIME: self.signals_fetch_time_ms,
        }
        return own[base] if base in own else self.participant.get(base, 0.0)


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


WIN = "reserved.win"
LOSS = "reserved.loss"
ALWAYS = "reserved.always"
ONCE = "reserved.once"
_MAX_OFFSET = 1 << 4096
_RESERVED_EVENTS = frozenset({WIN, LOSS, ALWAYS, ONCE})
ERROR_EVENTS = frozenset(RESERVED + name for name in (*INTERNAL_ERROR_EVENTS, UNCAUGHT_ERROR))
CHROMIUM_ERROR_EVENTS = ERROR_EVENTS - {RESERVED + ErrorEvent.CONTRIBUTION_TIMEOUT_REACHED}
"""Chromium's auctions lack this event: only operations of Shared Storage can reach that timeout."""


class AuctionFunction(StrEnum):
    """The functions of an auction (Protected Audience specification, "Worklet function")."""

    GENERATE_BID = "generate-bid"
    SCORE_AD = "score-ad"
    REPORT_RESULT = "report-result"
    REPORT_WIN = "report-win"


class AuctionAggregation(PrivateAggregation):
    """``privateAggregation`` in one call of one of an auction's functions."""

    _bad_key_counts = False

    def __init__(
        self,
        emit: Emit,
        function: AuctionFunction,
        *,
        filtering_id_max_bytes: int = 1,
        allowed: bool = True,
        error_events: frozenset[str] = ERROR_EVENTS,
    ) -> None:
        """``error_events`` are those that this browser knows."""
        super().__init__(emit, filtering_id_max_bytes=filtering_id_max_bytes, allowed=allowed)
        self._function = function
        self._error_events = error_events

    def contribute_to_histogram_on_event(
        self,
        event: str,
        *,
        bucket: int | Signal,
        value: int | Signal,
        filtering_id: int = 0,
        named_budget: str | None = None,
    ) -> None:
        """Contribute if ``event`` happens (Protected Audience specification, "determine whether to perform default
        processing").

        An event is ``reserved.`` with ``win``, ``loss``, ``always``, ``once`` or the name of an error, or a name that
        a buyer chose and the ad's frame reports. An invalid argument throws a TypeError; unknown reserved events, and
        names that a seller chose, are ignored.
        """
        emit = self._live()
        try:
            if not isinstance(event, str):
                raise WorkletTypeError(f"event must be a string, not {type(event).__name__}")
            # For an unknown event only types are checked: a future browser may define other ranges for it.
            whole_id = _converted(bucket, value, filtering_id)
            if event.startswith(RESERVED) and event not in self._error_events | _RESERVED_EVENTS:
                return
            filled_bucket = _bucket(bucket)
            filled_value = _value(value)
            filled_id = check_filtering_id(whole_id, self._max_bytes)
            self._check_named(named_budget)
            if event == ONCE and self._function in (AuctionFunction.REPORT_RESULT, AuctionFunction.REPORT_WIN):
                raise WorkletTypeError(f"{ONCE} is not available in {self._function.value}: use {ALWAYS}")
        except WorkletError as error:
            raise self._refused(WorkletTypeError(str(error))) from None
        selling = self._function in (AuctionFunction.SCORE_AD, AuctionFunction.REPORT_RESULT)
        if selling and not event.startswith(RESERVED):
            return
        emit(("on-event", event, filled_bucket, filled_value, filled_id, named_budget))


def _converted(bucket: object, value: object, filtering_id: object) -> int:
    """Check that Web IDL can convert each argument, or throw; return the converted filtering ID."""
    if not isinstance(bucket, Signal):
        to_bigint(bucket, "bucket")
    if not isinstance(value, Signal):
        to_long(value, "value")
    return to_bigint(filtering_id, "filtering_id")


def _bucket(bucket: object) -> int | list[Any]:
    if isinstance(bucket, Signal):
        # Larger offsets give the same clamped bucket. The limit keeps the number short enough for JSON.
        return [bucket.base_value, bucket.scale, max(-_MAX_OFFSET, min(bucket.offset, _MAX_OFFSET))]
    whole = to_bigint(bucket, "bucket")
    if not 0 <= whole < BUCKETS:
        raise WorkletTypeError("bucket is negative or does not fit in 128 bits: use 0 to 2¹²⁸ - 1")
    return whole


def _value(value: object) -> int | list[Any]:
    if isinstance(value, Signal):
        return [value.base_value, value.scale, to_long(value.offset, "offset")]
    whole = to_long(value, "value")
    if whole < 0:
        raise WorkletTypeError(f"value must be 0 or more, got {whole}")
    return whole


class AuctionHost(Protocol):
    """What an auction needs of the browser that runs it; ``Browser`` provides it."""

    config: Config

    def report_parameters(self, api: ContextType, **options: Unpack[ReportOptions]) -> ReportParameters:
        """Check the options that a page gives for a report; return them as parameters."""

    def process(self, scope: BatchingScope) -> None:
        """Make the reports of a scope that has ended."""

    def record_loss(self, scope: BatchingScope, cause: Cause, contribution: HistogramContribution) -> None:
        """Count a contribution that enters no report."""

    def log(self, origin: str, operation: str, message: str) -> None:
        """Write a line to the console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """The result of ``generate_bid``: an amount, and data about the ad for the seller (plain values)."""

    bid: float
    ad: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of ``score_ad``. A bid can win only with a positive desirability; a reason may explain a rejection."""

    desirability: float
    reject_reason: RejectReason = RejectReason.NOT_AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BidSignals:
    """The information that ``generate_bid`` receives."""

    interest_group: str
    seller: str
    user_bidding_signals: object
    auction_signals: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSignals:
    """The information that ``score_ad`` receives."""

    bid: float
    ad: object
    interest_group_owner: str
    auction_signals: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSignals:
    """The information that ``report_result`` and ``report_win`` receive.

    ``signals_for_winner`` is the result of ``report_result``.
    """

    bid: float
    highest_scoring_other_bid: float
    interest_group_owner: str
    seller: str
    ad: object
    desirability: float | None = None
    interest_group: str | None = None
    signals_for_winner: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterestGroup:
    """A buyer's interest group with its functions. Its run and fetch times are parameters, not measurements."""

    owner: str
    name: str
    generate_bid: Callable[[AuctionAggregation, BidSignals], Bid | float | None]
    report_win: Callable[[AuctionAggregation, ResultSignals], object] | None = None
    user_bidding_signals: object = None
    aggregation_coordinator_origin: str | None = None
    generate_bid_ms: float = 0.0
    report_win_ms: float = 0.0
    signals_fetch_ms: float = 0.0
    code_fetch_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Auction:
    """A single-level auction. The four report parameters are the seller's ``privateAggregationConfig``.

    ``measured`` gives, per participant, base values that the simulator does not compute (quotas, cumulative times).
    """

    seller: str
    score_ad: Callable[[AuctionAggregation, ScoreSignals], Score | float]
    interest_groups: Sequence[InterestGroup]
    report_result: Callable[[AuctionAggregation, ResultSignals], object] | None = None
    auction_signals: object = None
    context_id: str | None = None
    filtering_id_max_bytes: int = 1
    max_contributions: int | None = None
    aggregation_coordinator_origin: str | None = None
    score_ad_ms: float = 0.0
    report_result_ms: float = 0.0
    scoring_signals_fetch_ms: float = 0.0
    code_fetch_ms: float = 0.0
    measured: Mapping[str, Mapping[BaseValue, float]] = field(default_factory=dict)
