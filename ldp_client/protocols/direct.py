"""Direct encoding: GRR, which reports a value itself, and the longitudinal L-GRR (LOLOHA paper, §2.3.1, §2.4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import check_numbers, whole_numbers
from ldp_client.estimation.steps import Calibration, Chain, asked_epsilon, check_size, grr_chain
from ldp_client.estimation.support import Estimate, Support
from ldp_client.protocols.device import (
    MEMOIZED_ANSWERS,
    CountsValues,
    Device,
    MemoizingColumns,
    Owner,
    as_draws,
    load_state,
    memo_int,
)
from ldp_client.protocols.interface import Privacy, check_users, check_value, check_values
from ldp_client.sampling.draws import Draws, randomized_value, randomized_values


class _Responds(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def k(self) -> int: ...
    @property
    def chain(self) -> Chain: ...
    def describe(self) -> dict[str, Any]: ...


class DirectResponse(CountsValues):
    """The base of a protocol whose reports are values 0, …, k − 1 after one or two steps of GRR."""

    __slots__ = ()

    @property
    def support(self: _Responds) -> Support:
        """The estimator's probabilities."""
        return Support.of(self.chain)

    def client(self: _Responds, bits: Bits | Draws) -> DirectClient:
        """Return a new device."""
        return DirectClient(self, as_draws(bits), {})

    def restore(self: _Responds, saved: bytes, bits: Bits | Draws) -> DirectClient:
        """Return a device from a saved state."""
        stored = load_state(saved, self.describe())
        memo = {
            memo_int(value, self.k, "a value"): memo_int(kept, self.k, "an answer") for value, kept in stored.items()
        }
        return DirectClient(self, as_draws(bits), memo)

    def fleet(self: _Responds, users: int, bits: Bits) -> DirectFleet:
        """Return ``users`` new devices in columns."""
        return DirectFleet(self, check_users(users), bits)

    def columns(self: _Responds, reports: Sequence[int]) -> NDArray[np.int64]:
        """Return clients' reports as an array."""
        return whole_numbers(reports, self.k, f"reports of {self.kind}")

    def estimate(self: _Responds, columns: NDArray[np.int64]) -> Estimate:
        """Return the frequencies behind one collection (Eq. 1 or Eq. 3)."""
        reports = check_numbers(columns, self.k, f"reports of {self.kind}")
        return Support.of(self.chain).estimate(np.bincount(reports, minlength=self.k), reports.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEncoding(DirectResponse):
    """GRR over 0, …, k − 1, or L-GRR if ``epsilon_first_micro`` is given.

    L-GRR's ``paper`` calibration ignores the paths through a third value: for k = 360, ε∞ = 1 and a requested ε₁ of 0.5
    its first report has ε = 0.0106. ``exact`` has the requested ε₁.
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
    def privacy(self) -> Privacy:
        """The ε of a report, of all reports of a value, and over all values (k·ε∞, Table 1)."""
        return Privacy.of_grr(self.chain, asked_epsilon(self.epsilon_first_micro), answers=self.k)

    @property
    def shares(self) -> str:
        """What a device's reports have in common: the memoized answers of L-GRR, and nothing of GRR."""
        return MEMOIZED_ANSWERS if self.chain.instant is not None else ""


class ResponseDevice(Device[Owner, int, int]):
    """A device that answers by GRR, or, with a second step, by GRR of the memoized answer."""

    def _respond(self, value: int, size: int, chain: Chain) -> int:
        if chain.instant is None:
            return randomized_value(self._draws, value, size, chain.permanent.p)
        kept = self._kept(value, lambda: randomized_value(self._draws, value, size, chain.permanent.p))
        return randomized_value(self._draws, kept, size, chain.instant.p)


class DirectClient(ResponseDevice[_Responds]):
    """One device: a report is a value, and each value has a permanent answer."""

    def report(self, value: int) -> int:
        """Return a report of ``value``: its permanent answer, memoized at its first use and then randomized again."""
        return self._respond(check_value(value, self.protocol.k), self.protocol.k, self.protocol.chain)


class ResponseColumns(MemoizingColumns[Owner]):
    """A fleet of ``ResponseDevice``."""

    def _respond(self, values: NDArray[np.int64], size: int, chain: Chain) -> NDArray[np.int64]:
        bits, keep = self._bits, chain.permanent.p
        if chain.instant is None:
            return randomized_values(bits, values, size, keep)
        rows = self._memo.get(
            values, lambda fresh: randomized_values(bits, values[fresh], size, keep).astype(np.uint64)[:, None]
        )
        return randomized_values(bits, rows[:, 0].astype(np.int64), size, chain.instant.p)


class DirectFleet(ResponseColumns[_Responds]):
    """Many devices in columns: one memoized answer per (user, value) that occurred."""

    def __init__(self, protocol: _Responds, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits, span=protocol.k)

    def report(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return one collection's reports."""
        held = check_values(values, self.protocol.k, self.users)
        return self._respond(held, self.protocol.k, self.protocol.chain)


def randomized_response(*, k: int, epsilon_micro: int) -> DirectEncoding:
    """Return GRR, generalized randomized response, one report (§2.3.1)."""
    return DirectEncoding(k=k, epsilon_permanent_micro=epsilon_micro)


def l_grr(
    *, k: int, epsilon_permanent_micro: int, epsilon_first_micro: int, calibration: Calibration = "paper"
) -> DirectEncoding:
    """Return L-GRR: GRR twice (§2.4.3)."""
    return DirectEncoding(
        k=k,
        epsilon_permanent_micro=epsilon_permanent_micro,
        epsilon_first_micro=epsilon_first_micro,
        calibration=calibration,
    )
