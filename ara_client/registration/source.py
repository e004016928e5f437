"""``Attribution-Reporting-Register-Source``: what a source registration says.

WICG, "parse source-registration JSON". Where the specification and Chromium differ in a detail (lengths in bytes,
rounding of an event source's expiry), this follows Chromium.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ara_client import constants
from ara_client.config import Config
from ara_client.origins import parse_destination
from ara_client.registration.debug_reporting import DebugReportingConfig, parse_source_debug_reporting
from ara_client.registration.filters import AttributionScopes, FilterMap, parse_filter_data, parse_source_scopes
from ara_client.registration.nodes import Node, Parsed, parse_registration
from ara_client.registration.windows import (
    ReportWindows,
    TriggerSpec,
    parse_duration,
    parse_trigger_specs,
    parse_windows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRegistration:
    """A valid source registration. Durations start when the source is registered.

    ``trigger_data`` lists what reports may carry. With ``exact_matching`` a trigger's data must be in the list;
    otherwise its remainder modulo the length of the list is the index. ``specs`` is None unless the full-flexible form
    was used.
    """

    destinations: tuple[str, ...]
    source_event_id: int
    expiry_ms: int
    priority: int
    destination_limit_priority: int
    filter_data: FilterMap
    debug_key: int | None
    debug_reporting: bool
    aggregation_keys: Mapping[str, int]
    named_budgets: Mapping[str, int]
    aggregatable_window_ms: int
    windows: ReportWindows
    trigger_data: tuple[int, ...]
    exact_matching: bool
    max_event_level_reports: int
    event_level_epsilon: float
    scopes: AttributionScopes | None
    debug: DebugReportingConfig
    specs: tuple[TriggerSpec, ...] | None = None

    def spec_of(self, trigger_data: int) -> TriggerSpec | None:
        """Return the spec that lists a trigger data; None outside the full-flexible form."""
        return next((spec for spec in self.specs or () if trigger_data in spec.trigger_data), None)

    def windows_of(self, trigger_data: int) -> ReportWindows:
        """Return the report windows of a trigger data."""
        spec = self.spec_of(trigger_data)
        return self.windows if spec is None else spec.windows

    def match_trigger_data(self, data: int) -> int | None:
        """Return the source's trigger data that a trigger's ``data`` selects, or None (WICG, "find matching")."""
        if self.exact_matching:
            return data if data in self.trigger_data else None
        return self.trigger_data[data % len(self.trigger_data)] if self.trigger_data else None


def parse_source(text: str, source_type: str, config: Config) -> Parsed[SourceRegistration]:
    """Return the registration in a header's text, or every problem with it.

    ``debug_key`` is the one the header gives; the caller decides whether it may be used. Problems with debugging
    fields are in ``ignored``.
    """
    return parse_registration(text, lambda root, forgiven: _registration(root, forgiven, source_type, config))


def _registration(root: Node, forgiven: Node, source_type: str, config: Config) -> SourceRegistration:
    expiry_ms = _expiry(root.field("expiry"), source_type)
    window = root.field("aggregatable_report_window")
    exact = _exact_matching(root.field("trigger_data_matching"))
    windows = parse_windows(root, source_type, expiry_ms)
    reports = _max_reports(root.field("max_event_level_reports"), source_type)
    specs = parse_trigger_specs(root, windows, expiry_ms, reports) if config.full_flexible_events else None
    trigger_data = (
        _trigger_data(root.field("trigger_data"), source_type)
        if specs is None
        else tuple(data for spec in specs for data in spec.trigger_data)
    )
    if not exact and trigger_data != tuple(range(len(trigger_data))):
        if sorted(trigger_data) != list(range(len(trigger_data))):
            root.problem("trigger data must be 0, 1, 2 and so on, or trigger_data_matching must be exact")
        trigger_data = tuple(sorted(trigger_data))
    return SourceRegistration(
        destinations=_destinations(root),
        source_event_id=root.unsigned64_field("source_event_id") or 0,
        expiry_ms=expiry_ms,
        priority=root.signed64_field("priority") or 0,
        destination_limit_priority=root.signed64_field("destination_limit_priority") or 0,
        filter_data=parse_filter_data(root.field("filter_data")),
        debug_key=forgiven.unsigned64_field("debug_key"),
        debug_reporting=root.value.get("debug_reporting") is True,
        aggregation_keys=_bounded_map(
            root.field("aggregation_keys"),
            constants.MAX_AGGREGATION_KEYS,
            constants.MAX_BYTES_PER_AGGREGATION_KEY_ID,
            Node.key_piece,
        ),
        named_budgets=_bounded_map(
            root.field("named_budgets"),
            constants.MAX_NAMED_BUDGETS,
            constants.MAX_BYTES_PER_BUDGET_NAME,
            lambda entry: entry.integer(0, constants.AGGREGATABLE_BUDGET),
        ),
        aggregatable_window_ms=(
            expiry_ms if window is None else parse_duration(window, constants.MIN_REPORT_WINDOW_MS, expiry_ms)
        ),
        windows=windows,
        trigger_data=trigger_data,
        exact_matching=exact,
        max_event_level_reports=reports,
        event_level_epsilon=_epsilon(root.field("event_level_epsilon"), config.max_event_level_epsilon),
        scopes=parse_source_scopes(root.field("attribution_scopes"), config.max_trigger_state_cardinality),
        debug=parse_source_debug_reporting(
            forgiven.field("aggregatable_debug_reporting"), config.aggregation_coordinators
        ),
        specs=specs,
    )


def _destinations(root: Node) -> tuple[str, ...]:
    node = root.field("destination")
    if node is None:
        root.problem("must have a destination")
        return ()
    entries = [node] if isinstance(node.value, str) else list(node.entries()) if node.is_list() else []
    sites = set()
    for entry in entries:
        text = entry.string()
        origin = None if text is None else parse_destination(text)
        if origin is not None and origin.suitable:
            sites.add(origin.site)
        elif text is not None:
            entry.problem("must be a URL with a potentially trustworthy origin")
    if isinstance(node.value, list) and not (entries and len(sites) <= constants.MAX_DESTINATIONS_PER_SOURCE):
        node.problem(f"must have 1 to {constants.MAX_DESTINATIONS_PER_SOURCE} distinct sites")
    return tuple(sorted(sites))


def _expiry(node: Node | None, source_type: str) -> int:
    if node is None:
        return constants.MAX_SOURCE_EXPIRY_MS
    expiry_ms = parse_duration(node, constants.MIN_SOURCE_EXPIRY_MS, constants.MAX_SOURCE_EXPIRY_MS)
    return (
        expiry_ms
        if source_type == "navigation"
        else (expiry_ms + constants.DAY_MS // 2) // constants.DAY_MS * constants.DAY_MS
    )


def _exact_matching(node: Node | None) -> bool:
    if node is None or node.value == "modulus":
        return False
    if node.value != "exact":
        node.problem('must be "exact" or "modulus"')
    return True


def _max_reports(node: Node | None, source_type: str) -> int:
    default = constants.DEFAULT_EVENT_LEVEL_REPORTS[source_type]
    given = default if node is None else node.integer(0, constants.MAX_EVENT_LEVEL_REPORTS)
    return default if given is None else given


def _trigger_data(node: Node | None, source_type: str) -> tuple[int, ...]:
    if node is None:
        return tuple(range(constants.DEFAULT_TRIGGER_DATA_CARDINALITY[source_type]))
    if not node.is_list():
        return ()
    if len(node.value) > constants.MAX_TRIGGER_DATA_PER_SOURCE:
        node.problem(f"must not have more than {constants.MAX_TRIGGER_DATA_PER_SOURCE} entries")
        return ()
    out: dict[int, None] = {}
    for entry in node.entries():
        data = entry.integer(0, constants.UINT32_MAX)
        if data is not None and data in out:
            entry.problem("must not be listed twice")
        elif data is not None:
            out[data] = None
    return tuple(out)


def _epsilon(node: Node | None, most: float) -> float:
    if node is None:
        return most
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and 0 <= node.value <= most:
        return float(node.value)
    node.problem(f"must be a number from 0 to {most:g}")
    return most


def _bounded_map(node: Node | None, most: int, max_bytes: int, read: Callable[[Node], int | None]) -> dict[str, int]:
    """Return the values of a map with at most ``most`` keys of at most ``max_bytes`` bytes each."""
    if node is None or not node.is_map():
        return {}
    if len(node.value) > most:
        node.problem(f"must not have more than {most} keys")
        return {}
    out = {}
    for key, entry in node.fields():
        if len(key.encode()) > max_bytes:
            entry.problem(f"the key must not be longer than {max_bytes} bytes")
        elif (value := read(entry)) is not None:
            out[key] = value
    return out
