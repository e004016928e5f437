"""Event-level attribution to a source with ``trigger_specs`` (the full-flexible form, which no browser ships).

Every trigger works the source's waiting reports out anew; see ``ara_client.storage.flexible_ledger``. A report counts
for the limit on attributions once, however many triggers stand behind it.
"""

from __future__ import annotations

from dataclasses import replace

from ara_client.attribution.source import event_report
from ara_client.attribution.trigger_debug import NOT_REGISTERED, SUCCESS, Trigger, Verdict
from ara_client.registration.flexible import TriggerSpec
from ara_client.storage.browser_state import BrowserState, is_event_level
from ara_client.storage.flexible_ledger import AttributedTrigger, FlexibleLedger, PlannedReport
from ara_client.storage.matching import FilterSubject, first_match
from ara_client.storage.pending import PendingReport
from ara_client.storage.sources import StoredSource


def attribute_flexibly(state: BrowserState, trigger: Trigger, source: StoredSource, subject: FilterSubject) -> Verdict:
    """Count a trigger for a source and plan the source's reports anew; say what became of it."""
    ledger = source.flexible
    if not trigger.registration.event_triggers or ledger is None:
        return NOT_REGISTERED
    if source.attribution_logic == "falsely":
        return Verdict(type="trigger-event-noise")
    config = first_match(subject, trigger.registration.event_triggers)
    if config is None:
        return Verdict(type="trigger-event-no-matching-configurations")
    if config.dedup_key is not None and config.dedup_key in source.dedup_keys:
        return Verdict(type="trigger-event-deduplicated")
    data = source.registration.match_trigger_data(config.data)
    if data is None:
        return Verdict(type="trigger-event-no-matching-trigger-data")
    spec = _spec_of(source, data)
    window = spec.windows.index_at(trigger.time_ms - source.time_ms)
    if window < 0:
        return Verdict(type="trigger-event-report-window-not-started")
    if window == len(spec.windows.ends_ms):
        return Verdict(type="trigger-event-report-window-passed")
    if not state.limits.allows_attribution_origin(source, trigger.destination):
        limit = state.vendor.max_attribution_reporting_origins
        return Verdict(type="trigger-reporting-origin-limit", limit=limit)
    if config.dedup_key is not None:
        source.dedup_keys.add(config.dedup_key)
    if source.attribution_logic == "never":
        return Verdict(type="trigger-event-noise")
    ledger.settle(trigger.time_ms, {pending.id for pending in state.pending.of_source(source.id)})
    if ledger.sent >= source.registration.max_event_level_reports:
        return Verdict(type="trigger-event-excessive-reports")
    ledger.add(
        AttributedTrigger(
            trigger_data=data,
            left=config.value if spec.sums_values else 1,
            priority=config.priority,
            time_ms=trigger.time_ms,
            window_end_ms=source.time_ms + spec.windows.ends_ms[window],
            debug_key=trigger.debug_key,
        )
    )
    return _plan_anew(state, trigger, source, ledger)


def _plan_anew(state: BrowserState, trigger: Trigger, source: StoredSource, ledger: FlexibleLedger) -> Verdict:
    for pending in state.pending.of_source(source.id):
        if is_event_level(pending) and pending.initial_due_ms > trigger.time_ms:
            state.pending.remove(pending)
            state.limits.forget_report("event", pending.id)
    verdict = SUCCESS
    kept = 0
    for planned in ledger.plan(trigger.time_ms):
        refusal = _judge_limits(state, trigger, source)
        if refusal is not None:
            verdict = refusal
            break
        ledger.keep(planned, _wait(state, trigger, source, planned))
        kept += 1
    source.event_reports = ledger.sent + kept
    return verdict


def _judge_limits(state: BrowserState, trigger: Trigger, source: StoredSource) -> Verdict | None:
    if not state.limits.allows_attribution(source, "event", trigger.destination):
        kind = "trigger-event-attributions-per-source-destination-limit"
        return Verdict(type=kind, limit=state.vendor.max_attributions)
    most = state.vendor.max_event_level_reports_per_destination
    if state.pending.event_count(trigger.destination) >= most:
        return Verdict(type="trigger-event-storage-limit", limit=most)
    return None


def _wait(state: BrowserState, trigger: Trigger, source: StoredSource, planned: PlannedReport) -> int:
    """Let a planned report wait, and send its debug copy if source and triggers all have debug keys; return its id."""
    report = event_report(
        state,
        source,
        planned.trigger_data,
        planned.due_ms,
        summary_bucket=_spec_of(source, planned.trigger_data).bucket_range(planned.bucket_index),
        trigger_debug_keys=planned.debug_keys,
    )
    pending = PendingReport(
        id=state.next_id(),
        report=report,
        source=source,
        trigger_time_ms=max(part.time_ms for part, _ in planned.parts),
        due_ms=planned.due_ms,
        priority=min(part.priority for part, _ in planned.parts),
    )
    state.pending.add(pending)
    state.limits.add_attribution(source, "event", trigger.destination, trigger.time_ms, pending.id)
    if source.debug_key is not None and planned.debug_keys:
        state.outbox.append(replace(report, debug=True))
    return pending.id


def _spec_of(source: StoredSource, data: int) -> TriggerSpec:
    return next(spec for spec in source.registration.specs or () if data in spec.trigger_data)
