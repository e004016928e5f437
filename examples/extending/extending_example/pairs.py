"""An accounting filter: budgets that hold for two privacy units together, such as the reports of a couple."""

from __future__ import annotations

from dataclasses import dataclass

from budget import EpsilonDeltaFilter, Mechanism
from budget.errors import MechanismNotAllowedError


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFilter(EpsilonDeltaFilter):
    """ε for any two units together: group privacy makes each release cost 2ε (Dwork and Roth 2014, Theorem 2.2).

    For a mechanism with δ the two would lose more than 2δ, so this filter refuses it. Limits are read, written and
    summed as those of the base class.
    """

    name = "pairs"

    def loss(self, mechanism: Mechanism) -> int:
        if mechanism.delta_atto:
            raise MechanismNotAllowedError(f"the filter {self.name} has no price for {mechanism.name}: use δ = 0")
        return 2 * mechanism.pure_micro
