"""``Attribution-Reporting-Register-Trigger``: what a trigger registration says.

WICG, "create an attribution trigger".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from aggservice.wire import Origin
from ara_client.config import Config
from ara_client.constants import (
    AGGREGATABLE_BUDGET,
    DEFAULT_FILTERING_ID,
    DEFAULT_FILTERING_ID_MAX_BYTES,
    MAX_BYTES_PER_TRIGGER_CONTEXT_ID,
    MAX_FILTERING_ID_MAX_BYTES,
    UINT32_MAX,
)
from ara_client.registration.debug_reporting import (
    DebugReportingConfig,
    parse_coordinator,
    parse_trigger_debug_reporting,
)
from ara_client.registration.filters import Filtered, FilterPair, parse_filter_pair, parse_trigger_scopes
from ara_client.registration.nodes import Node, Parsed, parse_registration


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A value for a key, with its filtering ID."""

    value: int
    filtering_id: int = DEFAULT_FILTERING_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableValues(Filtered):
    """Values by key; only the first configuration with matching filters is used."""

    values: Mapping[str, KeyValue]


def parse_aggregatable_values(node: Node | None, max_bytes: int) -> tuple[AggregatableValues, ...]:
    """Return the configurations: one for a map, one per entry for a list (WICG, "parse aggregatable values").

    A filtering ID must fit in ``max_bytes`` bytes.
    """
    if node is None:
        return ()
    if isinstance(node.value, dict):
        return (AggregatableValues(values=_key_values(node, max_bytes)),)
    if not isinstance(node.value, list):
        node.problem("must be a map or a list")
        return ()
    return tuple(_configuration(entry, max_bytes) for entry in node.entries() if entry.is_map())


def _configuration(entry: Node, max_bytes: int) -> AggregatableValues:
    values = entry.field("values")
    if values is None:
        entry.problem("must have values")
    known = _key_values(values, max_bytes) if values is not None and values.is_map() else {}
    return AggregatableValues(values=known, filters=parse_filter_pair(entry))


def _key_values(node: Node, max_bytes: int) -> dict[str, KeyValue]:
    out = {}
    for key, entry in node.fields():
        parsed = _key_value(entry, max_bytes) if isinstance(entry.value, dict) else _bare_value(entry)
        if parsed is not None:
            out[key] = parsed
    return out


def _bare_value(entry: Node) -> KeyValue | None:
    value = entry.integer(1, AGGREGATABLE_BUDGET)
    return None if value is None else KeyValue(value=value)


def _key_value(entry: Node, max_bytes: int) -> KeyValue | None:
    given, identity = entry.field("value"), entry.field("filtering_id")
    if given is None:
        entry.problem("must have a value")
        return None
    value = given.integer(1, AGGREGATABLE_BUDGET)
    filtering_id: int | None = DEFAULT_FILTERING_ID
    if identity is not None:
        filtering_id = identity.unsigned64()
        if filtering_id is not None and filtering_id >= 1 << (8 * max_bytes):
            identity.problem(f"must fit in the {max_bytes} bytes of aggregatable_filtering_id_max_bytes")
            return None
    if value is None or filtering_id is None:
        return None
    return KeyValue(value=value, filtering_id=filtering_id)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTriggerData(Filtered):
    """One event-level configuration; the first with matching filters is used.

    Only sources in the full-flexible form sum ``value``."""

    data: int
    priority: int
    dedup_key: int | None
    value: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableTriggerData(Filtered):
    """A key piece to combine (bitwise or) with the named aggregation keys of a source that matches the filters."""

    key_piece: int
    source_keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableDedupKey(Filtered):
    """A deduplication key for the aggregatable report; the first with matching filters is used."""

    key: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBudgetChoice(Filtered):
    """The named budget of the source to charge; the first with matching filters is used."""

    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerRegistration:
    """A valid trigger registration. ``coordinator`` is None for the browser's default."""

    event_triggers: tuple[EventTriggerData, ...]
    filters: FilterPair
    debug_key: int | None
    debug_reporting: bool
    aggregatable_trigger_data: tuple[AggregatableTriggerData, ...]
    aggregatable_values: tuple[AggregatableValues, ...]
    aggregatable_dedup_keys: tuple[AggregatableDedupKey, ...]
    named_budgets: tuple[NamedBudgetChoice, ...]
    coordinator: Origin | None
    includes_source_time: bool
    trigger_context_id: str | None
    filtering_id_max_bytes: int
    debug: DebugReportingConfig
    scopes: frozenset[str]

    @property
    def has_aggregatable_data(self) -> bool:
        """Whether it requests an aggregatable report (WICG, "contains aggregatable data")."""
        return bool(self.aggregatable_trigger_data) or any(entry.values for entry in self.aggregatable_values)

    @property
    def sends_unconditionally(self) -> bool:
        """Whether a report is always sent, attributed or not, and without delay."""
        return self.trigger_context_id is not None or self.filtering_id_max_bytes != DEFAULT_FILTERING_ID_MAX_BYTES


def parse_trigger(text: str, config: Config) -> Parsed[TriggerRegistration]:
    """Return the registration in a header's text, or every problem with it."""
    return parse_registration(text, lambda root, forgiven: _registration(root, forgiven, config))


def _registration(root: Node, forgiven: Node, config: Config) -> TriggerRegistration:
    flexible = config.full_flexible_events
    max_bytes = _max_bytes(root.field("aggregatable_filtering_id_max_bytes"))
    registration = TriggerRegistration(
        event_triggers=_listed(root.field("event_trigger_data"), lambda entry: _event_trigger(entry, flexible)),
        filters=parse_filter_pair(root),
        debug_key=forgiven.unsigned64_field("debug_key"),
        debug_reporting=root.value.get("debug_reporting") is True,
        aggregatable_trigger_data=_listed(root.field("aggregatable_trigger_data"), _aggregatable),
        aggregatable_values=parse_aggregatable_values(root.field("aggregatable_values"), max_bytes),
        aggregatable_dedup_keys=_listed(root.field("aggregatable_deduplication_keys"), _dedup_key),
        named_budgets=_listed(root.field("named_budgets"), _named_budget),
        coordinator=parse_coordinator(root.field("aggregation_coordinator_origin"), config.aggregation_coordinators),
        includes_source_time=_includes_source_time(root.field("aggregatable_source_registration_time")),
        trigger_context_id=_context_id(root.field("trigger_context_id")),
        filtering_id_max_bytes=max_bytes,
        debug=parse_trigger_debug_reporting(
            forgiven.field("aggregatable_debug_reporting"), config.aggregation_coordinators
        ),
        scopes=parse_trigger_scopes(root.field("attribution_scopes")),
    )
    if registration.includes_source_time and registration.sends_unconditionally:
        root.problem(
            'aggregatable_source_registration_time must be "exclude" if trigger_context_id '
            "or aggregatable_filtering_id_max_bytes is given"
        )
    return registration


def _listed(node: Node | None, parse: Callable[[Node], T | None]) -> tuple[T, ...]:
    if node is None or not node.is_list():
        return ()
    found = [parse(entry) for entry in node.entries() if entry.is_map()]
    return tuple(value for value in found if value is not None)


def _event_trigger(entry: Node, flexible: bool) -> EventTriggerData:
    value = entry.field("value") if flexible else None
    return EventTriggerData(
        data=entry.unsigned64_field("trigger_data") or 0,
        dedup_key=entry.unsigned64_field("deduplication_key"),
        priority=entry.signed64_field("priority") or 0,
        filters=parse_filter_pair(entry),
        value=1 if value is None else value.integer(1, UINT32_MAX) or 1,
    )


def _aggregatable(entry: Node) -> AggregatableTriggerData | None:
    piece, keys = entry.field("key_piece"), entry.field("source_keys")
    if piece is None:
        entry.problem("must have a key_piece")
    names = [key.string() for key in keys.entries()] if keys is not None and keys.is_list() else []
    filters = parse_filter_pair(entry)
    key_piece = None if piece is None else piece.key_piece()
    if key_piece is None:
        return None
    return AggregatableTriggerData(
        key_piece=key_piece, source_keys=frozenset(name for name in names if name is not None), filters=filters
    )


def _dedup_key(entry: Node) -> AggregatableDedupKey:
    return AggregatableDedupKey(key=entry.unsigned64_field("deduplication_key"), filters=parse_filter_pair(entry))


def _named_budget(entry: Node) -> NamedBudgetChoice:
    name = entry.field("name")
    return NamedBudgetChoice(name=None if name is None else name.string(), filters=parse_filter_pair(entry))


def _max_bytes(node: Node | None) -> int:
    given = None if node is None else node.integer(1, MAX_FILTERING_ID_MAX_BYTES)
    return DEFAULT_FILTERING_ID_MAX_BYTES if given is None else given


def _includes_source_time(node: Node | None) -> bool:
    if node is None or node.value == "exclude":
        return False
    if node.value != "include":
        node.problem('must be "exclude" or "include"')
    return True


def _context_id(node: Node | None) -> str | None:
    return None if node is None else node.string(MAX_BYTES_PER_TRIGGER_CONTEXT_ID)
