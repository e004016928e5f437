"""Individual privacy losses: what each query really cost each privacy unit, from the truth and not from a ledger.

Theorem 4.3 of the Privacy Sandbox paper (Algorithm 6): a query t of (ε_t, δ_t) over the contributions Y_t costs unit
x ε_{x,t} = (ε_t/Λ₁)·Σ_{y∈Y_{x,t}} v_y and δ_{x,t} = (δ_t/Λ₀)·|Y_{x,t}|, and no unit ever loses more than (ε*, δ*). For
Attribution Reporting x is a source, for Private Aggregation a device in a time window. Every number here is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from aggservice.campaign.errors import CampaignError
from budget import Spend

MICRO = 10**6
ATTO = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A report as its client made it: whose unit it is, and each (filtering ID, value) that it holds. Null: none."""

    report_id: str
    unit: str
    contributions: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not all(value > 0 and filtering_id >= 0 for filtering_id, value in self.contributions):
            raise CampaignError(f"report {self.report_id}: a contribution that was sent has a value above 0")

    def within(self, filtering_ids: Iterable[int]) -> tuple[int, int]:
        """Return the sum and the number of the contributions under these filtering IDs."""
        asked = frozenset(filtering_ids)
        values = [value for filtering_id, value in self.contributions if filtering_id in asked]
        return sum(values), len(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a query asks of each report: ε_t (with that of an others total) in 10⁻⁶, δ_t in 10⁻¹⁸, filtering IDs."""

    epsilon_micro: int
    delta_atto: int = 0
    filtering_ids: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not (self.epsilon_micro > 0 and 0 <= self.delta_atto <= ATTO and self.filtering_ids):
            raise CampaignError("a query has ε above 0, δ from 0 to 1 and at least one filtering ID")


@dataclass(frozen=True, slots=True)
class Loss:
    """A privacy loss (ε, δ), exact."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.epsilon + other.epsilon, self.delta + other.delta)

    def exceeds(self, limit: Loss) -> bool:
        """Whether either part is above its limit."""
        return self.epsilon > limit.epsilon or self.delta > limit.delta

    @classmethod
    def of(cls, spend: Spend) -> Loss:
        """Return a ledger's amount of (ε, δ) as a loss."""
        return cls(Fraction(spend.loss_micro, MICRO), Fraction(spend.delta_atto, ATTO))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Λ₁ and Λ₀: what a unit may contribute in all, and in how many contributions."""

    l1: int
    l0: int

    def __post_init__(self) -> None:
        if not 1 <= self.l0 <= self.l1:
            raise CampaignError(f"Λ₀ lies between 1 and Λ₁, not {self.l0} with Λ₁ = {self.l1}")


def query_losses(price: Price, reports: Iterable[Sent], bounds: Bounds) -> dict[str, Loss]:
    """Return ε_{x,t} and δ_{x,t} of every unit x that has a contribution in the query; a report counts once."""
    sums: defaultdict[str, int] = defaultdict(int)
    counts: defaultdict[str, int] = defaultdict(int)
    for report in {one.report_id: one for one in reports}.values():
        value, count = report.within(price.filtering_ids)
        if count:
            sums[report.unit] += value
            counts[report.unit] += count
    return {
        unit: Loss(
            Fraction(price.epsilon_micro * sums[unit], MICRO * bounds.l1),
            Fraction(price.delta_atto * counts[unit], ATTO * bounds.l0),
        )
        for unit in sums
    }


def total_losses(rounds: Iterable[Mapping[str, Loss]]) -> dict[str, Loss]:
    """Return Σ_t (ε_{x,t}, δ_{x,t}) of every unit."""
    totals: dict[str, Loss] = {}
    for losses in rounds:
        for unit, loss in losses.items():
            totals[unit] = totals.get(unit, Loss()) + loss
    return totals


def past_limit(totals: Mapping[str, Loss], limit: Loss) -> dict[str, Loss]:
    """Return the units that lost more than (ε*, δ*): none, if the service kept its promise."""
    return {unit: loss for unit, loss in totals.items() if loss.exceeds(limit)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A unit's loss by the truth beside what the ledger charged its reports.

    ``charged`` is Σ_y of the ledger's balance of report y weighted by y's share of Λ₁ (ε) and of Λ₀ (δ): exactly
    ``lost`` when every release was charged to the reports that were in it. ``most`` is the largest balance of any of
    the unit's reports, which the ledger keeps below (ε*, δ*).
    """

    unit: str
    lost: Loss
    charged: Loss
    most: Loss

    @property
    def undercharged(self) -> bool:
        """Whether the unit lost more than its reports paid for."""
        return self.lost.exceeds(self.charged)


def compare(
    totals: Mapping[str, Loss],
    reports: Iterable[Sent],
    balances: Mapping[tuple[str, int], Spend],
    bounds: Bounds,
) -> list[Comparison]:
    """Set every unit's loss beside what the ledger has for its reports, by (report id, filtering ID)."""
    charged: dict[str, Loss] = {}
    most: dict[str, Loss] = {}
    for report in reports:
        for filtering_id, value in report.contributions:
            paid = Loss.of(balances[report.report_id, filtering_id])
            share = Loss(paid.epsilon * value / bounds.l1, paid.delta / bounds.l0)
            charged[report.unit] = charged.get(report.unit, Loss()) + share
            before = most.get(report.unit, Loss())
            most[report.unit] = Loss(max(before.epsilon, paid.epsilon), max(before.delta, paid.delta))
    units: Sequence[str] = sorted(charged.keys() | totals.keys())
    return [
        Comparison(
            unit=unit,
            lost=totals.get(unit, Loss()),
            charged=charged.get(unit, Loss()),
            most=most.get(unit, Loss()),
        )
        for unit in units
    ]
