"""Everything a browser stores, as one object for the steps that work on it."""

from __future__ import annotations

from ara_client.randomness import Draws
from ara_client.reports import AggregatableAttributionReport, EventLevelReport, OutgoingReport
from ara_client.storage.debug_limits import DebugBudgets
from ara_client.storage.destination_limits import DestinationLimits
from ara_client.storage.pending import PendingReport, PendingReports
from ara_client.storage.rate_limits import RateLimits
from ara_client.storage.sources import SourceStore, StoredSource
from ara_client.vendor import VendorValues


class BrowserState:
    """The caches of the specification's section "Storage", and the reports to send immediately."""

    def __init__(self, vendor: VendorValues, draws: Draws) -> None:
        self.vendor = vendor
        self.draws = draws
        self.sources = SourceStore()
        self.pending = PendingReports()
        self.limits = RateLimits(vendor)
        self.destinations = DestinationLimits(self.limits, vendor)
        self.debug_budgets = DebugBudgets(vendor)
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
        if pending.unconditional and self.vendor.removed_reports_become_null:
            self.pending.make_null(pending)
        else:
            self.pending.remove(pending)


def is_event_level(pending: PendingReport) -> bool:
    """Return whether a pending report is event-level."""
    return isinstance(pending.report, EventLevelReport)
