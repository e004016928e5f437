"""Sending reports: due ones, retries of failed ones, and overdue ones after being offline.

WICG, "queue reports for delivery"; retries and expiry as in Chromium's ``AttributionManagerImpl``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from aggservice.mechanisms import Clock
from ara_client.delivery.assembly import Assembler, AssemblyFailure
from ara_client.reports import AggregatableAttributionReport, AggregatableDebugReport, OutgoingReport
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.pending import PendingReport


class SendResult(Enum):
    """The result of one attempt to send a report. Only a transient failure is retried."""

    SENT = auto()
    TRANSIENT_FAILURE = auto()
    FAILURE = auto()


Send = Callable[[OutgoingReport], SendResult]


class Delivery:
    """Sends reports through ``send`` and reschedules those that may be retried."""

    def __init__(self, state: BrowserState, clock: Clock, assembler: Assembler | None, send: Send) -> None:
        self._state = state
        self._clock = clock
        self._assembler = assembler
        self._send = send
        self.online = True

    def flush(self) -> list[OutgoingReport]:
        """Send the immediate reports, then the due ones; return those that arrived.

        Immediate reports are tried once; while offline they are lost.
        """
        now_ms = self._clock.now_ms()
        arrived = []
        outbox, self._state.outbox = self._state.outbox, []
        for report in outbox if self.online else ():
            sent, result = self._attempt(report, now_ms)
            if result is SendResult.SENT:
                arrived.append(sent)
        return arrived + self.send_due()

    def send_due(self) -> list[OutgoingReport]:
        """Send the due reports, in random order; return those that arrived.

        Offline, nothing is tried. A report is dropped when it is later than its first due time by more than the
        vendor's ``report_expiry_ms``.
        """
        if not self.online:
            return []
        now_ms = self._clock.now_ms()
        due = self._state.pending.due(now_ms)
        if not due:
            return []
        self._state.draws.shuffle(due)
        arrived = []
        for pending in due:
            if now_ms > pending.initial_due_ms + self._state.vendor.report_expiry_ms:
                self._state.pending.remove(pending)
                continue
            sent, result = self._attempt(pending.report, now_ms)
            if result is SendResult.TRANSIENT_FAILURE:
                self._retry(pending, now_ms)
                continue
            self._state.pending.remove(pending)
            if result is SendResult.SENT:
                arrived.append(sent)
        return arrived

    def go_online(self) -> None:
        """Resume sending. Overdue reports wait a random time, so that arriving together does not link them."""
        self.online = True
        now_ms = self._clock.now_ms()
        for pending in self._state.pending.due(now_ms - 1):
            self._state.pending.reschedule(pending, now_ms + self._state.draws.offline_delay_ms())

    def retry_after_navigation(self) -> None:
        """Send soon what waits for a navigation before its last attempt, if the vendor has that rule."""
        attempt = self._state.vendor.navigation_retry_attempt
        if attempt is None:
            return
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._state.vendor.offline_delay_ms[1]
        for pending in self._state.pending:
            if pending.failed_attempts == attempt and pending.due_ms > latest_ms:
                self._state.pending.reschedule(pending, now_ms + self._state.draws.offline_delay_ms())

    def _attempt(self, report: OutgoingReport, now_ms: int) -> tuple[OutgoingReport, SendResult]:
        report = replace(report, time_ms=now_ms)
        if self._assembler is not None and isinstance(report, AggregatableAttributionReport | AggregatableDebugReport):
            try:
                report = self._assembler.assemble(report)
            except AssemblyFailure as failure:
                return report, SendResult.TRANSIENT_FAILURE if failure.transient else SendResult.FAILURE
        return report, self._send(report)

    def _retry(self, pending: PendingReport, now_ms: int) -> None:
        vendor = self._state.vendor
        pending.failed_attempts += 1
        attempt, navigation = pending.failed_attempts, vendor.navigation_retry_attempt
        due_ms: int | None
        if navigation is None:
            due_ms = now_ms + vendor.retry_delays_ms[attempt - 1] if attempt <= len(vendor.retry_delays_ms) else None
        elif attempt < navigation:
            due_ms = now_ms + vendor.retry_delays_ms[min(attempt, len(vendor.retry_delays_ms)) - 1]
        else:
            due_ms = pending.initial_due_ms + vendor.report_expiry_ms if attempt == navigation else None
        if due_ms is None:
            self._state.pending.remove(pending)
        else:
            self._state.pending.reschedule(pending, due_ms)
