"""Batching scopes, debug scopes and what was contributed in them: everything that may enter one report."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypedDict

from paa_client.config import ContextType
from paa_client.effects import Effect
from paa_client.reporting.budgets import BudgetRequest, Reservations
from paa_client.reporting.contributions import ErrorEvent, HistogramContribution


@dataclass(frozen=True, slots=True)
class DebugDetails:
    """Whether debug mode is enabled, and the debug key if one was given."""

    enabled: bool = False
    key: int | None = None

    @property
    def order(self) -> tuple[bool, bool, int]:
        """The sort key of Chromium for the reports of one scope: without debug mode, then without key, then by key."""
        return (self.enabled, self.key is not None, self.key or 0)


NO_DEBUG = DebugDetails()


class ReportOptions(TypedDict, total=False):
    """The options that a page may give for a report (``privateAggregationConfig``)."""

    context_id: str | None
    filtering_id_max_bytes: int
    max_contributions: int | None
    aggregation_coordinator_origin: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportParameters:
    """The properties of a report that are fixed outside the worklet (specification: pre-specified report parameters).

    ``max_contributions`` is already clamped. ``deterministic`` says that exactly one report is sent whatever the
    worklet does; ``timeout_ms`` is then the moment at which contributions end and the report is sent.
    """

    context_id: str | None = None
    filtering_id_max_bytes: int = 1
    max_contributions: int
    coordinator: str
    deterministic: bool = False
    timeout_ms: int | None = None


@dataclass(slots=True, eq=False)
class WorkletContext:
    """One execution of worklet code: its debug scope, its named budgets, and whether it ended with an exception."""

    debug: DebugDetails = NO_DEBUG
    reservations: Reservations = field(default_factory=Reservations)
    threw: bool = False

    def apply(self, effect: Effect) -> bool:
        """Apply a ``debug`` or ``reserve`` effect to this context; return False for any other effect."""
        match effect:
            case ("debug", key):
                self.debug = DebugDetails(enabled=True, key=key)
            case ("reserve", name, numerator, denominator):
                self.reservations.fractions[name] = Fraction(numerator, denominator)
            case _:
                return False
        return True


@dataclass(slots=True)
class CacheEntry:
    """A contribution in the cache: unconditional, or waiting for ``event`` (contribution cache entry).

    ``call`` is the number of the call that made it, among all calls of an auction.
    """

    contribution: HistogramContribution
    context: WorkletContext
    event: ErrorEvent | None = None
    call: int = 0

    @property
    def request(self) -> BudgetRequest:
        """The request for budget of this contribution."""
        return BudgetRequest(self.contribution, self.context.reservations)


@dataclass(slots=True, eq=False)
class BatchingScope:
    """Contributions that go into the same report unless their debug details differ.

    ``debug`` applies to the report of a scope without contributions.
    """

    api: ContextType
    reporting_origin: str
    parameters: ReportParameters
    entries: list[CacheEntry] = field(default_factory=list)
    timed_out: bool = False
    debug: DebugDetails = NO_DEBUG

    def by_debug_details(self, *, debug_mode_allowed: bool) -> dict[DebugDetails, list[CacheEntry]]:
        """Return the entries grouped by debug details, in order of appearance; each group becomes one report."""
        if not debug_mode_allowed:
            return {NO_DEBUG: self.entries} if self.entries else {}
        groups: dict[DebugDetails, list[CacheEntry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.context.debug, []).append(entry)
        return groups
