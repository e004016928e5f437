"""Budgets of aggregatable debug reports: of a source, of a context site, and of it with a reporting site."""

from __future__ import annotations

from collections import deque

from aggservice.wire.origins import Origin
from ara_client.constants import (
    AGGREGATABLE_BUDGET,
    AGGREGATABLE_DEBUG_BUDGET_PER_REPORTING_SITE,
    AGGREGATABLE_DEBUG_WINDOW_MS,
)
from ara_client.sources import StoredSource
from ara_client.vendor import VendorValues


class DebugBudgets:
    """What was spent on debugging in the last day, by context site, and whether more may be.

    WICG, "aggregatable debug rate-limit record". Sums are kept up as records come and age; each is touched twice.
    """

    def __init__(self, vendor: VendorValues) -> None:
        self._vendor = vendor
        self._records: dict[str, deque[tuple[int, Origin, int]]] = {}
        self._totals: dict[tuple[str, str | None], int] = {}

    def charge(
        self, required: int, *, context_site: str, reporting_origin: Origin, source: StoredSource | None, now_ms: int
    ) -> bool:
        """Spend ``required`` if every budget allows it; return whether it did.

        Without a source (none matched, or the registration failed and its own budget was checked by the caller)
        only the sites' budgets and Λ₁ count.
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
        self._records.setdefault(context_site, deque()).append((now_ms, reporting_origin, required))
        self._spend(context_site, site, required)
        return True

    def forget(self, origin: Origin | None, begin_ms: int, end_ms: int) -> None:
        """Forget what an origin (None: all) spent in a range of time: the user, not a site, asked for it."""
        for context_site, records in self._records.items():
            kept: deque[tuple[int, Origin, int]] = deque()
            for time_ms, reporting_origin, amount in records:
                if origin in (None, reporting_origin) and begin_ms <= time_ms <= end_ms:
                    self._spend(context_site, reporting_origin.site, -amount)
                else:
                    kept.append((time_ms, reporting_origin, amount))
            self._records[context_site] = kept

    def _total(self, context_site: str, reporting_site: str | None) -> int:
        return self._totals.get((context_site, reporting_site), 0)

    def _spend(self, context_site: str, reporting_site: str, amount: int) -> None:
        for key in ((context_site, None), (context_site, reporting_site)):
            self._totals[key] = self._totals.get(key, 0) + amount

    def _age(self, context_site: str, now_ms: int) -> None:
        records = self._records.get(context_site)
        while records and records[0][0] <= now_ms - AGGREGATABLE_DEBUG_WINDOW_MS:
            _, reporting_origin, amount = records.popleft()
            self._spend(context_site, reporting_origin.site, -amount)
