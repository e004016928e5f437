"""``aggregatable_debug_reporting`` of sources and triggers, and the types of debug data.

A problem here disables debug reports but not the registration, so the parsers list it in ``Parsed.ignored``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from aggservice.wire import Origin, parse_origin
from ara_client.constants import AGGREGATABLE_BUDGET
from ara_client.registration.nodes import Node

SOURCE_TYPES: Final = (
    "source-destination-limit",
    "source-noised",
    "source-storage-limit",
    "source-success",
    "source-unknown-error",
    "source-destination-rate-limit",
    "source-reporting-origin-per-site-limit",
    "source-channel-capacity-limit",
    "source-trigger-state-cardinality-limit",
    "source-destination-global-rate-limit",
    "source-reporting-origin-limit",
    "source-destination-per-day-rate-limit",
    "source-destination-limit-replaced",
    "source-scopes-channel-capacity-limit",
    "source-max-event-states-limit",
)
TRIGGER_TYPES: Final = (
    "trigger-no-matching-source",
    "trigger-no-matching-filter-data",
    "trigger-reporting-origin-limit",
    "trigger-event-deduplicated",
    "trigger-event-no-matching-configurations",
    "trigger-event-noise",
    "trigger-event-low-priority",
    "trigger-event-excessive-reports",
    "trigger-event-storage-limit",
    "trigger-event-report-window-passed",
    "trigger-aggregate-deduplicated",
    "trigger-aggregate-no-contributions",
    "trigger-aggregate-insufficient-budget",
    "trigger-aggregate-storage-limit",
    "trigger-aggregate-report-window-passed",
    "trigger-aggregate-excessive-reports",
    "trigger-unknown-error",
    "trigger-event-report-window-not-started",
    "trigger-event-no-matching-trigger-data",
    "trigger-event-attributions-per-source-destination-limit",
    "trigger-aggregate-attributions-per-source-destination-limit",
    "trigger-aggregate-insufficient-named-budget",
)
TYPE_ORDER: Final = {name: index for index, name in enumerate((*SOURCE_TYPES, *TRIGGER_TYPES))}
"""The order of contributions for several types in a report: that of Chromium's ``DebugDataType``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugContribution:
    """The contribution for one type of debug data: a key piece and a value."""

    key_piece: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugReportingConfig:
    """The aggregatable debug reports that a registration requests; ``coordinator`` is None for the default."""

    key_piece: int = 0
    data: Mapping[str, DebugContribution]
    coordinator: Origin | None = None
    budget: int = 0


NO_DEBUG_REPORTING: Final = DebugReportingConfig(data={})


def parse_source_debug_reporting(node: Node | None, coordinators: Collection[Origin]) -> DebugReportingConfig:
    """Return a source's configuration; no value may exceed the ``budget`` that the source reserves."""
    if node is None or not node.is_map():
        return NO_DEBUG_REPORTING
    given = node.field("budget")
    if given is None:
        node.problem("must have a budget")
        return NO_DEBUG_REPORTING
    budget = given.integer(1, AGGREGATABLE_BUDGET)
    if budget is None:
        return NO_DEBUG_REPORTING
    return _config(node, budget, SOURCE_TYPES, coordinators, budget=budget)


def parse_trigger_debug_reporting(node: Node | None, coordinators: Collection[Origin]) -> DebugReportingConfig:
    """Return a trigger's configuration."""
    if node is None or not node.is_map():
        return NO_DEBUG_REPORTING
    return _config(node, AGGREGATABLE_BUDGET, TRIGGER_TYPES, coordinators, budget=0)


def parse_coordinator(node: Node | None, coordinators: Collection[Origin]) -> Origin | None:
    """Return the coordinator that a registration names, or None; an unknown one is noted as a problem."""
    if node is None:
        return None
    text = node.string()
    origin = None if text is None else parse_origin(text)
    if origin in coordinators:
        return origin
    if text is not None:
        node.problem("must be one of the browser's aggregation coordinators")
    return None


def _config(
    node: Node, max_value: int, types: tuple[str, ...], coordinators: Collection[Origin], *, budget: int
) -> DebugReportingConfig:
    flaws = len(node.problems)
    piece = node.field("key_piece")
    if piece is None:
        node.problem("must have a key_piece")
        return NO_DEBUG_REPORTING
    key_piece = piece.key_piece()
    coordinator = parse_coordinator(node.field("aggregation_coordinator_origin"), coordinators)
    data = _data(node.field("debug_data"), max_value, types)
    if len(node.problems) > flaws or key_piece is None:
        return NO_DEBUG_REPORTING
    return DebugReportingConfig(key_piece=key_piece, data=data, coordinator=coordinator, budget=budget)


def _data(node: Node | None, max_value: int, types: tuple[str, ...]) -> dict[str, DebugContribution]:
    if node is None or not node.is_list():
        return {}
    out: dict[str, DebugContribution] = {}
    for entry in node.entries():
        if entry.is_map():
            _entry(entry, max_value, out)
    if (other := out.pop("unspecified", None)) is not None:
        out = dict.fromkeys(types, other) | out
    return {name: out[name] for name in types if name in out}


def _entry(entry: Node, max_value: int, out: dict[str, DebugContribution]) -> None:
    piece, value, types = entry.field("key_piece"), entry.field("value"), entry.field("types")
    if piece is None or value is None or types is None:
        entry.problem("must have key_piece, value and types")
        return
    key_piece, amount = piece.key_piece(), value.integer(1, max_value)
    if key_piece is None or amount is None or not types.is_list():
        return
    if not types.value:
        types.problem("must not be empty")
    contribution = DebugContribution(key_piece=key_piece, value=amount)
    for kind in types.entries():
        name = kind.string()
        if name is not None and name in out:
            kind.problem("must not be listed twice")
        elif name is not None:
            out[name] = contribution
