"""What passes between the stages of a run, in columns: events, reports, and the ground truth with its fates.

A conversion contributes once to each measure; such a pair is an *item*. Items are the rows of the ground truth: their
amount, the key that browsers without caps would give them, and their fate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Fates = NDArray[np.int8]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impressions:
    """Ads shown, in order of time. ``codes`` has one column per field that comes from the source."""

    time_ms: Ints
    device: Ints
    destination: Ints
    click: Flags
    codes: Mapping[str, Ints]

    def __len__(self) -> int:
        return self.time_ms.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversions:
    """What people bought, in order of time. ``dedup_key`` is −1 if the page gave none."""

    time_ms: Ints
    device: Ints
    destination: Ints
    value: Ints
    dedup_key: Ints
    codes: Mapping[str, Ints]

    def __len__(self) -> int:
        return self.time_ms.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """All events. ``devices`` is the number of devices."""

    impressions: Impressions
    conversions: Conversions
    devices: int

    def __len__(self) -> int:
        return len(self.impressions) + len(self.conversions)


class Fate(IntEnum):
    """Where a conversion's contribution to a measure ended; ``words`` names the step in reports."""

    words: str

    def __new__(cls, number: int, words: str) -> Fate:
        """Return the fate of a number, with its words."""
        fate = int.__new__(cls, number)
        fate._value_, fate.words = number, words
        return fate

    COUNTED = 0, "counted in a summary"
    NO_VALUE = 1, "contribution rounds to 0"
    NOT_ATTRIBUTED = 2, "not attributed"
    DEDUPLICATED = 3, "deduplicated"
    CAPPED_L1 = 4, "capped by Λ₁"
    CAPPED_L0 = 5, "capped by Λ₀"
    RATE_LIMITED = 6, "rate-limited"
    INACTIVE = 7, "API off or not activated"
    CLEARED = 8, "history cleared"
    SITE_BUDGET = 9, "refused by the site's budget"
    GLOBAL_BUDGET = 10, "refused by the global budget"
    QUOTA = 11, "refused by a quota"
    OUTSIDE = 12, "outside the histogram"
    LOST = 13, "lost"
    LATE = 14, "late"
    OVER_BUDGET = 15, "over budget"
    NOT_ASKED = 16, "key not asked for"
    BELOW_THRESHOLD = 17, "below threshold"
    ON_THE_WAY = 18, "on the way"
    """Not final: a report is on its way. A finished run has none."""


LOSSES = tuple(fate for fate in Fate if fate not in (Fate.COUNTED, Fate.ON_THE_WAY))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumns:
    """Reports before sealing, in columns. The contributions of row i are ``offset[i]`` to ``offset[i + 1]``.

    ``unit`` is the privacy unit of each report, below 0 for null reports; it is ground truth and is never sealed.
    ``task`` is the task of each W3C report, which the page knows.
    """

    scheduled_ms: Ints
    report_id: NDArray[np.uint8]
    destination: Ints
    offset: Ints
    key_high: Words
    key_low: Words
    value: Ints
    filtering_id: Words
    null: Flags
    unit: Ints | None = None
    task: Ints | None = None

    def __len__(self) -> int:
        return self.scheduled_ms.size

    def taken(self, rows: Ints) -> ReportColumns:
        """Return some reports with their contributions, without their units."""
        sizes = np.diff(self.offset)[rows]
        offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        inner = np.arange(int(offset[-1])) - np.repeat(offset[:-1], sizes) + np.repeat(self.offset[rows], sizes)
        return ReportColumns(
            scheduled_ms=self.scheduled_ms[rows],
            report_id=self.report_id[rows],
            destination=self.destination[rows],
            offset=offset,
            key_high=self.key_high[inner],
            key_low=self.key_low[inner],
            value=self.value[inner],
            filtering_id=self.filtering_id[inner],
            null=self.null[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConversions:
    """The ground truth: one row per conversion and measure.

    ``natural`` is the value; ``asked`` is the contribution before clipping and ``amount`` after it, in contribution
    units. ``key_*`` is the key of the contribution that was sent, valid if ``report`` ≥ 0; ``true_*`` is the key that
    an uncapped browser gives, valid if ``attributable``. ``fate`` is what is known so far.
    """

    conversion: Ints
    measure: Ints
    time_ms: Ints
    natural: Ints
    asked: Ints
    amount: Ints
    attributable: Flags
    true_high: Words
    true_low: Words
    key_high: Words
    key_low: Words
    report: Ints
    fate: Fates

    def __len__(self) -> int:
        return self.conversion.size


def report_ids(bits: Bits, count: int) -> NDArray[np.uint8]:
    """Return the bytes of ``count`` random UUIDs (version 4)."""
    ids = bits.words(2 * count).view(np.uint8).reshape(count, 16).copy()
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids
