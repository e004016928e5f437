"""Debug reports about a trigger: what became of it, in the clear and to be aggregated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aggservice.wire import Origin
from ara_client.attribution.source_debug import send_aggregatable_debug, source_body
from ara_client.registration.trigger import TriggerRegistration
from ara_client.reports import EventLevelReport, VerboseDebugData, VerboseDebugReport
from ara_client.storage.browser_state import BrowserState
from ara_client.storage.sources import StoredSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger as it happened: where, to whom it reports, when, and what it says."""

    registration: TriggerRegistration
    context_origin: Origin
    reporting_origin: Origin
    time_ms: int
    cookie_debug_allowed: bool
    fenced: bool

    @property
    def destination(self) -> str:
        """The site it happened on."""
        return self.context_origin.site

    @property
    def debug_key(self) -> int | None:
        """The debug key, where cookies would allow one."""
        return self.registration.debug_key if self.cookie_debug_allowed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one half of attribution came to. ``type`` is None for success and for what was never asked for."""

    success: bool = False
    type: str | None = None
    limit: int | None = None
    name: str | None = None
    dropped: EventLevelReport | None = None


NOT_REGISTERED = Verdict()
SUCCESS = Verdict(success=True)


def send_trigger_debug(
    state: BrowserState, trigger: Trigger, source: StoredSource | None, verdicts: tuple[Verdict, Verdict]
) -> None:
    """Send what debug reports the trigger asked for (WICG, "… debug reports on trigger registration")."""
    if trigger.fenced:
        return
    registration = trigger.registration
    told: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.type is not None:
            told.setdefault(verdict.type, verdict)
    if (
        told
        and registration.debug_reporting
        and trigger.cookie_debug_allowed
        and (source is None or source.cookie_debug_allowed)
    ):
        data = tuple(VerboseDebugData(type=name, body=_body(told[name], trigger, source)) for name in told)
        state.outbox.append(VerboseDebugReport(reporting_origin=trigger.reporting_origin, data=data))
    config = registration.debug
    if not config.data:
        return
    source_piece = 0 if source is None else source.registration.debug.key_piece
    send_aggregatable_debug(
        state,
        config,
        told,
        key_piece=config.key_piece | source_piece,
        context_site=trigger.destination,
        reporting_origin=trigger.reporting_origin,
        destination=trigger.destination,
        source=source,
        now_ms=trigger.time_ms,
    )


def _body(verdict: Verdict, trigger: Trigger, source: StoredSource | None) -> dict[str, Any]:
    if verdict.dropped is not None:
        return verdict.dropped.to_dict()
    body: dict[str, Any] = {"attribution_destination": trigger.destination}
    if verdict.limit is not None:
        body["limit"] = str(verdict.limit)
    if verdict.name is not None:
        body["name"] = verdict.name
    if trigger.debug_key is not None:
        body["trigger_debug_key"] = str(trigger.debug_key)
    return body if source is None else body | source_body(source)
