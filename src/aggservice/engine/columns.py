"""Columns of opened reports: what a batch is once its reports have been opened and judged.

Objects cost more than opening leaves room for, so a batch comes back from a worker process as a few arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.wire import UNIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBatch:
    """What is left of a batch once it has been opened and judged.

    ``statuses`` has one ``ReportStatus`` a report. The other columns speak of the reports that are OK, in order: their
    ids (high, low), the unit keys they pay with (one for each filtering ID asked for, report by report), which API
    each is of, and their contributions that are not null and bear a filtering ID asked for; ``rows`` says of which OK
    report each contribution is.
    """

    statuses: NDArray[np.uint8]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    apis: NDArray[np.uint8]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    values: NDArray[np.uint32]
    rows: NDArray[np.int32]

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return the columns in the order in which ``from_arrays`` takes them."""
        return (self.statuses, self.ids, self.units, self.apis, self.high, self.low, self.values, self.rows)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.generic]]) -> JudgedBatch:
        """Put together what ``arrays`` took apart; flat arrays get their shape back."""
        statuses, ids, units, apis, high, low, values, rows = arrays
        return cls(
            statuses=statuses.view(np.uint8),
            ids=ids.view(np.uint64).reshape(-1, 2),
            units=units.view(np.uint8).reshape(-1, UNIT_BYTES),
            apis=apis.view(np.uint8),
            high=high.view(np.uint64),
            low=low.view(np.uint64),
            values=values.view(np.uint32),
            rows=rows.view(np.int32),
        )
