"""Attributing a trigger: find its source, make both kinds of report, and send debug reports.

WICG, "trigger attribution", with the order of checks of Chromium's ``MaybeCreateAndStoreReport``: what the reports
would be, then the limit on reporting origins, then storing them.
"""

from __future__ import annotations

from dataclasses import replace

from ara_client.attribution.aggregatable import (
    AggregatableCandidate,
    add_null_reports,
    create_aggregatable,
    store_aggregatable,
)
from ara_client.attribution.debug import send_trigger_debug
from ara_client.attribution.event_level import EventCandidate, create_event_report, store_event_report
from ara_client.attribution.flexible import attribute_flexibly
from ara_client.attribution.outcomes import NOT_REGISTERED, AttributionResult, TriggerEvent
from ara_client.reports import AggregatableAttributionReport, EventLevelReport
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.pending import PendingReport
from ara_client.storage.sources import StoredSource


def attribute(state: BrowserState, trigger: TriggerEvent) -> None:
    """Attribute a trigger: store its reports and send its debug reports."""
    registration = trigger.registration
    if not registration.event_triggers and not registration.has_aggregatable_data:
        return
    state.sources.expire(trigger.time_ms)
    source, others = _find_source(state, trigger)
    if source is None:
        _no_attribution(state, trigger, None, AttributionResult(type="trigger-no-matching-source"))
        return
    subject = source.as_subject(trigger.time_ms)
    if not subject.matches(registration.filters):
        _no_attribution(state, trigger, source, AttributionResult(type="trigger-no-matching-filter-data"))
        return
    for other in others:
        state.sources.remove(other)
    flexible = source.registration.specs is not None
    event = NOT_REGISTERED if flexible else create_event_report(state, trigger, source, subject)
    summed = create_aggregatable(state, trigger, source, subject)
    stored_event: PendingReport | None = None
    stored_sum: PendingReport | None = None
    if (isinstance(event, EventCandidate) or isinstance(summed, AggregatableCandidate)) and (
        not state.limits.allows_attribution_origin(source, trigger.destination)
    ):
        limit = state.vendor.max_attribution_reporting_origins
        blocked = AttributionResult(type="trigger-reporting-origin-limit", limit=limit)
        event = blocked if isinstance(event, EventCandidate) else event
        summed = blocked if isinstance(summed, AggregatableCandidate) else summed
    if flexible:
        event = attribute_flexibly(state, trigger, source, subject)
    if isinstance(event, EventCandidate):
        event, stored_event = store_event_report(state, trigger, source, event)
    if isinstance(summed, AggregatableCandidate):
        summed, stored_sum = store_aggregatable(state, trigger, source, subject, summed)
    add_null_reports(state, trigger, None if stored_sum is None else source.time_ms)
    if stored_event is not None:
        state.limits.add_attribution(source, "event", trigger.destination, trigger.time_ms, stored_event.id)
        _send_debug_copy(state, stored_event)
    if stored_sum is not None:
        state.limits.add_attribution(source, "aggregatable", trigger.destination, trigger.time_ms, stored_sum.id)
        _send_debug_copy(state, stored_sum)
    send_trigger_debug(state, trigger, source, (event, summed))


def _find_source(state: BrowserState, trigger: TriggerEvent) -> tuple[StoredSource | None, list[StoredSource]]:
    """Return the source to attribute to, or None, and the other matching sources, which the caller removes."""
    matching = state.sources.with_target(trigger.reporting_origin, trigger.destination)
    wanted = trigger.registration.scopes
    for index, source in enumerate(matching):
        if not wanted or (source.scopes is not None and not wanted.isdisjoint(source.scopes.values)):
            return source, matching[:index] + matching[index + 1 :]
    return None, []


def _no_attribution(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource | None, result: AttributionResult
) -> None:
    add_null_reports(state, trigger, None)
    registration = trigger.registration
    event = result if registration.event_triggers else NOT_REGISTERED
    summed = result if registration.has_aggregatable_data else NOT_REGISTERED
    send_trigger_debug(state, trigger, source, (event, summed))


def _send_debug_copy(state: BrowserState, pending: PendingReport) -> None:
    """Send a copy of a report immediately if both sides gave debug keys (WICG, "attempt to deliver a debug report")."""
    report = pending.report
    if report.source_debug_key is None or report.trigger_debug_key is None:
        return
    if isinstance(report, EventLevelReport | AggregatableAttributionReport):
        state.outbox.append(replace(report, debug=True))
