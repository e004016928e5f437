"""The possible fates of a conversion on its way into a summary, in the order of the waterfall."""

from __future__ import annotations

from enum import IntEnum


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
