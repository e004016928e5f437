"""Attribution: a fleet of browsers turns events into reports, and each conversion gets its fate.

A conversion contributes once to each measure; such a pair is an *item*. Items are the rows of the ground truth: their
amount, the key that a fleet without caps would give them, and their fate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign
from aggservice.campaign.world.events import Conversions, Events
from aggservice.campaign.world.fates import Fate
from aggservice.mechanisms import Bits
from ara_client import Fleet, FleetReports, FleetRules, SourceColumns, TriggerColumns, TriggerOutcome, match_table

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Fates = NDArray[np.int8]

_UNLIMITED = (1 << 40) - 1
_LARGEST_SUM = 1 << 62
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumns:
    """Reports before sealing, in columns. The contributions of row i are ``offset[i]`` to ``offset[i + 1]``.

    ``unit`` is the privacy unit of each report, below 0 for null reports; it is ground truth and is never sealed.
    ``task`` is the task of each W3C report, which the page knows.
    """

    scheduled_ms: Ints
    report_id: NDArray[np.uint8]
    destination: Ints
    offset: Ints
    key_high: Words
    key_low: Words
    value: Ints
    filtering_id: Words
    null: NDArray[np.bool_]
    unit: Ints | None = None
    task: Ints | None = None

    def __len__(self) -> int:
        return self.scheduled_ms.size

    def taken(self, rows: Ints) -> ReportColumns:
        """Return some reports with their contributions, without their units."""
        sizes = np.diff(self.offset)[rows]
        offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        inner = np.arange(int(offset[-1])) - np.repeat(offset[:-1], sizes) + np.repeat(self.offset[rows], sizes)
        return ReportColumns(
            scheduled_ms=self.scheduled_ms[rows],
            report_id=self.report_id[rows],
            destination=self.destination[rows],
            offset=offset,
            key_high=self.key_high[inner],
            key_low=self.key_low[inner],
            value=self.value[inner],
            filtering_id=self.filtering_id[inner],
            null=self.null[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConversions:
    """The ground truth: one row per conversion and measure.

    ``natural`` is the value; ``asked`` is the contribution before clipping and ``amount`` after it, in contribution
    units. ``key_*`` is the key of the contribution that was sent, valid if ``report`` ≥ 0; ``true_*`` is the key that
    an uncapped browser gives, valid if ``attributable``. ``fate`` is what is known so far.
    """

    conversion: Ints
    measure: Ints
    time_ms: Ints
    natural: Ints
    asked: Ints
    amount: Ints
    attributable: NDArray[np.bool_]
    true_high: Words
    true_low: Words
    key_high: Words
    key_low: Words
    report: Ints
    fate: Fates

    def __len__(self) -> int:
        return self.conversion.size


def contribution_units(campaign: Campaign, conversions: Conversions) -> tuple[Ints, Ints, Ints]:
    """Return natural, asked and clipped amounts by (conversion, measure): value × scale, rounded half up."""
    shape = (len(conversions), len(campaign.measures))
    natural, asked, amount = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for place, measure in enumerate(campaign.measures):
        given = np.ones(shape[0], dtype=np.int64) if measure.of == "count" else conversions.value
        natural[:, place] = given
        asked[:, place] = _scaled(given, measure.scale)
        clipped = np.minimum(given, measure.most)
        amount[:, place] = np.minimum(_scaled(clipped, measure.scale), campaign.client.l1)
    for column, what in ((natural, "values"), (asked, "contributions, before they are clipped,")):
        if not (total := float(column.sum(dtype=np.float64))) < _LARGEST_SUM:
            raise RunError(f"the {what} come to {total:.3g}: make the values or the scale smaller")
    return natural, asked, amount


def _scaled(values: Ints, scale: Fraction) -> Ints:
    """Return values × scale, rounded half up, exactly; above 63 bits with Python integers."""
    up, down = scale.numerator, scale.denominator
    if 2 * int(values.max(initial=0)) * up + down < 1 << 63:
        return (2 * values * up + down) // (2 * down)
    exact = [(2 * value * up + down) // (2 * down) for value in values.tolist()]
    if (most := max(exact)) >= _LARGEST_SUM:
        raise RunError(f"a contribution comes to {most:.3g} before it is clipped: make the values or the scale smaller")
    return np.array(exact, dtype=np.int64)


def attribute(campaign: Campaign, events: Events, bits: Bits) -> tuple[ReportColumns, MeasuredConversions]:
    """Run the events through every browser; return the reports and the ground truth."""
    paper = campaign.client.form == "paper"
    sources, trigger_order = _sources(campaign, events)
    natural, asked, amount = contribution_units(campaign, events.conversions)
    triggers = _triggers(campaign, events, amount, trigger_order)
    matches = _matches(campaign)
    rules = _rules(campaign)
    made = Fleet(bits=bits.child("fleet"), rules=rules, matches=matches).register(sources, triggers)
    free = replace(rules, contribution_budget=_UNLIMITED, max_reports=_UNLIMITED, null_rate=type(rules.null_rate)(0))
    # The same events in a fleet without caps and null reports; nothing random of it is kept. What rounds to 0 happened.
    wanted = np.maximum(amount, natural > 0)
    happened = triggers if np.array_equal(wanted, amount) else _triggers(campaign, events, wanted, trigger_order)
    truth = Fleet(bits=bits.child("uncapped fleet"), rules=free, matches=matches).register(sources, happened)

    count, measures = amount.shape
    items = count * measures
    flat_amount = amount.reshape(-1)
    attributable = np.zeros(items, dtype=np.bool_)
    columns = {name: np.zeros(items, dtype=np.uint64) for name in ("true_high", "true_low", "key_high", "key_low")}
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
        _name_caps(campaign, fate, made.outcome, made, truth, flat_amount)
    conversion = np.repeat(np.arange(count), measures)
    destination = triggers.destination[made.trigger]
    reports = ReportColumns(
        scheduled_ms=made.scheduled_ms,
        report_id=made.report_id,
        destination=destination,
        offset=made.offset,
        key_high=made.key_high,
        key_low=made.key_low,
        value=made.value,
        filtering_id=made.filtering_id,
        null=made.source < 0,
        unit=made.source,
    )
    return reports, MeasuredConversions(
        conversion=conversion,
        measure=np.tile(np.arange(measures), count),
        time_ms=events.conversions.time_ms[conversion],
        natural=natural.reshape(-1),
        asked=asked.reshape(-1),
        amount=flat_amount,
        attributable=attributable,
        report=report,
        fate=fate,
        **columns,
    )


def _rules(campaign: Campaign) -> FleetRules:
    client = campaign.client
    if client.form == "paper":
        return FleetRules.paper(contribution_budget=client.l1, sparsity_budget=client.l0)
    return FleetRules(contribution_budget=client.l1, max_reports=client.max_reports, null_rate=client.null_rate)


def _matches(campaign: Campaign) -> NDArray[np.bool_]:
    if campaign.filters is None:
        return np.ones((1, 1), dtype=np.bool_)
    field = campaign.keys.field(campaign.filters.field)
    accepts = frozenset(campaign.filters.accepts)
    return match_table([accepts], list(field.values), lambda accepted, value: value in accepted)


def _sources(campaign: Campaign, events: Events) -> tuple[SourceColumns, Ints]:
    """Return the sources, and the rank in time of each trigger among both; sources come first at ties."""
    impressions, conversions = events.impressions, events.conversions
    measures = len(campaign.measures)
    before = np.searchsorted(conversions.time_ms, impressions.time_ms, side="left")
    # In the paper's form each measure of a conversion is a separate trigger with its own rank.
    wide = measures if campaign.client.form == "paper" else 1
    source_order = np.arange(len(impressions)) + wide * before
    after = np.searchsorted(impressions.time_ms, conversions.time_ms, side="right")
    trigger_order = wide * np.arange(len(conversions)) + after
    high, low = campaign.keys.keys(impressions.codes, len(impressions))
    each = 1 if wide > 1 or measures == 1 else measures
    expiry = impressions.time_ms + int(campaign.client.expiry_days * DAY_MS)
    return (
        SourceColumns.of(
            order=source_order,
            time_ms=impressions.time_ms,
            device=impressions.device,
            destination=impressions.destination,
            priority=impressions.click.astype(np.int64) * campaign.client.click_priority,
            expiry_ms=expiry,
            key_high=np.repeat(high, each),
            key_low=np.repeat(low, each),
            offset=None if each == 1 else np.arange(len(impressions) + 1) * each,
            name=0 if each == 1 else np.tile(np.arange(each), len(impressions)),
        ),
        trigger_order,
    )


def _triggers(campaign: Campaign, events: Events, amount: Ints, order: Ints) -> TriggerColumns:
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
    if campaign.client.form == "paper":

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


def _name_caps(
    campaign: Campaign, fate: Fates, outcome: Fates, made: FleetReports, truth: FleetReports, amount: Ints
) -> None:
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
    over = used + amount[capped] > campaign.client.l1
    fate[capped] = np.where(over, Fate.CAPPED_L1, Fate.CAPPED_L0)
