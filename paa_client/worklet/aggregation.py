"""``privateAggregation`` as worklet code sees it: the calls and their checks. Valid calls become effects."""

from __future__ import annotations

from fractions import Fraction

from paa_client.effects import Emit
from paa_client.errors import (
    WorkletDataError,
    WorkletError,
    WorkletNotAllowedError,
    WorkletRangeError,
    WorkletTypeError,
)
from paa_client.reporting.contributions import INTERNAL_ERROR_EVENTS, Contribution, to_bigint, validate

RESERVED = "reserved."
UNCAUGHT_ERROR = "uncaught-error"


class PrivateAggregation:
    """The interface ``PrivateAggregation`` of the specification, in a Shared Storage operation.

    An invalid call throws inside the worklet; nothing is thrown to the page.
    """

    _bad_key_counts = True
    """Whether a call of ``enableDebugMode`` with a key out of range uses up the one call, as in Chromium 147."""

    def __init__(
        self, emit: Emit, *, filtering_id_max_bytes: int = 1, allowed: bool = True, on_event: bool = True
    ) -> None:
        """``on_event`` says whether the browser has ``contributeToHistogramOnEvent()`` in Shared Storage."""
        self._emit: Emit | None = emit
        self._on_event = on_event
        self._max_bytes = filtering_id_max_bytes
        self._allowed = allowed
        self._debug_enabled = False
        self._fractions: dict[str, Fraction] = {}

    def contribute_to_histogram(
        self, *, bucket: int, value: int, filtering_id: int = 0, named_budget: str | None = None
    ) -> None:
        """Add ``value`` to ``bucket`` (``contributeToHistogram()``)."""
        emit = self._live()
        made = self._validated(bucket, value, filtering_id, named_budget)
        emit(("contribute", made.bucket, made.value, made.filtering_id, named_budget, None))

    def contribute_to_histogram_on_event(
        self, event: str, *, bucket: int, value: int, filtering_id: int = 0, named_budget: str | None = None
    ) -> None:
        """Add ``value`` to ``bucket`` if the error event ``event`` happens (``contributeToHistogramOnEvent()``).

        Unknown events that start with ``reserved.`` are ignored, for forward compatibility; others throw.
        ``reserved.uncaught-error`` is Chromium's name for what its explainer calls ``reserved.uncaught-exception``.
        Chromium as shipped does not have this function: a TypeError.
        """
        if not self._on_event:
            raise self._refused(WorkletTypeError("contributeToHistogramOnEvent is not a function: set error_reporting"))
        emit = self._live()
        made = self._validated(bucket, value, filtering_id, named_budget)
        if not isinstance(event, str) or not event.startswith(RESERVED):
            raise self._refused(WorkletTypeError(f"event {event!r} does not start with {RESERVED!r}"))
        name = event.removeprefix(RESERVED)
        if name in INTERNAL_ERROR_EVENTS:
            emit(("contribute", made.bucket, made.value, made.filtering_id, named_budget, name))
        elif name == UNCAUGHT_ERROR:
            emit(("contribute-on-exception", made.bucket, made.value, made.filtering_id, named_budget))

    def enable_debug_mode(self, *, debug_key: int | None = None) -> None:
        """Make this context's reports debug reports, with ``debug_key`` if given; callable once per context."""
        emit = self._live()
        if debug_key is not None:
            try:
                debug_key = to_bigint(debug_key, "debug_key")
            except WorkletError as error:
                raise self._refused(error) from None
        if self._debug_enabled:
            raise self._refused(WorkletDataError("enableDebugMode() may be called at most once"))
        if debug_key is not None and not 0 <= debug_key < 1 << 64:
            self._debug_enabled = self._bad_key_counts
            raise self._refused(WorkletDataError("debug_key is negative or does not fit in 64 bits"))
        self._debug_enabled = True
        emit(("debug", debug_key))

    def reserve_budget(self, name: str, fraction: float | Fraction) -> None:
        """Keep ``fraction`` of both budgets for contributions that name it (explainer "Named budgets").

        A reservation holds for this context only. All reservations together must not exceed 1.
        """
        emit = self._live()
        if not isinstance(name, str) or not name:
            raise self._refused(WorkletTypeError("the name of a budget must be a string that is not empty"))
        if name in self._fractions:
            raise self._refused(WorkletDataError(f"budget {name!r} is reserved already in this context"))
        if isinstance(fraction, bool) or not isinstance(fraction, int | float | Fraction):
            raise self._refused(WorkletTypeError(f"fraction must be a number, not {type(fraction).__name__}"))
        if not 0 < fraction <= 1:
            raise self._refused(WorkletRangeError("fraction must be above 0 and at most 1"))
        exact = Fraction(fraction)
        if sum(self._fractions.values(), exact) > 1:
            raise self._refused(WorkletRangeError("the fractions of all named budgets would exceed 1: lower one"))
        self._fractions[name] = exact
        emit(("reserve", name, exact.numerator, exact.denominator))

    def close(self) -> None:
        """End the context: later calls throw."""
        self._emit = None

    def _live(self) -> Emit:
        if self._emit is None:
            raise WorkletNotAllowedError("privateAggregation was used outside of its operation")
        if not self._allowed:
            raise self._refused(WorkletNotAllowedError('the "private-aggregation" permissions policy denied the call'))
        return self._emit

    def _validated(self, bucket: object, value: object, filtering_id: object, named_budget: str | None) -> Contribution:
        try:
            made = validate(bucket, value, filtering_id, self._max_bytes)
            self._check_named(named_budget)
        except WorkletError as error:
            raise self._refused(error) from None
        return made

    def _check_named(self, named_budget: str | None) -> None:
        if named_budget is not None and named_budget not in self._fractions:
            raise WorkletDataError(f"no budget is reserved under the name {named_budget!r}: call reserve_budget first")

    def _refused(self, error: WorkletError) -> WorkletError:
        if self._emit is not None:
            self._emit(("refuse", str(error)))
        return error
