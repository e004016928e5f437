"""Values that the steps of attribution exchange: a trigger as it arrived, and the results for triggers and sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aggservice.wire import Origin
from ara_client.registration.trigger import TriggerRegistration
from ara_client.reports import EventLevelReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerEvent:
    """A trigger as it arrived: its site, its reporting origin, its time and its registration."""

    registration: TriggerRegistration
    context_origin: Origin
    reporting_origin: Origin
    time_ms: int
    cookie_debug_allowed: bool
    fenced: bool

    @property
    def destination(self) -> str:
        """The site on which the trigger was registered."""
        return self.context_origin.site

    @property
    def debug_key(self) -> int | None:
        """The debug key, if cookies allow one."""
        return self.registration.debug_key if self.cookie_debug_allowed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionResult:
    """The result of event-level or of aggregatable attribution.

    ``type`` is the debug data type of a failure; None for success, and if the trigger requested no such report.
    ``dropped`` is the event-level report that was made but not stored.
    """

    success: bool = False
    type: str | None = None
    limit: int | None = None
    name: str | None = None
    dropped: EventLevelReport | None = None


NOT_REGISTERED: Final = AttributionResult()
SUCCESS: Final = AttributionResult(success=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """The result of a source registration.

    ``limit`` is the limit that refused it, as JSON; ``replaced_limit`` is the destination limit for which older
    sources were removed.
    """

    type: str
    limit: str | float | None = None
    noised: bool = False
    replaced_limit: int | None = None

    @property
    def stored(self) -> bool:
        """Whether the source was stored."""
        return self.type == "source-success"
