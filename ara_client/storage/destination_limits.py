"""Limits on the destinations of a source site: per minute, per day, and among unexpired sources.

WICG, "processing an attribution source"; over the records of ``ara_client.storage.rate_limits``.
"""

from __future__ import annotations

from typing import Literal

from ara_client.constants import DESTINATIONS_PER_DAY_WINDOW_MS
from ara_client.storage.rate_limits import RateLimits
from ara_client.storage.sources import StoredSource
from ara_client.vendor import VendorValues

WindowVerdict = Literal["allowed", "hit global limit", "hit reporting limit"]


class DestinationLimits:
    """The three limits on destinations."""

    def __init__(self, limits: RateLimits, vendor: VendorValues) -> None:
        self._limits = limits
        self._vendor = vendor

    def within_window(self, source: StoredSource) -> WindowVerdict:
        """Return whether a source passes the limits per window; the limit of its reporting site is checked first."""
        everyone, own = self._counts(source, (source.site,)), self._counts(source, _sites(source))
        vendor = self._vendor
        fits_own = own <= vendor.max_destinations_per_window_reporting_site
        fits = everyone <= vendor.max_destinations_per_window_total
        if fits_own and fits:
            return "allowed"
        begin_ms = source.time_ms - vendor.destination_window_ms
        all_sites = set(source.registration.destinations)
        same_site = set(all_sites)
        for record in self._limits.sources_by_site.later_than((source.site,), begin_ms):
            if record.until_ms > source.time_ms:
                all_sites.add(record.destination)
                if record.reporting_site == source.reporting_site:
                    same_site.add(record.destination)
        if len(same_site) > vendor.max_destinations_per_window_reporting_site:
            return "hit reporting limit"
        return "hit global limit" if len(all_sites) > vendor.max_destinations_per_window_total else "allowed"

    def within_day(self, source: StoredSource) -> bool:
        """Return whether the reporting site stays within its limit of destinations per day."""
        if self._counts(source, _sites(source)) <= self._vendor.max_destinations_per_day:
            return True
        begin_ms = source.time_ms - DESTINATIONS_PER_DAY_WINDOW_MS
        destinations = set(source.registration.destinations)
        for record in self._limits.sources_by_sites.later_than(_sites(source), begin_ms):
            if record.until_ms > source.time_ms:
                destinations.add(record.destination)
        return len(destinations) <= self._vendor.max_destinations_per_day

    def sources_to_deactivate(self, source: StoredSource) -> set[int] | None:
        """Return the ids of the sources to remove so that a new one fits, or None if the new one is refused.

        Up to the limit, destinations of unexpired sources are kept by highest priority, then newest, then last name
        (WICG, "get sources to delete for the unexpired destination limit").
        """
        limit = self._vendor.max_destinations_per_source_site_and_reporting_site
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
