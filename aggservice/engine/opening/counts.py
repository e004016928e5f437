"""Counts of a job's reports per status, and the error threshold that ends a bad job before any charge."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.job.errors import (
    NO_DEVICE_TOKEN,
    NUM_REPORTS_WITH_ERRORS,
    OTHER_RANDOMIZER,
    REPEATED_REPORT_ID,
    InvalidJobError,
    ReportVersionError,
    TooManyBadReportsError,
)
from aggservice.job.request import JobRequest
from aggservice.wire import ReportStatus


class ReportCounts:
    """The counters of one job."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._by_status = np.zeros(256, dtype=np.int64)
        self.repeated = 0
        self.other_randomizer = 0
        self.no_device_token = 0

    def add(self, statuses: NDArray[np.uint8]) -> None:
        """Count a batch; ReportVersionError if a report has a newer major version."""
        self.add_counted(np.bincount(statuses, minlength=256))

    def add_counted(self, by_status: NDArray[np.int64]) -> None:
        """Add a batch given as its number of reports per status, for each of 256 statuses."""
        self._by_status += by_status
        if self._by_status[ReportStatus.UNSUPPORTED_REPORT_VERSION]:
            raise ReportVersionError(
                "the shared_info.version of a report is newer than 1.x, the newest that this service supports"
            )
        announced = self._request.input_report_count
        if announced is not None and self.bad > self._allowed(announced):
            self._refuse(max(self.read, announced))

    @property
    def by_status(self) -> NDArray[np.int64]:
        """A copy of the number of reports per status, for each of 256 statuses."""
        return self._by_status.copy()

    def _allowed(self, read: int) -> Fraction:
        return self._request.error_threshold_percent * read / 100

    @property
    def read(self) -> int:
        """Reports read so far, good and bad."""
        return int(self._by_status.sum())

    @property
    def bad(self) -> int:
        """Reports with an error so far."""
        return self.read - int(self._by_status[ReportStatus.OK])

    @property
    def used(self) -> int:
        """Reports that the job uses: those without an error, each id once."""
        return self.read - self.bad - self.repeated

    def check(self) -> None:
        """Raise ``TooManyBadReportsError`` if the share of bad reports is above the threshold, ``InvalidJobError`` if
        the job uses fewer reports than its minimum.
        """
        if self.bad > self._allowed(self.read):
            self._refuse(self.read)
        least = self._request.minimum_report_count
        if self.used < least:
            raise InvalidJobError(
                f"the job has {self.used} usable reports, and its minimum_report_count is {least}; nothing was "
                "charged: send more reports, or ask for a smaller minimum"
            )

    def _refuse(self, read: int) -> None:
        text = f"{float(self._request.error_threshold_percent):g}"
        raise TooManyBadReportsError(bad=self.bad, read=read, threshold=text, counts=self.to_dict())

    def to_dict(self) -> dict[str, int]:
        """Return the counters that are not 0 by their name, in order of name."""
        counts = {
            status.name: int(self._by_status[status])
            for status in ReportStatus
            if status != ReportStatus.OK and self._by_status[status]
        }
        if self.bad:
            counts[NUM_REPORTS_WITH_ERRORS] = self.bad
        if self.repeated:
            counts[REPEATED_REPORT_ID] = self.repeated
        if self.other_randomizer:
            counts[OTHER_RANDOMIZER] = self.other_randomizer
        if self.no_device_token:
            counts[NO_DEVICE_TOKEN] = self.no_device_token
        return dict(sorted(counts.items()))
