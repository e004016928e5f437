"""Where conversions went between the purchase and the summary, for one job and measure.

Each item of the job's batches has exactly one fate, set where it was met: in the browser, on the way, at the service.
Amounts are whole contribution units, so the steps add up to what happened without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.service.jobs import Answer
from aggservice.campaign.settings.key_layout import KeyTable
from aggservice.campaign.world.attribution import Items
from aggservice.campaign.world.fates import LOSSES, Fate

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Conversions and their amounts by fate. ``clipped`` is what clipping took from counted ones; ``noise`` is what the
    service's noise added to the released rows, so that ``estimate`` = counted amount + noise.
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

    def __add__(self, other: Waterfall) -> Waterfall:
        """Return both together: of several jobs of one query."""
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
            "steps": [
                {
                    "step": fate.words,
                    "conversions": self.conversions[fate],
                    "amount": self.amounts[fate],
                }
                for fate in LOSSES
            ]
            + [{"step": "clipped", "conversions": 0, "amount": self.clipped}],
            "counted": {"conversions": self.conversions[Fate.COUNTED], "amount": self.counted_amount},
            "noise": self.noise,
            "estimate": self.estimate,
            "adds_up": self.adds_up,
        }


def final_fates(items: Items, inside: NDArray[np.bool_], answer: Answer) -> NDArray[np.int8]:
    """Return the fates of the items ``inside`` a job, with what the service did: refused, left out, or counted."""
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
    items: Items,
    inside: NDArray[np.bool_],
    fate: NDArray[np.int8],
    *,
    place: int,
    measure: str,
    released: int,
    released_sent: int,
) -> Waterfall:
    """Return the waterfall of one measure: ``released`` is the sum of the released metrics, ``released_sent`` that of
    the contributions which the job's reports made to the same keys.
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
