"""What a browser remembers, in one place, for the steps that work on it."""

from __future__ import annotations

from ara_client.randomness import Draws
from ara_client.reports import EventLevelReport, Report
from ara_client.storage.debug_limits import DebugBudgets
from ara_client.storage.destination_limits import DestinationLimits
from ara_client.storage.pending import PendingReport, PendingReports
from ara_client.storage.rate_limits import RateLimits
from ara_client.storage.sources import SourceStore, StoredSource
from ara_client.vendor import VendorValues


class BrowserState:
    """The caches of the specification's section "Storage", and reports that are to go out at once."""

    def __init__(self, vendor: VendorValues, draws: Draws) -> None:
        self.vendor = vendor
        self.draws = draws
        self.sources = SourceStore()
        self.pending = PendingReports()
        self.limits = RateLimits(vendor)
        self.destinations = DestinationLimits(self.limits, vendor)
        self.debug_budgets = DebugBudgets(vendor)
        self.outbox: list[Report] = []
        self._last_id = 0

    def next_id(self) -> int:
        """Return an id greater than any before (WICG, "get the next internal ID")."""
        self._last_id += 1
        return self._last_id

    def drop_event_reports(self, source: StoredSource, since_ms: int) -> None:
        """Forget a source's event-level reports whose trigger time is not before ``since_ms``, and their records.

        WICG, "remove associated event-level reports and rate-limit records": true reports have been triggered
        before, so this takes the false ones, which would otherwise show that they were false.
        """
        for pending in self.pending.of_source(source.id):
            if is_event_level(pending) and pending.trigger_time_ms >= since_ms:
                self.pending.remove(pending)
                self.limits.forget_report("event", pending.id)

    def drop_aggregatable_reports(self, source: StoredSource) -> None:
        """Forget a source's aggregatable reports and their records."""
        for pending in self.pending.of_source(source.id):
            if not is_event_level(pending):
                self.pending.remove(pending)
                self.limits.forget_report("aggregatable", pending.id)


def is_event_level(pending: PendingReport) -> bool:
    """Return whether a pending report is event-level."""
    return isinstance(pending.report, EventLevelReport)
