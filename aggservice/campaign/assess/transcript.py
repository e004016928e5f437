"""The transcript of an interaction with the service: every query, its outcome, and what each unit lost by it.

Algorithm 5 of the Privacy Sandbox paper keeps the answers. This adds the losses of
``aggservice.campaign.assess.losses``, computed from the true reports, and what the ledger charged in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from aggservice.campaign.assess.losses import (
    MICRO,
    ContributionBounds,
    LossComparison,
    PrivacyLoss,
    QueryPrice,
    ReportTruth,
    compare_with_ledger,
    query_losses,
    total_losses,
    units_over_limit,
)
from aggservice.campaign.errors import CampaignError
from budget import Epsilon, Spend
from budget.amounts import decimal_text

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
