"""Private Aggregation in a campaign: conversions by worklet code, and reach and frequency over views.

In the browser only the contribution budgets, or the paper's Λ₀, can cut a contribution. A privacy unit is a device
within ten minutes. There are no null reports of deployed devices.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.columns import (
    Events,
    Fate,
    Flags,
    Impressions,
    Ints,
    MeasuredConversions,
    ReportColumns,
    Words,
    report_ids,
)
from aggservice.campaign.devices.amounts import accepted, contribution_units, item_columns
from aggservice.campaign.devices.browsers import BrowserFleet, LateBits
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign, Measure
from aggservice.campaign.settings.device import DeviceApi
from aggservice.campaign.settings.key_layout import KeyField, KeyTable
from aggservice.campaign.settings.tasks import mixed_radix
from aggservice.files.settings import Known, setting, whole
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits, ManualClock, uniform_below_batch
from aggservice.wire import Api
from paa_client import Browser, Config, Fleet, HistogramContribution, PaaSrClient, PrivateAggregation, WorkletStorage
from paa_client.config import ContextType
from paa_client.recipes.frequency import KPlusFrequency
from paa_client.recipes.reach import Reach
from paa_client.reporting.budgets import Budgeter, BudgetRequest
from paa_client.reporting.reports import QueuedReport

THRESHOLD_FIELD = "views"
WINDOW_MS = 600_000
"""A privacy unit is a device within ten minutes."""
_MAX_SLICES = 1 << 56
_ANY_TIME_MS = 1 << 62


class TouchScript:
    """What the pages run: worklet code that keeps the last ads in Shared Storage and contributes at the purchase.

    The rule of ``paa_client.recipes.conversions`` with a campaign's keys, and clicks before views if ``clicks_first``.
    The storage of an advertiser holds its last click and its last view. An order that has a key is counted once.
    """

    def __init__(self, *, lifetime_ms: int, clicks_first: bool) -> None:
        self._lifetime_ms = lifetime_ms
        self._clicks_first = clicks_first

    def view(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, Any]) -> None:
        """Keep an ad; ``data`` has its site, key, time and number, and whether it was clicked."""
        kind = "click" if data["click"] else "view"
        storage.set(f"{kind} {data['site']}", json.dumps([data["time_ms"], data["number"], data["key"]]))

    def convert(self, storage: WorkletStorage, aggregation: PrivateAggregation, data: Mapping[str, Any]) -> None:
        """Contribute to the last ad that lives; ``data`` has a purchase's site, time, order and (key, value) pairs."""
        live = []
        for rank, kind in enumerate(("view", "click")):
            found = storage.get(f"{kind} {data['site']}")
            if found is not None:
                time_ms, seen, key = json.loads(found)
                if data["time_ms"] - time_ms < self._lifetime_ms:
                    live.append((rank if self._clicks_first else 0, seen, key))
        order = f"order {data['site']} {data['order']}"
        if not live or (data["order"] is not None and storage.get(order) is not None):
            return
        _, _, key = max(live)
        for piece, value in data["contributions"]:
            aggregation.contribute_to_histogram(bucket=key | piece, value=value)
        if data["order"] is not None:
            storage.set(order, "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateConversions(DeviceApi):
    """Conversions with Private Aggregation: the page's own script attributes in a worklet, over Shared Storage."""

    api = "paa"
    title = "Private Aggregation"
    short = "PAA"
    colour = "#dd6b20"
    wire_api = Api.SHARED_STORAGE

    @property
    def _lifetime_ms(self) -> int:
        return int(self.expiry_days * DAY_MS)

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        config, conversions = Config(), events.conversions
        natural, asked, amount = contribution_units(campaign, conversions)
        measures = amount.shape[1]
        touch = _last_touches(campaign, events, self._lifetime_ms, clicks_first=self.click_priority > 0)
        high, low = _item_keys(campaign, events, touch, measures)
        flat = amount.reshape(-1)
        attributable = np.repeat(touch >= 0, measures) & (natural.reshape(-1) > 0)
        asks = (touch >= 0) & (amount > 0).any(axis=1)
        if self.uses_browsers(events):
            sent, scheduled = self._run_browsers(campaign, events, amount)
        else:
            first = _first_orders(events, asks, config.storage_lifetime_ms)
            sent = first & _within_budgets(config, events, first, amount)
            scheduled = conversions.time_ms[sent] + config.local_processing_ms + config.minimum_delay_ms
        conversion = np.flatnonzero(sent)
        order = np.lexsort((conversion, conversions.time_ms[conversion]))
        assert (order == np.arange(conversion.size)).all()  # conversions are in order of time
        kept = np.repeat(sent, measures) & (flat > 0)
        fate = np.where(flat > 0, Fate.NOT_ATTRIBUTED, Fate.NO_VALUE).astype(np.int8)
        lost = np.where(_first_orders(events, asks, config.storage_lifetime_ms), Fate.CAPPED_L1, Fate.DEDUPLICATED)
        waiting = np.repeat(asks, measures) & (flat > 0)
        fate[waiting] = np.repeat(lost, measures)[waiting]
        fate[kept] = Fate.ON_THE_WAY
        report = np.full(flat.size, -1, dtype=np.int64)
        report[kept] = np.repeat(np.cumsum(sent) - 1, measures)[kept]
        sizes = (amount > 0).sum(axis=1)[conversion]
        delay = uniform_below_batch(bits.child("delays"), config.randomized_delay_ms, conversion.size)
        time_ms = conversions.time_ms[conversion]
        none = np.zeros(flat.size, dtype=np.uint64)
        reports = ReportColumns(
            scheduled_ms=scheduled + delay,
            report_id=report_ids(bits.child("ids of private reports"), conversion.size),
            destination=np.zeros(conversion.size, dtype=np.int64),
            offset=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
            key_high=high[kept],
            key_low=low[kept],
            value=flat[kept],
            filtering_id=np.zeros(int(kept.sum()), dtype=np.uint64),
            null=np.zeros(conversion.size, dtype=np.bool_),
            unit=conversions.device[conversion] << 32 | time_ms // WINDOW_MS,
        )
        return reports, MeasuredConversions(
            **item_columns(conversions, natural, asked, amount),
            attributable=attributable,
            true_high=np.where(attributable, high, none),
            true_low=np.where(attributable, low, none),
            key_high=np.where(kept, high, none),
            key_low=np.where(kept, low, none),
            report=report,
            fate=fate,
        )

    def _run_browsers(self, campaign: Campaign, events: Events, amount: Ints) -> tuple[Flags, Ints]:
        """Run the script in a real browser of each device; return which conversions sent a report, and when."""
        shown, bought, origin = events.impressions, events.conversions, campaign.reporting_origin
        script = TouchScript(lifetime_ms=self._lifetime_ms, clicks_first=self.click_priority > 0)
        ads, pieces = _whole_keys(campaign, shown.codes, len(shown)), _pieces(campaign, events, amount.shape[1])
        wanted = accepted(campaign, bought)

        def new(device: int, clock: ManualClock) -> Browser:
            browser = Browser(clock=clock, bits=LateBits())
            browser.register(origin, "view", script.view)
            browser.register(origin, "convert", script.convert)
            return browser

        fleet, sent, scheduled = BrowserFleet(new), np.zeros(len(bought), dtype=np.bool_), list[int]()
        for place, row in BrowserFleet.in_order(shown.time_ms.tolist(), bought.time_ms.tolist()):
            columns = (shown, bought)[place]
            time_ms = int(columns.time_ms[row])
            browser = fleet.at(int(columns.device[row]), time_ms)
            data: dict[str, Any] = {"site": int(columns.destination[row]), "time_ms": time_ms}
            if place == 0:
                data |= {"key": ads[row], "number": row, "click": bool(shown.click[row])}
                browser.run(origin, "view", data)
            elif wanted[row]:
                order = int(bought.dedup_key[row])
                data["order"] = order if order >= 0 else None
                data["contributions"] = [
                    (pieces[row][at], value) for at, value in enumerate(amount[row].tolist()) if value > 0
                ]
                if data["contributions"]:
                    browser.run(origin, "convert", data)
            for queued in browser.take_due(_ANY_TIME_MS):
                _check_sent(queued, data, place)
                sent[row] = True
                scheduled.append(queued.report.scheduled_report_time_ms)
        return sent, np.array(scheduled, dtype=np.int64)


def _check_sent(queued: QueuedReport, data: Mapping[str, Any], place: int) -> None:
    """Refuse a report that is not the one that the conversion asked for: keys are read from the columns."""
    asked = sorted(value for _, value in data.get("contributions", ()))
    if place == 0 or sorted(one.value for one in queued.report.contributions) != asked:
        raise RunError("a browser sent a report that no conversion asked for: its rules differ from the campaign's")


def _last_touches(campaign: Campaign, events: Events, lifetime_ms: int, *, clicks_first: bool) -> Ints:
    """Return the ad that the script credits with each conversion, or −1."""
    shown, bought = events.impressions, events.conversions
    latest = []
    for kind in (~shown.click, shown.click):
        rows = np.flatnonzero(kind)
        # Ads of one device and site in order of time; at the same time, an ad comes before a purchase.
        group = np.concatenate((_group(events, shown, rows), _group(events, bought, np.arange(len(bought)))))
        time = np.concatenate((shown.time_ms[rows], bought.time_ms))
        is_purchase = np.arange(group.size) >= rows.size
        order = np.lexsort((np.arange(group.size), is_purchase, time, group))
        place = np.where(is_purchase[order], -1, np.arange(order.size))
        last = np.maximum.accumulate(place)
        found = np.full(len(bought), -1, dtype=np.int64)
        mine = is_purchase[order] & (last >= 0)
        mine[mine] = group[order][mine] == group[order][last[mine]]
        found[order[mine] - rows.size] = rows[order[last[mine]]]
        alive = (found >= 0) & (bought.time_ms - shown.time_ms[np.maximum(found, 0)] < lifetime_ms)
        latest.append(np.where(alive, found, -1))
    view, click = latest
    best = np.where(click >= 0, click, view) if clicks_first else np.maximum(view, click)
    return np.where(accepted(campaign, events.conversions), best, -1)


def _group(events: Events, columns: Any, rows: Ints) -> Ints:
    return np.asarray(columns.destination[rows] * events.devices + columns.device[rows])


def _first_orders(events: Events, asks: Flags, lifetime_ms: int) -> Flags:
    """Return which conversions ask and are the first of their order that the storage still knows."""
    bought, seen, first = events.conversions, dict[tuple[int, int, int], int](), asks.copy()
    for row in np.flatnonzero(asks & (bought.dedup_key >= 0)).tolist():
        key = int(bought.device[row]), int(bought.destination[row]), int(bought.dedup_key[row])
        time_ms = int(bought.time_ms[row])
        if key in seen and time_ms - seen[key] < lifetime_ms:
            first[row] = False
        else:
            seen[key] = time_ms
    return first


def _within_budgets(config: Config, events: Events, asks: Flags, amount: Ints) -> Flags:
    """Return which conversions the budgets of ten minutes and of a day allow; a report is paid for as a whole."""
    budgets: defaultdict[int, Budgeter] = defaultdict(
        lambda: Budgeter(smaller_budget=config.smaller_budget, larger_budget=config.larger_budget)
    )
    device, when = events.conversions.device.tolist(), events.conversions.time_ms.tolist()
    totals, allowed = amount.sum(axis=1).tolist(), np.zeros(asks.size, dtype=np.bool_)
    for row in np.flatnonzero(asks).tolist():
        request = BudgetRequest(HistogramContribution(0, totals[row]))
        (denied,) = budgets[device[row]].query(
            [request], "ad-tech", ContextType.SHARED_STORAGE, when[row], consume=True
        )
        allowed[row] = denied is None
    return allowed


def _whole_keys(campaign: Campaign, codes: Mapping[str, Ints], size: int) -> list[int]:
    high, low = campaign.keys.keys(codes, size)
    return [int(above) << 64 | int(below) for above, below in zip(high.tolist(), low.tolist(), strict=True)]


def _measure_codes(campaign: Campaign, count: int, measures: int) -> dict[str, Ints]:
    return {one.name: np.tile(np.arange(measures), count) for one in campaign.keys.fields if one.origin == "measure"}


def _pieces(campaign: Campaign, events: Events, measures: int) -> list[list[int]]:
    """Return the part of each item's key that the conversion knows, by conversion and measure."""
    count = len(events.conversions)
    codes = {name: np.repeat(column, measures) for name, column in events.conversions.codes.items()}
    whole = _whole_keys(campaign, {**codes, **_measure_codes(campaign, count, measures)}, count * measures)
    return [whole[row * measures : (row + 1) * measures] for row in range(count)]


def _item_keys(campaign: Campaign, events: Events, touch: Ints, measures: int) -> tuple[Words, Words]:
    """Return the key of each item with the ad that is credited; of one without an ad, that of the first ad."""
    count = len(events.conversions)
    codes = {name: np.repeat(column, measures) for name, column in events.conversions.codes.items()}
    credited = np.repeat(np.maximum(touch, 0), measures)
    for name, column in events.impressions.codes.items():
        codes[name] = column[credited] if column.size else np.zeros(credited.size, dtype=np.int64)
    return campaign.keys.keys({**codes, **_measure_codes(campaign, count, measures)}, count * measures)


def _thresholds(section: Section, key: str, known: Known) -> tuple[int, ...]:
    value = section.take(key)
    good = isinstance(value, list) and value and all(isinstance(one, int) and 1 <= one <= 127 for one in value)
    if not good or sorted(set(value)) != value:
        section.refuse(key, f"is {value!r}", "Write increasing numbers of views, such as [1, 2, 5]")
    return tuple(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateReach(DeviceApi):
    """Reach: a device counts at its first view of a slice (the paper's Figure 2), deployed or by Algorithm 3."""

    api = "paa"
    kind = "reach"
    title = "Private Aggregation"
    short = "PAA"
    colour = "#dd6b20"
    wire_api = Api.SHARED_STORAGE
    forms = ("deployed", "paper")
    counts = "devices"
    sums_conversions = False

    cap: int = whole(
        "reach and frequency: contributions a device may make in ten minutes, at most Λ₁",
        default=1,
        least=1,
        most=lambda known: known.l1,
    )

    def own_measures(self, top: Section) -> tuple[Measure, ...]:
        """Return the only measure: devices."""
        if top.sections("measures"):
            top.refuse("measures", "is not for reach and frequency", "Leave it out: devices are counted")
        return (Measure(name="devices", of="count", scale=Fraction(self.l1 // self.cap), most=1),)

    def check_keys(self, section: Section, found: Sequence[KeyField]) -> None:
        """Refuse fields of conversions."""
        if any(field.origin == "conversion" for field in found):
            section.refuse(
                "fields", "name conversions", 'Reach and frequency use impressions only: write from = "impression"'
            )

    def check_campaign(self, top: Section, campaign: Campaign) -> None:
        """Refuse a campaign that is longer than Shared Storage remembers."""
        limit, days = Config().storage_lifetime_ms // DAY_MS, campaign.population.days
        if days > limit:
            top.section("population").refuse(
                "days", f"is {days}", f"Shared Storage forgets after {limit} days: write at most {limit}"
            )

    def with_cap(self, cap: int) -> PrivateReach:
        return replace(self, cap=cap)

    @property
    def _counted(self) -> tuple[int, ...]:
        """The numbers of views at which a device counts."""
        return (1,)

    @property
    def recipe(self) -> Reach | KPlusFrequency:
        """The recipe that every device runs at each view."""
        return Reach(cap=self.cap, budget=self.l1)

    def reports(self, campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
        """Run the worklet of every device over its views; return the reports and the ground truth.

        An item is a device that should count: at its first view of a slice, or at the view that reaches a threshold.
        """
        views = events.impressions
        slices = slice_numbers(campaign, views)
        event, level = moments(self._counted, views, slices)
        codes = {name: column[event] for name, column in views.codes.items()}
        codes.update({name: level for name, _, _, _ in self.own_fields()})
        high, low = campaign.keys.keys(codes, event.size)
        if self.form == "paper":
            sent = self._model_views(views, slices) if self.uses_browsers(events) else self._paper_views(views, event)
            reports, report, fate = self._sent_by_the_paper(views, event, sent, bits)
        elif self.uses_browsers(events):
            reports, report, fate = self._sent_by_browsers(campaign, events, slices, event, bits)
        else:
            reports, report, fate = self._sent_by_a_fleet(campaign, events, slices, event, bits)
        item_of = event_items(report, len(reports))
        reports = replace(reports, key_high=high[item_of], key_low=low[item_of])
        value = np.full(event.size, self.recipe.value, dtype=np.int64)
        return reports, MeasuredConversions(
            conversion=event,
            measure=np.zeros(event.size, dtype=np.int64),
            time_ms=views.time_ms[event],
            natural=np.ones(event.size, dtype=np.int64),
            asked=value,
            amount=value.copy(),
            attributable=np.ones(event.size, dtype=np.bool_),
            true_high=high,
            true_low=low,
            key_high=high,
            key_low=low,
            report=report,
            fate=fate.astype(np.int8),
        )

    def _sent_by_a_fleet(
        self, campaign: Campaign, events: Events, slices: Ints, event: Ints, bits: Bits
    ) -> tuple[ReportColumns, Ints, Ints]:
        """Return the reports of deployed devices, without keys, and the report (or -1) and the fate of each item."""
        views = events.impressions
        fleet = Fleet(recipe=self.recipe, origin=campaign.reporting_origin)
        made = fleet.run(views.device, views.time_ms, slices, devices=events.devices, bits=bits.child("devices"))
        reports = _reports(
            made.device, made.time_ms, made.report_time_ms, made.report_id, np.ones(len(made), np.bool_), made.value
        )
        return reports, *_fates(len(views), made.event, event, sum(made.cuts.values()))

    def _sent_by_browsers(
        self, campaign: Campaign, events: Events, slices: Ints, event: Ints, bits: Bits
    ) -> tuple[ReportColumns, Ints, Ints]:
        """Return the same of a real browser per device; delays and ids are drawn in columns, as a fleet does."""
        views, origin, config = events.impressions, campaign.reporting_origin, Config()
        operation, bits = self.recipe.operation, bits.child("devices")

        def new(device: int, clock: ManualClock) -> Browser:
            browser = Browser(clock=clock, bits=LateBits(), config=config)
            browser.register(origin, "view", operation)
            return browser

        fleet, rows, scheduled, browsers = BrowserFleet(new), list[int](), list[int](), set[Browser]()
        for _, row in BrowserFleet.in_order(views.time_ms.tolist()):
            browser = fleet.at(int(views.device[row]), int(views.time_ms[row]))
            browser.run(origin, "view", int(slices[row]))
            browsers.add(browser)
            for queued in browser.take_due(_ANY_TIME_MS):
                rows.append(row)
                scheduled.append(queued.report.scheduled_report_time_ms)
        made = np.array(rows, dtype=np.int64)
        delay = uniform_below_batch(bits, config.randomized_delay_ms, made.size)
        reports = _reports(
            views.device[made],
            views.time_ms[made],
            np.array(scheduled, dtype=np.int64) + delay,
            report_ids(bits, made.size),
            np.ones(made.size, np.bool_),
            self.recipe.value,
        )
        return reports, *_fates(len(views), made, event, sum(one.journal.count() for one in browsers))

    def _paper_views(self, views: Impressions, event: Ints) -> Flags:
        """Return which items PAA-SR-Client (Algorithm 3) sends.

        All values of a run are equal, so of a device's items in a window the first min(Λ₀, ⌊Λ₁/v⌋) are sent. Windows
        are fixed, where those of deployed devices roll.
        """
        device, window = views.device[event], views.time_ms[event] // WINDOW_MS
        order = np.lexsort((np.arange(event.size), window, device))
        starts = np.ones(event.size, dtype=np.bool_)
        starts[1:] = (np.diff(device[order]) != 0) | (np.diff(window[order]) != 0)
        place = np.empty(event.size, dtype=np.int64)
        place[order] = np.arange(event.size) - np.maximum.accumulate(np.where(starts, np.arange(event.size), 0))
        return np.asarray(place < min(self.l0, self.l1 // self.recipe.value))

    def _model_views(self, views: Impressions, slices: Ints) -> Flags:
        """Return which items Algorithm 3, as printed, sends."""
        client, value, counted = PaaSrClient(lambda_1=self.l1, lambda_0=self.l0, bits=LateBits()), 0, self._counted
        value, sent = self.recipe.value, list[bool]()
        for row, name in enumerate(slices.tolist()):

            def pi(seen: dict[int, int], name: int = name) -> tuple[dict[int, int], int, int]:
                count = seen.get(name, 0) + 1
                return {**seen, name: count}, name, value if count in counted else 0

            made = client.event(int(views.device[row]), int(views.time_ms[row]) // WINDOW_MS, pi)
            if client.storage[int(views.device[row])][name] in counted:
                sent.append(not made.is_null)
        return np.array(sent, dtype=np.bool_)

    def _sent_by_the_paper(
        self, views: Impressions, event: Ints, sent: Flags, bits: Bits
    ) -> tuple[ReportColumns, Ints, Ints]:
        """Return the reports of Algorithm 3, one per view; and for each item its report (or -1) and fate."""
        value = self.recipe.value
        full = np.zeros(len(views), dtype=np.bool_)
        full[event[sent]] = True
        ids = report_ids(bits.child("ids of the paper's reports"), len(views))
        capped = Fate.CAPPED_L1 if self.l1 // value <= self.l0 else Fate.CAPPED_L0
        return (
            _reports(views.device, views.time_ms, views.time_ms, ids, full, value),
            np.where(sent, event, -1),
            np.where(sent, Fate.ON_THE_WAY, capped),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateFrequency(PrivateReach):
    """Frequency: a device counts at each view that reaches a threshold."""

    kind = "frequency"

    thresholds: tuple[int, ...] = setting(
        "frequency: numbers of views",
        read=_thresholds,
        default=(1, 2, 3, 5, 10),
        allowed="list of numbers",
    )

    def own_fields(self) -> Sequence[tuple[str, str, tuple[str, ...], str]]:
        """Return the field of the threshold that was reached."""
        return (
            (THRESHOLD_FIELD, "threshold", tuple(f"{one}+ views" for one in self.thresholds), "the number of views"),
        )

    @property
    def _counted(self) -> tuple[int, ...]:
        return self.thresholds

    @property
    def recipe(self) -> Reach | KPlusFrequency:
        return KPlusFrequency(thresholds=self.thresholds, cap=self.cap, budget=self.l1)


def _fates(views: int, made: Ints, event: Ints, cuts: int) -> tuple[Ints, Ints]:
    """Return the report (or -1) and the fate of each item, given the views that made reports."""
    report_of = np.full(views, -1, dtype=np.int64)
    report_of[made] = np.arange(made.size)
    report = report_of[event]
    cut = int((report < 0).sum())
    if cut != cuts or made.size != event.size - cut:
        raise RunError(f"of {event.size} reports, devices sent {made.size} and cut {cuts}: some are lost")
    return report, np.where(report >= 0, Fate.ON_THE_WAY, Fate.CAPPED_L1)


def event_items(report: Ints, reports: int) -> Ints:
    """Return the items that were sent, in the order of their reports, given the report of each item or -1."""
    found = np.full(reports, -1, dtype=np.int64)
    found[report[report >= 0]] = np.flatnonzero(report >= 0)
    return found[found >= 0]


def _reports(
    device: Ints, time_ms: Ints, scheduled_ms: Ints, report_id: NDArray[np.uint8], full: NDArray[np.bool_], value: int
) -> ReportColumns:
    """Return reports with one contribution each, or none; their keys are added later."""
    count = int(full.sum())
    none = np.zeros(0, dtype=np.uint64)
    return ReportColumns(
        scheduled_ms=scheduled_ms,
        report_id=report_id,
        destination=np.zeros(full.size, dtype=np.int64),
        offset=np.concatenate(([0], np.cumsum(full))).astype(np.int64),
        key_high=none,
        key_low=none,
        value=np.full(count, value, dtype=np.int64),
        filtering_id=np.zeros(count, dtype=np.uint64),
        null=~full,
        unit=device << 32 | time_ms // WINDOW_MS,
    )


def slice_numbers(campaign: Campaign, views: Impressions) -> Ints:
    """Return the slice of each view as a number: its codes in mixed radix, or its rank if slices are too many."""
    fields = tuple(field for field in campaign.keys.fields if field.name in views.codes)
    if math.prod(len(field.values) for field in fields) > _MAX_SLICES:
        high, low = campaign.keys.keys(views.codes, len(views))
        return KeyTable(high, low).find(high, low)
    return mixed_radix(fields, views.codes, len(views))


def moments(thresholds: tuple[int, ...], views: Impressions, slices: Ints) -> tuple[Ints, Ints]:
    """Return the views at which a device counts, in order of time, and the index of the threshold that each reaches."""
    order = np.lexsort((np.arange(len(views)), slices, views.device))
    device, name = views.device[order], slices[order]
    starts = np.ones(len(views), dtype=np.bool_)
    starts[1:] = (device[1:] != device[:-1]) | (name[1:] != name[:-1])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(views)), 0))
    count = np.empty(len(views), dtype=np.int64)
    count[order] = np.arange(len(views)) - first + 1
    level = np.full(int(max(thresholds)) + 1, -1, dtype=np.int64)
    level[list(thresholds)] = np.arange(len(thresholds))
    reached = np.where(count <= max(thresholds), level[np.minimum(count, max(thresholds))], -1)
    event = np.flatnonzero(reached >= 0)
    return event, reached[event]
