"""Bitwise Everlasting Privacy: one bit, a permanent noisy copy of it, and a noisier copy of that in each report.

Naor and Vexler, section 6: b' = b ⊕ Ber(1/(e^ε₁ + 1)) once, r = b' ⊕ Ber(1/(e^ε₂ + 1)) each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Real, exp
from ldp_client.checks import check_error_terms, check_stream
from ldp_client.estimation.steps import Chain, epsilon, symmetric
from ldp_client.privacy.finite_state import FiniteState
from ldp_client.privacy.tracking_bounds import permanent_untrackable
from ldp_client.protocols.device import MEMOIZED_ANSWERS
from ldp_client.protocols.direct import DirectResponse
from ldp_client.protocols.interface import Privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class BitwiseEverlasting(DirectResponse):
    """The mechanism with ε₁ for the kept bit and ε₂ for a report of the kept bit, each in millionths.

    It is ε₁-everlasting for a bit that does not change, for any number of reports, and ⌊k/2⌋ε₂-untrackable for k
    reports. For a bit that changes, the client keeps one bit per value. The estimator is section 6's p̃₀ with the mean
    of the reports, where the paper prints a sum.
    """

    kind: ClassVar[str] = "BEP"
    k: ClassVar[int] = 2
    epsilon_permanent_micro: int
    epsilon_report_micro: int
    chain: Chain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        permanent = symmetric(exp(epsilon(self.epsilon_permanent_micro)))
        instant = symmetric(exp(epsilon(self.epsilon_report_micro)))
        object.__setattr__(self, "chain", Chain(permanent=permanent, instant=instant))

    @property
    def privacy(self) -> Privacy:
        """The ε of a report (two binary responses, Theorem 20), of all reports of a value, and of both values."""
        first = self.chain.first_grr()
        permanent = float(epsilon(self.epsilon_permanent_micro))
        return Privacy(asked=first, first=first, permanent=permanent, worst_case=2 * permanent)

    @property
    def shares(self) -> str:
        """What a device's reports have in common: the kept bit."""
        return MEMOIZED_ANSWERS

    def untrackable(self, reports: int) -> float:
        """Return the γ proved for ``reports`` reports: ⌊k/2⌋ε₂ (Theorem 13)."""
        return permanent_untrackable(reports, float(epsilon(self.epsilon_report_micro)))

    def untrackable_at_least(self, reports: int) -> float:
        """Return a lower bound on γ: (k/2)ε₂ − ε₁ − 2 ln 2 for even k, and that of k − 1 for odd k.

        The paper prints ln 2 for 2 ln 2; for k = 4, ε₁ = 0.1 and ε₂ = 1 that would be 1.21, but the exact value is
        0.87.
        """
        check_stream(reports)
        half = reports // 2
        kept, sent = (float(epsilon(micro)) for micro in (self.epsilon_permanent_micro, self.epsilon_report_micro))
        return max(0.0, half * sent - kept - 2 * math.log(2))

    def finite_state(self) -> FiniteState:
        """Return the mechanism as matrices, for exact enumeration."""
        return FiniteState(
            states=_flip_matrix(self.chain.permanent.p),
            symbols=_flip_matrix(self.chain.instant.p if self.chain.instant else Real.of(1)),
        )

    def error_bound(self, users: int, beta: float) -> float:
        """Return a bound on |p̃ − p| that holds with probability 1 − β: Hoeffding's, on the mean report."""
        check_error_terms(users, beta)
        return math.sqrt(math.log(2 / beta) / (2 * users)) / (self.support.p - self.support.q)


def _flip_matrix(keep: Real) -> NDArray[np.float64]:
    stay, move = float(keep), float(1 - keep)
    return np.array([[stay, move], [move, stay]])
