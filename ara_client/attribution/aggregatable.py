"""Aggregatable attribution: contributions, their budgets, and the null reports that hide whether any were made.

WICG, "trigger aggregatable attribution", in the two steps of Chromium's resolver.
"""

from __future__ import annotations

from dataclasses import dataclass

from aggservice.wire import Contribution
from ara_client.attribution.outcomes import NOT_REGISTERED, SUCCESS, AttributionResult, TriggerEvent
from ara_client.constants import AGGREGATABLE_BUDGET, DAY_MS, NULL_REPORT_LOOKBACK_DAYS
from ara_client.registration.filters import FilterSubject, first_match
from ara_client.registration.trigger import TriggerRegistration
from ara_client.reports import AggregatableAttributionReport
from ara_client.sending import rounded_source_time_s
from ara_client.storage.browser_state import BrowserState, PendingReport
from ara_client.storage.sources import StoredSource


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableCandidate:
    """An aggregatable report that could be stored: its contributions and its deduplication key."""

    contributions: tuple[Contribution, ...]
    dedup_key: int | None

    @property
    def required(self) -> int:
        """The sum of the contributions' values: the amount to charge to the budgets."""
        return sum(contribution.value for contribution in self.contributions)


def create_aggregatable(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource, subject: FilterSubject
) -> AggregatableCandidate | AttributionResult:
    """Return the aggregatable report that a trigger would make for a source, or why it makes none."""
    registration = trigger.registration
    if not registration.has_aggregatable_data:
        return NOT_REGISTERED
    if trigger.time_ms >= source.aggregatable_window_end_ms:
        return AttributionResult(type="trigger-aggregate-report-window-passed")
    matched = first_match(subject, registration.aggregatable_dedup_keys)
    dedup_key = None if matched is None else matched.key
    if dedup_key is not None and dedup_key in source.aggregatable_dedup_keys:
        return AttributionResult(type="trigger-aggregate-deduplicated")
    contributions = contributions_of(source, registration, subject)
    if not contributions:
        return AttributionResult(type="trigger-aggregate-no-contributions")
    most = state.config.max_aggregatable_reports_per_destination
    if state.pending.aggregatable_count(trigger.destination) >= most:
        return AttributionResult(type="trigger-aggregate-storage-limit", limit=most)
    if not state.limits.allows_attribution(source, "aggregatable", trigger.destination):
        kind = "trigger-aggregate-attributions-per-source-destination-limit"
        return AttributionResult(type=kind, limit=state.config.max_attributions)
    return AggregatableCandidate(contributions=contributions, dedup_key=dedup_key)


def contributions_of(
    source: StoredSource, registration: TriggerRegistration, subject: FilterSubject
) -> tuple[Contribution, ...]:
    """Return the histogram contributions of a source and a trigger (WICG, "create aggregatable contributions").

    There is one per aggregation key for which the trigger has a value, in the order of the keys' names.
    """
    buckets = dict(source.registration.aggregation_keys)
    for data in registration.aggregatable_trigger_data:
        if subject.matches(data.filters):
            for key in data.source_keys:
                if key in buckets:
                    buckets[key] |= data.key_piece
    chosen = first_match(subject, registration.aggregatable_values)
    if chosen is None:
        return ()
    values = chosen.values
    return tuple(
        Contribution(bucket=bucket, value=values[key].value, filtering_id=values[key].filtering_id)
        for key, bucket in buckets.items()
        if key in values
    )


def store_aggregatable(
    state: BrowserState,
    trigger: TriggerEvent,
    source: StoredSource,
    subject: FilterSubject,
    candidate: AggregatableCandidate,
) -> tuple[AttributionResult, PendingReport | None]:
    """Charge the source's budgets and store the report; return the result and the stored report, if any."""
    registration, required = trigger.registration, candidate.required
    counted = registration.trigger_context_id is None
    most = state.config.max_aggregatable_reports_per_source
    if counted and source.aggregatable_reports >= most:
        return AttributionResult(type="trigger-aggregate-excessive-reports", limit=most), None
    if required > source.remaining_budget:
        return AttributionResult(type="trigger-aggregate-insufficient-budget", limit=AGGREGATABLE_BUDGET), None
    choice = first_match(subject, registration.named_budgets)
    name = None if choice is None else choice.name
    if name is not None and name in source.named_budgets:
        if required > source.named_budgets[name]:
            limit = source.registration.named_budgets[name]
            return AttributionResult(type="trigger-aggregate-insufficient-named-budget", limit=limit, name=name), None
        source.named_budgets[name] -= required
    source.remaining_budget -= required
    source.aggregatable_reports += counted
    if candidate.dedup_key is not None:
        source.aggregatable_dedup_keys.add(candidate.dedup_key)
    return SUCCESS, _schedule(
        state, trigger, source_time_ms=source.time_ms, contributions=candidate.contributions, source=source
    )


def add_null_reports(state: BrowserState, trigger: TriggerEvent, attributed_time_ms: int | None) -> None:
    """Add the null reports of a trigger (WICG, "generate null attribution reports").

    ``attributed_time_ms`` is the time of the source of the trigger's real report, or None without a real report.
    """
    registration = trigger.registration
    if not registration.has_aggregatable_data:
        return
    if not registration.includes_source_time:
        if attributed_time_ms is None and (
            registration.sends_unconditionally or state.draws.null_report(0, includes_source_time=False)
        ):
            _schedule(state, trigger, source_time_ms=trigger.time_ms)
        return
    attributed_day_s = None if attributed_time_ms is None else rounded_source_time_s(attributed_time_ms)
    for day in range(NULL_REPORT_LOOKBACK_DAYS + 1):
        time_ms = trigger.time_ms - day * DAY_MS
        if rounded_source_time_s(time_ms) != attributed_day_s and state.draws.null_report(
            day, includes_source_time=True
        ):
            _schedule(state, trigger, source_time_ms=time_ms)


def _schedule(
    state: BrowserState,
    trigger: TriggerEvent,
    *,
    source_time_ms: int,
    contributions: tuple[Contribution, ...] = (),
    source: StoredSource | None = None,
) -> PendingReport:
    registration = trigger.registration
    delay_ms = 0 if registration.sends_unconditionally else state.draws.aggregatable_delay_ms()
    report = AggregatableAttributionReport(
        reporting_origin=trigger.reporting_origin,
        report_id=state.draws.report_id(),
        scheduled_time_ms=trigger.time_ms + delay_ms,
        destination=trigger.destination,
        coordinator=registration.coordinator or state.config.default_coordinator,
        contributions=contributions,
        source_time_ms=source_time_ms if registration.includes_source_time else None,
        trigger_context_id=registration.trigger_context_id,
        source_debug_key=None if source is None else source.debug_key,
        trigger_debug_key=None if source is None else trigger.debug_key,
        filtering_id_max_bytes=registration.filtering_id_max_bytes,
        is_null=source is None,
    )
    return state.schedule(report, source, trigger.time_ms, unconditional=registration.sends_unconditionally)
