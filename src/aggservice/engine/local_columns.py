"""Columns of opened local reports: what a worker leaves of a batch of a shuffle job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.wire import (
    UNIT_BYTES,
    OpenedBatch,
    Randomizer,
    ReportStatus,
    SharedInfoColumns,
    decode_ldp_batch,
    report_units,
)

_OK = int(ReportStatus.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatch:
    """Local reports of one batch that are of the job's randomizer, in order: ids, unit keys, bytes.

    ``statuses`` has one ``ReportStatus`` for every report of the batch; ``others`` holds, as its one number, how many
    are good reports of another randomizer.
    """

    statuses: NDArray[np.uint8]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    others: NDArray[np.int64]
    data: NDArray[np.uint8]

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return the columns in the order in which ``from_arrays`` takes them."""
        return (self.statuses, self.ids, self.units, self.others, self.data)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.generic]]) -> LocalBatch:
        """Put together what ``arrays`` took apart; flat arrays get their shape back."""
        statuses, ids, units, others, data = arrays
        pairs = ids.view(np.uint64).reshape(-1, 2)
        return cls(
            statuses=statuses.view(np.uint8),
            ids=pairs,
            units=units.view(np.uint8).reshape(-1, UNIT_BYTES),
            others=others.view(np.int64),
            data=data.view(np.uint8).reshape(pairs.shape[0], -1) if len(pairs) else np.empty((0, 0), np.uint8),
        )


def local_batch(
    randomizer: Randomizer,
    infos: SharedInfoColumns,
    statuses: NDArray[np.uint8],
    rows: NDArray[np.int64],
    opened: OpenedBatch,
) -> LocalBatch:
    """Return the columns of a batch whose ``rows`` were opened. A report pays for itself, whatever the unit."""
    data, mine, found = decode_ldp_batch(opened, randomizer)
    statuses[rows] = found
    kept = rows[mine]
    units = report_units(replace(infos, status=statuses), (0,))
    return LocalBatch(
        statuses=statuses,
        ids=infos.report_id[kept].view(">u8").astype(np.uint64).reshape(-1, 2),
        units=units[kept].reshape(-1, UNIT_BYTES),
        others=np.array([np.count_nonzero((found == _OK) & ~mine)], dtype=np.int64),
        data=data,
    )
