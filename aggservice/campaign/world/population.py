"""Simulates a population: what people see and buy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aggservice.campaign.columns import Conversions, Events, Flags, Floats, Impressions, Ints
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.settings.distributions import coins, uniform, weighted_indexes
from aggservice.campaign.settings.population import PopulationModel
from aggservice.mechanisms import Bits

MAX_EVENTS = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPopulation(PopulationModel):
    """People who are drawn from the distributions of ``[population]``."""

    name = "simulated"
    drawn = True

    def events(self, campaign: Campaign, bits: Bits) -> Events:
        """Return the events of a simulated population within the campaign's days.

        Each impression and conversion is on a device of its person, drawn uniformly; a browser cannot attribute a
        conversion to an ad on another device. Conversions after the last day are dropped.
        """
        population = campaign.population
        people = population.size
        start, end = population.start_ms, population.start_ms + population.days * DAY_MS
        owned = np.maximum(population.devices.counts(bits.child("devices"), people), 1)
        _check_sum("devices", owned)
        first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(owned)))
        shown = population.impressions.counts(bits.child("impressions"), people)
        _check_sum("impressions", shown)
        viewer = np.repeat(np.arange(people), shown)
        days = np.clip(population.impression_day.draw(bits.child("impression days"), viewer.size), 0, population.days)
        seen_ms = np.minimum(start + (days * DAY_MS).astype(np.int64), end - 1)
        click = coins(bits.child("clicks"), population.click_rate, viewer.size)
        destination = _uniform(bits.child("destinations"), len(population.destinations), viewer.size)
        rate = np.where(click, population.click_conversion_rate, population.conversion_rate)
        leads = np.flatnonzero(coins_each(bits.child("conversion"), rate))
        each = population.conversions.counts(bits.child("conversions"), leads.size)
        unled = population.organic.counts(bits.child("organic"), people)
        _check_sum("conversions", np.concatenate((each, unled)))
        cause, free = np.repeat(leads, each), np.repeat(np.arange(people), unled)
        buyer = np.concatenate((viewer[cause], free))
        # Clipped so that no time overflows; events after the last day are dropped below.
        delay = np.clip(population.delay_days.draw(bits.child("delays"), cause.size), 0, population.days)
        organic_ms = start + (uniform(bits.child("organic times"), free.size) * (end - start)).astype(np.int64)
        bought_ms = np.concatenate((seen_ms[cause] + 1 + (delay * DAY_MS).astype(np.int64), organic_ms))
        bought_at = np.concatenate(
            (destination[cause], _uniform(bits.child("organic destinations"), len(population.destinations), free.size))
        )
        kept = np.flatnonzero(bought_ms < end)
        kept = kept[np.argsort(bought_ms[kept], kind="stable")]
        order = np.argsort(seen_ms, kind="stable")
        impressions = Impressions(
            time_ms=seen_ms[order],
            device=_device(bits.child("viewing device"), viewer, first, owned)[order],
            destination=destination[order],
            click=click[order],
            codes={name: column[order] for name, column in _codes(campaign, bits, viewer, click, people, True).items()},
        )
        buyers = buyer[kept]
        codes = _codes(campaign, bits, buyers, np.zeros(0, dtype=np.bool_), people, False)
        conversions = Conversions(
            time_ms=bought_ms[kept],
            device=_device(bits.child("buying device"), buyers, first, owned),
            destination=bought_at[kept],
            value=population.value.counts(bits.child("values"), kept.size),
            dedup_key=np.full(kept.size, -1, dtype=np.int64),
            codes=codes,
        )
        return Events(impressions=impressions, conversions=conversions, devices=int(first[-1]))


def _check_sum(what: str, counts: Ints) -> None:
    """Refuse a population whose columns would not fit into memory."""
    if not (total := float(counts.sum(dtype=np.float64))) <= MAX_EVENTS:
        raise RunError(f"the population comes to {total:.3g} {what}, more than {MAX_EVENTS:,}: make it smaller")


def coins_each(bits: Bits, probability: Floats) -> Flags:
    """Return one coin per probability, true with that probability."""
    return uniform(bits, probability.size) < probability


def _uniform(bits: Bits, count: int, size: int) -> Ints:
    return np.zeros(size, dtype=np.int64) if count == 1 else weighted_indexes(bits, np.ones(count), size)


def _device(bits: Bits, person: Ints, first: Ints, owned: Ints) -> Ints:
    several = int(owned.max(initial=1)) > 1
    extra = (uniform(bits, person.size) * owned[person]).astype(np.int64) if several else 0
    return first[person] + extra


def _codes(campaign: Campaign, bits: Bits, person: Ints, click: Flags, people: int, of_source: bool) -> dict[str, Ints]:
    """Return the codes of every field that comes from the source, or from the conversion."""
    codes: dict[str, Ints] = {}
    for field in campaign.keys.fields:
        if field.of_source != of_source or field.origin in ("measure", "threshold"):
            continue
        if field.origin == "interaction":
            codes[field.name] = click.astype(np.int64)
            continue
        weights = np.asarray(field.weights)
        if field.per_person:
            drawn = weighted_indexes(bits.child(f"field {field.name}"), weights, people)[person]
        else:
            drawn = weighted_indexes(bits.child(f"field {field.name}"), weights, person.size)
        codes[field.name] = field.coded(drawn)
    return codes
