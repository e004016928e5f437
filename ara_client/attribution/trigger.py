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
from ara_client.attribution.event_level import (
    EventCandidate,
    check_event_limits,
    create_event_report,
    event_report,
    match_event_trigger,
    store_event_report,
)
from ara_client.attribution.outcomes import NOT_REGISTERED, SUCCESS, AttributionResult, TriggerEvent
from ara_client.registration.filters import FilterSubject
from ara_client.storage.browser_state import BrowserState, PendingReport, is_event_level
from ara_client.storage.sources import AttributedTrigger, FlexibleLedger, PlannedReport, StoredSource

# Event-level attribution to a source with ``trigger_specs`` (the full-flexible form, which no browser ships).
#
# Each trigger causes a new plan of the source's pending reports; see ``ara_client.storage.sources``. A report
# counts once towards the limit on attributions, however many triggers contribute to it.


def attribute_flexibly(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource, subject: FilterSubject
) -> AttributionResult:
    """Count a trigger for a source and plan the source's reports again; return the result."""
    match = match_event_trigger(trigger, source, subject)
    if isinstance(match, AttributionResult):
        return match
    ledger, spec = source.flexible, source.registration.spec_of(match.trigger_data)
    if ledger is None or spec is None:
        return NOT_REGISTERED
    if not state.limits.allows_attribution_origin(source, trigger.destination):
        limit = state.config.max_attribution_reporting_origins
        return AttributionResult(type="trigger-reporting-origin-limit", limit=limit)
    if match.config.dedup_key is not None:
        source.dedup_keys.add(match.config.dedup_key)
    if source.attribution_logic == "never":
        return AttributionResult(type="trigger-event-noise")
    ledger.settle(trigger.time_ms, {pending.id for pending in state.pending.of_source(source.id)})
    if ledger.sent >= source.registration.max_event_level_reports:
        return AttributionResult(type="trigger-event-excessive-reports")
    ledger.add(
        AttributedTrigger(
            trigger_data=match.trigger_data,
            left=match.config.value if spec.sums_values else 1,
            priority=match.config.priority,
            time_ms=trigger.time_ms,
            window_end_ms=match.window_end_ms,
            debug_key=trigger.debug_key,
        )
    )
    return _replan_reports(state, trigger, source, ledger)


def _replan_reports(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource, ledger: FlexibleLedger
) -> AttributionResult:
    for pending in state.pending.of_source(source.id):
        if is_event_level(pending) and pending.initial_due_ms > trigger.time_ms:
            state.pending.remove(pending)
            state.limits.forget_report("event", pending.id)
    result = SUCCESS
    kept = 0
    for planned in ledger.plan(trigger.time_ms):
        refusal = check_event_limits(state, trigger, source)
        if refusal is not None:
            result = refusal
            break
        ledger.keep(planned, _schedule(state, trigger, source, planned))
        kept += 1
    source.event_reports = ledger.sent + kept
    return result


def _schedule(state: BrowserState, trigger: TriggerEvent, source: StoredSource, planned: PlannedReport) -> int:
    """Schedule a planned report, send its debug copy if source and triggers all have debug keys; return its id."""
    report = event_report(
        state,
        source,
        planned.trigger_data,
        planned.due_ms,
        bucket=planned.bucket_index,
        trigger_debug_keys=planned.debug_keys,
    )
    triggers = [part for part, _ in planned.parts]
    pending = state.schedule(
        report,
        source,
        max(part.time_ms for part in triggers),
        priority=min(part.priority for part in triggers),
    )
    state.limits.add_attribution(source, "event", trigger.destination, trigger.time_ms, pending.id)
    if source.debug_key is not None and planned.debug_keys:
        state.outbox.append(replace(report, debug=True))
    return pending.id


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
        limit = state.config.max_attribution_reporting_origins
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
    if report.source_debug_key is not None and report.trigger_debug_key is not None:
        state.outbox.append(replace(report, debug=True))
