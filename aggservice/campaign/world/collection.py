"""What becomes of reports between browser and batch: lost, late, retried; and which batch takes which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.settings.campaign import DAY_MS, HOUR_MS, Campaign
from aggservice.campaign.settings.distributions import happens
from aggservice.campaign.world.attribution import Items, Reports
from aggservice.campaign.world.fates import Fate
from aggservice.mechanisms import Bits

Ints = NDArray[np.int64]

_LATEST_DAYS = 1e6
"""Later than any batch waits, and no sum of times wraps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Reports in batches. ``batch`` is −1 for a report that no batch has; ``rows`` are those of each batch in order of
    arrival, a retried report twice. ``period`` is the batch that each item belongs to, counted or not.
    """

    batch: Ints
    arrival_ms: Ints
    rows: tuple[Ints, ...]
    period: Ints
    closes_ms: tuple[int, ...]
    lost: int
    late: int
    retried: int

    @property
    def received(self) -> int:
        """How many reports the batches hold, retries included."""
        return sum(rows.size for rows in self.rows)


def collect(campaign: Campaign, reports: Reports, items: Items, bits: Bits) -> Collected:
    """Send every report; set the fate of items whose report is lost or late.

    A batch takes the reports scheduled within its hours that arrive before it closes. A later one is dropped, or goes
    into the first batch that is still open (``late_reports``). An item belongs to the batch that has its report; one
    without a report in any batch, to the batch of its report's scheduled time, or of its conversion.
    """
    settings, start, length = campaign.collection, campaign.population.start_ms, campaign.batch_ms
    batches, count = campaign.batches, len(reports)
    closes = start + (np.arange(batches) + 1) * length + int(settings.close_after_hours * HOUR_MS)
    # The last batch waits for reports that were scheduled just after the last day.
    closes[-1] = max(int(closes[-1]), int(reports.scheduled_ms.max(initial=0)) + 1)
    lost = happens(bits.child("lost"), settings.lost, count)
    slow = happens(bits.child("late"), settings.late, count)
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
    retried = happens(bits.child("retried"), settings.retried, count) & (batch >= 0)
    twice = np.concatenate((np.flatnonzero(batch >= 0), np.flatnonzero(retried)))
    ordered = twice[np.lexsort((twice, arrival[twice], batch[twice]))]
    bounds = np.searchsorted(batch[ordered], np.arange(batches + 1))
    rows = tuple(ordered[bounds[number] : bounds[number + 1]] for number in range(batches))

    has = items.report >= 0
    mine = np.maximum(items.report, 0)
    if count:
        items.fate[has & lost[mine]] = Fate.LOST
        items.fate[has & late[mine]] = Fate.LATE
        home = np.where(batch >= 0, batch, due)[mine]
    else:
        home = np.zeros(len(items), dtype=np.int64)
    own = np.minimum((items.time_ms - start) // length, batches - 1)
    return Collected(
        batch=batch,
        arrival_ms=arrival,
        rows=rows,
        period=np.where(has, home, own),
        closes_ms=tuple(closes.tolist()),
        lost=int(lost.sum()),
        late=int(late.sum()),
        retried=int(retried.sum()),
    )
