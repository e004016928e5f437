"""``privateAggregation`` in Protected Audience's functions: contributions that wait for the auction's outcome."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from paa_client.auction.signals import Signal
from paa_client.effects import Emit
from paa_client.errors import WorkletError, WorkletTypeError
from paa_client.reporting.contributions import (
    BUCKETS,
    INTERNAL_ERROR_EVENTS,
    ErrorEvent,
    check_filtering_id,
    to_bigint,
    to_long,
)
from paa_client.worklet.aggregation import RESERVED, UNCAUGHT_ERROR, PrivateAggregation

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
