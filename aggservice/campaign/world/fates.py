"""The possible fates of a conversion on its way into a summary, in the order of the waterfall."""

from __future__ import annotations

from enum import IntEnum


class Fate(IntEnum):
    """Where a conversion's contribution to a measure ended."""

    COUNTED = 0
    NO_VALUE = 1
    NOT_ATTRIBUTED = 2
    DEDUPLICATED = 3
    CAPPED_L1 = 4
    CAPPED_L0 = 5
    RATE_LIMITED = 6
    LOST = 7
    LATE = 8
    OVER_BUDGET = 9
    NOT_ASKED = 10
    BELOW_THRESHOLD = 11
    ON_THE_WAY = 12
    """Not final: a report is on its way. A finished run has none."""

    @property
    def words(self) -> str:
        """The name of the step in reports."""
        return WORDS[self]


WORDS = {
    Fate.COUNTED: "counted in a summary",
    Fate.NO_VALUE: "contribution rounds to 0",
    Fate.NOT_ATTRIBUTED: "not attributed",
    Fate.DEDUPLICATED: "deduplicated",
    Fate.CAPPED_L1: "capped by Λ₁",
    Fate.CAPPED_L0: "capped by Λ₀",
    Fate.RATE_LIMITED: "rate-limited",
    Fate.LOST: "lost",
    Fate.LATE: "late",
    Fate.OVER_BUDGET: "over budget",
    Fate.NOT_ASKED: "key not asked for",
    Fate.BELOW_THRESHOLD: "below threshold",
    Fate.ON_THE_WAY: "on the way",
}

LOSSES = tuple(fate for fate in Fate if fate not in (Fate.COUNTED, Fate.ON_THE_WAY))
