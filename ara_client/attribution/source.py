"""Storing a source: noise, limits, and the older sources that it replaces (WICG, "process an attribution source").

Follows the order of Chromium's ``AttributionResolverImpl::StoreSource``: limits that other reporting origins can use
up are checked last, after every limit that a debug report may name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isinf

from ara_client.attribution.event_level import event_report
from ara_client.attribution.outcomes import SourceOutcome
from ara_client.event_noise.response import channel_capacity, response_rate, scopes_channel_capacity
from ara_client.event_noise.state_space import StateReport, StateSpace, TriggerDataSpec, space_of
from ara_client.registration.filters import AttributionScopes
from ara_client.registration.source import SourceRegistration
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource

# Attribution scopes at registration: the older sources that a new one updates or removes.
#
# WICG, "remove or update sources for attribution scopes".


def remove_conflicting_scopes(state: BrowserState, source: StoredSource) -> None:
    """Update or remove the sources of the same reporting origin that share a destination with a new one.

    A source without scopes clears the scopes of the others. A source with scopes removes sources with incompatible
    limits, and sources with a scope that is no longer among the most recent ones that the limit allows.
    """
    destinations = source.registration.destinations
    older = {
        found.id: found
        for destination in destinations
        for found in state.sources.with_target(source.reporting_origin, destination)
    }
    if source.scopes is None:
        for found in older.values():
            found.scopes = None
        return
    for found in older.values():
        if not _compatible(found.scopes, source.scopes):
            _remove(state, found, source.time_ms)
    for destination in destinations:
        _keep_recent_scopes(state, source, source.scopes, destination)


def _compatible(existing: AttributionScopes | None, new: AttributionScopes) -> bool:
    return existing is not None and existing.max_event_states == new.max_event_states and existing.limit >= new.limit


def _keep_recent_scopes(state: BrowserState, source: StoredSource, scopes: AttributionScopes, destination: str) -> None:
    """Keep the new scopes and the most recently used others, up to the limit; remove sources with any other scope."""
    with_scopes = [
        (found, found.scopes.values)
        for found in state.sources.with_target(source.reporting_origin, destination)
        if found.scopes is not None
    ]
    last_used: dict[str, int] = {}
    for found, values in with_scopes:
        for scope in values - scopes.values:
            last_used[scope] = max(last_used.get(scope, found.time_ms), found.time_ms)
    recent = sorted(last_used, key=lambda scope: (last_used[scope], scope.encode()), reverse=True)
    obsolete = set(recent[scopes.limit - len(scopes.values) :])
    for found, values in with_scopes:
        if not obsolete.isdisjoint(values):
            _remove(state, found, source.time_ms)


def _remove(state: BrowserState, source: StoredSource, now_ms: int) -> None:
    state.drop_event_reports(source, now_ms)
    state.sources.remove(source)


def store_source(state: BrowserState, source: StoredSource) -> SourceOutcome:
    """Store a source unless a limit forbids it; return the outcome."""
    now_ms = source.time_ms
    space = state_space(source.registration)
    refusal = _check_states(state, source, space)
    if refusal is not None:
        return refusal
    response = state.draws.response(space, source.registration.event_level_epsilon)
    state.sources.expire(now_ms)
    refusal, global_limit = _check_own_limits(state, source)
    if refusal is not None:
        return refusal
    config = state.config
    removed = state.destinations.sources_to_deactivate(source)
    living_limit = config.max_destinations_per_source_site_and_reporting_site
    if removed is None:
        return SourceOutcome(type="source-destination-limit", limit=str(living_limit))
    replaced = living_limit if removed else None
    _deactivate(state, removed, now_ms)
    remove_conflicting_scopes(state, source)
    noised = response is not None
    if global_limit:
        return SourceOutcome(type="source-destination-global-rate-limit", noised=noised, replaced_limit=replaced)
    if not state.limits.allows_source_origin(source):
        return SourceOutcome(type="source-reporting-origin-limit", noised=noised, replaced_limit=replaced)
    state.sources.add(source)
    state.limits.add_source(source)
    if response is not None:
        _noise(state, source, response)
    return SourceOutcome(type="source-success", noised=noised, replaced_limit=replaced)


def state_space(registration: SourceRegistration) -> StateSpace:
    """Return the space of the event-level reports that a source can send."""
    if registration.specs is None:
        windows = len(registration.windows.ends_ms)
        return _plain_space(registration.trigger_data, windows, registration.max_event_level_reports)
    specs = [
        TriggerDataSpec(trigger_data=data, windows=len(spec.windows.ends_ms), buckets=len(spec.buckets))
        for spec in registration.specs
        for data in spec.trigger_data
    ]
    return space_of(tuple(specs), registration.max_event_level_reports)


@lru_cache(maxsize=1024)
def _plain_space(trigger_data: tuple[int, ...], windows: int, max_reports: int) -> StateSpace:
    specs = tuple(TriggerDataSpec(trigger_data=data, windows=windows) for data in trigger_data)
    return space_of(specs, max_reports)


def _check_states(state: BrowserState, source: StoredSource, space: StateSpace) -> SourceOutcome | None:
    """Set a source's rate of noise; return the refusal if its reports could reveal too much, otherwise None."""
    config, epsilon, states = state.config, source.registration.event_level_epsilon, space.count
    if states > config.max_trigger_state_cardinality:
        limit = str(config.max_trigger_state_cardinality)
        return SourceOutcome(type="source-trigger-state-cardinality-limit", limit=limit)
    source.response_rate = 0.0 if isinf(epsilon) else response_rate(states, epsilon)
    capacity = config.max_channel_capacity(source.source_type)
    if channel_capacity(states, source.response_rate) > capacity:
        return SourceOutcome(type="source-channel-capacity-limit", limit=capacity)
    scopes = source.scopes
    if scopes is None:
        return None
    if source.source_type == "event" and states > scopes.max_event_states:
        return SourceOutcome(type="source-max-event-states-limit", limit=str(scopes.max_event_states))
    capacity = config.max_scopes_channel_capacity(source.source_type)
    if scopes_channel_capacity(states, scopes.max_event_states, scopes.limit) > capacity:
        return SourceOutcome(type="source-scopes-channel-capacity-limit", limit=capacity)
    return None


def _check_own_limits(state: BrowserState, source: StoredSource) -> tuple[SourceOutcome | None, bool]:
    """Return the refusal if a source exceeds a limit of its own origin or reporting site, otherwise None.

    The second part says whether it exceeds the limit on destinations that all reporting sites share.
    """
    config = state.config
    if state.sources.count_at(source.origin) >= config.max_sources_per_origin:
        return SourceOutcome(type="source-storage-limit", limit=str(config.max_sources_per_origin)), False
    if not state.limits.allows_origin_per_site(source):
        limit = str(config.max_reporting_origins_per_source_reporting_site)
        return SourceOutcome(type="source-reporting-origin-per-site-limit", limit=limit), False
    verdict = state.destinations.within_window(source)
    if verdict == "hit reporting limit":
        limit = str(config.max_destinations_per_window_reporting_site)
        return SourceOutcome(type="source-destination-rate-limit", limit=limit), False
    if not state.destinations.within_day(source):
        limit = str(config.max_destinations_per_day)
        return SourceOutcome(type="source-destination-per-day-rate-limit", limit=limit), False
    return None, verdict == "hit global limit"


def _deactivate(state: BrowserState, source_ids: set[int], now_ms: int) -> None:
    """Remove sources to meet the limit on destinations (WICG, "delete sources for unexpired destination limit")."""
    for source_id in source_ids:
        state.limits.deactivate(source_id)
        source = state.sources.get(source_id)
        for pending in state.pending.of_source(source_id):
            assert pending.source is not None
            source = pending.source
        if source is not None:
            state.sources.remove(source)
            state.drop_event_reports(source, now_ms)
            state.drop_aggregatable_reports(source)


def _noise(state: BrowserState, source: StoredSource, response: Sequence[StateReport]) -> None:
    """Make a source send the drawn reports and no others (WICG, "obtain a fake report")."""
    source.attribution_logic = "falsely" if response else "never"
    source.event_level_active = not response
    source.event_reports = len(response)
    for trigger_data, window, bucket in response:
        windows = source.registration.windows_of(trigger_data)
        report = event_report(state, source, trigger_data, source.time_ms + windows.ends_ms[window], bucket=bucket)
        state.schedule(report, source, source.time_ms + windows.start_of(window))
    state.limits.add_fake_attribution(source)
