"""Attribution scopes at registration: the older sources that a new one updates or removes.

WICG, "remove or update sources for attribution scopes".
"""

from __future__ import annotations

from ara_client.registration.scopes import AttributionScopes
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource


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
