"""The ground truth of a run: the stages from a population to its batches, on whose way reports get lost, late or
retried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from aggservice.campaign.columns import Events, Fate, Fates, Ints, MeasuredConversions, ReportColumns
from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.settings.distributions import coins
from aggservice.campaign.stages import RunChain, RunStage
from aggservice.mechanisms import Bits

_LATEST_DAYS = 1e6
"""Longer than any batch waits, and short enough that no sum of times overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedReports:
    """Reports in batches. ``batch`` is −1 for a report in no batch; ``rows`` are the reports of each batch in order of
    arrival, with a retried report twice. ``period`` is the batch that each item belongs to, counted or not, and
    ``fate`` what is known of it after collection.
    """

    batch: Ints
    arrival_ms: Ints
    rows: tuple[Ints, ...]
    period: Ints
    fate: Fates
    closes_ms: tuple[int, ...]
    lost: int
    late: int
    retried: int

    @property
    def received(self) -> int:
        """The number of reports in the batches, including retries."""
        return sum(rows.size for rows in self.rows)


def collect(campaign: Campaign, reports: ReportColumns, items: MeasuredConversions, bits: Bits) -> CollectedReports:
    """Put the reports into batches; items whose report is lost or late get that fate.

    A batch takes the reports scheduled within its hours that arrive before it closes. A later report is dropped, or
    goes into the first batch that is still open (``late_reports``). An item belongs to the batch of its report;
    without one, to the batch of its report's scheduled time, or of its conversion.
    """
    settings, start, length = campaign.collection, campaign.population.start_ms, campaign.batch_ms
    batches, count = campaign.batches, len(reports)
    closes = start + (np.arange(batches) + 1) * length + int(settings.close_after_hours * HOUR_MS)
    # The last batch waits for reports that were scheduled just after the last day.
    closes[-1] = max(int(closes[-1]), int(reports.scheduled_ms.max(initial=0)) + 1)
    lost = coins(bits.child("lost"), settings.lost, count)
    slow = coins(bits.child("late"), settings.late, count)
    extra = np.clip(settings.late_days.draw(bits.child("late days"), count), 0, _LATEST_DAYS)
    arrival = reports.scheduled_ms + np.where(slow, (extra * DAY_MS).astype(np.int64), 0)
    due = np.minimum((reports.scheduled_ms - start) // length, batches - 1)
    batch = due.copy()
    missed = arrival >= closes[due]
    if settings.late_reports == "next":
        batch = np.maximum(due, np.searchsorted(closes, arrival, side="right"))
        missed = batch >= batches
    late = missed & ~lost
    batch[lost | missed] = -1
    retried = coins(bits.child("retried"), settings.retried, count) & (batch >= 0)
    twice = np.concatenate((np.flatnonzero(batch >= 0), np.flatnonzero(retried)))
    ordered = twice[np.lexsort((twice, arrival[twice], batch[twice]))]
    bounds = np.searchsorted(batch[ordered], np.arange(batches + 1))
    rows = tuple(ordered[bounds[number] : bounds[number + 1]] for number in range(batches))

    fate = items.fate.copy()
    has = items.report >= 0
    mine = np.maximum(items.report, 0)
    if count:
        fate[has & lost[mine]] = Fate.LOST
        fate[has & late[mine]] = Fate.LATE
        home = np.where(batch >= 0, batch, due)[mine]
    else:
        home = np.zeros(len(items), dtype=np.int64)
    own = np.minimum((items.time_ms - start) // length, batches - 1)
    return CollectedReports(
        batch=batch,
        arrival_ms=arrival,
        rows=rows,
        period=np.where(has, home, own),
        fate=fate,
        closes_ms=tuple(closes.tolist()),
        lost=int(lost.sum()),
        late=int(late.sum()),
        retried=int(retried.sum()),
    )


SIMULATE = RunStage(name="simulate", reads=("population", "keys"))
ATTRIBUTE = RunStage(
    name="attribute",
    reads=("population", "keys", "filters", "measures", "client", "reporting_origin"),
    after=(SIMULATE,),
)
COLLECT = RunStage(name="collect", reads=("population", "collection"), after=(ATTRIBUTE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The ground truth of a run. Only ``aggservice.campaign`` has it."""

    events: Events
    items: MeasuredConversions
    reports: ReportColumns
    collected: CollectedReports


def simulate_events(campaign: Campaign, chain: RunChain) -> Events:
    """Return the events of the campaign's population."""
    bits = chain.bits.child("population")
    return chain.run(SIMULATE, campaign, lambda seen: seen.population.model.events(seen, bits))


def simulate_reports(campaign: Campaign, chain: RunChain) -> Truth:
    """Simulate events, attribution and collection; nothing is sealed yet."""
    events, bits = simulate_events(campaign, chain), chain.bits
    reports, items = chain.run(
        ATTRIBUTE, campaign, lambda seen: seen.client.reports(seen, events, bits.child("browsers")), total=len(events)
    )
    collected = chain.run(
        COLLECT,
        campaign,
        lambda seen: collect(seen, reports, items, bits.child("collection")),
        total=len(reports),
    )
    return Truth(events=events, items=replace(items, fate=collected.fate), reports=reports, collected=collected)


def truth_without_reports(events: Events) -> Truth:
    """Return the truth of a campaign that sends no aggregatable reports."""
    ints, words = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    items = MeasuredConversions(
        conversion=ints, measure=ints, time_ms=ints, natural=ints, asked=ints, amount=ints,
        attributable=np.empty(0, dtype=np.bool_), true_high=words, true_low=words, key_high=words, key_low=words,
        report=ints, fate=np.empty(0, dtype=np.int8),
    )  # fmt: skip
    reports = ReportColumns(
        scheduled_ms=ints, report_id=np.empty((0, 16), dtype=np.uint8), destination=ints,
        offset=np.zeros(1, dtype=np.int64), key_high=words, key_low=words, value=ints, filtering_id=words,
        null=np.empty(0, dtype=np.bool_),
    )  # fmt: skip
    collected = CollectedReports(
        batch=ints, arrival_ms=ints, rows=(), period=ints, fate=items.fate, closes_ms=(), lost=0, late=0, retried=0
    )
    return Truth(events=events, items=items, reports=reports, collected=collected)
