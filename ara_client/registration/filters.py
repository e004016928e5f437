"""The filters and the attribution scopes of sources and triggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ara_client import constants
from ara_client.registration.nodes import Node

# Filter data of sources and filters of triggers: their values, their parsers, and whether they match.
#
# Lengths count bytes and an empty filter is no filter, as in Chromium's components/attribution_reporting/filters.cc.

FilterMap = Mapping[str, frozenset[str]]
SOURCE_TYPE = "source_type"
_LOOKBACK = "_lookback_window"
_FOREVER_S = 10**309


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """One filter: values by key and, if given, the greatest age of the source."""

    values: FilterMap
    lookback_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPair:
    """``filters`` and ``not_filters`` of one object of a trigger: each list that is not empty must have a match."""

    positive: tuple[FilterConfig, ...] = ()
    negative: tuple[FilterConfig, ...] = ()


NO_FILTERS = FilterPair()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """The base of a part of a trigger that applies only to sources that match its filters."""

    filters: FilterPair = NO_FILTERS


T = TypeVar("T", bound=Filtered)


def parse_filter_data(node: Node | None) -> FilterMap:
    """Return a source's ``filter_data``, without the ``source_type`` that the browser adds."""
    if node is None or not node.is_map():
        return {}
    if len(node.value) > constants.MAX_FILTERS_PER_SOURCE:
        node.problem(f"must not have more than {constants.MAX_FILTERS_PER_SOURCE} keys")
        return {}
    if (reserved := node.field(SOURCE_TYPE)) is not None:
        reserved.problem("is set by the browser; remove it")
    return _values(node, constants.MAX_BYTES_PER_FILTER_STRING, constants.MAX_VALUES_PER_FILTER)


def parse_filter_pair(node: Node) -> FilterPair:
    """Return the filters of an object of a trigger (WICG, "parse a filter pair")."""
    positive, negative = _filters(node.field("filters")), _filters(node.field("not_filters"))
    return FilterPair(positive=positive, negative=negative) if positive or negative else NO_FILTERS


def _filters(node: Node | None) -> tuple[FilterConfig, ...]:
    if node is None:
        return ()
    nodes = node.entries() if isinstance(node.value, list) else iter([node])
    configs = [_config(entry) for entry in nodes]
    return tuple(config for config in configs if config is not None)


def _config(node: Node) -> FilterConfig | None:
    if not node.is_map():
        return None
    lookback_ms = None
    if (lookback := node.field(_LOOKBACK)) is not None:
        seconds = lookback.integer(1, _FOREVER_S)
        lookback_ms = None if seconds is None else seconds * constants.SECOND_MS
        rest = {key: value for key, value in node.value.items() if key != _LOOKBACK}
        node = Node(rest, node.path, node.problems)
    values = _values(node, None, None)
    return FilterConfig(values=values, lookback_ms=lookback_ms) if values or lookback_ms else None


def _values(node: Node, max_bytes: int | None, max_values: int | None) -> dict[str, frozenset[str]]:
    out: dict[str, frozenset[str]] = {}
    for key, listed in node.fields():
        if key.startswith("_"):
            listed.problem("the key is reserved because it begins with an underscore")
        elif max_bytes is not None and len(key.encode()) > max_bytes:
            listed.problem(f"the key must not be longer than {max_bytes} bytes")
        elif listed.is_list():
            values = frozenset(text for entry in listed.entries() if (text := entry.string(max_bytes)) is not None)
            if max_values is not None and len(values) > max_values:
                listed.problem(f"must not have more than {max_values} distinct values")
            out[key] = values
    return out


class FilterSubject:
    """The view that filters have of a source at a trigger: its filter data, type and age.

    WICG, "match an attribution source against filters".
    """

    __slots__ = ("age_ms", "data", "source_type")

    def __init__(self, data: FilterMap, source_type: str, age_ms: int) -> None:
        self.data = data
        self.source_type = frozenset((source_type,))
        self.age_ms = max(age_ms, 0)

    def matches(self, filters: FilterPair) -> bool:
        """Return whether the source matches one of ``filters`` and one of ``not_filters``; an empty list matches."""
        positive, negative = filters.positive, filters.negative
        return (not positive or any(self._matches(config, negated=False) for config in positive)) and (
            not negative or any(self._matches(config, negated=True) for config in negative)
        )

    def _matches(self, config: FilterConfig, *, negated: bool) -> bool:
        if config.lookback_ms is not None and (self.age_ms > config.lookback_ms) != negated:
            return False
        for key, wanted in config.values.items():
            have = self.source_type if key == SOURCE_TYPE else self.data.get(key)
            if have is None:
                continue
            meets = not wanted.isdisjoint(have) if wanted else not have
            if meets == negated:
                return False
        return True


def first_match(subject: FilterSubject, candidates: Iterable[T]) -> T | None:
    """Return the first candidate whose filters match, or None."""
    return next((candidate for candidate in candidates if subject.matches(candidate.filters)), None)


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
    limit = given.integer(1, constants.UINT32_MAX)
    states: int | None = constants.DEFAULT_MAX_EVENT_STATES
    if (asked := node.field("max_event_states")) is not None:
        states = asked.integer(1, max_states)
    scopes = _strings(values, constants.MAX_BYTES_PER_SCOPE)
    if limit is None or states is None or scopes is None:
        return None
    if not 1 <= len(scopes) <= min(limit, constants.MAX_SCOPES_PER_SOURCE):
        values.problem(
            f"must have at least one value and at most {min(limit, constants.MAX_SCOPES_PER_SOURCE)} distinct ones"
        )
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
