"""Debug reports about sources and triggers: verbose ones in the clear, and aggregatable ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aggservice.wire import Contribution, Origin
from ara_client.attribution.outcomes import AttributionResult, SourceOutcome, TriggerEvent
from ara_client.registration.debug_reporting import TYPE_ORDER, DebugReportingConfig
from ara_client.reports import AggregatableDebugReport, VerboseDebugData, VerboseDebugReport, destination_json
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource

_HIDDEN: Final = frozenset({"source-destination-global-rate-limit", "source-reporting-origin-limit"})
"""Limits that depend on other reporting origins: verbose reports show them as success (WICG, same-origin policy)."""


def send_source_debug(state: BrowserState, source: StoredSource, outcome: SourceOutcome) -> None:
    """Send the debug reports that the source requested (WICG, "… debug reports on source registration")."""
    if source.fenced:
        return
    if source.registration.debug_reporting and source.cookie_debug_allowed:
        state.outbox.append(_source_report(source, outcome))
    config = source.registration.debug
    if not config.data:
        return
    types = ["source-noised" if outcome.stored and outcome.noised else outcome.type]
    if outcome.replaced_limit is not None:
        types.append("source-destination-limit-replaced")
    _send_aggregatable(
        state,
        config,
        types,
        key_piece=config.key_piece,
        context_site=source.site,
        reporting_origin=source.reporting_origin,
        destination=source.registration.destinations[0],
        source=source,
        now_ms=source.time_ms,
    )


def send_trigger_debug(
    state: BrowserState, trigger: TriggerEvent, source: StoredSource | None, results: Iterable[AttributionResult]
) -> None:
    """Send the debug reports that the trigger requested (WICG, "… debug reports on trigger registration")."""
    if trigger.fenced:
        return
    registration = trigger.registration
    by_type: dict[str, AttributionResult] = {}
    for result in results:
        if result.type is not None:
            by_type.setdefault(result.type, result)
    if (
        by_type
        and registration.debug_reporting
        and trigger.cookie_debug_allowed
        and (source is None or source.cookie_debug_allowed)
    ):
        data = tuple(
            VerboseDebugData(type=name, body=_trigger_body(result, trigger, source)) for name, result in by_type.items()
        )
        state.outbox.append(VerboseDebugReport(reporting_origin=trigger.reporting_origin, data=data))
    config = registration.debug
    if not config.data:
        return
    source_piece = 0 if source is None else source.registration.debug.key_piece
    _send_aggregatable(
        state,
        config,
        by_type,
        key_piece=config.key_piece | source_piece,
        context_site=trigger.destination,
        reporting_origin=trigger.reporting_origin,
        destination=trigger.destination,
        source=source,
        now_ms=trigger.time_ms,
    )


def _send_aggregatable(
    state: BrowserState,
    config: DebugReportingConfig,
    types: Iterable[str],
    *,
    key_piece: int,
    context_site: str,
    reporting_origin: Origin,
    destination: str,
    source: StoredSource | None,
    now_ms: int,
) -> None:
    """Send an aggregatable debug report for some types of debug data; a null report if a budget is spent.

    WICG, "obtain and deliver an aggregatable debug report on registration".
    """
    contributions = tuple(
        Contribution(bucket=key_piece | config.data[name].key_piece, value=config.data[name].value)
        for name in sorted(set(types), key=TYPE_ORDER.__getitem__)
        if name in config.data
    )
    paid = contributions and state.debug_budgets.charge(
        sum(contribution.value for contribution in contributions),
        context_site=context_site,
        reporting_origin=reporting_origin,
        source=source,
        now_ms=now_ms,
    )
    state.outbox.append(
        AggregatableDebugReport(
            reporting_origin=reporting_origin,
            report_id=state.draws.report_id(),
            scheduled_time_ms=now_ms,
            destination=destination,
            coordinator=config.coordinator or state.config.default_coordinator,
            contributions=contributions if paid else (),
        )
    )


def _source_report(source: StoredSource, outcome: SourceOutcome) -> VerboseDebugReport:
    kind = "source-success" if outcome.type in _HIDDEN else outcome.type
    if kind == "source-success" and outcome.noised:
        kind = "source-noised"
    body: dict[str, Any] = {
        "attribution_destination": destination_json(source.registration.destinations),
        **_source_body(source),
    }
    if outcome.limit is not None:
        body["limit"] = outcome.limit
    if outcome.replaced_limit is not None:
        body["source_destination_limit"] = str(outcome.replaced_limit)
    return VerboseDebugReport(reporting_origin=source.reporting_origin, data=(VerboseDebugData(type=kind, body=body),))


def _trigger_body(result: AttributionResult, trigger: TriggerEvent, source: StoredSource | None) -> dict[str, Any]:
    if result.dropped is not None:
        return result.dropped.to_dict()
    body: dict[str, Any] = {"attribution_destination": trigger.destination}
    if result.limit is not None:
        body["limit"] = str(result.limit)
    if result.name is not None:
        body["name"] = result.name
    if trigger.debug_key is not None:
        body["trigger_debug_key"] = str(trigger.debug_key)
    return body if source is None else body | _source_body(source)


def _source_body(source: StoredSource) -> dict[str, Any]:
    """Return the fields of a verbose debug report about a source."""
    body: dict[str, Any] = {"source_event_id": str(source.registration.source_event_id), "source_site": source.site}
    if source.debug_key is not None:
        body["source_debug_key"] = str(source.debug_key)
    return body
