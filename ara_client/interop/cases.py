"""Interoperability cases: reading and checking the configuration, the events and the expected reports.

The format is Chromium's (content/test/data/attribution_reporting/interop/README.md): a case has an optional
``api_config`` over ``default_config.json``, ``input.registrations`` and ``output.reports``. An entry of
``registrations`` is a request with its responses, a change of the connection (lost or restored), or a navigation of
the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from aggservice.wire.device import DeviceError
from aggservice.wire.report.body import write_json
from ara_client.config import Config
from ara_client.constants import DAY_MS, MINUTE_MS
from ara_client.origins import parse_suitable_origin
from ara_client.requests import Request, Response

_STRING_OR_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*', re.DOTALL)


def strip_comments(text: str) -> str:
    """Return the text without comments; strings that contain slashes stay as they are."""
    return _STRING_OR_COMMENT.sub(lambda match: match[1] or "", text)


def loads(text: str) -> Any:
    """Return the value of JSON text that may have comments."""
    return json.loads(strip_comments(text))


def chromium_json(value: Any) -> str:
    """Return a value as Chromium's test runner writes a header that a case gives as JSON.

    Chromium reads integers beyond 32 bits as doubles, so it writes them as doubles.
    """
    return write_json(_as_read(value))


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_read(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_as_read(entry) for entry in value]
    return float(value) if type(value) is int and not -(1 << 31) <= value < 1 << 31 else value


DEFAULT_CONFIG: Final = "default_config.json"

_INTEGERS: Final = {
    "max_sources_per_origin": ("max_sources_per_origin", 1),
    "max_destinations_per_source_site_reporting_site": ("max_destinations_per_source_site_and_reporting_site", 1),
    "max_destinations_per_rate_limit_window_reporting_site": ("max_destinations_per_window_reporting_site", 1),
    "max_destinations_per_rate_limit_window": ("max_destinations_per_window_total", 1),
    "destination_rate_limit_window_in_minutes": ("destination_window_ms", MINUTE_MS),
    "max_destinations_per_reporting_site_per_day": ("max_destinations_per_day", 1),
    "max_trigger_state_cardinality": ("max_trigger_state_cardinality", 1),
    "rate_limit_time_window_in_days": ("rate_limit_window_ms", DAY_MS),
    "rate_limit_max_source_registration_reporting_origins": ("max_source_reporting_origins", 1),
    "rate_limit_max_attribution_reporting_origins": ("max_attribution_reporting_origins", 1),
    "rate_limit_max_attributions": ("max_attributions", 1),
    "rate_limit_max_reporting_origins_per_source_reporting_site": (
        "max_reporting_origins_per_source_reporting_site",
        1,
    ),
    "rate_limit_origins_per_site_window_in_days": ("origins_per_site_window_ms", DAY_MS),
    "max_event_level_reports_per_destination": ("max_event_level_reports_per_destination", 1),
    "max_aggregatable_reports_per_destination": ("max_aggregatable_reports_per_destination", 1),
    "aggregatable_report_min_delay": ("aggregatable_min_delay_ms", MINUTE_MS),
    "aggregatable_report_delay_span": ("aggregatable_delay_span_ms", MINUTE_MS),
    "max_aggregatable_debug_budget_per_context_site": ("max_aggregatable_debug_budget_per_context_site", 1),
    "max_aggregatable_debug_reports_per_source": ("max_aggregatable_debug_reports_per_source", 1),
    "max_aggregatable_reports_per_source": ("max_aggregatable_reports_per_source", 1),
}
_DOUBLES: Final = {
    "max_settable_event_level_epsilon": "max_event_level_epsilon",
    "max_event_level_channel_capacity_navigation": "max_channel_capacity_navigation",
    "max_event_level_channel_capacity_event": "max_channel_capacity_event",
    "max_event_level_channel_capacity_scopes_navigation": "max_scopes_channel_capacity_navigation",
    "max_event_level_channel_capacity_scopes_event": "max_scopes_channel_capacity_event",
}
_RETRIES: Final = {"first_retry": 1, "second_retry": 2, "third_retry": 3}


class InteropCaseError(DeviceError, ValueError):
    """An interoperability case is not in the format that the suite defines; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResponse:
    """A response of a case with its time of arrival and the random choices to make then."""

    time_ms: int
    response: Response
    fake_reports: tuple[tuple[int, int], ...] | None
    null_days: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEvent:
    """One event of a case: a request with its responses, a change of the network, or a navigation."""

    time_ms: int
    request: Request | None = None
    responses: tuple[CaseResponse, ...] = ()
    connected: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: the events, the vendor values and the expected reports.

    ``ignored`` lists unknown configuration fields, which have no effect, as in Chromium.
    """

    name: str
    description: str
    config: Config
    events: tuple[CaseEvent, ...]
    expected: tuple[dict[str, Any], ...]
    ignored: tuple[str, ...] = ()


def load_config(path: Path) -> Config:
    """Return the vendor values of a configuration file, as Chromium's own runner has them."""
    base = replace(Config(), offline_delay_ms=(5 * MINUTE_MS, 5 * MINUTE_MS), removed_reports_become_null=False)
    return merge_config(base, _read(path), path.name)[0]


def load_case(path: Path, default: Config) -> Case:
    """Return the case in a file; raise ``InteropCaseError`` if the file does not follow the format."""
    fields = _read(path)
    try:
        events = tuple(_event(entry) for entry in fields.get("input", {}).get("registrations", ()))
        expected = tuple(_report(report) for report in fields["output"]["reports"])
        config, ignored = merge_config(default, fields.get("api_config", {}), path.name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InteropCaseError(f"{path.name}: {type(error).__name__}: {error}") from error
    times = [time for event in events for time in (event.time_ms, *(response.time_ms for response in event.responses))]
    if times != sorted(times) or min(times, default=0) < 0:
        raise InteropCaseError(f"{path.name}: a timestamp goes back in time: put the events in order")
    return Case(
        name=path.stem,
        description=str(fields.get("description", "")),
        config=config,
        events=events,
        expected=expected,
        ignored=ignored,
    )


def merge_config(base: Config, fields: Mapping[str, Any], where: str) -> tuple[Config, tuple[str, ...]]:
    """Return vendor values with the given ones changed, and the names of unknown fields."""
    changes: dict[str, Any] = {}
    ignored = []
    for name, value in fields.items():
        try:
            if name in _INTEGERS:
                target, unit = _INTEGERS[name]
                changes[target] = int(value) * unit
            elif name in _DOUBLES:
                changes[_DOUBLES[name]] = float(value)
            elif name == "aggregation_coordinator_origins":
                changes["aggregation_coordinators"] = tuple(parse_suitable_origin(url) for url in value)
            elif name == "needs_cross_app_web":
                changes["os_registration_supported"] = bool(value)
            elif name == "retry_after_new_navigation":
                changes["navigation_retry_attempt"] = _RETRIES.get(value)
            elif not name.startswith("needs_"):
                ignored.append(name)
        except (TypeError, ValueError) as error:
            raise InteropCaseError(f"{where}: configuration field {name} has the wrong type: {value!r}") from error
    return replace(base, **changes), tuple(ignored)


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InteropCaseError(f"{path}: {error}") from error
    if not isinstance(fields, dict):
        raise InteropCaseError(f"{path.name}: the file is not a JSON object")
    return fields


def _event(entry: dict[str, Any]) -> CaseEvent:
    time_ms = int(entry["timestamp"])
    if "connection" in entry:
        return CaseEvent(time_ms=time_ms, connected=bool(entry["connection"]))
    if entry.get("navigation"):
        return CaseEvent(time_ms=time_ms)
    wanted = entry["registration_request"]
    request = Request(
        context=_text(wanted["context_origin"]),
        eligible=wanted.get("Attribution-Reporting-Eligible"),
        fenced=bool(wanted.get("fenced", False)),
    )
    responses = tuple(_response(fields, time_ms) for fields in entry["responses"])
    return CaseEvent(time_ms=time_ms, request=request, responses=responses)


def _response(fields: dict[str, Any], default_ms: int) -> CaseResponse:
    headers = {
        name: value if isinstance(value, str) else chromium_json(value) for name, value in fields["response"].items()
    }
    fakes = fields.get("randomized_response")
    return CaseResponse(
        time_ms=int(fields.get("timestamp", default_ms)),
        response=Response(
            url=_text(fields["url"]), headers=headers, debug_allowed=bool(fields.get("debug_permission", False))
        ),
        fake_reports=(
            None
            if fakes is None
            else tuple((int(fake["trigger_data"]), int(fake["report_window_index"])) for fake in fakes)
        ),
        null_days=frozenset(fields.get("null_aggregatable_reports_days") or ()),
    )


def _report(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an expected report, which has a time, a URL and a payload."""
    int(fields["report_time"])
    _text(fields["report_url"])
    return fields | {"payload": fields["payload"]}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
