"""Columns of opened reports: what a worker returns for a batch of a histogram job.

A few arrays per batch, because one object per report would cost more time than opening it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire import UNIT_BYTES

DEBUG_DAY_BYTES = 16
"""A hash of a context site and a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBatch:
    """A batch of reports after it was opened and checked.

    ``statuses`` has one ``ReportStatus`` per report. The other columns cover only the reports that are OK, in order:
    their ids (high, low), the unit keys they pay with (one per requested filtering ID, report by report), their APIs,
    and their contributions that are not null and have a requested filtering ID; ``rows`` gives the OK report of each
    contribution. ``debug_days`` holds the distinct pairs of context site and day of debug reports (``coverage``).
    """

    statuses: NDArray[np.uint8]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    apis: NDArray[np.uint8]
    debug_days: NDArray[np.uint8]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    values: NDArray[np.uint32]
    rows: NDArray[np.int32]

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return the columns in the order in which ``from_arrays`` takes them."""
        contributions = (self.high, self.low, self.values, self.rows)
        return (self.statuses, self.ids, self.units, self.apis, self.debug_days, *contributions)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.generic]]) -> JudgedBatch:
        """Return the batch of these arrays; flat arrays get their shape back."""
        statuses, ids, units, apis, debug_days, high, low, values, rows = arrays
        return cls(
            statuses=statuses.view(np.uint8),
            ids=ids.view(np.uint64).reshape(-1, 2),
            units=units.view(np.uint8).reshape(-1, UNIT_BYTES),
            apis=apis.view(np.uint8),
            debug_days=debug_days.view(np.uint8).reshape(-1, DEBUG_DAY_BYTES),
            high=high.view(np.uint64),
            low=low.view(np.uint64),
            values=values.view(np.uint32),
            rows=rows.view(np.int32),
        )
