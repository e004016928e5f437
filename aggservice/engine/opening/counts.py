"""Counts of a job's reports per status, and the error threshold that ends a bad job before any charge."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggservice.engine.errors import ReportVersionError, TooManyBadReportsError
from aggservice.wire import ReportStatus

NUM_REPORTS_WITH_ERRORS = "NUM_REPORTS_WITH_ERRORS"
REPEATED_REPORT_ID = "REPEATED_REPORT_ID"
"""Our own name: reports whose id the job had seen before. They are left out, but are not errors."""

OTHER_RANDOMIZER = "OTHER_RANDOMIZER"
"""Our own name: local reports of another randomizer than the shuffle's. They are left out, but are not errors."""

NO_DEVICE_TOKEN = "NO_DEVICE_TOKEN"
"""Our own name: local reports without the device token that an amplified shuffle needs. Left out, but not errors."""

DESCRIPTIONS = {
    "DECRYPTION_ERROR": "The payload does not open. Pass shared_info on byte for byte, as the browser sent it.",
    "DECRYPTION_KEY_NOT_FOUND": "No private key has this key_id. Check that the report was sealed for this service.",
    "DECRYPTION_KEY_FETCH_ERROR": "The private key could not be loaded. Tell the operator.",
    "REPORT_PARSING_ERROR": "The report is malformed: invalid JSON or CBOR, or an impossible size.",
    "UNSUPPORTED_OPERATION": "The payload's operation is not the job's (histogram, or ldp for a shuffle).",
    "UNSUPPORTED_REPORT_API_TYPE": "shared_info.api is not a supported API, or not the job's: W3C Attribution has jobs "
    "of its own, with an attribution_task.",
    "UNSUPPORTED_SHAREDINFO_VERSION": "shared_info.version is not 0.1 or 1.x.",
    "REQUIRED_SHAREDINFO_FIELD_INVALID": "A field of shared_info that the budget needs is missing or invalid.",
    "INVALID_REPORT_ID": "shared_info.report_id is missing or not a UUID.",
    "ATTRIBUTION_REPORT_TO_MALFORMED": "shared_info.reporting_origin is not a secure origin with a registrable domain.",
    "ATTRIBUTION_REPORT_TO_MISMATCH": "shared_info.reporting_origin is not the job's attribution_report_to.",
    "REPORTING_SITE_MISMATCH": "shared_info.reporting_origin is not part of the job's reporting_site, or not yours.",
    "DEBUG_NOT_ENABLED": "A debug run reads only reports whose shared_info has debug_mode enabled.",
    "ORIGINAL_REPORT_TIME_TOO_OLD": "shared_info.scheduled_report_time is too long ago.",
    "CONTRIBUTIONS_EXCEED_BOUNDS": "The report contributes more than the bounds (l1, l0) of its API allow per report.",
    "ATTRIBUTION_TASK_MISMATCH": "attribution_destination, histogram_size or max_value of a W3C report is not the "
    "job's. Aggregate reports of one attribution_task per job.",
    "REPORT_EPSILON_TOO_LOW": "micro_epsilon of a W3C report is below the job's epsilon. Ask for a smaller epsilon.",
    "INTERNAL_ERROR": "The service failed on this report.",
    NO_DEVICE_TOKEN: "Local reports without a device token of the origin's registry for this collection and report_id, "
    "left out and not charged. Not an error.",
    NUM_REPORTS_WITH_ERRORS: "Reports left out because of an error.",
    OTHER_RANDOMIZER: "Local reports of another randomizer than the job's, left out and not charged. Not an error.",
    REPEATED_REPORT_ID: "Reports left out because an earlier one of this job had the same report_id. Not an error.",
}
"""What each counter means, and what to do."""


class ReportCounts:
    """The counters of one job."""

    def __init__(self, *, threshold_percent: Fraction, announced: int | None) -> None:
        self._threshold = threshold_percent
        self._announced = announced
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
        if self._announced is not None and self.bad > self._allowed(self._announced):
            self._refuse(max(self.read, self._announced))

    @property
    def by_status(self) -> NDArray[np.int64]:
        """A copy of the number of reports per status, for each of 256 statuses."""
        return self._by_status.copy()

    def _allowed(self, read: int) -> Fraction:
        return self._threshold * read / 100

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
        """Raise ``TooManyBadReportsError`` when the share of bad reports is above the threshold."""
        if self.bad > self._allowed(self.read):
            self._refuse(self.read)

    def _refuse(self, read: int) -> None:
        text = f"{float(self._threshold):g}"
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
