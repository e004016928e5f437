"""Debug reports about the registration of a source: what it is told, in the clear and to be aggregated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aggservice.wire import Contribution, Origin
from ara_client.registration.debug_reporting import TYPE_ORDER, DebugReportingConfig
from ara_client.reports import AggregatableDebugReport, VerboseDebugData, VerboseDebugReport, destination_json
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource

_HIDDEN: Final = frozenset({"source-destination-global-rate-limit", "source-reporting-origin-limit"})
"""Limits that depend on other reporting origins: reported in the clear as success (WICG, same-origin policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """What became of a source. ``limit`` is what it ran into, as JSON; ``replaced_limit`` the destination limit hit."""

    type: str
    limit: str | float | None = None
    noised: bool = False
    replaced_limit: int | None = None

    @property
    def stored(self) -> bool:
        """Whether the source is held."""
        return self.type == "source-success"


def send_source_debug(state: BrowserState, source: StoredSource, outcome: SourceOutcome) -> None:
    """Send what debug reports the source asked for (WICG, "… debug reports on source registration")."""
    if source.fenced:
        return
    if source.registration.debug_reporting and source.cookie_debug_allowed:
        state.outbox.append(_verbose(source, outcome))
    config = source.registration.debug
    if not config.data:
        return
    types = ["source-noised" if outcome.stored and outcome.noised else outcome.type]
    if outcome.replaced_limit is not None:
        types.append("source-destination-limit-replaced")
    send_aggregatable_debug(
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


def send_aggregatable_debug(
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
    """Send an aggregatable debug report for some types of debug data; a null one if no budget pays for it.

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
            coordinator=config.coordinator or state.vendor.default_coordinator,
            contributions=contributions if paid else (),
        )
    )


def _verbose(source: StoredSource, outcome: SourceOutcome) -> VerboseDebugReport:
    kind = "source-success" if outcome.type in _HIDDEN else outcome.type
    if kind == "source-success" and outcome.noised:
        kind = "source-noised"
    body: dict[str, Any] = {
        "attribution_destination": destination_json(source.registration.destinations),
        **source_body(source),
    }
    if outcome.limit is not None:
        body["limit"] = outcome.limit
    if outcome.replaced_limit is not None:
        body["source_destination_limit"] = str(outcome.replaced_limit)
    return VerboseDebugReport(reporting_origin=source.reporting_origin, data=(VerboseDebugData(type=kind, body=body),))


def source_body(source: StoredSource) -> dict[str, Any]:
    """Return what verbose debug reports say about a source."""
    body: dict[str, Any] = {"source_event_id": str(source.registration.source_event_id), "source_site": source.site}
    if source.debug_key is not None:
        body["source_debug_key"] = str(source.debug_key)
    return body
