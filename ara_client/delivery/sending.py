"""Sending reports: what is due, what fails and is tried again, what was missed while offline.

WICG, "queue reports for delivery"; retries and expiry as in Chromium's ``AttributionManagerImpl``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from aggservice.mechanisms import Clock
from ara_client.delivery.assembly import Assembler, AssemblyFailure
from ara_client.reports import AggregatableAttributionReport, AggregatableDebugReport, Report
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.pending import PendingReport


class SendResult(Enum):
    """What became of a report on its way. Only what may be the network's fault is tried again."""

    SENT = auto()
    TRANSIENT_FAILURE = auto()
    FAILURE = auto()


Send = Callable[[Report], SendResult]


class Delivery:
    """Sends reports through ``send`` and keeps those that may be tried again waiting."""

    def __init__(self, state: BrowserState, clock: Clock, assembler: Assembler | None, send: Send) -> None:
        self._state = state
        self._clock = clock
        self._assembler = assembler
        self._send = send
        self.online = True

    def flush(self) -> list[Report]:
        """Send what is to go out at once, then what is due; return what arrived.

        What is to go out at once is tried once, so that offline it is lost.
        """
        now_ms = self._clock.now_ms()
        arrived = []
        outbox, self._state.outbox = self._state.outbox, []
        for report in outbox if self.online else ():
            sent, result = self._attempt(report, now_ms)
            if result is SendResult.SENT:
                arrived.append(sent)
        return arrived + self.send_due()

    def send_due(self) -> list[Report]:
        """Send the reports whose time has come, in random order; return what arrived.

        Nothing is attempted while offline. A report more than the vendor's expiry past its first time is dropped.
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
        """Resume sending. Reports missed meanwhile wait a random while, lest their arrival join them."""
        self.online = True
        now_ms = self._clock.now_ms()
        for pending in self._state.pending.due(now_ms - 1):
            self._state.pending.reschedule(pending, now_ms + self._state.draws.offline_delay_ms())

    def retry_after_navigation(self) -> None:
        """Let reports that wait for a navigation for their last attempt, if the vendor asks for that, go out soon."""
        attempt = self._state.vendor.navigation_retry_attempt
        if attempt is None:
            return
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._state.vendor.offline_delay_ms[1]
        for pending in self._state.pending:
            if pending.failed_attempts == attempt and pending.due_ms > latest_ms:
                self._state.pending.reschedule(pending, now_ms + self._state.draws.offline_delay_ms())

    def _attempt(self, report: Report, now_ms: int) -> tuple[Report, SendResult]:
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
