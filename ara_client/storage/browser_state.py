"""Everything a browser stores, as one object for the steps that work on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from ara_client.config import Config
from ara_client.randomness import RandomChoices
from ara_client.reports import AggregatableAttributionReport, EventLevelReport, OutgoingReport
from ara_client.storage.limits import DebugBudgets, DestinationLimits, RateLimits
from ara_client.storage.sources import SourceStore, StoredSource, count


@dataclass(slots=True, kw_only=True, eq=False)
class PendingReport:
    """A pending report. ``due_ms`` changes when sending fails; ``initial_due_ms`` does not.

    ``source`` is None for null reports; ``trigger_time_ms`` of a fake report is the start of its window.
    ``unconditional`` says that its trigger sends one report, attributed or not: that a report exists must tell nothing.
    """

    id: int
    report: EventLevelReport | AggregatableAttributionReport
    source: StoredSource | None
    trigger_time_ms: int
    due_ms: int
    priority: int = 0
    unconditional: bool = False
    failed_attempts: int = 0
    initial_due_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.initial_due_ms = self.due_ms


class PendingReports:
    """The pending reports. Adding, removing and rescheduling are O(log n); counts are O(1)."""

    def __init__(self) -> None:
        self._by_due: SortedDict[tuple[int, int], PendingReport] = SortedDict()
        self._by_source: dict[int, dict[int, PendingReport]] = {}
        self._event_per_destination: dict[str, int] = {}
        self._aggregatable_per_destination: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_due)

    def __iter__(self) -> Iterator[PendingReport]:
        return iter(list(self._by_due.values()))

    def add(self, pending: PendingReport) -> None:
        """Add a report."""
        self._by_due[pending.due_ms, pending.id] = pending
        if pending.source is not None:
            self._by_source.setdefault(pending.source.id, {})[pending.id] = pending
        self._tally(pending, 1)

    def remove(self, pending: PendingReport) -> None:
        """Remove a report."""
        del self._by_due[pending.due_ms, pending.id]
        if pending.source is not None:
            listed = self._by_source[pending.source.id]
            del listed[pending.id]
            if not listed:
                del self._by_source[pending.source.id]
        self._tally(pending, -1)

    def make_null(self, pending: PendingReport) -> None:
        """Turn an aggregatable report into a null report that is due, and retried, when the report would have been."""
        assert isinstance(pending.report, AggregatableAttributionReport)
        self.remove(pending)
        pending.report, pending.source = pending.report.as_null(), None
        self.add(pending)

    def reschedule(self, pending: PendingReport, due_ms: int) -> None:
        """Change the time at which a report is due."""
        del self._by_due[pending.due_ms, pending.id]
        pending.due_ms = due_ms
        self._by_due[due_ms, pending.id] = pending

    def next_due_ms(self) -> int | None:
        """Return when the next report is due, or None without pending reports."""
        return self._by_due.keys()[0][0] if self._by_due else None

    def due(self, now_ms: int) -> list[PendingReport]:
        """Return the reports that are due, earliest first; they stay pending."""
        return [self._by_due[key] for key in self._by_due.irange(None, (now_ms, 1 << 63))]

    def of_source(self, source_id: int) -> list[PendingReport]:
        """Return a source's reports in the order in which they were made."""
        return list(self._by_source.get(source_id, {}).values())

    def event_count(self, destination: str) -> int:
        """Return how many event-level reports are pending whose source has this destination."""
        return self._event_per_destination.get(destination, 0)

    def aggregatable_count(self, destination: str) -> int:
        """Return how many aggregatable reports, without null reports, are pending for a destination."""
        return self._aggregatable_per_destination.get(destination, 0)

    def _tally(self, pending: PendingReport, by: int) -> None:
        report = pending.report
        if isinstance(report, EventLevelReport):
            for destination in report.destinations:
                count(self._event_per_destination, destination, by)
        elif not report.is_null:
            count(self._aggregatable_per_destination, report.destination, by)

    def _check(self) -> None:
        """Assert that every index agrees with the pending reports."""
        waiting = list(self._by_due.values())
        assert all((pending.due_ms, pending.id) == key for key, pending in self._by_due.items())
        assert sum(map(len, self._by_source.values())) == sum(pending.source is not None for pending in waiting)
        events = [pending.report for pending in waiting if isinstance(pending.report, EventLevelReport)]
        assert sum(self._event_per_destination.values()) == sum(len(report.destinations) for report in events)


class BrowserState:
    """The caches of the specification's section "Storage", and the reports to send immediately."""

    def __init__(self, config: Config, draws: RandomChoices) -> None:
        self.config = config
        self.draws = draws
        self.sources = SourceStore()
        self.pending = PendingReports()
        self.limits = RateLimits(config)
        self.destinations = DestinationLimits(self.limits, config)
        self.debug_budgets = DebugBudgets(config)
        self.outbox: list[OutgoingReport] = []
        self._last_id = 0

    def next_id(self) -> int:
        """Return an id greater than any before (WICG, "get the next internal ID")."""
        self._last_id += 1
        return self._last_id

    def schedule(
        self,
        report: EventLevelReport | AggregatableAttributionReport,
        source: StoredSource | None,
        trigger_time_ms: int,
        *,
        priority: int = 0,
        unconditional: bool = False,
    ) -> PendingReport:
        """Add a report to the pending reports, due at its scheduled time; return the pending report."""
        pending = PendingReport(
            id=self.next_id(),
            report=report,
            source=source,
            trigger_time_ms=trigger_time_ms,
            due_ms=report.scheduled_time_ms,
            priority=priority,
            unconditional=unconditional,
        )
        self.pending.add(pending)
        return pending

    def drop_event_reports(self, source: StoredSource, since_ms: int) -> None:
        """Remove a source's event-level reports with a trigger time of ``since_ms`` or later, and their records.

        WICG, "remove associated event-level reports and rate-limit records". True reports were triggered before
        ``since_ms``, so this removes only fake ones; a fake report left behind would reveal that it is fake.
        """
        for pending in self.pending.of_source(source.id):
            if is_event_level(pending) and pending.trigger_time_ms >= since_ms:
                self.pending.remove(pending)
                self.limits.forget_report("event", pending.id)

    def drop_aggregatable_reports(self, source: StoredSource) -> None:
        """Remove a source's aggregatable reports and their records."""
        for pending in self.pending.of_source(source.id):
            if not is_event_level(pending):
                self.drop_with_source(pending)
                self.limits.forget_report("aggregatable", pending.id)

    def drop_with_source(self, pending: PendingReport) -> None:
        """Remove a report because its source is removed; leave a null report if one is sent without a source too.

        Otherwise only attributed triggers would lose their reports, and a context ID would say which ones.
        """
        if pending.unconditional and self.config.removed_reports_become_null:
            self.pending.make_null(pending)
        else:
            self.pending.remove(pending)


def is_event_level(pending: PendingReport) -> bool:
    """Return whether a pending report is event-level."""
    return isinstance(pending.report, EventLevelReport)
