"""Attribution scopes: labels by which a trigger selects sources, and the limit on distinct labels."""

from __future__ import annotations

from dataclasses import dataclass

from ara_client.constants import DEFAULT_MAX_EVENT_STATES, MAX_BYTES_PER_SCOPE, MAX_SCOPES_PER_SOURCE, UINT32_MAX
from ara_client.registration.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionScopes:
    """A source's scopes, the limit on distinct scopes per destination, and the limit on states of an event source."""

    values: frozenset[str]
    limit: int
    max_event_states: int


def parse_source_scopes(node: Node | None, max_states: int) -> AttributionScopes | None:
    """Return a source's ``attribution_scopes``; ``max_states`` is the browser's cap on trigger states."""
    if node is None or not node.is_map():
        return None
    given, values = node.field("limit"), node.field("values")
    if given is None or values is None:
        node.problem("must have a limit and values")
        return None
    limit = given.integer(1, UINT32_MAX)
    states: int | None = DEFAULT_MAX_EVENT_STATES
    if (asked := node.field("max_event_states")) is not None:
        states = asked.integer(1, max_states)
    scopes = _strings(values, MAX_BYTES_PER_SCOPE)
    if limit is None or states is None or scopes is None:
        return None
    if not 1 <= len(scopes) <= min(limit, MAX_SCOPES_PER_SOURCE):
        values.problem(f"must have at least one value and at most {min(limit, MAX_SCOPES_PER_SOURCE)} distinct ones")
        return None
    return AttributionScopes(values=scopes, limit=limit, max_event_states=states)


def parse_trigger_scopes(node: Node | None) -> frozenset[str]:
    """Return the scopes that a trigger selects; an empty set means any source."""
    return frozenset() if node is None else _strings(node, None) or frozenset()


def _strings(node: Node, max_bytes: int | None) -> frozenset[str] | None:
    if not node.is_list():
        return None
    flaws = len(node.problems)
    texts = [entry.string(max_bytes) for entry in node.entries()]
    return None if len(node.problems) > flaws else frozenset(text for text in texts if text is not None)
