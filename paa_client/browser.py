"""A browser: Shared Storage worklets, their contributions, and the reports that leave it."""

from __future__ import annotations

import heapq
import inspect
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from aggservice import wire
from aggservice.mechanisms import Bits, Clock
from aggservice.wire.device import CallError, DeviceConfigError, SentReport
from paa_client.auction.participants import Auction
from paa_client.auction.run import FencedFrame, run_auction
from paa_client.config import Config, ContextType, Rules
from paa_client.origins import serialize_origin, site_of
from paa_client.reporting.budgets import Budgeter
from paa_client.reporting.contributions import (
    DEFAULT_FILTERING_ID_MAX_BYTES,
    MAX_FILTERING_ID_MAX_BYTES,
    Cause,
    HistogramContribution,
)
from paa_client.reporting.reports import PendingKey, QueuedReport, make_report
from paa_client.reporting.scopes import (
    NO_DEBUG,
    BatchingScope,
    CacheEntry,
    DebugDetails,
    ReportOptions,
    ReportParameters,
)
from paa_client.reporting.selection import Selection
from paa_client.storage import Database, WindowStorage, code_units
from paa_client.worklet import Operation, OperationRun, clone


@dataclass(frozen=True, slots=True, kw_only=True)
class LostContribution:
    """One contribution that entered no report."""

    time_ms: int
    reporting_origin: str
    site: str
    api: ContextType
    cause: Cause
    contribution: HistogramContribution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLine:
    """One line in the console of a worklet: an exception, a deadline, an unknown operation."""

    time_ms: int
    reporting_origin: str
    operation: str
    message: str


class Journal:
    """Counts of lost contributions by site, API and cause; with ``keep`` also the contributions themselves.

    Only the simulation reads it, never a page, a worklet or a report.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._counts: Counter[tuple[str, ContextType, Cause]] = Counter()
        self._values: Counter[tuple[str, ContextType, Cause]] = Counter()
        self.losses: list[LostContribution] = []
        self.console: list[ConsoleLine] = []

    def record_loss(self, lost: LostContribution) -> None:
        """Count a contribution that enters no report."""
        key = (lost.site, lost.api, lost.cause)
        self._counts[key] += 1
        self._values[key] += lost.contribution.value
        if self._keep:
            self.losses.append(lost)

    def count(self, *, site: str | None = None, api: ContextType | None = None, cause: Cause | None = None) -> int:
        """Return how many contributions were lost; each argument, if given, selects by site, API or cause."""
        return sum(
            number
            for (of_site, of_api, of_cause), number in self._counts.items()
            if site in (None, of_site) and api in (None, of_api) and cause in (None, of_cause)
        )

    def counts(self) -> dict[tuple[str, ContextType, Cause], tuple[int, int]]:
        """Return, by site, API and cause, how many contributions were lost and the sum of their values."""
        return {key: (number, self._values[key]) for key, number in self._counts.items()}


MAX_CONTEXT_ID_LENGTH = 64


@dataclass(slots=True)
class _Origin:
    """The state of one origin: its storage and the operations that its module registered."""

    database: Database
    operations: dict[str, Operation] = field(default_factory=dict)


class Browser:
    """One user's browser: storage, budgets and pending reports.

    ``keys`` gives, for each coordinator, the public keys that ``send_due`` seals to. All time comes from ``clock``
    and all randomness (report ids, delays, choice of key, sealing when not private) from ``bits``.
    ``journal`` shows the simulator what was lost and logged; pages and operations never see it.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        bits: Bits,
        config: Config | None = None,
        keys: Mapping[str, wire.PublicKeySet] | None = None,
    ) -> None:
        self.config = config if config is not None else Config()
        self.journal = Journal(keep=self.config.keep_losses)
        self._clock = clock
        self._bits = bits
        self._keys = dict(keys) if keys is not None else {}
        self._origins: dict[str, _Origin] = {}
        self._budgeter = Budgeter(smaller_budget=self.config.smaller_budget, larger_budget=self.config.larger_budget)
        self._queue: list[tuple[int, int, QueuedReport]] = []
        self._sequence = 0
        self._pending: Counter[PendingKey] = Counter()

    # The page's side.

    def storage(self, origin: str) -> WindowStorage:
        """Return the page's access to the Shared Storage of ``origin``; it can only write."""
        return WindowStorage(self._origin(serialize_origin(origin)).database)

    def register(self, origin: str, name: str, operation: Operation) -> None:
        """Register an operation under ``name``, as the module script of ``origin`` would (``register()``)."""
        operations = self._origin(serialize_origin(origin)).operations
        if not name or name in operations:
            raise CallError("TypeError", f"operation name {name!r} is empty or already registered: use another name")
        if not callable(operation) or inspect.iscoroutinefunction(operation):
            raise CallError("TypeError", "operation must be a plain function (storage, private_aggregation, data)")
        operations[name] = operation

    def run(self, origin: str, operation: str, data: object = None, **options: Unpack[ReportOptions]) -> None:
        """Run a registered operation on a copy of ``data`` (``sharedStorage.run()`` with its privateAggregationConfig).

        Returns nothing. Invalid arguments raise ``CallError`` before the operation starts; nothing that the operation
        does raises an error here, so its results leave only in reports. An unknown operation is logged.
        """
        reporting_origin = serialize_origin(origin)
        parameters = self.report_parameters(ContextType.SHARED_STORAGE, **options)
        argument = clone(data)
        known = self._origin(reporting_origin)
        found = known.operations.get(operation)
        if found is None:
            self.log(reporting_origin, operation, "no operation is registered under this name")
            return
        scope = BatchingScope(ContextType.SHARED_STORAGE, reporting_origin, parameters)
        run = OperationRun(
            scope=scope,
            database=known.database,
            clock=self._clock,
            record_loss=partial(self.record_loss, scope),
            allowed=self.config.private_aggregation_allowed,
            on_event=not self.config.all_or_nothing,
        )
        outcome = run.run(found, argument, self.config.operation_deadline_ms)
        if outcome.message is not None:
            self.log(reporting_origin, operation, outcome.message)
        self.process(scope)

    def run_ad_auction(self, auction: Auction) -> FencedFrame | None:
        """Run a Protected Audience auction; return the winning ad's frame, which reveals nothing, or None."""
        return run_auction(self, auction, self._bits)

    def clear(self, origin: str | None = None) -> None:
        """Delete the storage and pending reports of ``origin`` (None: of all origins); keep the spent budgets.

        A site causes this by ``Clear-Site-Data``, a user by deleting a site's data. Deleted reports are not refunded.
        ``forget_budgets`` is the separate call that deletes the contribution history.
        """
        wanted = None if origin is None else serialize_origin(origin)
        for name, known in self._origins.items():
            if wanted in (None, name):
                known.database.clear()
        self._queue = [item for item in self._queue if wanted not in (None, item[2].report.reporting_origin)]
        heapq.heapify(self._queue)
        self._pending = Counter(item[2].counts_as for item in self._queue if not item[2].debug_copy)

    def forget_budgets(self, origin: str | None = None) -> None:
        """Delete the contribution history of the site of ``origin`` (None: of all): this begins a new privacy unit.

        Afterwards the site may contribute Λ₁ again at once, so no bound of the service holds across the call. Only a
        user who deletes all internal data of the browser can cause this (specification, "Clearing storage"; Chromium
        keeps the history as a separate data type); no page, worklet or response header can.
        """
        self._budgeter.forget(None if origin is None else site_of(serialize_origin(origin)))

    # The network's side.

    def next_report_time_ms(self) -> int | None:
        """Return when the next report is due, or None without one; a simulation advances its clock to that time."""
        return self._queue[0][0] if self._queue else None

    def take_due(self, until_ms: int | None = None) -> list[QueuedReport]:
        """Remove and return the reports due now (or until ``until_ms``), unsealed. Only the simulator may see them."""
        now = self._clock.now_ms() if until_ms is None else until_ms
        due = []
        while self._queue and self._queue[0][0] <= now:
            delivery = heapq.heappop(self._queue)[2]
            if not delivery.debug_copy:
                self._pending[delivery.counts_as] -= 1
            due.append(delivery)
        return due

    def send_due(self) -> list[SentReport]:
        """Remove the due reports and return them sealed, as the network carries them.

        If ``keys`` lacks the coordinator of a due report, ``DeviceConfigError`` is raised and all reports stay queued.
        """
        now = self._clock.now_ms()
        for time_ms, _, delivery in self._queue:
            if time_ms <= now and delivery.report.coordinator not in self._keys:
                raise DeviceConfigError(
                    f"no public keys are known for {delivery.report.coordinator}: pass them as Browser(keys={{...}})"
                )
        return [self._seal(delivery) for delivery in self.take_due()]

    def budget_used(self, origin: str, api: ContextType = ContextType.SHARED_STORAGE) -> tuple[int, int]:
        """Return what the site of ``origin`` has used of its ten-minute and day budgets, for the simulator only."""
        return self._budgeter.used(site_of(serialize_origin(origin)), api, self._clock.now_ms())

    # What worklets of this package use.

    def report_parameters(
        self,
        api: ContextType,
        *,
        context_id: str | None = None,
        filtering_id_max_bytes: int = DEFAULT_FILTERING_ID_MAX_BYTES,
        max_contributions: int | None = None,
        aggregation_coordinator_origin: str | None = None,
    ) -> ReportParameters:
        """Check the options that a page gives for a report; return them as parameters.

        Specification: obtain the pre-specified report parameters. The checks are in Chromium's order: types,
        context ID, coordinator, then ranges; ``CallError`` names the first failure.
        """
        filtering_id_max_bytes = _whole(filtering_id_max_bytes, "filtering_id_max_bytes")
        if max_contributions is not None:
            max_contributions = _whole(max_contributions, "max_contributions")
        if context_id is not None:
            if not isinstance(context_id, str) or code_units(context_id) > MAX_CONTEXT_ID_LENGTH:
                raise CallError(
                    "DataError", f"context_id must be a string of at most {MAX_CONTEXT_ID_LENGTH} characters"
                )
            context_id = context_id.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        coordinator = self.config.default_coordinator
        if aggregation_coordinator_origin is not None:
            coordinator = serialize_origin(aggregation_coordinator_origin)
            if coordinator not in self.config.coordinators:
                raise CallError("DataError", f"{coordinator} is not among the allowed aggregation coordinators")
        if not 1 <= filtering_id_max_bytes <= MAX_FILTERING_ID_MAX_BYTES:
            raise CallError("DataError", f"filtering_id_max_bytes must be from 1 to {MAX_FILTERING_ID_MAX_BYTES}")
        if max_contributions == 0:
            raise CallError("DataError", "max_contributions must be at least 1")
        size = self.config.max_contributions(api, max_contributions)
        deterministic = (
            context_id is not None
            or filtering_id_max_bytes != DEFAULT_FILTERING_ID_MAX_BYTES
            or size != self.config.default_max_contributions[api]
        )
        timed = deterministic and api is ContextType.SHARED_STORAGE
        return ReportParameters(
            context_id=context_id,
            filtering_id_max_bytes=filtering_id_max_bytes,
            max_contributions=size,
            coordinator=coordinator,
            deterministic=deterministic,
            timeout_ms=self._clock.now_ms() + self.config.deterministic_timeout_ms if timed else None,
        )

    def process(self, scope: BatchingScope) -> None:
        """Make the reports of a scope that has ended (process contributions for a batching scope)."""
        if not scope.entries and not scope.parameters.deterministic:
            return
        groups = scope.by_debug_details(debug_mode_allowed=self.config.debug_mode_allowed)
        alone = scope.debug if self.config.debug_mode_allowed and self.config.error_reporting else NO_DEBUG
        made = list((groups or {alone: []}).items())
        if self.config.rules is Rules.CHROMIUM:
            made.sort(key=lambda group: group[0].order)
        for debug, entries in made:
            self._schedule(scope, entries, debug)

    def record_loss(
        self, scope: BatchingScope, cause: Cause, contribution: HistogramContribution, time_ms: int | None = None
    ) -> None:
        """Count a contribution that enters no report: now, or at ``time_ms``."""
        self.journal.record_loss(
            LostContribution(
                time_ms=self._clock.now_ms() if time_ms is None else time_ms,
                reporting_origin=scope.reporting_origin,
                site=site_of(scope.reporting_origin),
                api=scope.api,
                cause=cause,
                contribution=contribution,
            )
        )

    def log(self, origin: str, operation: str, message: str) -> None:
        """Write a line to the console, which only the simulator reads."""
        time_ms = self._clock.now_ms()
        self.journal.console.append(
            ConsoleLine(time_ms=time_ms, reporting_origin=origin, operation=operation, message=message)
        )

    def _schedule(self, scope: BatchingScope, entries: list[CacheEntry], debug: DebugDetails) -> None:
        """Select the contributions, make the report and queue it (report creation and scheduling steps)."""
        config = self.config
        # Whether other reports exist depends on what operations read, so they must not displace deterministic ones.
        counts_as = (scope.reporting_origin, scope.api, scope.parameters.deterministic)
        pending = self._pending[counts_as]
        limit = config.pending_report_limit
        if not config.private_aggregation_allowed or (limit is not None and pending >= limit):
            cause = Cause.PENDING_LIMIT if config.private_aggregation_allowed else Cause.NOT_ALLOWED
            for entry in entries:
                self.record_loss(scope, cause, entry.contribution)
            return
        # Chromium without error reporting has only unconditional contributions.
        counted = any(entry.contribution.value for entry in entries if entry.event is None)
        if config.all_or_nothing and not counted and config.merging:
            debug = NO_DEBUG
        now = self._clock.now_ms()
        if scope.timed_out and scope.parameters.timeout_ms is not None:
            now = scope.parameters.timeout_ms
        selection = Selection(
            config=config,
            scope=scope,
            budgeter=self._budgeter,
            record_loss=lambda cause, lost: self.record_loss(scope, cause, lost, now),
            now_ms=now,
            pending_limit_reached=limit is not None and pending + 1 >= limit,
        )
        contributions = selection.select(entries)
        if not contributions and not scope.parameters.deterministic:
            return
        report = make_report(scope, contributions, debug, config=config, bits=self._bits, now_ms=now)
        self._pending[counts_as] += 1
        self._push(QueuedReport(time_ms=report.scheduled_report_time_ms, report=report, counts_as=counts_as))
        if debug.enabled:
            self._push(QueuedReport(time_ms=now, report=report, counts_as=counts_as, debug_copy=True))

    def _push(self, delivery: QueuedReport) -> None:
        heapq.heappush(self._queue, (delivery.time_ms, self._sequence, delivery))
        self._sequence += 1

    def _seal(self, delivery: QueuedReport) -> SentReport:
        keys = self._keys[delivery.report.coordinator]
        return SentReport(time_ms=delivery.time_ms, url=delivery.url, sealed=delivery.report.seal(keys, self._bits))

    def _origin(self, origin: str) -> _Origin:
        if origin not in self._origins:
            lifetime_ms, max_bytes = self.config.storage_lifetime_ms, self.config.storage_bytes_per_origin
            self._origins[origin] = _Origin(Database(clock=self._clock, lifetime_ms=lifetime_ms, max_bytes=max_bytes))
        return self._origins[origin]


def _whole(value: object, name: str) -> int:
    """Convert as Web IDL's ``[EnforceRange] unsigned long long`` does; raise ``CallError`` if that fails."""
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        whole = -1
    if not 0 <= whole < 1 << 53:
        raise CallError("TypeError", f"{name} must be a whole number from 0 to 2⁵³ - 1")
    return whole
