"""Columns of opened local reports: what a worker returns for a batch of a shuffle job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggservice.wire import UNIT_BYTES, OpenedBatch, Randomizer, ReportStatus, report_units
from aggservice.wire.batch.ldp_payloads import LdpColumns, decode_ldp_batch
from aggservice.wire.batch.shared_infos import SharedInfoColumns
from aggservice.wire.report.device_tokens import TokenCheck

_OK = int(ReportStatus.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpBatch:
    """The local reports of the job's randomizer in one batch, in order: ids, unit keys, APIs, bytes.

    ``statuses`` has one ``ReportStatus`` for every report of the batch. ``left_out`` has two numbers: how many are good
    reports of another randomizer, and how many are reports of this one without the device token that the job needs.
    """

    statuses: NDArray[np.uint8]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    apis: NDArray[np.uint8]
    left_out: NDArray[np.int64]
    data: NDArray[np.uint8]

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return the columns in the order in which ``from_arrays`` takes them."""
        return (self.statuses, self.ids, self.units, self.apis, self.left_out, self.data)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.generic]]) -> LdpBatch:
        """Return the batch of these arrays; flat arrays get their shape back."""
        statuses, ids, units, apis, left_out, data = arrays
        pairs = ids.view(np.uint64).reshape(-1, 2)
        return cls(
            statuses=statuses.view(np.uint8),
            ids=pairs,
            units=units.view(np.uint8).reshape(-1, UNIT_BYTES),
            apis=apis.view(np.uint8),
            left_out=left_out.view(np.int64),
            data=data.view(np.uint8).reshape(pairs.shape[0], -1) if len(pairs) else np.empty((0, 0), np.uint8),
        )


def ldp_batch(
    randomizer: Randomizer,
    infos: SharedInfoColumns,
    statuses: NDArray[np.uint8],
    rows: NDArray[np.int64],
    opened: OpenedBatch,
    evidence: TokenCheck | None = None,
) -> LdpBatch:
    """Return the columns of a batch whose ``rows`` were opened. Local reports always pay with report units.

    With ``evidence``, only reports with a valid device token are kept. Repeated ids are dropped afterwards, so that a
    report without a token cannot replace one that has it.
    """
    found = decode_ldp_batch(opened, randomizer)
    statuses[rows] = found.status
    kept, data = rows[found.mine], found.data
    others = np.count_nonzero((found.status == _OK) & ~found.mine)
    without_token = 0
    if evidence is not None:
        valid = _valid_tokens(evidence, infos, kept, found)
        without_token = valid.size - int(np.count_nonzero(valid))
        kept, data = kept[valid], data[valid]
    units = report_units(replace(infos, status=statuses), (0,))
    return LdpBatch(
        statuses=statuses,
        ids=infos.report_id[kept].view(">u8").astype(np.uint64).reshape(-1, 2),
        units=units[kept].reshape(-1, UNIT_BYTES),
        apis=infos.api[kept].view(np.uint8),
        left_out=np.array([others, without_token], dtype=np.int64),
        data=data,
    )


def _valid_tokens(
    evidence: TokenCheck, infos: SharedInfoColumns, rows: NDArray[np.int64], found: LdpColumns
) -> NDArray[np.bool_]:
    """Return which reports have a valid token for their own reporting origin and report id."""
    return np.array(
        [
            bool(found.has_token[index])
            and evidence.valid(
                found.tokens[index].tobytes(),
                origin=infos.origins[infos.origin[row]],
                report_id=infos.report_id[row].tobytes(),
            )
            for index, row in enumerate(rows.tolist())
        ],
        dtype=np.bool_,
    )
