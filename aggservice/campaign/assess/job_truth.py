"""The truth of one job in columns by key: a stage that is computed once, however often the job is released.

It holds everything about the job's batches that does not depend on its price or its noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aggservice.campaign.columns import Fate, Ints, Words
from aggservice.campaign.service.jobs import QueryJob
from aggservice.campaign.settings.campaign import Campaign
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.stages import RunChain, RunStage
from aggservice.campaign.world.truth import COLLECT, Truth

TRUTH = RunStage(name="truth", reads=("population", "collection", "keys", "measures"), after=(COLLECT,))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTruth:
    """Keys in ascending order with their true sum (natural units), what was sent (contribution units) and measure.

    ``domain`` has the index of each declared key, in the order of a summary. ``waiting_*`` are conversions with a
    report in the batches, by measure and key: their number, and their contributions before and after clipping.
    ``settled_*`` are the other conversions, by measure and fate. ``slice_of`` is the slice of each key under the
    query's fields; slices are in ascending order of their key (``slice_high``, ``slice_low``).
    """

    high: Words
    low: Words
    truth: Ints
    sent: Ints
    measure: Ints
    domain: Ints
    waiting_count: Ints
    waiting_asked: Ints
    waiting_amount: Ints
    settled_count: Ints
    settled_asked: Ints
    slice_of: Ints
    slice_high: Words
    slice_low: Words
    slice_measure: Ints
    slice_truth: Ints

    def __len__(self) -> int:
        return self.truth.size

    def find(self, high: Words, low: Words) -> Ints:
        """Return the index of each released key. Each has one, because it was sent, declared or true."""
        if self.domain.size and high.size == self.domain.size:
            return self.domain
        return KeyTable(self.high, self.low).find(high, low)


def job_truth(campaign: Campaign, chain: RunChain, truth: Truth, job: QueryJob) -> JobTruth:
    """Return the truth of a job's batches by key."""
    query = job.query
    rows = None if query.discovery else tuple(sorted(query.rows.items()))
    return chain.run(
        TRUTH,
        campaign,
        lambda seen: _job_truth(seen, truth, job.batches, rows, query.by),
        given=(job.batches, rows, query.by),
    )


def _job_truth(
    campaign: Campaign,
    world: Truth,
    batches: tuple[int, ...],
    rows: tuple[tuple[str, tuple[int, ...]], ...] | None,
    by: tuple[str, ...],
) -> JobTruth:
    items, reports, collected = world.items, world.reports, world.collected
    window = np.zeros(campaign.batches, dtype=np.bool_)
    window[list(batches)] = True
    inside = window[collected.period]
    true = np.flatnonzero(inside & items.attributable)
    member = (collected.batch >= 0) & window[np.maximum(collected.batch, 0)]
    sent = np.flatnonzero(np.repeat(member, np.diff(reports.offset)))
    none = np.empty(0, dtype=np.uint64)
    asked_high, asked_low = (none, none) if rows is None else campaign.keys.domain(dict(rows))
    table = KeyTable(
        np.concatenate((asked_high, items.true_high[true], reports.key_high[sent])),
        np.concatenate((asked_low, items.true_low[true], reports.key_low[sent])),
    )
    size, measures = len(table), len(campaign.measures)
    measure = np.zeros(size, dtype=np.int64)
    for field in campaign.keys.fields:
        if field.origin == "measure":
            measure = np.minimum(field.decode(table.high, table.low), measures - 1)
    fate, place = items.fate[inside], items.measure[inside]
    on_the_way = fate == Fate.ON_THE_WAY
    waiting = np.flatnonzero(inside)[on_the_way]
    at = items.measure[waiting] * size + table.find(items.key_high[waiting], items.key_low[waiting])
    settled = np.flatnonzero(inside)[~on_the_way]
    fated = place[~on_the_way] * len(Fate) + fate[~on_the_way]
    slice_keys = campaign.keys.slices(by, table.high, table.low)
    slices = KeyTable(*slice_keys)
    slice_of = slices.find(*slice_keys)
    slice_measure = np.zeros(len(slices), dtype=np.int64)
    slice_measure[slice_of] = measure
    by_key = table.find(items.true_high[true], items.true_low[true])
    truth = sums_at(by_key, items.natural[true], size)
    return JobTruth(
        high=table.high,
        low=table.low,
        truth=truth,
        sent=sums_at(table.find(reports.key_high[sent], reports.key_low[sent]), reports.value[sent], size),
        measure=measure,
        domain=table.find(asked_high, asked_low),
        waiting_count=np.bincount(at, minlength=measures * size).reshape(measures, size),
        waiting_asked=sums_at(at, items.asked[waiting], measures * size).reshape(measures, size),
        waiting_amount=sums_at(at, items.amount[waiting], measures * size).reshape(measures, size),
        settled_count=np.bincount(fated, minlength=measures * len(Fate)).reshape(measures, len(Fate)),
        settled_asked=sums_at(fated, items.asked[settled], measures * len(Fate)).reshape(measures, len(Fate)),
        slice_of=slice_of,
        slice_high=slices.high,
        slice_low=slices.low,
        slice_measure=slice_measure,
        slice_truth=sums_at(slice_of, truth, len(slices)),
    )


def sums_at(places: Ints, values: Ints, size: int) -> Ints:
    """Return the exact sum of the values at each index from 0 to ``size`` - 1."""
    found = np.zeros(size, dtype=np.int64)
    np.add.at(found, places, values)
    return found
