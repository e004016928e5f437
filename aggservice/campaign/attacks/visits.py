"""The visits of a population in columns: ads on impression sites, and purchases on conversion sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.settings.attacks import QuerySettings, VisitPopulation
from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.settings.distributions import coins, weighted_indexes
from aggservice.mechanisms import Bits

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """Visits by device and time. An ad has an impression site and a bucket; a purchase has −1 for both.

    ``touched`` is the bucket of the last ad of the same conversion site within the lookback, −1 if there is none: what
    a conversion reports if no filter refuses.
    """

    device: Ints
    time_ms: Ints
    conversion_site: Ints
    impression_site: Ints
    bucket: Ints
    touched: Ints

    def __len__(self) -> int:
        return self.device.size


def simulate_visits(population: VisitPopulation, queries: QuerySettings, bits: Bits) -> Visits:
    """Return the visits of a population within its days: each ad may lead to one purchase on its conversion site."""
    shown = population.ads.counts(bits.child("ads"), population.devices)
    device = np.repeat(np.arange(population.devices), shown)
    count = device.size
    day = bits.child("times").words(count) % np.uint64(population.days * DAY_MS)
    seen_ms = population.start_ms + day.astype(np.int64)
    shop = weighted_indexes(bits.child("conversion sites"), _zipf(population, population.conversion_sites), count)
    site = weighted_indexes(bits.child("impression sites"), _zipf(population, population.impression_sites), count)
    bucket = weighted_indexes(bits.child("buckets"), np.ones(queries.buckets), count)
    leads = np.flatnonzero(coins(bits.child("purchases"), population.conversion_rate, count))
    delay = np.clip(population.delay_days.draw(bits.child("delays"), leads.size), 0, population.days)
    bought_ms = seen_ms[leads] + 1 + (delay * DAY_MS).astype(np.int64)
    kept = bought_ms < population.start_ms + population.days * DAY_MS
    leads, bought_ms = leads[kept], bought_ms[kept]
    none = np.full(leads.size, -1, dtype=np.int64)
    columns = [
        np.concatenate(pair)
        for pair in (
            (device, device[leads]),
            (seen_ms, bought_ms),
            (shop, shop[leads]),
            (site, none),
            (bucket, none),
        )
    ]
    order = np.lexsort((columns[3] < 0, columns[1], columns[0]))
    device, time_ms, shop, site, bucket = (column[order] for column in columns)
    return Visits(
        device=device,
        time_ms=time_ms,
        conversion_site=shop,
        impression_site=site,
        bucket=bucket,
        touched=_last_touch(device, time_ms, shop, bucket, queries.lookback_days * DAY_MS),
    )


def _zipf(population: VisitPopulation, sites: int) -> NDArray[np.float64]:
    """Return the weights of sites by rank."""
    return np.asarray((1.0 + np.arange(sites)) ** -population.exponent, dtype=np.float64)


def _last_touch(device: Ints, time_ms: Ints, shop: Ints, bucket: Ints, lookback_ms: int) -> Ints:
    """Return the bucket of the last ad of the same device and conversion site that is within the lookback."""
    order = np.lexsort((np.arange(device.size), shop, device))
    group = np.ones(device.size, dtype=np.bool_)
    group[1:] = (device[order][1:] != device[order][:-1]) | (shop[order][1:] != shop[order][:-1])
    is_ad = bucket[order] >= 0
    place = np.arange(device.size)
    last = np.maximum.accumulate(np.where(is_ad, place, -1))
    start = np.maximum.accumulate(np.where(group, place, 0))
    found = (last >= start) & ~is_ad
    found &= time_ms[order] <= time_ms[order][np.maximum(last, 0)] + lookback_ms
    touched = np.full(device.size, -1, dtype=np.int64)
    touched[order] = np.where(found, bucket[order][np.maximum(last, 0)], -1)
    return touched
