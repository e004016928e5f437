"""Whether a trigger's filters match a source (WICG, "match an attribution source against filters")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ara_client.registration.filters import SOURCE_TYPE, FilterConfig, FilterMap, FilterPair


class FilterSubject:
    """The view that filters have of a source at a trigger: its filter data, type and age."""

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


class Filtered(Protocol):
    """A part of a trigger that applies only to sources that match its filters."""

    @property
    def filters(self) -> FilterPair:
        """The filters."""


T = TypeVar("T", bound=Filtered)


def first_match(subject: FilterSubject, candidates: Iterable[T]) -> T | None:
    """Return the first candidate whose filters match, or None."""
    for candidate in candidates:
        if subject.matches(candidate.filters):
            return candidate
    return None
