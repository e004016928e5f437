"""Attribution Reporting in a campaign: aggregatable reports of sources and triggers, and event-level reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import Events, Fate, Fates, Ints, MeasuredConversions, ReportColumns
from aggservice.campaign.devices.amounts import KEY_COLUMNS, accepted_values, contribution_units, item_columns
from aggservice.campaign.devices.browsers import BrowserFleet, LateBits
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign, EventLevelSettings
from aggservice.campaign.settings.device import DeviceApi
from aggservice.files.settings import Known, setting, whole
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits, ForbiddenBits, ManualClock
from aggservice.wire import Api
from ara_client import (
    AggregatableAttributionReport,
    Browser,
    Config,
    Fleet,
    FleetReports,
    FleetRules,
    Request,
    Response,
    SourceColumns,
    TriggerColumns,
    TriggerOutcome,
    VerboseDebugReport,
)
from ara_client.fleet.fleet import ReportDraws
from ara_client.model import Source, SummaryClient

_UNLIMITED = (1 << 40) - 1
_NO_LIMIT = 1 << 30
_YES = frozenset({"accepted"})
_FATE_OF = {
    TriggerOutcome.ATTRIBUTED: Fate.ON_THE_WAY,
    TriggerOutcome.NO_SOURCE: Fate.NOT_ATTRIBUTED,
    TriggerOutcome.FILTERED: Fate.NOT_ATTRIBUTED,
    TriggerOutcome.WINDOW_PASSED: Fate.NOT_ATTRIBUTED,
    TriggerOutcome.DEDUPLICATED: Fate.DEDUPLICATED,
    TriggerOutcome.NO_CONTRIBUTIONS: Fate.NO_VALUE,
    TriggerOutcome.TOO_MANY_REPORTS: Fate.RATE_LIMITED,
    TriggerOutcome.BUDGET_SPENT: Fate.CAPPED_L1,
}
#: The outcomes by the types of a browser's verbose debug reports.
_OUTCOMES = {
    "trigger-no-matching-source": TriggerOutcome.NO_SOURCE,
    "trigger-no-matching-filter-data": TriggerOutcome.FILTERED,
    "trigger-aggregate-report-window-passed": TriggerOutcome.WINDOW_PASSED,
    "trigger-aggregate-deduplicated": TriggerOutcome.DEDUPLICATED,
    "trigger-aggregate-no-contributions": TriggerOutcome.NO_CONTRIBUTIONS,
    "trigger-aggregate-excessive-reports": TriggerOutcome.TOO_MANY_REPORTS,
    "trigger-aggregate-insufficient-budget": TriggerOutcome.BUDGET_SPENT,
}


def _event_level(section: Section, key: str, known: Known) -> EventLevelSettings:
    field = section.text("field", example="product")
    epsilon = section.exact("epsilon", Fraction(14), above=Fraction(0), most=Fraction(14))
    windows, buckets = section.section("windows_days"), section.section("buckets")
    days: dict[str, tuple[float, ...]] = {}
    levels: dict[str, tuple[int, ...]] = {}
    for name in windows.values:
        found = windows.take(name)
        good = isinstance(found, list) and 1 <= len(found) <= 5 and all(isinstance(x, (int, float)) for x in found)
        if not good or sorted(set(found)) != found or not found[0] > 0:
            windows.refuse(name, f"is {found!r}", "Write 1 to 5 increasing numbers of days, such as [2, 7]")
        days[name] = tuple(float(x) for x in found)
    for name in days:
        found = buckets.take(name)
        good = isinstance(found, list) and bool(found) and all(isinstance(x, int) and x > 0 for x in found)
        if not good or sorted(set(found)) != found:
            buckets.refuse(name, f"is {found!r}", "Write increasing amounts, such as [20, 70]")
        levels[name] = tuple(found)
    buckets.done()
    if not days:
        section.refuse("windows_days", "is missing", "Write a line sneakers = [2, 7] for each kind of conversion")
    return EventLevelSettings(
        field=field,
        epsilon=epsilon,
        max_reports=section.whole("reports_a_source", 3, least=1, most=20),
        windows_days=days,
        buckets=levels,
    )


def _null_rate(section: Section, key: str, known: Known) -> Fraction:
    found = section.exact(key, Fraction(1, 20), above=Fraction(-1), most=Fraction(1))
    if found < 0:
        section.refuse(key, "is negative", "Write a probability from 0 to 1")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionReporting(DeviceApi):
    """Conversions with Attribution Reporting: the browser attributes each to a source, whose reports Λ₁ bounds."""

    api = "ara"
    title = "Attribution Reporting"
    short = "ARA"
    colour = "#2b6cb0"
    wire_api = Api.ATTRIBUTION_REPORTING
    forms = ("deployed", "paper")
    shares_l1 = True

    max_reports: int = whole("`deployed`: reports per source", default=20, least=1, most=1000)
    null_rate: Fraction = setting(
        "`deployed`: null reports for triggers without a report",
        read=_null_rate,
        default=Fraction(1, 20),
        allowed="0 to 1",
    )
    event_level: EventLevelSettings | None = setting(
        "for each kind of conversion, the ends of windows in days: sources send event-level reports too. `field` is "
        "the trigger data, `epsilon` (14) and `reports_a_source` (3) their noise, `[client.buckets]` the amounts",
        key="windows_days",
        read=_event_level,
        default=None,
        allowed="table of lists",
        when=lambda known: True,
    )

    def check(self, section: Section, known: Known) -> None:
        """Refuse caps of a deployed browser, and sources that no browser can register."""
        DeviceApi.check(self, section, known)
        if self.engine == "browser" and not self._registers:
            section.refuse(
                "engine", "is 'browser'", f"A browser keeps an ad for a day or more: {self.expiry_days} days"
            )

    def check_campaign(self, top: Section, campaign: Campaign) -> None:
        """Refuse event-level settings that name no field or value of the keys, or the name of a query."""
        check_event_level(self.event_level, top, campaign)

    @property
    def _registers(self) -> bool:
        """Whether a header can say how long an ad lives: whole seconds, a day or more."""
        return self.form == "paper" or (self.expiry_days >= 1 and int(self.expiry_days * DAY_MS) % 1000 == 0)

    def uses_browsers(self, events: Events) -> bool:
        """Whether these events run in real browsers (in the paper's form, in Algorithm 2 as printed)."""
        return self._registers and DeviceApi.uses_browsers(self, events)

    @property
    def caps_move(self) -> bool:
        """In the paper's form a conversion goes on to an older ad."""
        return self.form == "paper"

    @property
    def can_follow(self) -> bool:
        return self.form == "deployed"

    def unit_name(self, unit: int) -> str:
        """Return the name of a source, which is the privacy unit."""
        return f"source {unit}"

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        paper = self.form == "paper"
        sources, trigger_order = _sources(campaign, self, events)
        natural, asked, amount = contribution_units(campaign, events.conversions)
        flat = item_columns(events.conversions, natural, asked, amount)
        triggers = _triggers(campaign, events, amount, trigger_order, paper)
        matches = _matches(campaign)
        rules = self._rules()
        if self.uses_browsers(events):
            run = _run_models if paper else _run_browsers
            made = run(campaign, bits.child("fleet"), rules, matches, sources, triggers)
        else:
            made = Fleet(bits=bits.child("fleet"), rules=rules, matches=matches).register(sources, triggers)
        free = replace(rules, contribution_budget=_UNLIMITED, max_reports=_UNLIMITED, null_rate=Fraction(0))
        # The same events in a fleet without caps and null reports; nothing random of it is kept. What rounds to 0
        # happened.
        wanted = np.maximum(amount, natural > 0)
        same = np.array_equal(wanted, amount)
        happened = triggers if same else _triggers(campaign, events, wanted, trigger_order, paper)
        truth = Fleet(bits=bits.child("uncapped fleet"), rules=free, matches=matches).register(sources, happened)

        items, measures, flat_amount = amount.size, amount.shape[1], flat["amount"]
        attributable = np.zeros(items, dtype=np.bool_)
        columns: dict[str, Any] = {name: np.zeros(items, dtype=np.uint64) for name in KEY_COLUMNS}
        report = np.full(items, -1, dtype=np.int64)
        rows, inner = _rows_of(happened, wanted.reshape(-1), measures, paper, truth.trigger, truth.offset)
        attributable[rows] = True
        columns["true_high"][rows], columns["true_low"][rows] = truth.key_high[inner], truth.key_low[inner]
        rows, inner = _rows_of(triggers, flat_amount, measures, paper, made.trigger, made.offset)
        columns["key_high"][rows], columns["key_low"][rows] = made.key_high[inner], made.key_low[inner]
        report[rows] = np.repeat(np.arange(len(made)), np.diff(made.offset))[inner]

        lookup = np.array([_FATE_OF[TriggerOutcome(code)] for code in range(len(TriggerOutcome))], dtype=np.int8)
        by_trigger = lookup[made.outcome]
        fate = by_trigger.copy() if paper else np.repeat(by_trigger, measures)
        fate[(flat_amount == 0)] = Fate.NO_VALUE
        if paper:
            _name_caps(self.l1, fate, made.outcome, made, truth, flat_amount)
        reports = ReportColumns(
            scheduled_ms=made.scheduled_ms,
            report_id=made.report_id,
            destination=triggers.destination[made.trigger],
            offset=made.offset,
            key_high=made.key_high,
            key_low=made.key_low,
            value=made.value,
            filtering_id=made.filtering_id,
            null=made.source < 0,
            unit=made.source,
        )
        return reports, MeasuredConversions(attributable=attributable, report=report, fate=fate, **flat, **columns)

    def _rules(self) -> FleetRules:
        if self.form == "paper":
            return FleetRules.paper(contribution_budget=self.l1, sparsity_budget=self.l0)
        return FleetRules(contribution_budget=self.l1, max_reports=self.max_reports, null_rate=self.null_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLevelApi(DeviceApi):
    """Event-level reports alone: the browser adds the noise, and no service sums them."""

    api = "ara"
    kind = "event-level"
    title = "event-level reports"
    short = "ARA"
    colour = "#2b6cb0"
    wire_api = Api.ATTRIBUTION_REPORTING
    forms = ("deployed", "paper")
    sums_conversions = False
    aggregatable = False

    event_level: EventLevelSettings = setting(
        "",
        key="windows_days",
        read=_event_level,
        allowed="table of lists",
        when=lambda known: True,
    )

    def check_campaign(self, top: Section, campaign: Campaign) -> None:
        """Refuse settings that name no field or value of the keys."""
        check_event_level(self.event_level, top, campaign)

    def identity(self) -> dict[str, Any]:
        """Return what names the device in outputs: the noise is that of Algorithm 4 and 8, and there is no Λ₁."""
        return {"kind": self.kind, "api": self.api, "form": "paper"}

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        """Return no reports: ``aggservice.campaign.event_run`` draws those of each ad."""
        raise RunError("event-level reports are not aggregatable: run the campaign instead")


def check_event_level(settings: EventLevelSettings | None, top: Section, campaign: Campaign) -> None:
    """Refuse event-level settings that do not fit the keys and queries of a campaign."""
    if settings is None:
        return
    names = [field.name for field in campaign.keys.fields if field.origin == "conversion"]
    if settings.field not in names:
        top.section("client").refuse("field", f"is {settings.field!r}", f"Conversion fields: {names}")
    known = campaign.keys.field(settings.field).values
    for kind in settings.windows_days:
        if kind not in known:
            windows = top.section("client").section("windows_days")
            windows.refuse(kind, "is not a value", f"Values: {', '.join(known)}")
    for index, query in enumerate(campaign.queries):
        if query.name == "event-level":
            top.sections("queries")[index].refuse(
                "name", "is 'event-level', as the counts of event-level reports are called", "Write another name"
            )


def _matches(campaign: Campaign) -> NDArray[np.bool_]:
    if campaign.filters is None:
        return np.ones((1, 1), dtype=np.bool_)
    return accepted_values(campaign, campaign.filters)[None]


def _sources(campaign: Campaign, device: AttributionReporting, events: Events) -> tuple[SourceColumns, Ints]:
    """Return the sources, and the rank in time of each trigger among both; sources come first at ties."""
    impressions, conversions = events.impressions, events.conversions
    measures = len(campaign.measures)
    before = np.searchsorted(conversions.time_ms, impressions.time_ms, side="left")
    # In the paper's form each measure of a conversion is a separate trigger with its own rank.
    wide = measures if device.form == "paper" else 1
    source_order = np.arange(len(impressions)) + wide * before
    after = np.searchsorted(impressions.time_ms, conversions.time_ms, side="right")
    trigger_order = wide * np.arange(len(conversions)) + after
    high, low = campaign.keys.keys(impressions.codes, len(impressions))
    each = 1 if wide > 1 or measures == 1 else measures
    expiry = impressions.time_ms + int(device.expiry_days * DAY_MS)
    return (
        SourceColumns.of(
            order=source_order,
            time_ms=impressions.time_ms,
            device=impressions.device,
            destination=impressions.destination,
            priority=impressions.click.astype(np.int64) * device.click_priority,
            expiry_ms=expiry,
            key_high=np.repeat(high, each),
            key_low=np.repeat(low, each),
            offset=None if each == 1 else np.arange(len(impressions) + 1) * each,
            name=0 if each == 1 else np.tile(np.arange(each), len(impressions)),
        ),
        trigger_order,
    )


def _triggers(campaign: Campaign, events: Events, amount: Ints, order: Ints, paper: bool) -> TriggerColumns:
    conversions = events.conversions
    count, measures = amount.shape
    high, low = campaign.keys.keys(conversions.codes, count)
    high, low = np.repeat(high, measures), np.repeat(low, measures)
    for field in campaign.keys.fields:
        if field.origin == "measure":
            above, below = field.encode(np.tile(np.arange(measures), count))
            high |= above
            low |= below
    filters = 0 if campaign.filters is None else conversions.codes[campaign.filters.field]
    flat = amount.reshape(-1)
    if paper:

        def spread(column: Ints) -> Ints:
            return np.repeat(column, measures)

        return TriggerColumns.of(
            order=spread(order) + np.tile(np.arange(measures), count),
            time_ms=spread(conversions.time_ms),
            device=spread(conversions.device),
            destination=spread(conversions.destination),
            filter=0 if isinstance(filters, int) else spread(filters),
            key_high=high,
            key_low=low,
            value=flat,
        )
    # A deployed browser takes values from 1: a contribution that rounds to 0 is left out.
    kept = np.flatnonzero(flat > 0)
    sizes = (amount > 0).sum(axis=1)
    return TriggerColumns.of(
        order=order,
        time_ms=conversions.time_ms,
        device=conversions.device,
        destination=conversions.destination,
        filter=filters,
        has_dedup_key=conversions.dedup_key >= 0,
        dedup_key=np.maximum(conversions.dedup_key, 0).astype(np.uint64),
        key_high=high[kept],
        key_low=low[kept],
        value=flat[kept],
        offset=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        name=0 if measures == 1 else np.tile(np.arange(measures), count)[kept],
    )


def _rows_of(
    triggers: TriggerColumns, amount: Ints, measures: int, paper: bool, trigger: Ints, offset: Ints
) -> tuple[Ints, Ints]:
    """Return the items whose contributions were sent, and the index of each contribution among all that were sent.

    A report has its trigger's contributions, in the same order: source and trigger have the same key names.
    """
    sizes = np.diff(offset)
    sent = np.arange(int(offset[-1]))
    owner = np.repeat(trigger, sizes)
    within = sent - np.repeat(offset[:-1], sizes)
    if paper:
        return owner, sent
    item_of = np.flatnonzero(amount > 0)
    return item_of[triggers.offset[owner] + within], sent


def _name_caps(l1: int, fate: Fates, outcome: Fates, made: FleetReports, truth: FleetReports, amount: Ints) -> None:
    """Set the fate of each trigger that a cap stopped: Λ₁ or Λ₀. Algorithm 2 says only that one of them did.

    The uncapped fleet shows the newest source that matches. What the capped fleet attributed to that source before
    shows which budget was too small; if both were, the fate is Λ₁.
    """
    wanted = np.full(outcome.size, -1, dtype=np.int64)
    wanted[truth.trigger] = truth.source
    capped = np.flatnonzero((wanted >= 0) & (outcome != TriggerOutcome.ATTRIBUTED) & (amount > 0))
    if not capped.size:
        return
    real = made.source >= 0
    source, trigger = made.source[real], made.trigger[real]
    order = np.lexsort((trigger, source))
    source, trigger = source[order], trigger[order]
    spent = np.concatenate(([0], np.cumsum(amount[trigger])))
    span = np.int64(outcome.size + 1)
    ranks = source * span + trigger
    until = np.searchsorted(ranks, wanted[capped] * span + capped)
    since = np.searchsorted(source, wanted[capped])
    used = spent[until] - spent[since]
    over = used + amount[capped] > l1
    fate[capped] = np.where(over, Fate.CAPPED_L1, Fate.CAPPED_L0)


def browser_config(rules: FleetRules) -> Config:
    """Return the configuration of a browser with a fleet's rules, without the limits that a fleet does not have."""
    limits = {
        name: _NO_LIMIT
        for name in Config.__slots__
        if name.startswith("max_") and ("per_" in name or "origins" in name or name == "max_attributions")
    }
    return Config(**{**limits, "max_aggregatable_reports_per_source": rules.max_reports})  # type: ignore[arg-type]


class _LateChoices:
    """Random choices of browsers that are drawn in columns: the coins before, ids and delays after they have run."""

    def __init__(self) -> None:
        self.null = False
        self.made = 0

    def response(self, space: object, epsilon: float) -> None:
        """Send true event-level reports; sources here send none."""

    def null_report(self, lookback_day: int, *, includes_source_time: bool) -> bool:
        """Return the coin of the trigger that is registered now."""
        return self.null

    def aggregatable_delay_ms(self) -> int:
        """Return no delay: it is added to the column."""
        return 0

    def offline_delay_ms(self) -> int:
        """Return no delay."""
        return 0

    def report_id(self) -> str:
        """Return an id that the column replaces."""
        self.made += 1
        return str(UUID(int=self.made))

    def shuffle(self, items: list[Any]) -> None:
        """Keep the order."""


def _run_browsers(
    campaign: Campaign,
    bits: Bits,
    rules: FleetRules,
    matches: NDArray[np.bool_],
    sources: SourceColumns,
    triggers: TriggerColumns,
) -> FleetReports:
    """Register every source and trigger in a real browser of its device, as the fleet does in columns.

    Debug keys and verbose debug reports, which only the simulator sees, say which source a report belongs to and why a
    trigger has none.
    """
    draws, chosen = ReportDraws(bits, rules), _LateChoices()
    nulls, config = draws.nulls(triggers), browser_config(rules)
    fleet = BrowserFleet(lambda _, clock: Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=chosen))
    outcome = np.full(len(triggers), TriggerOutcome.NO_CONTRIBUTIONS, dtype=np.int8)
    made: list[tuple[int, AggregatableAttributionReport]] = []
    for place, row in BrowserFleet.in_order(sources.order.tolist(), triggers.order.tolist()):
        columns = (sources, triggers)[place]
        browser = fleet.at(int(columns.device[row]), int(columns.time_ms[row]))
        site = campaign.population.destinations[int(columns.destination[row])]
        if place == 0:
            header = {"Attribution-Reporting-Register-Source": json.dumps(_source_header(sources, row, site))}
            request = Request(context="https://publisher.example", eligible="navigation-source")
        else:
            accepted = bool(matches[0, int(triggers.filter[row])])
            header = {"Attribution-Reporting-Register-Trigger": json.dumps(_trigger_header(triggers, row, accepted))}
            request, chosen.null = Request(context=site), bool(nulls[row])
        sent = browser.register(request, Response(url=campaign.reporting_origin, headers=header, debug_allowed=True))
        for report in sent:
            if isinstance(report, AggregatableAttributionReport) and not report.debug:
                made.append((row, report))
                if not report.is_null:
                    outcome[row] = TriggerOutcome.ATTRIBUTED
            elif isinstance(report, VerboseDebugReport) and place == 1:
                for data in report.data:
                    outcome[row] = _OUTCOMES.get(data.type, outcome[row])
    rows = np.array([row for row, _ in made], dtype=np.int64)
    contributions = [one for _, report in made for one in report.contributions]
    scheduled = np.array([report.scheduled_time_ms for _, report in made], dtype=np.int64)
    ids = draws.ids(rows.size)
    return FleetReports(
        outcome=outcome,
        trigger=rows,
        source=np.array([-1 if one.is_null else one.source_debug_key for _, one in made], dtype=np.int64),
        report_id=ids,
        scheduled_ms=scheduled + draws.delays_ms(triggers.has_context_id[rows]),
        offset=np.cumsum([0, *(len(report.contributions) for _, report in made)], dtype=np.int64),
        **_key_columns([(one.bucket, one.value) for one in contributions]),
    )


def _source_header(sources: SourceColumns, row: int, site: str) -> dict[str, Any]:
    first, last = int(sources.offset[row]), int(sources.offset[row + 1])
    keys = {
        f"{int(sources.name[at]):02d}": hex(int(sources.key_high[at]) << 64 | int(sources.key_low[at]))
        for at in range(first, last)
    }
    return {
        "destination": site,
        "source_event_id": str(row),
        "debug_key": str(row),
        "priority": str(int(sources.priority[row])),
        "expiry": str((int(sources.expiry_ms[row]) - int(sources.time_ms[row])) // 1000),
        "filter_data": {"accepted": ["yes"]},
        "aggregation_keys": keys,
        "max_event_level_reports": 0,
    }


def _trigger_header(triggers: TriggerColumns, row: int, accepted: bool) -> dict[str, Any]:
    span = range(int(triggers.offset[row]), int(triggers.offset[row + 1]))
    names = {at: f"{int(triggers.name[at]):02d}" for at in span}
    header: dict[str, Any] = {
        "aggregatable_trigger_data": [
            {"key_piece": hex(int(triggers.key_high[at]) << 64 | int(triggers.key_low[at])), "source_keys": [names[at]]}
            for at in span
        ],
        "aggregatable_values": {names[at]: int(triggers.value[at]) for at in span},
        "filters": {"accepted": ["yes" if accepted else "no"]},
        "debug_key": str(row),
        "debug_reporting": True,
    }
    if triggers.has_dedup_key[row]:
        header["aggregatable_deduplication_keys"] = [{"deduplication_key": str(int(triggers.dedup_key[row]))}]
    return header


def _key_columns(found: list[tuple[int, int]]) -> Mapping[str, Any]:
    """Return the columns of contributions (key, value) with filtering ID 0."""
    return {
        "key_high": np.array([key >> 64 & ~(~0 << 64) for key, _ in found], dtype=np.uint64),
        "key_low": np.array([key & ~(~0 << 64) for key, _ in found], dtype=np.uint64),
        "value": np.array([value for _, value in found], dtype=np.int64),
        "filtering_id": np.zeros(len(found), dtype=np.uint64),
    }


def _run_models(
    campaign: Campaign,
    bits: Bits,
    rules: FleetRules,
    matches: NDArray[np.bool_],
    sources: SourceColumns,
    triggers: TriggerColumns,
) -> FleetReports:
    """Register every source and trigger in Algorithm 2 as printed, one client per device."""
    draws = ReportDraws(bits, rules)

    def new(device: int, clock: ManualClock) -> SummaryClient:
        return SummaryClient(
            contribution_budget=rules.contribution_budget, sparsity_budget=rules.max_reports, bits=LateBits()
        )

    fleet, sent = BrowserFleet(new), list[tuple[int, int] | None]()
    for place, row in BrowserFleet.in_order(sources.order.tolist(), triggers.order.tolist()):
        columns = (sources, triggers)[place]
        client = fleet.at(int(columns.device[row]), int(columns.time_ms[row]))
        key, dest = int(columns.key_high[row]) << 64 | int(columns.key_low[row]), str(int(columns.destination[row]))
        if place == 0:
            # The number of the source stands above the 128 bits of its key.
            own = Source(
                src_id=row, dest=dest, exp_date=int(sources.expiry_ms[row]), src_filt=_YES, src_key=row << 128 | key
            )
            client.register_source(own)
            continue
        accepted = bool(matches[0, int(triggers.filter[row])])
        found = client.register_trigger(
            int(triggers.time_ms[row]),
            dest=dest,
            trig_id=row,
            trig_filt=_YES if accepted else frozenset(),
            trig_key=key,
            trig_value=int(triggers.value[row]),
        )
        sent.append(None if found.key is None else (found.key, int(triggers.value[row])))
    attributed = np.array([one is not None for one in sent], dtype=np.bool_)
    rows = np.arange(len(triggers))
    ids = draws.ids(rows.size)
    return FleetReports(
        outcome=np.where(attributed, TriggerOutcome.ATTRIBUTED, TriggerOutcome.NO_SOURCE).astype(np.int8),
        trigger=rows,
        source=np.array([-1 if one is None else one[0] >> 128 for one in sent], dtype=np.int64),
        report_id=ids,
        scheduled_ms=triggers.time_ms + draws.delays_ms(triggers.has_context_id),
        offset=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(attributed))),
        **_key_columns([one for one in sent if one is not None]),
    )
