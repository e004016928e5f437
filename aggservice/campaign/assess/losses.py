"""Individual privacy losses: what each query cost each privacy unit, computed from the truth and not from a ledger.

Theorem 4.3 and Algorithm 6 of the Privacy Sandbox paper: a query t of (ε_t, δ_t) over the contributions Y_t costs unit
x ε_{x,t} = (ε_t/Λ₁)·Σ_{y∈Y_{x,t}} v_y and δ_{x,t} = (δ_t/Λ₀)·|Y_{x,t}|, and no unit ever loses more than (ε*, δ*). For
Attribution Reporting x is a source, for Private Aggregation a device in a time window. Every number here is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from aggservice.campaign.errors import CampaignError
from budget import Delta, Epsilon, Spend
from budget.amounts import decimal_text

MICRO = 10**6
ATTO = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTruth:
    """The truth of a report: its privacy unit and its contributions (filtering ID, value); a null report has none."""

    report_id: str
    unit: str
    contributions: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not all(value > 0 and filtering_id >= 0 for filtering_id, value in self.contributions):
            raise CampaignError(f"report {self.report_id}: give each contribution a value above 0")

    def within(self, filtering_ids: Iterable[int]) -> tuple[int, int]:
        """Return the sum and the number of the contributions under these filtering IDs."""
        asked = frozenset(filtering_ids)
        values = [value for filtering_id, value in self.contributions if filtering_id in asked]
        return sum(values), len(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPrice:
    """What each report pays for a query per filtering ID: ε_t in 10⁻⁶ (with an others total), δ_t in 10⁻¹⁸."""

    epsilon_micro: int
    delta_atto: int = 0
    filtering_ids: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not (self.epsilon_micro > 0 and 0 <= self.delta_atto <= ATTO and self.filtering_ids):
            raise CampaignError(
                "the price of a query is out of range: give ε above 0, δ from 0 to 1 and at least one filtering ID"
            )

    @classmethod
    def of(
        cls, epsilon: Epsilon, delta: Delta | None, others: Epsilon | None, filtering_ids: tuple[int, ...] = (0,)
    ) -> QueryPrice:
        """Return the price of a query at ε, with δ if it discovers keys and with an others total if it has one."""
        return cls(
            epsilon_micro=epsilon.micro + (others.micro if others else 0),
            delta_atto=delta.atto if delta else 0,
            filtering_ids=filtering_ids,
        )


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """An exact privacy loss (ε, δ)."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        return PrivacyLoss(self.epsilon + other.epsilon, self.delta + other.delta)

    def exceeds(self, limit: PrivacyLoss) -> bool:
        """Whether either part is above its limit."""
        return self.epsilon > limit.epsilon or self.delta > limit.delta

    @classmethod
    def of(cls, spend: Spend) -> PrivacyLoss:
        """Return a ledger's amount of (ε, δ) as a loss."""
        return cls(Fraction(spend.loss_micro, MICRO), Fraction(spend.delta_atto, ATTO))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionBounds:
    """Λ₁, the most that a unit may contribute in total, and Λ₀, the most contributions that it may make."""

    l1: int
    l0: int

    def __post_init__(self) -> None:
        if not 1 <= self.l0 <= self.l1:
            raise CampaignError(f"Λ₀ is {self.l0}: choose a number from 1 to Λ₁ = {self.l1}")


def query_losses(
    price: QueryPrice, reports: Iterable[ReportTruth], bounds: ContributionBounds
) -> dict[str, PrivacyLoss]:
    """Return ε_{x,t} and δ_{x,t} of every unit x that has a contribution in the query; a report counts once."""
    sums: defaultdict[str, int] = defaultdict(int)
    counts: defaultdict[str, int] = defaultdict(int)
    for report in {one.report_id: one for one in reports}.values():
        value, count = report.within(price.filtering_ids)
        if count:
            sums[report.unit] += value
            counts[report.unit] += count
    return {
        unit: PrivacyLoss(
            Fraction(price.epsilon_micro * sums[unit], MICRO * bounds.l1),
            Fraction(price.delta_atto * counts[unit], ATTO * bounds.l0),
        )
        for unit in sums
    }


def total_losses(rounds: Iterable[Mapping[str, PrivacyLoss]]) -> dict[str, PrivacyLoss]:
    """Return Σ_t (ε_{x,t}, δ_{x,t}) of every unit."""
    totals: dict[str, PrivacyLoss] = {}
    for losses in rounds:
        for unit, loss in losses.items():
            totals[unit] = totals.get(unit, PrivacyLoss()) + loss
    return totals


def units_over_limit(totals: Mapping[str, PrivacyLoss], limit: PrivacyLoss) -> dict[str, PrivacyLoss]:
    """Return the units that lost more than (ε*, δ*): none if the service kept its guarantee."""
    return {unit: loss for unit, loss in totals.items() if loss.exceeds(limit)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """A unit's true loss beside what the ledger charged its reports.

    ``charged`` is the sum over the unit's reports of the ledger's balance, weighted by the report's share of Λ₁ (for ε)
    or Λ₀ (for δ). It equals ``lost`` if every release was charged to the reports in it. ``most`` is the largest balance
    of any of the unit's reports, which the ledger keeps below (ε*, δ*). ``event_level`` is what the source loses by
    event-level reports, which the browser noises and no ledger charges.
    """

    unit: str
    lost: PrivacyLoss
    charged: PrivacyLoss
    most: PrivacyLoss
    event_level: PrivacyLoss = PrivacyLoss()

    @property
    def together(self) -> PrivacyLoss:
        """The loss by summary and event-level reports."""
        return self.lost + self.event_level

    @property
    def undercharged(self) -> bool:
        """Whether the unit lost more than its reports paid for."""
        return self.lost.exceeds(self.charged)


def compare_with_ledger(
    totals: Mapping[str, PrivacyLoss],
    reports: Iterable[ReportTruth],
    balances: Mapping[tuple[str, int], Spend],
    bounds: ContributionBounds,
    event_level: Mapping[str, PrivacyLoss] | None = None,
) -> list[LossComparison]:
    """Compare every unit's loss with the ledger's balances, which are given by (report id, filtering ID)."""
    by_events = event_level or {}
    charged: dict[str, PrivacyLoss] = {}
    most: dict[str, PrivacyLoss] = {}
    for report in reports:
        for filtering_id, value in report.contributions:
            paid = PrivacyLoss.of(balances[report.report_id, filtering_id])
            share = PrivacyLoss(paid.epsilon * value / bounds.l1, paid.delta / bounds.l0)
            charged[report.unit] = charged.get(report.unit, PrivacyLoss()) + share
            before = most.get(report.unit, PrivacyLoss())
            most[report.unit] = PrivacyLoss(max(before.epsilon, paid.epsilon), max(before.delta, paid.delta))
    units: Sequence[str] = sorted(charged.keys() | totals.keys() | by_events.keys())
    return [
        LossComparison(
            unit=unit,
            lost=totals.get(unit, PrivacyLoss()),
            charged=charged.get(unit, PrivacyLoss()),
            most=most.get(unit, PrivacyLoss()),
            event_level=by_events.get(unit, PrivacyLoss()),
        )
        for unit in units
    ]


RELEASED = "released"
REPEATED = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Query t and its ``outcome``: released, repeated, or the return code of a refusal."""

    number: int
    caller: str
    job_id: str
    price: QueryPrice
    reports: int
    outcome: str
    losses: Mapping[str, PrivacyLoss]

    def to_plain(self) -> dict[str, Any]:
        """Return the round as plain values, with ε_{x,t} and δ_{x,t} of every unit, as exact fractions."""
        worst = max(self.losses.items(), key=lambda item: item[1].epsilon, default=None)
        return {
            "t": self.number,
            "caller": self.caller,
            "job_id": self.job_id,
            "epsilon": decimal_text(self.price.epsilon_micro, 6),
            "delta": decimal_text(self.price.delta_atto, 18),
            "filtering_ids": list(self.price.filtering_ids),
            "reports": self.reports,
            "outcome": self.outcome,
            "units_with_a_loss": len(self.losses),
            "largest_loss": None if worst is None else {"unit": worst[0], **loss_to_plain(worst[1])},
            "losses": {unit: [str(loss.epsilon), str(loss.delta)] for unit, loss in sorted(self.losses.items())},
        }


@dataclass(slots=True, kw_only=True)
class TranscriptRecorder:
    """Keeps the truth of every report and every answer. Only the experimenter has one, never a service."""

    bounds: ContributionBounds
    sent: dict[str, ReportTruth] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    event_level: dict[str, PrivacyLoss] = field(default_factory=dict)
    _answers: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)

    def add_report(self, report: ReportTruth) -> None:
        """Record a report that a client sent."""
        if report.report_id in self.sent:
            raise CampaignError(f"two reports have the id {report.report_id}: give each its own")
        self.sent[report.report_id] = report

    def add_event_level(self, unit: str, epsilon: Epsilon) -> None:
        """Record that a source sends event-level reports: they cost it ε, whatever happens (Theorem 5.1)."""
        self.event_level[unit] = PrivacyLoss(Fraction(epsilon.micro, MICRO))

    def record(
        self,
        *,
        caller: str,
        job_id: str,
        price: QueryPrice,
        reports: Sequence[str],
        digest: bytes | None,
        return_code: str,
    ) -> Round:
        """Record a query: ``digest`` is over the summary that the service released, None for a refusal.

        A refusal costs nothing. The same summary for the same job reveals nothing new and costs nothing; a different
        summary for the same job is a new release.
        """
        given = self._answers.setdefault((caller, job_id), set())
        outcome = return_code if digest is None else REPEATED if digest in given else RELEASED
        losses: Mapping[str, PrivacyLoss] = {}
        if outcome == RELEASED and digest is not None:
            given.add(digest)
            losses = query_losses(price, (self.sent[one] for one in reports), self.bounds)
        made = Round(
            number=len(self.rounds) + 1,
            caller=caller,
            job_id=job_id,
            price=price,
            reports=len(reports),
            outcome=outcome,
            losses=losses,
        )
        self.rounds.append(made)
        return made

    def totals(self) -> dict[str, PrivacyLoss]:
        """Return what every unit has lost by summary reports so far."""
        return total_losses(one.losses for one in self.rounds)

    def together(self) -> dict[str, PrivacyLoss]:
        """Return what every unit has lost by summary and event-level reports: the two losses add up."""
        return total_losses((self.totals(), self.event_level))

    def units_over_limit(self, limit: PrivacyLoss) -> dict[str, PrivacyLoss]:
        """Return the units that have lost more than ``limit``."""
        return units_over_limit(self.totals(), limit)

    def compare(self, balances: Mapping[tuple[str, int], Spend]) -> list[LossComparison]:
        """Compare every unit's loss with the ledger's balances, given by (report id, filtering ID)."""
        return compare_with_ledger(self.totals(), self.sent.values(), balances, self.bounds, self.event_level)

    def balance_keys(self) -> list[tuple[str, int]]:
        """Return the (report id, filtering ID) pairs that ``compare`` needs balances of."""
        return [
            (report.report_id, filtering_id)
            for report in self.sent.values()
            for filtering_id in sorted({one for one, _ in report.contributions})
        ]


def loss_to_plain(loss: PrivacyLoss) -> dict[str, str]:
    """Return a loss as text: rounded numbers and exact fractions."""
    return {
        "epsilon": _text(loss.epsilon),
        "epsilon_exact": str(loss.epsilon),
        "delta": _text(loss.delta),
        "delta_exact": str(loss.delta),
    }


def event_level_to_plain(lost: PrivacyLoss, event_level: PrivacyLoss) -> dict[str, dict[str, str]]:
    """Return what a source loses by event-level reports and in total; empty if it sends none."""
    if event_level == PrivacyLoss():
        return {}
    return {"event_level": loss_to_plain(event_level), "together": loss_to_plain(lost + event_level)}


def _text(value: Fraction) -> str:
    return f"{float(value):.9g}"


def transcript_to_plain(
    rounds: Iterable[Round], comparisons: Sequence[LossComparison], *, bounds: ContributionBounds, limit: PrivacyLoss
) -> dict[str, Any]:
    """Return the transcript as plain values, with every unit in descending order of its total loss.

    ``lost`` is by summary reports, which the ledger charges; a source with event-level reports has ``event_level`` and
    ``together`` too.
    """
    worst = sorted(comparisons, key=lambda one: (-one.together.epsilon, -one.together.delta, one.unit))
    return {
        "l1": bounds.l1,
        "l0": bounds.l0,
        "limit": loss_to_plain(limit),
        "rounds": [one.to_plain() for one in rounds],
        "units": len(comparisons),
        "units_past_the_limit": sum(one.lost.exceeds(limit) for one in comparisons),
        "units_undercharged": sum(one.undercharged for one in comparisons),
        "losses": [
            {
                "unit": one.unit,
                "lost": loss_to_plain(one.lost),
                "charged_by_share": loss_to_plain(one.charged),
                "largest_balance_of_a_report": loss_to_plain(one.most),
                **event_level_to_plain(one.lost, one.event_level),
            }
            for one in worst
        ],
    }
