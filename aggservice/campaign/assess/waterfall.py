"""What happened to each conversion between purchase and summary, for one job and measure.

Each item of the job's batches has exactly one fate, set in the browser, on the way, or at the service. Amounts are
whole contribution units, so the steps add up exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.service.jobs import JobResult
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.attribution import MeasuredConversions
from aggservice.campaign.world.fates import LOSSES, Fate

Ints = NDArray[np.int64]


class Step(NamedTuple):
    """One loss of a waterfall: its name, and the conversions and the amount that it took."""

    step: str
    conversions: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Conversions and their amounts by fate. ``clipped`` is the amount that clipping took from counted conversions;
    ``noise`` is the noise of the released rows, so that ``estimate`` = ``counted_amount`` + ``noise``.
    """

    measure: str
    happened: int
    happened_amount: int
    conversions: Mapping[Fate, int]
    amounts: Mapping[Fate, int]
    clipped: int
    counted_amount: int
    noise: int
    estimate: int

    @property
    def adds_up(self) -> bool:
        """Whether the steps account for every conversion and every unit of amount."""
        lost = sum(self.amounts[fate] for fate in LOSSES)
        return (
            sum(self.conversions.values()) == self.happened
            and lost + self.clipped + self.counted_amount == self.happened_amount
            and self.counted_amount + self.noise == self.estimate
        )

    @property
    def counted(self) -> int:
        """How many conversions a summary counts."""
        return self.conversions[Fate.COUNTED]

    @property
    def steps(self) -> list[Step]:
        """Every loss, in order; clipping takes an amount but no conversion."""
        steps = [Step(fate.words, self.conversions[fate], self.amounts[fate]) for fate in LOSSES]
        return [*steps, Step("clipped", 0, self.clipped)]

    def __add__(self, other: Waterfall) -> Waterfall:
        """Add the waterfalls of two jobs of one query."""
        return Waterfall(
            measure=self.measure,
            happened=self.happened + other.happened,
            happened_amount=self.happened_amount + other.happened_amount,
            conversions={fate: count + other.conversions[fate] for fate, count in self.conversions.items()},
            amounts={fate: amount + other.amounts[fate] for fate, amount in self.amounts.items()},
            clipped=self.clipped + other.clipped,
            counted_amount=self.counted_amount + other.counted_amount,
            noise=self.noise + other.noise,
            estimate=self.estimate + other.estimate,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "measure": self.measure,
            "happened": {"conversions": self.happened, "amount": self.happened_amount},
            "steps": [step._asdict() for step in self.steps],
            "counted": {"conversions": self.counted, "amount": self.counted_amount},
            "noise": self.noise,
            "estimate": self.estimate,
            "adds_up": self.adds_up,
        }


def fates_in_job(items: MeasuredConversions, inside: NDArray[np.bool_], answer: JobResult) -> NDArray[np.int8]:
    """Return the fates of the items ``inside`` a job, including those that the service decides."""
    fate = items.fate[inside].copy()
    waiting = np.flatnonzero(fate == Fate.ON_THE_WAY)
    if not answer.paid:
        fate[waiting] = Fate.OVER_BUDGET
        return fate
    rows = np.flatnonzero(inside)[waiting]
    found = KeyTable(answer.high, answer.low).find(items.key_high[rows], items.key_low[rows]) >= 0
    left_out = Fate.BELOW_THRESHOLD if answer.job.query.discovery else Fate.NOT_ASKED
    fate[waiting] = np.where(found, Fate.COUNTED, left_out)
    return fate


def waterfall_of(
    items: MeasuredConversions,
    inside: NDArray[np.bool_],
    fate: NDArray[np.int8],
    *,
    place: int,
    measure: str,
    released: int,
    released_sent: int,
) -> Waterfall:
    """Return the waterfall of one measure. ``released`` is the sum of the released metrics; ``released_sent`` is the
    sum of the contributions to the same keys in the job's reports.
    """
    mine = items.measure[inside] == place
    asked, amount = items.asked[inside][mine], items.amount[inside][mine]
    fate = fate[mine]
    counts = np.bincount(fate, minlength=len(Fate))
    amounts = np.zeros(len(Fate), dtype=np.int64)
    np.add.at(amounts, fate, asked)
    counted = fate == Fate.COUNTED
    return Waterfall(
        measure=measure,
        happened=int(mine.sum()),
        happened_amount=int(asked.sum()),
        conversions={one: int(counts[one]) for one in Fate},
        amounts={one: int(amounts[one]) for one in Fate},
        clipped=int((asked - amount)[counted].sum()),
        counted_amount=int(amount[counted].sum()),
        noise=released - released_sent,
        estimate=released,
    )
