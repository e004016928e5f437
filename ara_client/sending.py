"""Sending reports: sealing to the keys of their coordinator, due ones, retries, and overdue ones after being offline.

WICG, "queue reports for delivery"; retries and expiry as in Chromium's ``AttributionManagerImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aggservice.mechanisms import Bits, Clock
from aggservice.wire import Api, Origin, PublicKeySet, SharedInfo, WireError, make_report
from aggservice.wire.device import DeviceError, Send, SendResult
from ara_client.constants import DAY_MS, MAX_AGGREGATION_KEYS, MAX_DEBUG_CONTRIBUTIONS, REPORT_VERSION, SECOND_MS
from ara_client.reports import AggregatableAttributionReport, OutgoingReport, SealableReport
from ara_client.storage.browser_state import BrowserState, PendingReport


class AssemblyFailure(DeviceError):
    """A report could not be sealed. ``transient`` is true if trying again later can succeed."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class Assembler:
    """Seals reports: one public key set per coordinator, one uniformly drawn key per report."""

    def __init__(self, keys: Mapping[Origin, PublicKeySet], bits: Bits) -> None:
        self._keys = dict(keys)
        self._bits = bits

    def assemble(self, report: SealableReport) -> SealableReport:
        """Return the report with its sealed body; raise ``AssemblyFailure`` if it cannot be sealed."""
        keys = self._keys.get(report.coordinator)
        if keys is None:
            raise AssemblyFailure(f"no public keys are known for {report.coordinator}", transient=True)
        attribution = report if isinstance(report, AggregatableAttributionReport) else None
        shown = attribution if attribution is not None and attribution.debug_enabled else None
        try:
            sealed = make_report(
                report.contributions,
                shared_info=shared_info(report),
                keys=keys,
                bits=self._bits,
                maximum=MAX_DEBUG_CONTRIBUTIONS if attribution is None else MAX_AGGREGATION_KEYS,
                filtering_id_bytes=None if attribution is None else attribution.filtering_id_max_bytes,
                aggregation_coordinator_origin=str(report.coordinator),
                trigger_context_id=None if attribution is None else attribution.trigger_context_id,
                source_debug_key=None if shown is None else shown.source_debug_key,
                trigger_debug_key=None if shown is None else shown.trigger_debug_key,
            )
        except WireError as error:
            raise AssemblyFailure(str(error), transient=False) from error
        return replace(report, sealed=sealed)


def shared_info(report: SealableReport) -> SharedInfo:
    """Return the public part of a report (WICG, "obtain an aggregatable report's shared info")."""
    attribution = report if isinstance(report, AggregatableAttributionReport) else None
    source_time_ms = None if attribution is None else attribution.source_time_ms
    return SharedInfo(
        api=Api.ATTRIBUTION_REPORTING_DEBUG if attribution is None else Api.ATTRIBUTION_REPORTING,
        report_id=report.report_id,
        reporting_origin=str(report.reporting_origin),
        scheduled_report_time_s=report.scheduled_time_ms // SECOND_MS,
        version=REPORT_VERSION,
        attribution_destination=report.destination,
        source_registration_time_s=None if source_time_ms is None else rounded_source_time_s(source_time_ms),
        debug_mode=attribution is not None and attribution.debug_enabled,
    )


def rounded_source_time_s(time_ms: int) -> int:
    """Return a time rounded down to whole days, in seconds (WICG, "obtain rounded source time")."""
    return time_ms // DAY_MS * (DAY_MS // SECOND_MS)


class ReportPost:
    """Sends reports through ``send`` and reschedules those that may be retried."""

    def __init__(self, state: BrowserState, clock: Clock, assembler: Assembler | None, send: Send) -> None:
        self._state = state
        self._clock = clock
        self._assembler = assembler
        self._send = send
        self.online = True

    def flush(self) -> list[OutgoingReport]:
        """Send the immediate reports, once and only while online, then the due ones; return those that arrived."""
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
            if now_ms > pending.initial_due_ms + self._state.config.report_expiry_ms:
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
        attempt = self._state.config.navigation_retry_attempt
        if attempt is None:
            return
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._state.config.offline_delay_ms[1]
        for pending in self._state.pending:
            if pending.failed_attempts == attempt and pending.due_ms > latest_ms:
                self._state.pending.reschedule(pending, now_ms + self._state.draws.offline_delay_ms())

    def _attempt(self, report: OutgoingReport, now_ms: int) -> tuple[OutgoingReport, SendResult]:
        report = replace(report, time_ms=now_ms)
        if self._assembler is not None and isinstance(report, SealableReport):
            try:
                report = self._assembler.assemble(report)
            except AssemblyFailure as failure:
                return report, SendResult.TRANSIENT_FAILURE if failure.transient else SendResult.FAILURE
        return report, self._send(report)

    def _retry(self, pending: PendingReport, now_ms: int) -> None:
        config = self._state.config
        pending.failed_attempts += 1
        attempt, navigation = pending.failed_attempts, config.navigation_retry_attempt
        due_ms: int | None
        if navigation is None:
            due_ms = now_ms + config.retry_delays_ms[attempt - 1] if attempt <= len(config.retry_delays_ms) else None
        elif attempt < navigation:
            due_ms = now_ms + config.retry_delays_ms[min(attempt, len(config.retry_delays_ms)) - 1]
        else:
            due_ms = pending.initial_due_ms + config.report_expiry_ms if attempt == navigation else None
        if due_ms is None:
            self._state.pending.remove(pending)
        else:
            self._state.pending.reschedule(pending, due_ms)
