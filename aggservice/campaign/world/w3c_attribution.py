"""W3C Attribution in a campaign: a fleet of browsers with budgets on the device makes one report per call.

A page calls once per conversion and measure. Every valid call makes a report, of zeros if nothing was attributed or
nothing could be paid.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.settings.distributions import coins, uniform
from aggservice.campaign.settings.w3c import W3cSettings
from aggservice.campaign.world.attribution import Ints, MeasuredConversions, ReportColumns, contribution_units
from aggservice.campaign.world.events import Events
from aggservice.campaign.world.fates import Fate
from aggservice.campaign.world.histogram_index import IndexLayout, mixed_radix
from aggservice.mechanisms import Bits
from w3c_client import Config, Filter
from w3c_client.fleet.columns import ClearColumns, ClearKind, ConversionColumns, ConversionOutcome, ImpressionColumns
from w3c_client.fleet.fleet import Fleet

Flags = NDArray[np.bool_]

_ACCEPTED, _OTHER = 1, 2
_REFUSALS = {
    Filter.SITE: Fate.SITE_BUDGET,
    Filter.GLOBAL: Fate.GLOBAL_BUDGET,
    Filter.CONVERSION_QUOTA: Fate.QUOTA,
    Filter.IMPRESSION_QUOTA: Fate.QUOTA,
    Filter.ACTION_CAP: Fate.QUOTA,
}
_FATES = {
    ConversionOutcome.ATTRIBUTED: Fate.ON_THE_WAY,
    ConversionOutcome.NO_MATCH: Fate.NOT_ATTRIBUTED,
    ConversionOutcome.CLEARED: Fate.CLEARED,
    ConversionOutcome.OFF: Fate.INACTIVE,
}


class Touches:
    """The events of a campaign as columns of a W3C fleet; an item is a conversion and a measure with a value."""

    def __init__(self, campaign: Campaign, events: Events) -> None:
        self.campaign, self.events = campaign, events
        self.layout = IndexLayout.of(campaign)
        self.natural, self.asked, self.amount = contribution_units(campaign, events.conversions)
        measures = len(campaign.measures)
        self.measure = np.tile(np.arange(measures), len(events.conversions))
        self.conversion = np.repeat(np.arange(len(events.conversions)), measures)
        conversions = events.conversions
        codes = {field.name: conversions.codes[field.name][self.conversion] for field in self.layout.of_conversion}
        self.task = self.layout.task(self.measure, conversions.destination[self.conversion], codes)
        self.days = ceil(campaign.client.expiry_days)

    def fleet(self, config: Config, bits: Bits) -> Fleet:
        """Return a fleet. Its lists: the empty one, each conversion site alone, and a match value that no ad has."""
        sites = [(number,) for number in range(self.layout.destinations)]
        return Fleet(bits=bits, config=config, lists=((), *sites, (_OTHER,)))

    def impressions(self, enabled: Flags) -> ImpressionColumns:
        """Return the ads; ``enabled`` is per device."""
        shown, layout = self.events.impressions, self.layout
        where = next((field.name for field in self.campaign.keys.fields if field.origin == "site"), None)
        publisher = 0 if where is None else shown.codes[where]
        priority = min(self.campaign.client.click_priority, (1 << 31) - 1)
        return ImpressionColumns.of(
            device=shown.device,
            time_ms=shown.time_ms,
            site=np.broadcast_to(layout.destinations + np.asarray(publisher), len(shown)),
            intermediary=layout.destinations + len(self.campaign.population.sites),
            histogram_index=mixed_radix(layout.of_impression, shown.codes, len(shown)),
            priority=shown.click.astype(np.int64) * priority,
            match_value=_ACCEPTED,
            lifetime_days=self.days,
            conversion_sites=1 + shown.destination,
            enabled=enabled[shown.device],
        )

    def calls(self, rows: Ints, enabled: Flags, *, histogram_size: int, epsilon_micro: int) -> ConversionColumns:
        """Return the calls of some items; ``enabled`` is per device."""
        conversions, campaign = self.events.conversions, self.campaign
        of = self.conversion[rows]
        most = np.array([int(measure.most * measure.scale + 1 / 2) for measure in campaign.measures], dtype=np.int64)
        accepted = np.ones(rows.size, dtype=np.bool_)
        if campaign.filters is not None:
            field = campaign.keys.field(campaign.filters.field)
            good = np.array([value in campaign.filters.accepts for value in field.values])
            accepted = good[conversions.codes[field.name][of]]
        return ConversionColumns.of(
            device=conversions.device[of],
            time_ms=conversions.time_ms[of],
            site=conversions.destination[of],
            intermediary=self.layout.destinations + len(campaign.population.sites),
            histogram_size=np.full(rows.size, histogram_size),
            value=self.amount.reshape(-1)[rows],
            max_value=np.maximum(most, 1)[self.measure[rows]],
            epsilon_micro=np.full(rows.size, epsilon_micro),
            lookback_days=self.days,
            match_values=np.where(accepted, 0, 1 + self.layout.destinations),
            enabled=enabled[conversions.device[of]],
        )

    def last_touch(self, bits: Bits) -> tuple[Ints, Ints]:
        """Return the items that browsers without budgets attribute, and the index that each goes to."""
        rows = np.flatnonzero(self.amount.reshape(-1) > 0)
        enabled = np.ones(self.events.devices, dtype=np.bool_)
        fleet = self.fleet(Config(filters=frozenset(), impressions_per_site=None), bits)
        calls = self.calls(rows, enabled, histogram_size=self.layout.size, epsilon_micro=1)
        found = fleet.run(self.impressions(enabled), calls, devices=self.events.devices)
        return rows[np.diff(found.offset) > 0], found.index

    def measured(self, attributable: Ints, index: Ints) -> MeasuredConversions:
        """Return the ground truth before any report is made: every fate is NOT_ATTRIBUTED or NO_VALUE."""
        items = self.conversion.size
        words = {name: np.zeros(items, dtype=np.uint64) for name in ("true_high", "true_low", "key_high", "key_low")}
        high, low = self.layout.key(self.task[attributable], index)
        words["true_high"][attributable], words["true_low"][attributable] = high, low
        amount = self.amount.reshape(-1)
        known = np.zeros(items, dtype=np.bool_)
        known[attributable] = True
        fate = np.where(amount > 0, Fate.NOT_ATTRIBUTED, Fate.NO_VALUE).astype(np.int8)
        return MeasuredConversions(
            conversion=self.conversion,
            measure=self.measure,
            time_ms=self.events.conversions.time_ms[self.conversion],
            natural=self.natural.reshape(-1),
            asked=self.asked.reshape(-1),
            amount=amount,
            attributable=known,
            report=np.full(items, -1, dtype=np.int64),
            fate=fate,
            **words,
        )


def attribute_on_device(campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
    """Run the events through every W3C browser; return the reports and the ground truth."""
    settings = campaign.client.w3c
    touches = Touches(campaign, events)
    layout = touches.layout
    size = settings.histogram_size or layout.size
    config = settings.design.config(impressions_per_site=None)
    if max(size, layout.size) > config.max_histogram_size:
        raise RunError(
            f"the fields of impressions have {layout.size:,} combinations: a histogram has room for "
            f"{config.max_histogram_size:,}. Give them fewer values"
        )
    items = touches.measured(*touches.last_touch(bits.child("uncapped W3C fleet")))
    enabled = ~coins(bits.child("disabled"), settings.disabled, events.devices)
    active = ~coins(bits.child("inactive"), settings.inactive, len(events.conversions))
    rows = np.flatnonzero((items.amount > 0) & active[items.conversion])
    fate = items.fate.copy()
    fate[(items.amount > 0) & ~active[items.conversion]] = Fate.INACTIVE
    calls = touches.calls(rows, enabled, histogram_size=size, epsilon_micro=settings.epsilon_micro)
    made = touches.fleet(config, bits.child("W3C fleet")).run(
        touches.impressions(enabled), calls, _clears(campaign, settings, events, bits), devices=events.devices
    )
    lookup = np.array([_FATES.get(outcome, Fate.QUOTA) for outcome in ConversionOutcome], dtype=np.int8)
    fate[rows] = lookup[made.outcome]
    refused = made.outcome == ConversionOutcome.REFUSED
    for place, name in reversed(list(enumerate(Filter))):
        fate[rows[refused & (made.refused >> place & 1 > 0)]] = _REFUSALS[name]
    sizes = np.diff(made.offset)
    lost = (made.outcome == ConversionOutcome.ATTRIBUTED) & (sizes == 0)
    fate[rows[lost]] = Fate.OUTSIDE
    sent = np.flatnonzero(sizes)
    high, low = layout.key(touches.task[rows[sent]], made.index)
    key_high, key_low, report = items.key_high.copy(), items.key_low.copy(), items.report.copy()
    key_high[rows[sent]], key_low[rows[sent]], report[rows[sent]] = high, low, sent
    reports = ReportColumns(
        scheduled_ms=calls.time_ms,
        report_id=report_ids(bits.child("ids of W3C reports"), rows.size),
        destination=calls.site,
        offset=made.offset,
        key_high=high,
        key_low=low,
        value=made.amount,
        filtering_id=np.zeros(made.amount.size, dtype=np.uint64),
        null=sizes == 0,
        task=touches.task[rows],
    )
    return reports, replace(items, fate=fate, key_high=key_high, key_low=key_low, report=report)


def _clears(campaign: Campaign, settings: W3cSettings, events: Events, bits: Bits) -> ClearColumns:
    """Return the clears of all history: at most one per device, at a random time."""
    population = campaign.population
    devices = np.flatnonzero(coins(bits.child("cleared"), settings.cleared, events.devices))
    span = population.days * DAY_MS
    when = population.start_ms + (uniform(bits.child("clear times"), devices.size) * span).astype(np.int64)
    return ClearColumns.of(
        device=devices, time_ms=when, kind=np.full(devices.size, ClearKind.FORGET_ALL), site=np.full(devices.size, -1)
    )


def report_ids(bits: Bits, count: int) -> NDArray[np.uint8]:
    """Return the bytes of ``count`` random UUIDs (version 4)."""
    ids = bits.words(2 * count).view(np.uint8).reshape(count, 16).copy()
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids
