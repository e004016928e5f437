"""Clearing: by a site that clears its own data, and by a user who clears browsing history."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from w3c_client.budgets import BudgetStores
from w3c_client.storage.epochs import Epochs
from w3c_client.storage.impressions import Impression, ImpressionStore


def clear_impressions_for_site(impressions: ImpressionStore, site: str) -> None:
    """Remove a site's impressions, and its name from those of others (specification, ``Clear-Site-Data``).

    An impression that loses its last conversion site or conversion caller is removed. Budgets stay as they are, so a
    site cannot refill them.
    """
    impressions.replace([left for held in impressions if (left := _without(held, site)) is not None])


def _without(impression: Impression, site: str) -> Impression | None:
    if impression.caller == site:
        return None
    changed = impression
    if site in impression.conversion_sites:
        changed = replace(changed, conversion_sites=impression.conversion_sites - {site})
        if not changed.conversion_sites:
            return None
    if site in impression.conversion_callers:
        changed = replace(changed, conversion_callers=impression.conversion_callers - {site})
        if not changed.conversion_callers:
            return None
    return changed


def exhaust_sites(budgets: BudgetStores, epochs: Epochs, sites: Collection[str], now_ms: int) -> None:
    """Empty the budgets of sites whose data the user clears while keeping the visits in history.

    This covers every epoch that attribution can still use. Nothing else changes (``forgetVisits`` false).
    """
    if not sites:
        return
    first = epochs.starting(now_ms)
    reachable = range(first, epochs.index(now_ms) + 1)
    for site in sites:
        budgets.empty_site(site, reachable)


def forget_visits(
    impressions: ImpressionStore, budgets: BudgetStores, epochs: Epochs, sites: Collection[str] | None, now_ms: int
) -> None:
    """Forget the user's visits to some sites, or with None to all (``forgetVisits`` true).

    The start of epochs stays. The global budgets stay unless all visits are forgotten. All past impressions become
    unreachable, because attribution starts with the epoch after this moment. The specification's prose would also
    drop impressions by conversion site; its algorithm and vectors do not.

    Only budgets of epochs that become unreachable are deleted, and no epoch becomes reachable again: otherwise a clock
    that is set back, and forward again, would give an epoch its budgets twice.
    """
    if sites is None:
        impressions.replace(())
    else:
        impressions.keep(lambda held: held.impression_site not in sites)
    epochs.last_clear_ms = now_ms if epochs.last_clear_ms is None else max(epochs.last_clear_ms, now_ms)
    if epochs.start_ms is not None:  # without epochs nothing was charged
        budgets.forget(sites, through=epochs.index(epochs.last_clear_ms))
