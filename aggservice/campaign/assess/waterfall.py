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

from aggservice.campaign.assess.job_truth import JobTruth
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


def waterfall_of(
    truth: JobTruth, released: NDArray[np.bool_] | None, *, discovery: bool, place: int, measure: str, metric: Ints
) -> Waterfall:
    """Return the waterfall of one measure. ``released`` says which keys have a row, and is None for a job that was
    refused; ``metric`` holds the released metrics by key, and 0 for other keys.
    """
    counts, amounts = truth.settled_count[place].copy(), truth.settled_asked[place].copy()
    counted = np.zeros(len(truth), dtype=np.bool_) if released is None else released
    left_out = Fate.OVER_BUDGET if released is None else Fate.BELOW_THRESHOLD if discovery else Fate.NOT_ASKED
    for fate, chosen in ((Fate.COUNTED, counted), (left_out, ~counted)):
        counts[fate] += truth.waiting_count[place][chosen].sum()
        amounts[fate] += truth.waiting_asked[place][chosen].sum()
    mine = counted & (truth.measure == place)
    estimate = int(metric[mine].sum())
    counted_amount = int(truth.waiting_amount[place][counted].sum())
    return Waterfall(
        measure=measure,
        happened=int(counts.sum()),
        happened_amount=int(amounts.sum()),
        conversions={one: int(counts[one]) for one in Fate},
        amounts={one: int(amounts[one]) for one in Fate},
        clipped=int(amounts[Fate.COUNTED]) - counted_amount,
        counted_amount=counted_amount,
        noise=estimate - int(truth.sent[mine].sum()),
        estimate=estimate,
    )
