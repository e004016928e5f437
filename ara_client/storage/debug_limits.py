"""Budgets of aggregatable debug reports: per source, per context site, per context site and reporting site."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from aggservice.wire import Origin
from ara_client.constants import (
    AGGREGATABLE_BUDGET,
    AGGREGATABLE_DEBUG_BUDGET_PER_REPORTING_SITE,
    AGGREGATABLE_DEBUG_WINDOW_MS,
    DAY_MS,
)
from ara_client.storage.sources import StoredSource
from ara_client.vendor import VendorValues

_KEPT_MS = 30 * DAY_MS


@dataclass(slots=True)
class _Spending:
    """The spending on one context site, in order of time; records before ``first`` no longer count."""

    records: list[tuple[int, Origin, int]] = field(default_factory=list)
    first: int = 0


class DebugBudgets:
    """The spending on debug reports in the last day, by context site, and whether more is allowed.

    WICG, "aggregatable debug rate-limit record". Sums are updated when records arrive and expire; each record is
    touched twice while time advances. Records are kept 30 days longer than they count, because they count again when a
    clock that was set forward is set back.
    """

    def __init__(self, vendor: VendorValues) -> None:
        self._vendor = vendor
        self._spending: dict[str, _Spending] = {}
        self._totals: dict[tuple[str, str | None], int] = {}

    def charge(
        self, required: int, *, context_site: str, reporting_origin: Origin, source: StoredSource | None, now_ms: int
    ) -> bool:
        """Spend ``required`` if every budget allows it; return whether it did.

        Without a source, only Λ₁ and the budgets of the sites are checked. Pass None if no source matched, or if its
        registration failed and the caller has checked its budget.
        """
        self._age(context_site, now_ms)
        remaining = AGGREGATABLE_BUDGET if source is None else source.debug_budget
        reports = 0 if source is None else source.debug_reports
        site = reporting_origin.site
        if (
            required > remaining
            or reports >= self._vendor.max_aggregatable_debug_reports_per_source
            or self._total(context_site, None) + required > self._vendor.max_aggregatable_debug_budget_per_context_site
            or self._total(context_site, site) + required > AGGREGATABLE_DEBUG_BUDGET_PER_REPORTING_SITE
        ):
            return False
        if source is not None:
            source.debug_budget -= required
            source.debug_reports += 1
        records = self._spending.setdefault(context_site, _Spending()).records
        insort(records, (now_ms, reporting_origin, required), key=_time_ms)
        self._spend(context_site, site, required)
        return True

    def forget(self, origin: Origin | None, begin_ms: int, end_ms: int) -> None:
        """Delete what an origin (None: all) spent in a range of time; see ``Browser.forget_debug_budgets``."""
        for context_site, spending in self._spending.items():
            kept = []
            first = spending.first
            for index, record in enumerate(spending.records):
                time_ms, reporting_origin, amount = record
                if origin not in (None, reporting_origin) or not begin_ms <= time_ms <= end_ms:
                    kept.append(record)
                elif index < spending.first:
                    first -= 1
                else:
                    self._spend(context_site, reporting_origin.site, -amount)
            spending.records, spending.first = kept, first

    def _total(self, context_site: str, reporting_site: str | None) -> int:
        return self._totals.get((context_site, reporting_site), 0)

    def _spend(self, context_site: str, reporting_site: str, amount: int) -> None:
        for key in ((context_site, None), (context_site, reporting_site)):
            self._totals[key] = self._totals.get(key, 0) + amount

    def _age(self, context_site: str, now_ms: int) -> None:
        spending = self._spending.get(context_site)
        if spending is None:
            return
        begin_ms = now_ms - AGGREGATABLE_DEBUG_WINDOW_MS
        records = spending.records
        while spending.first < len(records) and records[spending.first][0] <= begin_ms:
            _, reporting_origin, amount = records[spending.first]
            self._spend(context_site, reporting_origin.site, -amount)
            spending.first += 1
        while spending.first and records[spending.first - 1][0] > begin_ms:
            spending.first -= 1
            _, reporting_origin, amount = records[spending.first]
            self._spend(context_site, reporting_origin.site, amount)
        stale = bisect_right(records, begin_ms - _KEPT_MS, key=_time_ms) if spending.first else 0
        if 2 * stale > len(records):
            del records[:stale]
            spending.first -= stale


def _time_ms(record: tuple[int, Origin, int]) -> int:
    return record[0]
