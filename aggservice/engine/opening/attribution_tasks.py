"""Jobs over W3C Attribution: the values that all reports of a job must share, and the check of each report.

As in DAP, a task is a set of reports with one conversion site, histogram size and maximum value. The collector is the
job's reporting origin or site. The format is our own proposal for an attested service (docs/wire.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import InvalidJobError
from aggservice.wire import Api, ReportStatus
from aggservice.wire.batch.payloads import ContributionColumns
from aggservice.wire.batch.shared_infos import APIS, SharedInfoColumns
from aggservice.wire.limits import MAX_UINT32, MAX_W3C_VALUE
from aggservice.wire.origins import site_of

_OK = int(ReportStatus.OK)
_W3C = APIS.index(Api.W3C_ATTRIBUTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionTask:
    """What all reports of a W3C job have in common, as their ``shared_info`` states it."""

    conversion_site: str
    histogram_size: int
    max_value: int

    def __post_init__(self) -> None:
        if site_of(self.conversion_site) != self.conversion_site:
            raise InvalidJobError(
                f"attribution_task.conversion_site is {self.conversion_site!r}: use a site such as https://shop.example"
            )
        for name, most in (("histogram_size", MAX_UINT32), ("max_value", MAX_W3C_VALUE)):
            number = getattr(self, name)
            if not 1 <= number <= most:
                raise InvalidJobError(f"attribution_task.{name} is {number}: use a whole number from 1 to {most}")

    @property
    def sensitivity(self) -> int:
        """The most that one report can change the sums, in L1, if its histogram is replaced by another."""
        return 2 * self.max_value

    def to_plain(self) -> dict[str, str]:
        """Return plain values; the ledger recognises a repeated request by them."""
        return {name: str(value) for name, value in asdict(self).items()}

    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the high and low halves of the keys of the summary: every index of the histogram."""
        return np.zeros(self.histogram_size, dtype=np.uint64), np.arange(self.histogram_size, dtype=np.uint64)


def judge_task(
    task: AttributionTask | None, least_micro: int, infos: SharedInfoColumns, statuses: NDArray[np.uint8]
) -> None:
    """Write an error status for each report of another API or task, or made for a smaller ε than ``least_micro``.

    The ε of a report is what its page asked for. What the device paid is secret and may be less.
    """
    good = statuses == _OK
    mine = (infos.api == _W3C) == (task is not None)
    statuses[good & ~mine] = ReportStatus.UNSUPPORTED_REPORT_API_TYPE
    if task is None:
        return
    found = infos.destinations.index(task.conversion_site) if task.conversion_site in infos.destinations else None
    same = (infos.histogram_size == task.histogram_size) & (infos.max_value == task.max_value)
    if found is None:
        same[:] = False
    else:
        same &= infos.destination == found
    statuses[good & mine & ~same] = ReportStatus.ATTRIBUTION_TASK_MISMATCH
    statuses[good & mine & same & (infos.epsilon_micro < least_micro)] = ReportStatus.REPORT_EPSILON_TOO_LOW


def outside_histogram(task: AttributionTask, columns: ContributionColumns, reports: int) -> NDArray[np.bool_]:
    """Return which reports contribute to an index beyond the histogram."""
    beyond = (columns.key_high != 0) | (columns.key_low >= np.uint64(task.histogram_size))
    return np.bincount(columns.row[beyond], minlength=reports) > 0
