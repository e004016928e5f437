"""Bitwise Everlasting Privacy: one bit, a permanent noisy copy of it, and a noisier copy of that in each report.

Naor and Vexler, section 6: b' = b ⊕ Ber(1/(e^ε₁ + 1)) once, r = b' ⊕ Ber(1/(e^ε₂ + 1)) each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp
from ldp_client.checks import check_error_terms, check_numbers, check_stream, whole_numbers
from ldp_client.estimation.steps import Chain, epsilon, symmetric
from ldp_client.estimation.support import Estimate, Support
from ldp_client.privacy.finite_state import FiniteState
from ldp_client.privacy.tracking_bounds import permanent_untrackable
from ldp_client.protocols.device import CountsValues, Device, DeviceColumns, as_draws, load_state, memo_int, save_state
from ldp_client.protocols.interface import Privacy, check_users, check_value, check_values
from ldp_client.sampling.draws import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class BitwiseEverlasting(CountsValues):
    """The mechanism with ε₁ for the kept bit and ε₂ for a report of the kept bit, each in millionths.

    It is ε₁-everlasting for a bit that does not change, for any number of reports, and ⌊k/2⌋ε₂-untrackable for k
    reports. For a bit that changes, the client keeps one bit per value.
    """

    epsilon_permanent_micro: int
    epsilon_report_micro: int
    chain: Chain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        permanent = symmetric(exp(epsilon(self.epsilon_permanent_micro)))
        instant = symmetric(exp(epsilon(self.epsilon_report_micro)))
        object.__setattr__(self, "chain", Chain(permanent=permanent, instant=instant))

    @property
    def kind(self) -> str:
        """Its name."""
        return "BEP"

    @property
    def k(self) -> int:
        """The number of values."""
        return 2

    @property
    def support(self) -> Support:
        """The estimator's probabilities: the paper's p̃₀ with the mean of the reports, where it prints a sum."""
        return Support.of(self.chain)

    @property
    def privacy(self) -> Privacy:
        """ε of a report (two binary responses in a row, Theorem 20), of all reports of a value, and of both values."""
        first = self.chain.first_grr()
        permanent = float(epsilon(self.epsilon_permanent_micro))
        return Privacy(asked=first, first=first, permanent=permanent, worst_case=2 * permanent)

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

    def printed_error_bound(self, users: int, beta: float) -> float:
        """Return section 6's bound, (ε₁+2)(ε₂+2)/(ε₁ε₂)·√(32 ln(2/β)/n), at least eight times Hoeffding's."""
        check_error_terms(users, beta)
        kept, sent = (float(epsilon(micro)) for micro in (self.epsilon_permanent_micro, self.epsilon_report_micro))
        return (kept + 2) * (sent + 2) / (kept * sent) * math.sqrt(32 * math.log(2 / beta) / users)

    def client(self, bits: Bits | Draws) -> EverlastingClient:
        """Return a new device."""
        return EverlastingClient(self, as_draws(bits), {})

    def restore(self, saved: bytes, bits: Bits | Draws) -> EverlastingClient:
        """Return a device from a saved state."""
        stored = load_state(saved, self.describe())
        memo = {memo_int(value, 2, "a bit"): memo_int(kept, 2, "a kept bit") for value, kept in stored.items()}
        return EverlastingClient(self, as_draws(bits), memo)

    def fleet(self, users: int, bits: Bits) -> EverlastingFleet:
        """Return ``users`` new devices in columns."""
        return EverlastingFleet(self, check_users(users), bits)

    def columns(self, reports: Sequence[int]) -> NDArray[np.int64]:
        """Return clients' reports as an array."""
        return whole_numbers(reports, 2, "reports of BEP")

    def estimate(self, columns: NDArray[np.int64]) -> Estimate:
        """Return the frequencies of 0 and of 1 behind one collection (section 6)."""
        reports = check_numbers(columns, 2, "reports of BEP")
        return self.support.estimate(np.bincount(reports, minlength=2), reports.size)


class EverlastingClient(Device[BitwiseEverlasting, int, int]):
    """One device: a report is a bit, and the device keeps one bit per value."""

    def report(self, value: int) -> int:
        """Return a report of ``value``: the bit kept for it, drawn at its first use, then randomized again."""
        value = check_value(value, 2)
        chain = self.protocol.chain
        kept = self._kept(value, lambda: value ^ (not self._draws.coin(chain.permanent.p)))
        return kept ^ (not self._draws.coin(chain.instant.p)) if chain.instant else kept

    def save(self) -> bytes:
        """Return the state as JSON."""
        return save_state(self.protocol.describe(), {str(value): kept for value, kept in self._memo.items()})


class EverlastingFleet(DeviceColumns[BitwiseEverlasting]):
    """Many devices in columns: two kept bits per user, −1 until they are drawn."""

    def __init__(self, protocol: BitwiseEverlasting, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits)
        self._kept = np.full((users, 2), -1, dtype=np.int8)

    def report(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return one collection's reports, one bit per user."""
        held = check_values(values, 2, self.users)
        rows = np.arange(self.users)
        fresh = np.flatnonzero(self._kept[rows, held] < 0)
        chain = self.protocol.chain
        if fresh.size:
            flipped = ~bernoulli_batch(self._bits, chain.permanent.p, fresh.size)
            self._kept[fresh, held[fresh]] = held[fresh] ^ flipped
        kept = self._kept[rows, held].astype(np.int64)
        if chain.instant is None:
            return kept
        return kept ^ ~bernoulli_batch(self._bits, chain.instant.p, self.users)

    def memoized(self) -> NDArray[np.int64]:
        """Return for how many of the two values each user has a kept bit."""
        return np.count_nonzero(self._kept >= 0, axis=1).astype(np.int64)


def _flip_matrix(keep: Real) -> NDArray[np.float64]:
    stay, move = float(keep), float(1 - keep)
    return np.array([[stay, move], [move, stay]])
