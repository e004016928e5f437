"""Worklets: running their code, contained, and what it can call; and the operations of Shared Storage.

Worklet code acts on the browser through effects (``paa_client.effects``), which are applied as they happen.
"""

from __future__ import annotations

import copy
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

from aggservice.mechanisms import Clock
from aggservice.wire.device import CallError
from paa_client.effects import (
    Effect,
    Emit,
    WorkletDataError,
    WorkletError,
    WorkletNotAllowedError,
    WorkletRangeError,
    WorkletTypeError,
)
from paa_client.reporting.contributions import (
    INTERNAL_ERROR_EVENTS,
    Cause,
    ErrorEvent,
    HistogramContribution,
    RecordLoss,
    to_bigint,
    validate,
)
from paa_client.reporting.scopes import BatchingScope, CacheEntry, WorkletContext
from paa_client.storage import Database, WorkletStorage, replay

# Running worklet code: in this process, or in a child process that ends at a deadline.
#
# Worklet code acts on the browser through effects (``paa_client.effects``), which are applied as they happen.

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class WorkletOutcome:
    """How worklet code ended. ``message`` says what it threw, for the console; ``result`` is what it returned."""

    result: object = None
    message: str | None = None
    deadline_reached: bool = False


def run_worklet(work: Callable[[Emit], object], apply: Emit, deadline_ms: int | None) -> WorkletOutcome:
    """Run ``work`` and apply each of its effects as it happens; an exception in ``work`` goes to the outcome.

    With a deadline, ``work`` runs in a child process that is stopped after that much real time; effects before the
    deadline count. The result must then consist of plain values.
    """
    if deadline_ms is None:
        return _contain(work, apply)
    return _in_child(work, apply, deadline_ms)


def _contain(work: Callable[[Emit], object], emit: Emit) -> WorkletOutcome:
    try:
        return WorkletOutcome(result=work(emit))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return WorkletOutcome(message=_describe(error))


def _describe(error: BaseException) -> str:
    """Return one line about ``error``. Its ``__str__`` is worklet code too and may throw."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _in_child(work: Callable[[Emit], object], apply: Emit, deadline_ms: int) -> WorkletOutcome:
    """Run ``work`` in a forked child, which sends each effect as a line of JSON: the parent reads only plain values."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        os.close(reader)
        _be_child(work, writer)
    os.close(writer)
    try:
        return _follow(reader, apply, deadline_ms)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _be_child(work: Callable[[Emit], object], writer: int) -> None:  # pragma: no cover - runs in the child
    def emit(effect: Effect) -> None:
        line = json.dumps(effect).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]

    try:
        outcome = _contain(work, emit)
        try:
            emit(("end", outcome.message, outcome.result))
        except (TypeError, ValueError, RecursionError):
            emit(("end", "what the worklet returned is not plain values", None))
    finally:
        os._exit(0)


def _follow(reader: int, apply: Emit, deadline_ms: int) -> WorkletOutcome:
    """Apply the child's effects until it ends or the deadline passes; return how it ended."""
    deadline = time.monotonic() + deadline_ms / 1000
    poll = select.poll()  # unlike select(), for descriptors of any number
    poll.register(reader, select.POLLIN)
    pending = b""
    while True:
        remaining_ms = 1000 * (deadline - time.monotonic())
        if remaining_ms <= 0 or not poll.poll(math.ceil(remaining_ms)):
            return WorkletOutcome(message=f"ended at the deadline of {deadline_ms} ms", deadline_reached=True)
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            return WorkletOutcome(message="the worklet's process died")
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            effect = tuple(json.loads(line))
            if effect[0] == "end":
                return WorkletOutcome(message=effect[1], result=effect[2])
            apply(effect)


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

    def _validated(
        self, bucket: object, value: object, filtering_id: object, named_budget: str | None
    ) -> HistogramContribution:
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


Operation = Callable[[WorkletStorage, PrivateAggregation, Any], object]
"""An operation; on the platform this is a class with a ``run`` method. Its result is dropped."""


def clone(data: object) -> object:
    """Return a copy of what a page passes in, so that the page cannot see later changes (structured clone).

    Data with a function raises ``CallError``, as on the platform: calling it could carry values out.
    """
    if data is None or type(data) in (str, int, float, bool):
        return data
    try:
        _refuse_functions(data, set())
        return copy.deepcopy(data)
    except CallError:
        raise
    except Exception as error:
        raise CallError("DataCloneError", f"data cannot be copied: {error}") from error


def _refuse_functions(data: object, seen: set[int]) -> None:
    if callable(data) or isinstance(data, ModuleType):
        raise CallError(
            "DataCloneError", f"data holds a {type(data).__name__}, which cannot be copied: pass plain values"
        )
    if id(data) in seen or not isinstance(data, Mapping | list | tuple | set | frozenset):
        return
    seen.add(id(data))
    for one in data:
        _refuse_functions(one, seen)
        if isinstance(data, Mapping):
            _refuse_functions(data[one], seen)


class OperationRun:
    """One run of an operation: its scope, its context, and the contributions that wait for an exception."""

    def __init__(
        self,
        *,
        scope: BatchingScope,
        database: Database,
        clock: Clock,
        record_loss: RecordLoss,
        allowed: bool = True,
        on_event: bool = True,
    ) -> None:
        self._scope = scope
        self._database = database
        self._clock = clock
        self._record_loss = record_loss
        self._allowed = allowed
        self._on_event = on_event
        self._context = WorkletContext()
        self._on_exception: list[HistogramContribution] = []

    def run(self, operation: Operation, data: object, deadline_ms: int | None) -> WorkletOutcome:
        """Run ``operation`` on ``data`` to its end or to the deadline; its result is dropped."""
        in_child = deadline_ms is not None

        def work(emit: Emit) -> None:
            storage = WorkletStorage(self._database, emit if in_child else None)
            aggregation = PrivateAggregation(
                emit,
                filtering_id_max_bytes=self._scope.parameters.filtering_id_max_bytes,
                allowed=self._allowed,
                on_event=self._on_event,
            )
            try:
                operation(storage, aggregation, data)
            finally:
                storage.close()
                aggregation.close()

        outcome = run_worklet(work, self._apply, deadline_ms)
        if outcome.message is not None and not outcome.deadline_reached:
            for contribution in self._on_exception:
                self._accept(contribution, ErrorEvent.ALREADY_TRIGGERED_EXTERNAL_ERROR)
        self._scope.debug = self._context.debug
        timeout_ms = self._scope.parameters.timeout_ms
        self._scope.timed_out = timeout_ms is not None and (
            outcome.deadline_reached or self._clock.now_ms() >= timeout_ms
        )
        return outcome

    def _apply(self, effect: Effect) -> None:
        match effect:
            case ("contribute", bucket, value, filtering_id, name, event):
                made = HistogramContribution(bucket, value, filtering_id, name)
                self._accept(made, None if event is None else ErrorEvent(event))
            case ("contribute-on-exception", bucket, value, filtering_id, name):
                self._on_exception.append(HistogramContribution(bucket, value, filtering_id, name))
            case ("refuse", _):
                self._record_loss(Cause.INVALID, HistogramContribution(0, 0))
            case _:
                if not self._context.apply(effect):
                    replay(self._database, effect)

    def _accept(self, contribution: HistogramContribution, event: ErrorEvent | None) -> None:
        """Add a contribution to the scope; after the scope's timeout, count it as lost instead."""
        timeout_ms = self._scope.parameters.timeout_ms
        if timeout_ms is not None and self._clock.now_ms() >= timeout_ms:
            self._record_loss(Cause.AFTER_TIMEOUT, contribution)
        else:
            self._scope.entries.append(CacheEntry(contribution, self._context, event))
