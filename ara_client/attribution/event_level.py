"""Event-level attribution: whether a trigger makes a report, and which report it may replace.

WICG, "trigger event-level attribution", in the two steps of Chromium's resolver: what the report would be, and
whether it can be stored. ``ara_client.attribution.trigger`` shares the checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ara_client.attribution.outcomes import NOT_REGISTERED, SUCCESS, AttributionResult, TriggerEvent
from ara_client.registration.filters import FilterSubject, first_match
from ara_client.registration.trigger import EventTriggerData
from ara_client.reports import EventLevelReport
from ara_client.storage.browser_state import BrowserState, PendingReport, is_event_level
from ara_client.storage.sources import StoredSource


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMatch:
    """The configuration of a trigger that matches a source, the data to report, and the end of its report window."""

    config: EventTriggerData
    trigger_data: int
    window_end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCandidate:
    """An event-level report that could be stored."""

    config: EventTriggerData
    report: EventLevelReport


def match_event_trigger(
    trigger: TriggerEvent, source: StoredSource, subject: FilterSubject
) -> EventMatch | AttributionResult:
    """Return how an event-level trigger matches a source, or why it makes no report."""
    if not trigger.registration.event_triggers:
        return NOT_REGISTERED
    if source.attribution_logic == "falsely":
        return AttributionResult(type="trigger-event-noise")
    config = first_match(subject, trigger.registration.event_triggers)
    if config is None:
        return AttributionResult(type="trigger-event-no-matching-configurations")
    if config.dedup_key is not None and config.dedup_key in source.dedup_keys:
        return AttributionResult(type="trigger-event-deduplicated")
    data = source.registration.match_trigger_data(config.data)
    if data is None:
        return AttributionResult(type="trigger-event-no-matching-trigger-data")
    windows = source.registration.windows_of(data)
    window = windows.index_at(trigger.time_ms - source.time_ms)
    if window < 0:
        return AttributionResult(type="trigger-event-report-window-not-started")
    if window == len(windows.ends_ms):
        return AttributionResult(type="trigger-event-report-window-passed")
    return EventMatch(config=config, trigger_data=data, window_end_ms=source.time_ms + windows.ends_ms[window])


def create_event_report(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource, subject: FilterSubject
) -> EventCandidate | AttributionResult:
    """Return the report a trigger would make for a source, or why it makes none."""
    match = match_event_trigger(trigger, source, subject)
    if isinstance(match, AttributionResult):
        return match
    report = event_report(state, source, match.trigger_data, match.window_end_ms, trigger_debug_key=trigger.debug_key)
    return EventCandidate(config=match.config, report=report)


def store_event_report(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource, candidate: EventCandidate
) -> tuple[AttributionResult, PendingReport | None]:
    """Store a report, replacing one of lower priority if the source has reached its maximum; return the result.

    The second part is the stored report, or None if nothing was stored; a source that noise silenced stores nothing
    although it passed every check.
    """
    report, priority = candidate.report, candidate.config.priority
    if not source.event_level_active:
        return AttributionResult(type="trigger-event-excessive-reports", dropped=report), None
    if source.event_reports < source.registration.max_event_level_reports:
        refusal = check_event_limits(state, trigger, source)
        if refusal is not None:
            return refusal, None
        source.event_reports += 1
    else:
        lowest = _lowest_priority(state, source, report.scheduled_time_ms)
        if lowest is None:
            source.event_level_active = False
            return AttributionResult(type="trigger-event-excessive-reports", dropped=report), None
        if priority <= lowest.priority:
            return AttributionResult(type="trigger-event-low-priority", dropped=report), None
        state.pending.remove(lowest)
        state.limits.forget_report("event", lowest.id)
    if candidate.config.dedup_key is not None:
        source.dedup_keys.add(candidate.config.dedup_key)
    if source.attribution_logic == "never":
        return AttributionResult(type="trigger-event-noise"), None
    return SUCCESS, state.schedule(report, source, trigger.time_ms, priority=priority)


def check_event_limits(state: BrowserState, trigger: TriggerEvent, source: StoredSource) -> AttributionResult | None:
    """Return the refusal if a limit forbids one more event-level report, otherwise None."""
    config = state.config
    if not state.limits.allows_attribution(source, "event", trigger.destination):
        kind = "trigger-event-attributions-per-source-destination-limit"
        return AttributionResult(type=kind, limit=config.max_attributions)
    most = config.max_event_level_reports_per_destination
    if state.pending.event_count(trigger.destination) >= most:
        return AttributionResult(type="trigger-event-storage-limit", limit=most)
    return None


def event_report(
    state: BrowserState,
    source: StoredSource,
    trigger_data: int,
    due_ms: int,
    *,
    bucket: int | None = None,
    trigger_debug_key: int | None = None,
    trigger_debug_keys: tuple[int, ...] = (),
) -> EventLevelReport:
    """Return a report (WICG, "obtain an event-level report"); ``bucket`` is the index of a summary bucket, if any."""
    spec = source.registration.spec_of(trigger_data)
    return EventLevelReport(
        reporting_origin=source.reporting_origin,
        report_id=state.draws.report_id(),
        scheduled_time_ms=due_ms,
        source_event_id=source.registration.source_event_id,
        source_type=source.source_type,
        trigger_data=trigger_data,
        response_rate=source.response_rate,
        destinations=source.registration.destinations,
        source_debug_key=source.debug_key,
        trigger_debug_key=trigger_debug_key,
        summary_bucket=None if spec is None or bucket is None else spec.bucket_range(bucket),
        trigger_debug_keys=trigger_debug_keys,
    )


def _lowest_priority(state: BrowserState, source: StoredSource, due_ms: int) -> PendingReport | None:
    """Return the source's report due at ``due_ms`` to replace, or None: lowest priority first, then newest."""
    same_window = [
        pending
        for pending in state.pending.of_source(source.id)
        if is_event_level(pending) and pending.initial_due_ms == due_ms
    ]
    return min(same_window, key=lambda pending: (pending.priority, -pending.id), default=None)
