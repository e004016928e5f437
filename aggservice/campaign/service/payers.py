"""Classes of privacy units that every job of a run charges the same: one unit per class pays for its whole class.

A ledger treats units with the same past in the same way, so its decisions and balances over one unit per class are
those over all units. A simulated run therefore charges only as many units as it has classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.service.jobs import Job
from aggservice.engine import UnpaidError
from aggservice.engine.jobs.tally import Tally
from aggservice.wire import UNIT_BYTES
from budget import BudgetExhaustedError

Units = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payers:
    """Per job, by name: one unit of each class in it, ascending, and the number of units of each class."""

    units: dict[str, Units]
    counts: dict[str, NDArray[np.int64]]

    @classmethod
    def of(cls, jobs: Sequence[Job], tallies: Sequence[Tally]) -> Payers:
        """Find the classes: two units are in one class if the same jobs contain both."""
        distinct = {id(tally.units): tally.units for tally in tallies}
        keys = [_sortable(units) for units in distinct.values()]
        every = np.unique(np.concatenate([np.empty(0, dtype=f"S{UNIT_BYTES}"), *keys])) if len(keys) != 1 else keys[0]
        of_unit = np.zeros(every.size, dtype=np.int64)
        members = []
        for one in keys:
            inside = np.zeros(every.size, dtype=np.int64)
            place = np.searchsorted(every, one) if len(keys) != 1 else np.arange(every.size)
            inside[place] = 1
            members.append(place)
            of_unit = np.unique(2 * of_unit + inside, return_inverse=True)[1].reshape(-1)
        _, first, counts = np.unique(of_unit, return_index=True, return_counts=True)
        made = {}
        for name, units, place in zip(distinct, distinct.values(), members, strict=True):
            classes = np.unique(of_unit[place])
            order = np.argsort(first[classes])  # in ascending order of the units themselves
            rows = np.searchsorted(place, first[classes][order])
            made[name] = units[rows], counts[classes][order]
        names = [job.name for job in jobs]
        return cls(
            units={name: made[id(tally.units)][0] for name, tally in zip(names, tallies, strict=True)},
            counts={name: made[id(tally.units)][1] for name, tally in zip(names, tallies, strict=True)},
        )

    def reduced(self, job: Job, tally: Tally) -> Tally:
        """Return a tally in which one unit per class pays."""
        return replace(tally, units=self.units[job.name])

    def unpaid(self, job: Job, problem: UnpaidError) -> UnpaidError:
        """Return the error of a job whose units could not pay, with the numbers of all units and not of classes."""
        cause = problem.__cause__
        assert isinstance(cause, BudgetExhaustedError)
        units, counts = self.units[job.name], self.counts[job.name]
        poor = np.isin(_sortable(units), _sortable(cause.units))
        whole = BudgetExhaustedError(
            count=int(counts[poor].sum()),
            total=int(counts.sum()),
            asked=cause.asked,
            first=cause.first,
            units=cause.units,
            text=str(cause),
        )
        return UnpaidError(whole, problem.release)


def _sortable(units: Units) -> NDArray[np.bytes_]:
    """Return units as one sortable column; they all have the same length, so zero bytes at the end change nothing."""
    return np.ascontiguousarray(units).view(f"S{UNIT_BYTES}").reshape(-1)
