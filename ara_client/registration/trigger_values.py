"""``aggregatable_values`` of a trigger: the value and the filtering ID for each aggregation key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ara_client.constants import AGGREGATABLE_BUDGET, DEFAULT_FILTERING_ID
from ara_client.registration.filters import NO_FILTERS, FilterPair, parse_filter_pair
from ara_client.registration.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A value for a key, with its filtering ID."""

    value: int
    filtering_id: int = DEFAULT_FILTERING_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatableValues:
    """Values by key; only the first configuration with matching filters is used."""

    values: Mapping[str, KeyValue]
    filters: FilterPair = NO_FILTERS


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
