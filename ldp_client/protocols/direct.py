"""Direct encoding: GRR, which reports a value itself, and the longitudinal L-GRR (§2.3.1, §2.4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real
from ldp_client.checks import check_numbers, whole_numbers
from ldp_client.estimation.steps import Calibration, Chain, asked_epsilon, check_size, grr_chain
from ldp_client.estimation.support import Estimate, Support
from ldp_client.protocols.device import Device, as_draws, load_state, memo_int, save_state
from ldp_client.protocols.interface import Privacy, check_users, check_value, check_values
from ldp_client.sampling.draws import Draws, respond, respond_batch
from ldp_client.sampling.memo import Answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """GRR over 0, …, k − 1, or L-GRR where ``epsilon_first_micro`` is given.

    L-GRR's ``paper`` calibration leaves out the paths through a third value: for k = 360, ε∞ = 1 and ε₁ = 0.5 its
    first report truly has ε = 0.0106. ``exact`` has the ε₁ asked for.
    """

    k: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    calibration: Calibration = "paper"
    chain: Chain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        chain = grr_chain(self.k, self.epsilon_permanent_micro, self.epsilon_first_micro, self.calibration)
        object.__setattr__(self, "chain", chain)

    @property
    def kind(self) -> str:
        """GRR or L-GRR."""
        return "GRR" if self.chain.instant is None else "L-GRR"

    @property
    def cells(self) -> int:
        """How many frequencies are estimated."""
        return self.k

    @property
    def support(self) -> Support:
        """The estimator's probabilities."""
        return Support.of(self.chain)

    @property
    def privacy(self) -> Privacy:
        """ε of a report, of all reports of a value, and over all values (k·ε∞, Table 1)."""
        first = self.chain.first_grr()
        permanent = Chain(permanent=self.chain.permanent).first_grr()
        asked = asked_epsilon(self.epsilon_first_micro)
        return Privacy.of(first=first, permanent=permanent, asked=asked, answers=self.k)

    def describe(self) -> dict[str, Any]:
        """Return the name and parameters."""
        return {
            "kind": self.kind,
            "k": self.k,
            "epsilon_permanent_micro": self.epsilon_permanent_micro,
            "epsilon_first_micro": self.epsilon_first_micro,
            "calibration": self.calibration,
        }

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values: each is counted as itself."""
        return values

    def client(self, bits: Bits | Draws) -> DirectClient:
        """Return a new device."""
        return DirectClient(self, as_draws(bits), {})

    def restore(self, saved: bytes, bits: Bits | Draws) -> DirectClient:
        """Return a device that goes on from a saved state."""
        stored = load_state(saved, self.describe())
        memo = {
            memo_int(value, self.k, "a value"): memo_int(kept, self.k, "an answer") for value, kept in stored.items()
        }
        return DirectClient(self, as_draws(bits), memo)

    def fleet(self, users: int, bits: Bits) -> DirectFleet:
        """Return ``users`` new devices in columns."""
        return DirectFleet(self, check_users(users), bits)

    def columns(self, reports: Sequence[int]) -> NDArray[np.int64]:
        """Return clients' reports as an array."""
        return whole_numbers(reports, self.k, f"reports of {self.kind}")

    def estimate(self, columns: NDArray[np.int64]) -> Estimate:
        """Return the frequencies behind one collection (Eq. 1 or Eq. 3)."""
        reports = check_numbers(columns, self.k, f"reports of {self.kind}")
        return self.support.estimate(np.bincount(reports, minlength=self.k), reports.size)


class DirectClient(Device[Direct, int, int]):
    """One device: a report is a value, and each value has a permanent answer."""

    def report(self, value: int) -> int:
        """Return a report of ``value``: the permanent answer, memoized at its first use, randomized once more."""
        k, chain = self.protocol.k, self.protocol.chain
        value = check_value(value, k)
        if chain.instant is None:
            return respond(self._draws, value, k, chain.permanent.p)
        kept = self._kept(value, lambda: respond(self._draws, value, k, chain.permanent.p))
        return respond(self._draws, kept, k, chain.instant.p)

    def save(self) -> bytes:
        """Return the state as JSON."""
        return save_state(self.protocol.describe(), {str(value): kept for value, kept in self._memo.items()})


def memoized_responses(
    memo: Answers, bits: Bits, values: NDArray[np.int64], size: int, keep: Real
) -> NDArray[np.int64]:
    """Return each user's permanent answer to his value, drawing by GRR those that are new."""
    rows = memo.get(values, lambda fresh: respond_batch(bits, values[fresh], size, keep).astype(np.uint64)[:, None])
    return rows[:, 0].astype(np.int64)


class DirectFleet:
    """Many devices in columns: one memoized answer a (user, value) that occurred."""

    def __init__(self, protocol: Direct, users: int, bits: Bits) -> None:
        self.protocol = protocol
        self.users = users
        self._bits = bits
        self._memo = Answers(users, protocol.k, 1)

    def report(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return one collection's reports."""
        k, chain = self.protocol.k, self.protocol.chain
        held = check_values(values, k, self.users)
        if chain.instant is None:
            return respond_batch(self._bits, held, k, chain.permanent.p)
        kept = memoized_responses(self._memo, self._bits, held, k, chain.permanent.p)
        return respond_batch(self._bits, kept, k, chain.instant.p)

    def memoized(self) -> NDArray[np.int64]:
        """Return how many answers each user has memoized."""
        return self._memo.counts()


def randomized_response(*, k: int, epsilon_micro: int) -> Direct:
    """Return GRR, generalized randomized response, one report (§2.3.1)."""
    return Direct(k=k, epsilon_permanent_micro=epsilon_micro)


def l_grr(
    *, k: int, epsilon_permanent_micro: int, epsilon_first_micro: int, calibration: Calibration = "paper"
) -> Direct:
    """Return L-GRR: GRR twice (§2.4.3)."""
    return Direct(
        k=k,
        epsilon_permanent_micro=epsilon_permanent_micro,
        epsilon_first_micro=epsilon_first_micro,
        calibration=calibration,
    )
