"""Attribution rules: how one conversion is shared over the ads that came before it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from w3c_client import AttributionRule


class FirstTouch(AttributionRule):
    """Everything to the first touch.

    Touches come ranked: by priority, then the later one first. With equal priorities the first touch is the last rank.
    Shares are fractions, so that they add up exactly; ranks beyond the answer get nothing.
    """

    name = "first-touch"
    title = "everything to the first touch"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        return [*[Fraction(0)] * (touches - 1), Fraction(1)]


class EqualShares(AttributionRule):
    """The same share to every touch or, if a report has no room for all of them, to the first ``most`` ranks."""

    name = "equal-shares"
    title = "the same share to every touch"

    def shares(self, touches: int, credit: Sequence[float], most: int) -> Sequence[Fraction]:
        counted = min(touches, most)
        return [Fraction(1, counted)] * counted
