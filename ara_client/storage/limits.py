"""The limits of a browser: rate limits, destinations of sources, and budgets of aggregatable debug reports."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from sortedcontainers import SortedDict, SortedList

from aggservice.wire import Origin
from ara_client import constants
from ara_client.config import Config
from ara_client.storage.sources import StoredSource, count

# The attribution rate-limit cache: records of registrations and attributions, and the limits on them.
#
# WICG, "attribution rate-limit record"; boundaries as in Chromium's ``RateLimitTable``: a record has the time of its
# source and counts while that time is strictly later than the beginning of the window. ``DestinationLimits``
# uses the same records.

AttributionScope = Literal["event", "aggregatable"]


@dataclass(slots=True, kw_only=True, eq=False)
class RateLimitRecord:
    """One record. ``scope`` is ``source``, ``event`` or ``aggregatable``; ``report_id`` is None for fake reports.

    ``until_ms`` is the source's expiry for ``source`` and the time of attribution otherwise.
    """

    serial: int
    scope: str
    source_id: int
    source_site: str
    destination: str
    reporting_origin: Origin
    reporting_site: str
    time_ms: int
    until_ms: int
    report_id: int | None = None
    destination_priority: int = 0
    deactivated: bool = False


class RecordIndex:
    """Records by key and, within a key, by time and by reporting origin."""

    __slots__ = ("_lists", "_origins")

    def __init__(self) -> None:
        self._lists: dict[tuple[str, ...], SortedDict[tuple[int, int], RateLimitRecord]] = defaultdict(SortedDict)
        self._origins: dict[tuple[str, ...], dict[Origin, int]] = defaultdict(dict)

    def add(self, key: tuple[str, ...], record: RateLimitRecord) -> None:
        """Add a record under a key."""
        self._lists[key][record.time_ms, record.serial] = record
        count(self._origins[key], record.reporting_origin, 1)

    def remove(self, key: tuple[str, ...], record: RateLimitRecord) -> None:
        """Remove a record."""
        listed = self._lists[key]
        del listed[record.time_ms, record.serial]
        count(self._origins[key], record.reporting_origin, -1)
        if not listed:
            del self._lists[key], self._origins[key]

    def later_than(self, key: tuple[str, ...], time_ms: int) -> Iterator[RateLimitRecord]:
        """Yield the records of a key after a time, oldest first."""
        listed = self._lists.get(key)
        if listed is not None:
            for key_of_record in listed.irange((time_ms + 1, -1)):
                yield listed[key_of_record]

    def count_later_than(self, key: tuple[str, ...], time_ms: int) -> int:
        """Return how many records of a key are after a time; O(log n)."""
        listed = self._lists.get(key)
        return 0 if listed is None else len(listed) - listed.bisect_left((time_ms + 1, -1))

    def origin_fits(self, key: tuple[str, ...], time_ms: int, origin: Origin, most: int) -> bool:
        """Return whether ``origin`` is, or can become, one of the first ``most`` distinct origins after a time.

        O(1) while a key has few origins in all, the usual case. A key can have more than ``most`` only because records
        of noised sources are added without a check.
        """
        known = self._origins.get(key, {})
        if len(known) - (origin in known) < most:
            return True
        others: set[Origin] = set()
        for record in self.later_than(key, time_ms):
            if record.reporting_origin == origin:
                return True
            others.add(record.reporting_origin)
            if len(others) == most:
                return False
        return True


class LivingDestinations:
    """The destinations of sources that have not expired, updated as time advances."""

    __slots__ = ("_by_expiry", "active", "known")

    def __init__(self) -> None:
        self._by_expiry: SortedDict[tuple[int, int], RateLimitRecord] = SortedDict()
        self.known: dict[str, int] = {}
        self.active: dict[str, int] = {}

    def add(self, record: RateLimitRecord) -> None:
        """Count a record."""
        self._by_expiry[record.until_ms, record.serial] = record
        count(self.known, record.destination, 1)
        count(self.active, record.destination, 1)

    def remove(self, record: RateLimitRecord) -> None:
        """Stop counting a record."""
        if self._by_expiry.pop((record.until_ms, record.serial), None) is not None:
            count(self.known, record.destination, -1)
            if not record.deactivated:
                count(self.active, record.destination, -1)

    def deactivate(self, record: RateLimitRecord) -> None:
        """Count a record as known but no longer as active; call this before setting ``record.deactivated``."""
        if (record.until_ms, record.serial) in self._by_expiry and not record.deactivated:
            count(self.active, record.destination, -1)

    def expire(self, now_ms: int) -> None:
        """Stop counting what has expired."""
        while self._by_expiry and self._by_expiry.keys()[0][0] <= now_ms:
            self.remove(self._by_expiry.peekitem(0)[1])

    def active_records(self) -> list[RateLimitRecord]:
        """Return the records that count as active."""
        return [record for record in self._by_expiry.values() if not record.deactivated]


class RateLimits:
    """The records, and the limits on attributions and on reporting origins."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._serial = 0
        self._records: dict[int, RateLimitRecord] = {}
        self._by_time = SortedList()
        self._attributions = RecordIndex()
        self._attribution_pairs = RecordIndex()
        self._source_pairs = RecordIndex()
        self.sources_by_site = RecordIndex()
        self.sources_by_sites = RecordIndex()
        self._living: dict[tuple[str, ...], LivingDestinations] = defaultdict(LivingDestinations)
        self._by_source: dict[int, list[RateLimitRecord]] = {}
        self._by_report: dict[tuple[str, int], RateLimitRecord] = {}
        self._next_purge_ms = 0

    def __len__(self) -> int:
        return len(self._records)

    def add_source(self, source: StoredSource) -> None:
        """Record a registration, once per destination."""
        self._add(source, "source", source.registration.destinations, source.expiry_time_ms, None, source.time_ms)

    def add_attribution(
        self, source: StoredSource, scope: AttributionScope, destination: str, now_ms: int, report_id: int
    ) -> None:
        """Record that a report was made for a trigger on ``destination``."""
        self._add(source, scope, (destination,), now_ms, report_id, now_ms)

    def add_fake_attribution(self, source: StoredSource) -> None:
        """Record that a source was noised: it counts for every destination of the source."""
        self._add(source, "event", source.registration.destinations, source.time_ms, None, source.time_ms)

    def allows_attribution(self, source: StoredSource, scope: AttributionScope, destination: str) -> bool:
        """Return whether one more attribution fits the limit for its sites; the window ends at the source's time."""
        key = (scope, source.site, destination, source.reporting_site)
        before = self._attributions.count_later_than(key, source.time_ms - self._config.rate_limit_window_ms)
        return before < self._config.max_attributions

    def allows_attribution_origin(self, source: StoredSource, destination: str) -> bool:
        """Return whether the reporting origin may attribute for this source site and destination."""
        return self._allows_origin(
            self._attribution_pairs, source, (destination,), self._config.max_attribution_reporting_origins
        )

    def allows_source_origin(self, source: StoredSource) -> bool:
        """Return whether the reporting origin may register sources for this source site and its destinations."""
        destinations = source.registration.destinations
        return self._allows_origin(self._source_pairs, source, destinations, self._config.max_source_reporting_origins)

    def allows_origin_per_site(self, source: StoredSource) -> bool:
        """Return whether the reporting site stays within its limit of recent origins on this source site."""
        begin_ms = source.time_ms - self._config.origins_per_site_window_ms
        return self.sources_by_sites.origin_fits(
            (source.site, source.reporting_site),
            begin_ms,
            source.reporting_origin,
            self._config.max_reporting_origins_per_source_reporting_site,
        )

    def living(self, key: tuple[str, ...], now_ms: int) -> LivingDestinations:
        """Return the unexpired destinations of a source site, or of a source site and a reporting site."""
        found = self._living.get(key) or LivingDestinations()
        found.expire(now_ms)
        return found

    def deactivate(self, source_id: int) -> None:
        """Stop counting the registration of a source for the limit on unexpired destinations."""
        for record in self._by_source.get(source_id, ()):
            if record.scope == "source" and not record.deactivated:
                for key in _living_keys(record):
                    self._living[key].deactivate(record)
                record.deactivated = True

    def forget_report(self, scope: AttributionScope, report_id: int) -> None:
        """Remove the record of a report that will not be sent; fake reports have none."""
        record = self._by_report.get((scope, report_id))
        if record is not None:
            self._remove(record)

    def forget_sources(self, source_ids: Iterable[int]) -> None:
        """Remove every record of some sources, at the request of the user, never of a site."""
        for source_id in source_ids:
            for record in list(self._by_source.get(source_id, ())):
                self._remove(record)

    def forget_range(self, origin: Origin | None, begin_ms: int, end_ms: int) -> None:
        """Remove the records of an origin (None: all) in a range of time, both ends included."""
        for record in list(self._records.values()):
            times = [record.time_ms] if record.scope == "source" else [record.time_ms, record.until_ms]
            if origin in (None, record.reporting_origin) and any(begin_ms <= time <= end_ms for time in times):
                self._remove(record)

    def purge(self, now_ms: int) -> None:
        """Remove records that no limit counts any more; runs at most once per five minutes of simulated time.

        The window of an attribution ends at the time of its source, which may be 30 days ago. Records are kept that
        much longer than WICG's "can attribution rate-limit record be removed" asks, so that no limit depends on when
        this ran: any registration causes it, of another reporting site too.
        """
        if now_ms < self._next_purge_ms:
            return
        self._next_purge_ms = now_ms + 300_000
        longest_ms = max(self._config.rate_limit_window_ms, self._config.origins_per_site_window_ms)
        begin_ms = now_ms - longest_ms - constants.MAX_SOURCE_EXPIRY_MS
        for _, serial in list(self._by_time.irange(None, (begin_ms, 1 << 63))):
            self._remove(self._records[serial])

    def _allows_origin(self, index: RecordIndex, source: StoredSource, destinations: Iterable[str], most: int) -> bool:
        begin_ms = source.time_ms - self._config.rate_limit_window_ms
        return all(
            index.origin_fits((source.site, destination), begin_ms, source.reporting_origin, most)
            for destination in destinations
        )

    def _add(
        self,
        source: StoredSource,
        scope: str,
        destinations: Iterable[str],
        until_ms: int,
        report_id: int | None,
        now_ms: int,
    ) -> None:
        self.purge(now_ms)
        for destination in destinations:
            self._serial += 1
            record = RateLimitRecord(
                serial=self._serial,
                scope=scope,
                source_id=source.id,
                source_site=source.site,
                destination=destination,
                reporting_origin=source.reporting_origin,
                reporting_site=source.reporting_site,
                time_ms=source.time_ms,
                until_ms=until_ms,
                report_id=report_id,
                destination_priority=source.registration.destination_limit_priority,
            )
            self._records[record.serial] = record
            self._by_time.add((record.time_ms, record.serial))
            self._by_source.setdefault(source.id, []).append(record)
            if report_id is not None:
                self._by_report[scope, report_id] = record
            for index, key in self._indexes_of(record):
                index.add(key, record)
            if scope == "source":
                for key in _living_keys(record):
                    self._living[key].add(record)

    def _remove(self, record: RateLimitRecord) -> None:
        del self._records[record.serial]
        self._by_time.remove((record.time_ms, record.serial))
        listed = self._by_source[record.source_id]
        listed.remove(record)
        if not listed:
            del self._by_source[record.source_id]
        if record.report_id is not None:
            del self._by_report[record.scope, record.report_id]
        for index, key in self._indexes_of(record):
            index.remove(key, record)
        if record.scope == "source":
            for key in _living_keys(record):
                self._living[key].remove(record)

    def _indexes_of(self, record: RateLimitRecord) -> tuple[tuple[RecordIndex, tuple[str, ...]], ...]:
        pair = (record.source_site, record.destination)
        if record.scope == "source":
            return (
                (self._source_pairs, pair),
                (self.sources_by_site, (record.source_site,)),
                (self.sources_by_sites, (record.source_site, record.reporting_site)),
            )
        return (
            (self._attribution_pairs, pair),
            (self._attributions, (record.scope, *pair, record.reporting_site)),
        )


def _living_keys(record: RateLimitRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (record.source_site,), (record.source_site, record.reporting_site)


# Limits on the destinations of a source site: per minute, per day, and among unexpired sources.
#
# WICG, "processing an attribution source"; over the records of ``RateLimits``.

WindowVerdict = Literal["allowed", "hit global limit", "hit reporting limit"]


class DestinationLimits:
    """The three limits on destinations."""

    def __init__(self, limits: RateLimits, config: Config) -> None:
        self._limits = limits
        self._config = config

    def within_window(self, source: StoredSource) -> WindowVerdict:
        """Return whether a source passes the limits per window; the limit of its reporting site is checked first."""
        everyone, own = self._counts(source, (source.site,)), self._counts(source, _sites(source))
        config = self._config
        fits_own = own <= config.max_destinations_per_window_reporting_site
        fits = everyone <= config.max_destinations_per_window_total
        if fits_own and fits:
            return "allowed"
        begin_ms = source.time_ms - config.destination_window_ms
        all_sites = set(source.registration.destinations)
        same_site = set(all_sites)
        for record in self._limits.sources_by_site.later_than((source.site,), begin_ms):
            if record.until_ms > source.time_ms:
                all_sites.add(record.destination)
                if record.reporting_site == source.reporting_site:
                    same_site.add(record.destination)
        if len(same_site) > config.max_destinations_per_window_reporting_site:
            return "hit reporting limit"
        return "hit global limit" if len(all_sites) > config.max_destinations_per_window_total else "allowed"

    def within_day(self, source: StoredSource) -> bool:
        """Return whether the reporting site stays within its limit of destinations per day."""
        if self._counts(source, _sites(source)) <= self._config.max_destinations_per_day:
            return True
        begin_ms = source.time_ms - constants.DESTINATIONS_PER_DAY_WINDOW_MS
        destinations = set(source.registration.destinations)
        for record in self._limits.sources_by_sites.later_than(_sites(source), begin_ms):
            if record.until_ms > source.time_ms:
                destinations.add(record.destination)
        return len(destinations) <= self._config.max_destinations_per_day

    def sources_to_deactivate(self, source: StoredSource) -> set[int] | None:
        """Return the ids of the sources to remove so that a new one fits, or None if the new one is refused.

        Up to the limit, destinations of unexpired sources are kept by highest priority, then newest, then last name
        (WICG, "get sources to delete for the unexpired destination limit").
        """
        limit = self._config.max_destinations_per_source_site_and_reporting_site
        living = self._limits.living(_sites(source), source.time_ms)
        own = source.registration.destinations
        if len(living.active) + sum(destination not in living.active for destination in own) <= limit:
            return set()
        priority = source.registration.destination_limit_priority
        ranked = [
            (record.destination_priority, record.time_ms, record.destination, record.source_id)
            for record in living.active_records()
        ]
        ranked += [(priority, source.time_ms, destination, source.id) for destination in own]
        kept: set[str] = set()
        dropped: set[int] = set()
        for _, _, destination, source_id in sorted(ranked, reverse=True):
            if len(kept) < limit:
                kept.add(destination)
            elif destination not in kept:
                dropped.add(source_id)
        return None if source.id in dropped else dropped

    def _counts(self, source: StoredSource, key: tuple[str, ...]) -> int:
        """Count the destinations of unexpired sources, this source included: an upper bound for every window."""
        known = self._limits.living(key, source.time_ms).known
        return len(known) + sum(destination not in known for destination in source.registration.destinations)


def _sites(source: StoredSource) -> tuple[str, str]:
    return source.site, source.reporting_site


_KEPT_MS = 30 * constants.DAY_MS


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

    def __init__(self, config: Config) -> None:
        self._config = config
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
        remaining = constants.AGGREGATABLE_BUDGET if source is None else source.debug_budget
        reports = 0 if source is None else source.debug_reports
        site = reporting_origin.site
        if (
            required > remaining
            or reports >= self._config.max_aggregatable_debug_reports_per_source
            or self._total(context_site, None) + required > self._config.max_aggregatable_debug_budget_per_context_site
            or self._total(context_site, site) + required > constants.AGGREGATABLE_DEBUG_BUDGET_PER_REPORTING_SITE
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
        begin_ms = now_ms - constants.AGGREGATABLE_DEBUG_WINDOW_MS
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
