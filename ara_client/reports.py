"""The reports a browser sends, as values: their address, time and body.

WICG, sections "Report delivery" and "Serialize attribution report body". Every report has ``url``, ``time_ms`` (when
it was sent; None until then), ``to_dict()`` (its body as JSON values) and ``to_json()`` (its body).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any, ClassVar

from aggservice.wire import Contribution, Origin
from aggservice.wire.device import SentReport, UnsealedReportError
from aggservice.wire.report.body import write_json
from ara_client.constants import DEFAULT_FILTERING_ID_MAX_BYTES, SECOND_MS, WELL_KNOWN

JsonMap = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingReport(SentReport, ABC):
    """The base of every report: the origin that receives it; the endpoint follows (WICG, "generate a report URL")."""

    url: str = field(init=False, compare=False)
    reporting_origin: Origin

    #: The last part of the endpoint's path; the immediate copy of a report goes below ``debug/``.
    endpoint: ClassVar[str]

    def __post_init__(self) -> None:
        copy = "debug/" if getattr(self, "debug", False) else ""
        object.__setattr__(self, "url", f"{self.reporting_origin}{WELL_KNOWN}{copy}{self.endpoint}")

    @abstractmethod
    def to_dict(self) -> Any:
        """Return the body as JSON values."""

    def to_json(self) -> str:
        return write_json(self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevelReport(OutgoingReport):
    """A report about one trigger, or a fake one. ``debug`` marks the copy that is sent immediately.

    Only the full-flexible form sets ``summary_bucket`` and ``trigger_debug_keys``.
    """

    endpoint = "report-event-attribution"
    report_id: str
    scheduled_time_ms: int
    source_event_id: int
    source_type: str
    trigger_data: int
    response_rate: float
    destinations: tuple[str, ...]
    source_debug_key: int | None = None
    trigger_debug_key: int | None = None
    debug: bool = False
    summary_bucket: tuple[int, int] | None = None
    trigger_debug_keys: tuple[int, ...] = ()

    def to_dict(self) -> JsonMap:
        """Return the body (WICG, "obtain an event-level report body")."""
        body: JsonMap = {
            "attribution_destination": destination_json(self.destinations),
            "randomized_trigger_rate": floor(self.response_rate * 1e7 + 0.5) / 1e7,
            "report_id": self.report_id,
            "scheduled_report_time": str(self.scheduled_time_ms // SECOND_MS),
            "source_event_id": str(self.source_event_id),
            "source_type": self.source_type,
            "trigger_data": str(self.trigger_data),
        }
        if self.summary_bucket is not None:
            body["trigger_summary_bucket"] = list(self.summary_bucket)
        if self.trigger_debug_keys and self.source_debug_key is not None:
            body["source_debug_key"] = str(self.source_debug_key)
            body["trigger_debug_keys"] = [str(key) for key in self.trigger_debug_keys]
        return body | _debug_keys(self.source_debug_key, self.trigger_debug_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealableReport(OutgoingReport):
    """The base of both kinds of aggregatable reports.

    ``contributions`` are the true ones, without the nulls that pad the payload; they never leave the device in the
    clear.
    """

    report_id: str
    scheduled_time_ms: int
    destination: str
    coordinator: Origin
    contributions: tuple[Contribution, ...]

    def to_dict(self) -> JsonMap:
        """Return the body; raise ``UnsealedReportError`` if the browser had no key."""
        if self.sealed is None:
            raise UnsealedReportError(f"this report has no sealed body: pass Browser the keys of {self.coordinator}")
        return self.sealed.to_dict()


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableAttributionReport(SealableReport):
    """A report with attributed contributions, or a null report. ``source_time_ms`` is None if excluded."""

    endpoint = "report-aggregate-attribution"
    source_time_ms: int | None
    trigger_context_id: str | None = None
    source_debug_key: int | None = None
    trigger_debug_key: int | None = None
    filtering_id_max_bytes: int = DEFAULT_FILTERING_ID_MAX_BYTES
    is_null: bool = False
    debug: bool = False

    @property
    def debug_enabled(self) -> bool:
        """Whether both sides gave a debug key (WICG, "check if attribution debugging can be enabled")."""
        return self.source_debug_key is not None and self.trigger_debug_key is not None

    def as_null(self) -> AggregatableAttributionReport:
        """Return the null report that may take its place: the same id, times, destination and context ID."""
        return replace(self, contributions=(), source_debug_key=None, trigger_debug_key=None, is_null=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableDebugReport(SealableReport):
    """An aggregatable report about the outcome of a registration."""

    endpoint = "debug/report-aggregate-debug"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerboseDebugData:
    """One entry of a verbose debug report.

    ``problems`` says what was wrong with a malformed header. Chromium does not send it, so only the simulator sees it.
    """

    type: str
    body: Mapping[str, Any]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerboseDebugReport(OutgoingReport):
    """A report in the clear about the outcome of a registration."""

    endpoint = "debug/verbose"
    data: tuple[VerboseDebugData, ...]

    def to_dict(self) -> list[JsonMap]:
        """Return the body (WICG, "serialize a verbose debug report")."""
        return [{"body": dict(entry.body), "type": entry.type} for entry in self.data]


def destination_json(destinations: tuple[str, ...]) -> str | list[str]:
    """Return destinations as reports show them: a string if there is one, a list otherwise."""
    return destinations[0] if len(destinations) == 1 else list(destinations)


def _debug_keys(source: int | None, trigger: int | None) -> JsonMap:
    if source is None or trigger is None:
        return {}
    return {"source_debug_key": str(source), "trigger_debug_key": str(trigger)}
