"""Contribution budgets: how much a site may contribute in ten minutes and in a day, counted by whole minutes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from paa_client.config import LARGER_WINDOW_MINUTES, MINUTE_MS, SMALLER_WINDOW_MINUTES, ContextType
from paa_client.reporting.contributions import Cause, HistogramContribution

_KEPT_MINUTES = 30 * LARGER_WINDOW_MINUTES


class Usage:
    """The sum of contributions in each whole minute of the last 31 days, in order of time.

    The current minute and the 9 (or 1,439) before it count, as in Chromium's budgeter; so do minutes ahead of a clock
    that was set back. Minutes that no longer count are kept, because they count again when a clock that was set
    forward is set back: a clock that leaves and returns within 30 days gives no minute its budget a second time.
    """

    __slots__ = ("_begin", "_first", "_larger", "_minutes", "_used")

    def __init__(self) -> None:
        self._minutes: list[int] = []
        self._used: list[int] = []
        self._begin = -(1 << 62)
        self._first = 0
        self._larger = 0

    def smaller(self, minute: int) -> int:
        """Return what was used in the ten minutes that end with ``minute``; at most ten steps."""
        total = 0
        for index in range(len(self._minutes) - 1, -1, -1):
            if self._minutes[index] <= minute - SMALLER_WINDOW_MINUTES:
                break
            total += self._used[index]
        return total

    def larger(self, minute: int) -> int:
        """Return what was used in the 1,440 minutes that end with ``minute``; amortized O(1) while time advances."""
        self._begin = minute - LARGER_WINDOW_MINUTES
        while self._first < len(self._minutes) and self._minutes[self._first] <= self._begin:
            self._larger -= self._used[self._first]
            self._first += 1
        while self._first and self._minutes[self._first - 1] > self._begin:
            self._first -= 1
            self._larger += self._used[self._first]
        stale = bisect_right(self._minutes, self._begin - _KEPT_MINUTES) if self._first else 0
        if 2 * stale > len(self._minutes):
            del self._minutes[:stale]
            del self._used[:stale]
            self._first -= stale
        return self._larger

    def add(self, minute: int, value: int) -> None:
        """Record ``value`` in ``minute``."""
        if value == 0:
            return
        counts = minute > self._begin
        if counts:
            self._larger += value
        index = len(self._minutes)
        while index and self._minutes[index - 1] > minute:
            index -= 1
        if index and self._minutes[index - 1] == minute:
            self._used[index - 1] += value
        else:
            self._minutes.insert(index, minute)
            self._used.insert(index, value)
            self._first += not counts

    def entries(self) -> list[tuple[int, int]]:
        """Return (minute, used) in order of time."""
        return list(zip(self._minutes, self._used, strict=True))


@dataclass(slots=True)
class Reservations:
    """The named budgets of one context (explainer "Named budgets"): fractions of the whole, at most 1 in all."""

    fractions: dict[str, Fraction] = field(default_factory=dict)

    def limit(self, name: str | None, whole: int) -> int:
        """Return how much of ``whole`` the named budget may use; the name None means the unreserved part."""
        if name is not None:
            return int(self.fractions[name] * whole)
        return int((1 - sum(self.fractions.values(), Fraction(0))) * whole)


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    """A contribution that asks for budget, and the reservations of the context that made it."""

    contribution: HistogramContribution
    reservations: Reservations | None = None


class Budgeter:
    """The budgets of one browser: per reporting site and calling API, and within those per name."""

    def __init__(self, *, smaller_budget: int, larger_budget: int) -> None:
        self._smaller = smaller_budget
        self._larger = larger_budget
        self._usage: dict[tuple[str, ContextType], Usage] = {}
        self._named: dict[tuple[str, ContextType, str | None], Usage] = {}

    def query(
        self, requests: Sequence[BudgetRequest], site: str, api: ContextType, now_ms: int, *, consume: bool
    ) -> list[Cause | None]:
        """Return, for each request in order, the limit that denies it, or None (specification: query the budget).

        Each approved request reduces what later requests of the same call may use. Only with ``consume`` are the
        approved amounts recorded as spent.
        """
        minute = now_ms // MINUTE_MS
        usage = self._usage.get((site, api))
        smaller, larger = _used(usage, minute)
        approved = 0
        approved_by_name: dict[str | None, int] = {}
        results: list[Cause | None] = []
        for request in requests:
            value = request.contribution.value
            denial: Cause | None = None
            if smaller + approved + value > self._smaller:
                denial = Cause.TEN_MINUTES
            elif larger + approved + value > self._larger:
                denial = Cause.DAY
            elif request.reservations is not None and request.reservations.fractions:
                denial = self._query_named(request, site, api, minute, approved_by_name)
            if denial is None:
                approved += value
                name = request.contribution.named_budget
                approved_by_name[name] = approved_by_name.get(name, 0) + value
            results.append(denial)
        if consume and approved:
            self._usage.setdefault((site, api), Usage()).add(minute, approved)
            self._consume_named(approved_by_name, site, api, minute)
        return results

    def _query_named(
        self, request: BudgetRequest, site: str, api: ContextType, minute: int, approved: Mapping[str | None, int]
    ) -> Cause | None:
        assert request.reservations is not None
        name = request.contribution.named_budget
        usage = self._named.get((site, api, name))
        asked = approved.get(name, 0) + request.contribution.value
        smaller, larger = _used(usage, minute)
        limit = request.reservations.limit
        within = smaller + asked <= limit(name, self._smaller) and larger + asked <= limit(name, self._larger)
        return None if within else Cause.NAMED

    def _consume_named(self, approved: Mapping[str | None, int], site: str, api: ContextType, minute: int) -> None:
        for name, value in approved.items():
            usage = self._named.setdefault((site, api, name), Usage())
            usage.larger(minute)
            usage.add(minute, value)

    def used(self, site: str, api: ContextType, now_ms: int) -> tuple[int, int]:
        """Return what ``site`` has used of the ten-minute and of the day budget."""
        return _used(self._usage.get((site, api)), now_ms // MINUTE_MS)

    def forget(self, site: str | None = None) -> None:
        """Delete the history of ``site`` (None: all), a new privacy unit: see ``Browser.forget_budgets``."""
        if site is None:
            self._usage.clear()
            self._named.clear()
            return
        for api in ContextType:
            self._usage.pop((site, api), None)
        for key in [key for key in self._named if key[0] == site]:
            del self._named[key]


def _used(usage: Usage | None, minute: int) -> tuple[int, int]:
    return (0, 0) if usage is None else (usage.smaller(minute), usage.larger(minute))
