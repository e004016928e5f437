"""Shared Storage operations: running one, and collecting its contributions in its batching scope."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from aggservice.mechanisms import Clock
from paa_client.effects import Effect, Emit
from paa_client.errors import CallError
from paa_client.reporting.contributions import Cause, Contribution, ErrorEvent, RecordLoss
from paa_client.reporting.scopes import BatchingScope, CacheEntry, WorkletContext
from paa_client.storage import Database, WorkletStorage, replay
from paa_client.worklet.aggregation import PrivateAggregation
from paa_client.worklet.isolation import WorkletOutcome, run_worklet

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
        self._on_exception: list[Contribution] = []

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
                made = Contribution(bucket, value, filtering_id, name)
                self._accept(made, None if event is None else ErrorEvent(event))
            case ("contribute-on-exception", bucket, value, filtering_id, name):
                self._on_exception.append(Contribution(bucket, value, filtering_id, name))
            case ("refuse", _):
                self._record_loss(Cause.INVALID, Contribution(0, 0))
            case _:
                if not self._context.apply(effect):
                    replay(self._database, effect)

    def _accept(self, contribution: Contribution, event: ErrorEvent | None) -> None:
        """Add a contribution to the scope; after the scope's timeout, count it as lost instead."""
        timeout_ms = self._scope.parameters.timeout_ms
        if timeout_ms is not None and self._clock.now_ms() >= timeout_ms:
            self._record_loss(Cause.AFTER_TIMEOUT, contribution)
        else:
            self._scope.entries.append(CacheEntry(contribution, self._context, event))
