"""The transcript of an interaction with the service: every query, its answer, and what each unit lost by it.

The paper's Algorithm 5 keeps the answers; beside them stand the individual losses of
``aggservice.campaign.assess.losses``, computed from the reports as their clients made them, and, at the end, what the
ledger charged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from aggservice.campaign.assess.losses import (
    Bounds,
    Comparison,
    Loss,
    Price,
    Sent,
    compare,
    past_limit,
    query_losses,
    total_losses,
)
from aggservice.campaign.errors import CampaignError
from budget import Spend
from budget.amounts import decimal_text

RELEASED = "released"
REPEATED = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Query t and what became of it. ``outcome`` is released, repeated, or the return code of a refusal."""

    number: int
    caller: str
    job_id: str
    price: Price
    reports: int
    outcome: str
    losses: Mapping[str, Loss]

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
class Recorder:
    """Keeps the truth of every report and every answer. Belongs to the experimenter: no service has one."""

    bounds: Bounds
    sent: dict[str, Sent] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    _answers: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)

    def add_report(self, report: Sent) -> None:
        """Note a report that a client sent."""
        if report.report_id in self.sent:
            raise CampaignError(f"two reports have the id {report.report_id}")
        self.sent[report.report_id] = report

    def released(self, *, caller: str, job_id: str, price: Price, reports: Sequence[str], digest: bytes) -> Round:
        """Note a summary that the service gave out; ``digest`` is over what was given.

        The same summary again for the same job tells nothing new and costs nothing; a different one for the same job
        is a new release, whatever the service calls it.
        """
        given = self._answers.setdefault((caller, job_id), set())
        repeated = digest in given
        given.add(digest)
        losses = {} if repeated else query_losses(price, (self.sent[one] for one in reports), self.bounds)
        return self._round(caller, job_id, price, len(reports), REPEATED if repeated else RELEASED, losses)

    def refused(self, *, caller: str, job_id: str, price: Price, reports: Sequence[str], return_code: str) -> Round:
        """Note a query that the service refused: nothing was learned but that."""
        return self._round(caller, job_id, price, len(reports), return_code, {})

    def _round(
        self, caller: str, job_id: str, price: Price, reports: int, outcome: str, losses: Mapping[str, Loss]
    ) -> Round:
        made = Round(
            number=len(self.rounds) + 1,
            caller=caller,
            job_id=job_id,
            price=price,
            reports=reports,
            outcome=outcome,
            losses=losses,
        )
        self.rounds.append(made)
        return made

    def totals(self) -> dict[str, Loss]:
        """Return what every unit has lost so far."""
        return total_losses(one.losses for one in self.rounds)

    def past(self, limit: Loss) -> dict[str, Loss]:
        """Return the units that have lost more than ``limit``."""
        return past_limit(self.totals(), limit)

    def compare(self, balances: Mapping[tuple[str, int], Spend]) -> list[Comparison]:
        """Set every unit's loss beside the ledger's balances, by (report id, filtering ID)."""
        return compare(self.totals(), self.sent.values(), balances, self.bounds)

    def balance_keys(self) -> list[tuple[str, int]]:
        """Return the (report id, filtering ID) pairs that ``compare`` needs balances of."""
        return [
            (report.report_id, filtering_id)
            for report in self.sent.values()
            for filtering_id in sorted({one for one, _ in report.contributions})
        ]


def loss_to_plain(loss: Loss) -> dict[str, str]:
    """Return a loss as exact fractions and as rounded numbers, in text."""
    return {
        "epsilon": _text(loss.epsilon),
        "epsilon_exact": str(loss.epsilon),
        "delta": _text(loss.delta),
        "delta_exact": str(loss.delta),
    }


def _text(value: Fraction) -> str:
    return f"{float(value):.9g}"


def transcript_to_plain(
    rounds: Iterable[Round], comparisons: Sequence[Comparison], *, bounds: Bounds, limit: Loss
) -> dict[str, Any]:
    """Return the whole transcript as plain values: every unit, the one that lost most first, and totals over all."""
    worst = sorted(comparisons, key=lambda one: (-one.lost.epsilon, -one.lost.delta, one.unit))
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
            }
            for one in worst
        ],
    }


def write_transcript(
    path: Path, rounds: Iterable[Round], comparisons: Sequence[Comparison], *, bounds: Bounds, limit: Loss
) -> None:
    """Write ``transcript.json``."""
    plain = transcript_to_plain(rounds, comparisons, bounds=bounds, limit=limit)
    path.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
