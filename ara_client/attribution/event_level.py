"""Event-level attribution: whether a trigger makes a report, and which report it may replace.

WICG, "trigger event-level attribution", in the two steps of Chromium's resolver: what the report would be, and
whether it can be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ara_client.attribution.source import event_report
from ara_client.attribution.trigger_debug import NOT_REGISTERED, SUCCESS, Trigger, Verdict
from ara_client.registration.trigger import EventTriggerData
from ara_client.reports import EventLevelReport
from ara_client.storage.browser_state import BrowserState, is_event_level
from ara_client.storage.matching import FilterSubject, first_match
from ara_client.storage.pending import PendingReport
from ara_client.storage.sources import StoredSource


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCandidate:
    """An event-level report that could be stored."""

    config: EventTriggerData
    report: EventLevelReport


def create_event_report(
    state: BrowserState, trigger: Trigger, source: StoredSource, subject: FilterSubject
) -> EventCandidate | Verdict:
    """Return the report a trigger would make for a source, or why it makes none."""
    if not trigger.registration.event_triggers:
        return NOT_REGISTERED
    if source.attribution_logic == "falsely":
        return Verdict(type="trigger-event-noise")
    config = first_match(subject, trigger.registration.event_triggers)
    if config is None:
        return Verdict(type="trigger-event-no-matching-configurations")
    if config.dedup_key is not None and config.dedup_key in source.dedup_keys:
        return Verdict(type="trigger-event-deduplicated")
    registration = source.registration
    data = registration.match_trigger_data(config.data)
    if data is None:
        return Verdict(type="trigger-event-no-matching-trigger-data")
    window = registration.windows.index_at(trigger.time_ms - source.time_ms)
    if window < 0:
        return Verdict(type="trigger-event-report-window-not-started")
    if window == len(registration.windows.ends_ms):
        return Verdict(type="trigger-event-report-window-passed")
    due_ms = source.time_ms + registration.windows.ends_ms[window]
    report = event_report(state, source, data, due_ms, trigger_debug_key=trigger.debug_key)
    return EventCandidate(config=config, report=report)


def store_event_report(
    state: BrowserState, trigger: Trigger, source: StoredSource, candidate: EventCandidate
) -> tuple[Verdict, PendingReport | None]:
    """Store a report, in place of one of lower priority if the source has no room left; say what became of it.

    The second part is the stored report; None where nothing is, which for a source that never reports may follow
    on every other sign of success.
    """
    report, priority = candidate.report, candidate.config.priority
    if not source.event_level_active:
        return Verdict(type="trigger-event-excessive-reports", dropped=report), None
    if source.event_reports < source.registration.max_event_level_reports:
        verdict = _judge_limits(state, trigger, source)
        if verdict is not None:
            return verdict, None
        source.event_reports += 1
    else:
        lowest = _lowest_priority(state, source, report.scheduled_time_ms)
        if lowest is None:
            source.event_level_active = False
            return Verdict(type="trigger-event-excessive-reports", dropped=report), None
        if priority <= lowest.priority:
            return Verdict(type="trigger-event-low-priority", dropped=report), None
        state.pending.remove(lowest)
        state.limits.forget_report("event", lowest.id)
    if candidate.config.dedup_key is not None:
        source.dedup_keys.add(candidate.config.dedup_key)
    if source.attribution_logic == "never":
        return Verdict(type="trigger-event-noise"), None
    pending = PendingReport(
        id=state.next_id(),
        report=report,
        source=source,
        trigger_time_ms=trigger.time_ms,
        due_ms=report.scheduled_time_ms,
        priority=priority,
    )
    state.pending.add(pending)
    return SUCCESS, pending


def _judge_limits(state: BrowserState, trigger: Trigger, source: StoredSource) -> Verdict | None:
    vendor = state.vendor
    if not state.limits.allows_attribution(source, "event", trigger.destination):
        kind = "trigger-event-attributions-per-source-destination-limit"
        return Verdict(type=kind, limit=vendor.max_attributions)
    most = vendor.max_event_level_reports_per_destination
    if state.pending.event_count(trigger.destination) >= most:
        return Verdict(type="trigger-event-storage-limit", limit=most)
    return None


def _lowest_priority(state: BrowserState, source: StoredSource, due_ms: int) -> PendingReport | None:
    """Return the report of a source's window that gives way first: lowest priority, then latest made."""
    same_window = [
        pending
        for pending in state.pending.of_source(source.id)
        if is_event_level(pending) and pending.initial_due_ms == due_ms
    ]
    return min(same_window, key=lambda pending: (pending.priority, -pending.id), default=None)
