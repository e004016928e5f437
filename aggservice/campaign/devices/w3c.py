"""W3C Attribution in a campaign: browsers with budgets on the device make one report per call.

A page calls once per conversion and measure. Every valid call makes a report, of zeros if nothing was attributed or
nothing could be paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Self

import numpy as np

from aggservice.campaign.columns import Events, Fate, Fates, Flags, Ints, MeasuredConversions, ReportColumns, report_ids
from aggservice.campaign.devices.amounts import KEY_COLUMNS, accepted, contribution_units, item_columns
from aggservice.campaign.devices.browsers import BrowserFleet
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.settings.device import DeviceApi
from aggservice.campaign.settings.distributions import coins, uniform
from aggservice.campaign.settings.tasks import TaskLayout, mixed_radix
from aggservice.campaign.settings.w3c import LARGEST_EPSILON, MICRO, DesignSettings
from aggservice.files.settings import Known, amount, kind, number, read_settings, whole
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits, ForbiddenBits, ManualClock, uniform_below_batch
from aggservice.wire import Api
from budget import Sensitivity
from w3c_client import (
    ATTRIBUTION_RULES,
    DEFAULT_SERVICE,
    RULES,
    Browser,
    Config,
    ConversionOptions,
    ImpressionOptions,
    Page,
    design_config,
)
from w3c_client.columns import (
    ClearColumns,
    ClearKind,
    ConversionColumns,
    ConversionOutcome,
    FleetConversions,
    ImpressionColumns,
)
from w3c_client.credit import AttributionRule, attribution_rule_of, credited
from w3c_client.fleet import Fleet
from w3c_client.options import parse_site
from w3c_client.randomness import W3cWordChoices
from w3c_client.rules import rule_of

_ACCEPTED, _OTHER = 1, 2
_TOUCHES = 64
"""An attribution rule is asked for up to so many touches whether it divides a conversion."""
_FATES = {
    ConversionOutcome.ATTRIBUTED: Fate.ON_THE_WAY,
    ConversionOutcome.NO_MATCH: Fate.NOT_ATTRIBUTED,
    ConversionOutcome.CLEARED: Fate.CLEARED,
    ConversionOutcome.OFF: Fate.INACTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class W3cAttribution(DeviceApi):
    """Conversions with W3C Attribution, Level 1: the device pays from its own budgets, and a report pays once."""

    api = "w3c"
    title = "W3C Attribution"
    short = "W3C"
    colour = "#2f855a"
    wire_api = Api.W3C_ATTRIBUTION
    task_jobs = True
    other_keys = (
        "design", "without", "with", *(rule.field.removesuffix("_micro") for rule in map(rule_of, RULES)), "epoch_days",
    )  # fmt: skip

    design: DesignSettings
    call_epsilon: str = amount("W3C: ε of every call, one per conversion and measure", default="0.25")
    histogram_size: int | None = whole(
        "W3C: smaller loses the ads with higher indexes",
        default=None,
        shown="room for all",
        least=1,
        most=design_config("w3c").max_histogram_size,
    )
    cleared: float = number("W3C: the share of devices that clear their history once", default=0.0, least=0, most=1)
    disabled: float = number("W3C: the share of devices whose API is off", default=0.0, least=0, most=1)
    inactive: float = number("W3C: the share of conversions without an activation", default=0.0, least=0, most=1)
    attribution: AttributionRule | type[AttributionRule] = kind(
        "W3C: which touch a conversion counts for, an attribution rule that gives all of it to one touch, by its name "
        "or `module:Name`",
        ATTRIBUTION_RULES,
        default="last-n-touch",
    )

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read the design of on-device budgets and the settings of the device."""
        return read_settings(section, cls, done=False, design=DesignSettings.read(section))

    def check(self, section: Section, known: Known) -> None:
        """Refuse an ε that browsers cannot hold, and a rule that divides conversions: the ground truth has one key per
        conversion and measure.
        """
        DeviceApi.check(self, section, known)
        exact = Fraction(self.call_epsilon) * MICRO
        if exact.denominator != 1 or exact > LARGEST_EPSILON * MICRO:
            remedy = "Write at most 4294 with at most six decimal places"
            section.refuse("call_epsilon", f"is {self.call_epsilon}", remedy)
        rule = attribution_rule_of(self.attribution)
        for touches in range(1, _TOUCHES + 1):
            if len(credited(rule, touches, (1,), Config().max_credits)[0]) > 1:
                section.refuse(
                    "attribution",
                    f"is {rule.name!r}, which divides a conversion of {touches} touches",
                    "A campaign counts each conversion under one key: name a rule that gives all of it to one touch, "
                    "or give this one to w3c_client.Config",
                )

    def check_campaign(self, top: Section, campaign: Campaign) -> None:
        """Refuse what W3C browsers cannot do: origins that are not sites, and discovery."""
        for key, origin in (
            ("reporting_origin", campaign.reporting_origin),
            *(("destinations", one) for one in campaign.population.destinations),
        ):
            if origin != f"https://{parse_site(origin.removeprefix('https://'))}":
                section = top if key == "reporting_origin" else top.section("population")
                section.refuse(
                    key, f"has {origin!r}", "W3C Attribution measures sites: write https:// and a registrable domain"
                )
        for index, query in enumerate(campaign.queries):
            for key in ("discovery", "others_epsilon"):
                if getattr(query, key) not in (False, "0"):
                    remedy = "A W3C histogram releases exactly its own indexes: leave it out"
                    top.sections("queries")[index].refuse(key, f"is {getattr(query, key)!r}", remedy)

    @property
    def caps_move(self) -> bool:
        """An epoch that cannot pay loses its ads, so an ad of another epoch is credited."""
        return True

    @property
    def bounds(self) -> Mapping[Api, Sensitivity]:
        """A W3C report brings its own bounds."""
        return {}

    def tasks(self, campaign: Campaign) -> TaskLayout:
        """Return how reports divide into tasks: each measure, conversion site and kind of conversion has its own."""
        slots = self.design.config().payload_slots
        return TaskLayout.of(campaign, histogram_size=self.histogram_size, slots=slots, epsilon=self.call_epsilon)

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        touches = Touches(campaign, self.tasks(campaign), self, events)
        layout = touches.layout
        size = layout.histogram_size
        config = self.design.config(impressions_per_site=None, attribution=self.attribution)
        if max(size, layout.size) > config.max_histogram_size:
            raise RunError(
                f"the fields of impressions have {layout.size:,} combinations: a histogram has room for "
                f"{config.max_histogram_size:,}. Give them fewer values"
            )
        items = touches.measured(*touches.uncapped(bits.child("uncapped W3C fleet")))
        enabled = ~coins(bits.child("disabled"), self.disabled, events.devices)
        active = ~coins(bits.child("inactive"), self.inactive, len(events.conversions))
        rows = np.flatnonzero((items.amount > 0) & active[items.conversion])
        fate = items.fate.copy()
        fate[(items.amount > 0) & ~active[items.conversion]] = Fate.INACTIVE
        calls = touches.calls(
            rows, enabled, histogram_size=size, epsilon_micro=int(Fraction(self.call_epsilon) * MICRO)
        )
        clears, shown = _clears(campaign, self.cleared, events, bits), touches.impressions(enabled)
        if self.uses_browsers(events):
            offset_ms = uniform_below_batch(bits.child("W3C fleet"), config.epoch_ms, events.devices)
            made: _Calls | FleetConversions = _run_browsers(config, touches.lists, shown, calls, clears, offset_ms)
            # A browser has forgotten what it cleared; the one without clears and budgets has not.
            forgot = (made.outcome == ConversionOutcome.NO_MATCH) & items.attributable[rows]
            made.outcome[forgot] = ConversionOutcome.CLEARED
        else:
            fleet = touches.fleet(config, bits.child("W3C fleet"))
            made = fleet.run(shown, calls, clears, devices=events.devices)
        lookup = np.array([_FATES.get(outcome, Fate.QUOTA) for outcome in ConversionOutcome], dtype=np.int8)
        fate[rows] = lookup[made.outcome]
        refused, by = made.outcome == ConversionOutcome.REFUSED, made.refused.astype(np.int64)
        for place, rule in reversed(list(enumerate(config.rules))):
            fate[rows[refused & (by >> place & 1 > 0)]] = Fate[rule.refusal.upper()]
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


class Touches:
    """The events of a campaign as columns of a W3C fleet; an item is a conversion and a measure with a value."""

    def __init__(self, campaign: Campaign, layout: TaskLayout, device: W3cAttribution, events: Events) -> None:
        self.campaign, self.device, self.events = campaign, device, events
        self.layout = layout
        conversions = events.conversions
        self.columns = item_columns(conversions, *contribution_units(campaign, conversions))
        self.conversion, self.measure, self.amount = (self.columns[x] for x in ("conversion", "measure", "amount"))
        codes = {field.name: conversions.codes[field.name][self.conversion] for field in self.layout.of_conversion}
        self.task = self.layout.task(self.measure, conversions.destination[self.conversion], codes)
        self.days = ceil(device.expiry_days)
        # The empty list, each conversion site alone, and a match value that no ad has.
        self.lists = ((), *((number,) for number in range(layout.destinations)), (_OTHER,))

    def fleet(self, config: Config, bits: Bits) -> Fleet:
        """Return a fleet of these devices."""
        return Fleet(bits=bits, config=config, lists=self.lists)

    def impressions(self, enabled: Flags) -> ImpressionColumns:
        """Return the ads; ``enabled`` is per device."""
        shown, layout = self.events.impressions, self.layout
        where = next((field.name for field in self.campaign.keys.fields if field.origin == "site"), None)
        publisher = 0 if where is None else shown.codes[where]
        priority = min(self.device.click_priority, (1 << 31) - 1)
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
        return ConversionColumns.of(
            device=conversions.device[of],
            time_ms=conversions.time_ms[of],
            site=conversions.destination[of],
            intermediary=self.layout.destinations + len(campaign.population.sites),
            histogram_size=np.full(rows.size, histogram_size),
            value=self.amount[rows],
            max_value=np.array(self.layout.max_values, dtype=np.int64)[self.measure[rows]],
            epsilon_micro=np.full(rows.size, epsilon_micro),
            lookback_days=self.days,
            match_values=np.where(accepted(campaign, conversions)[of], 0, 1 + self.layout.destinations),
            enabled=enabled[conversions.device[of]],
        )

    def uncapped(self, bits: Bits) -> tuple[Ints, Ints]:
        """Return the items that browsers without budgets attribute, and the index that each goes to."""
        rows = np.flatnonzero(self.amount > 0)
        enabled = np.ones(self.events.devices, dtype=np.bool_)
        attribution = attribution_rule_of(self.device.attribution)
        fleet = self.fleet(Config(rules=(), impressions_per_site=None, attribution=attribution), bits)
        calls = self.calls(rows, enabled, histogram_size=self.layout.size, epsilon_micro=1)
        found = fleet.run(self.impressions(enabled), calls, devices=self.events.devices)
        return rows[np.diff(found.offset) > 0], found.index

    def measured(self, attributable: Ints, index: Ints) -> MeasuredConversions:
        """Return the ground truth before any report is made: every fate is NOT_ATTRIBUTED or NO_VALUE."""
        items = self.conversion.size
        words: dict[str, Any] = {name: np.zeros(items, dtype=np.uint64) for name in KEY_COLUMNS}
        high, low = self.layout.key(self.task[attributable], index)
        words["true_high"][attributable], words["true_low"][attributable] = high, low
        known = np.zeros(items, dtype=np.bool_)
        known[attributable] = True
        fate = np.where(self.amount > 0, Fate.NOT_ATTRIBUTED, Fate.NO_VALUE).astype(np.int8)
        return MeasuredConversions(
            **self.columns,
            attributable=known,
            report=np.full(items, -1, dtype=np.int64),
            fate=fate,
            **words,
        )


def _clears(campaign: Campaign, share: float, events: Events, bits: Bits) -> ClearColumns:
    """Return the clears of all history: at most one per device, at a random time."""
    population = campaign.population
    devices = np.flatnonzero(coins(bits.child("cleared"), share, events.devices))
    span = population.days * DAY_MS
    when = population.start_ms + (uniform(bits.child("clear times"), devices.size) * span).astype(np.int64)
    return ClearColumns.of(
        device=devices, time_ms=when, kind=np.full(devices.size, ClearKind.FORGET_ALL), site=np.full(devices.size, -1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """What calls gave, as the columns of the same name of ``FleetConversions``."""

    outcome: Fates
    offset: Ints
    index: Ints
    amount: Ints
    refused: Ints


def _run_browsers(
    config: Config,
    lists: tuple[tuple[int, ...], ...],
    impressions: ImpressionColumns,
    calls: ConversionColumns,
    clears: ClearColumns,
    offset_ms: Ints,
) -> _Calls:
    """Make every call in a real browser of its device. Sites are named by their numbers."""

    def new(device: int, clock: ManualClock) -> Browser:
        return Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=W3cWordChoices(int(offset_ms[device])))

    def page(columns: ImpressionColumns | ConversionColumns, row: int) -> Page:
        site, frame = int(columns.site[row]), int(columns.intermediary[row])
        return Page(top_level=f"site{site}.example", frame=f"site{frame}.example")

    fleet = BrowserFleet(new)
    outcome, refused = np.zeros(len(calls), dtype=np.int8), np.zeros(len(calls), dtype=np.int64)
    sent: list[list[tuple[int, int]]] = [[] for _ in range(len(calls))]
    for place, row in BrowserFleet.in_order(*(one.time_ms.tolist() for one in (impressions, calls, clears))):
        columns = (impressions, calls, clears)[place]
        browser = fleet.at(int(columns.device[row]), int(columns.time_ms[row]))
        if place == 2:
            browser.forget_visits()
        elif place == 0:
            browser.enabled = bool(impressions.enabled[row])
            browser.save_impression(
                page(impressions, row),
                ImpressionOptions(
                    histogram_index=int(impressions.histogram_index[row]),
                    priority=int(impressions.priority[row]),
                    match_value=int(impressions.match_value[row]),
                    lifetime_days=int(impressions.lifetime_days[row]),
                    conversion_sites=[f"site{one}.example" for one in lists[int(impressions.conversion_sites[row])]],
                ),
            )
        else:
            browser.enabled = bool(calls.enabled[row])
            done = browser.measure_conversion(
                page(calls, row),
                ConversionOptions(
                    aggregation_service=DEFAULT_SERVICE,
                    histogram_size=int(calls.histogram_size[row]),
                    value=int(calls.value[row]),
                    max_value=int(calls.max_value[row]),
                    epsilon=int(calls.epsilon_micro[row]) / 1_000_000,
                    lookback_days=int(calls.lookback_days[row]),
                    match_values=lists[int(calls.match_values[row])],
                ),
            )
            paid = any(one.refused_by is None for one in done.epochs)
            outcome[row] = (
                ConversionOutcome.OFF
                if not done.enabled
                else ConversionOutcome.ATTRIBUTED
                if paid
                else ConversionOutcome.REFUSED
                if done.epochs
                else ConversionOutcome.NO_MATCH
            )
            refused[row] = sum(1 << bit for bit, rule in enumerate(config.rules) if rule.name in done.refused_by)
            sent[row] = [(index, amount) for index, amount in enumerate(done.histogram) if amount]
    flat = [one for row in sent for one in row]
    return _Calls(
        outcome=outcome,
        offset=np.cumsum([0, *map(len, sent)], dtype=np.int64),
        index=np.array([index for index, _ in flat], dtype=np.int64),
        amount=np.array([amount for _, amount in flat], dtype=np.int64),
        refused=refused,
    )
