"""Event-level attribution to a source with ``trigger_specs`` (the full-flexible form, which no browser ships).

Each trigger causes a new plan of the source's pending reports; see ``ara_client.storage.flexible_ledger``. A report
counts once towards the limit on attributions, however many triggers contribute to it.
"""

from __future__ import annotations

from dataclasses import replace

from ara_client.attribution.event_level import check_event_limits, event_report, match_event_trigger
from ara_client.attribution.outcomes import NOT_REGISTERED, SUCCESS, AttributionResult, TriggerEvent
from ara_client.storage.browser_state import BrowserState, is_event_level
from ara_client.storage.flexible_ledger import AttributedTrigger, FlexibleLedger, PlannedReport
from ara_client.storage.matching import FilterSubject
from ara_client.storage.sources import StoredSource


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
        limit = state.vendor.max_attribution_reporting_origins
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
