"""Unary encoding: SUE and OUE, and the longitudinal L-SUE (RAPPOR) and L-OSUE.

A value is a row of k bits with one bit set; a report is a row of randomized bits (LOLOHA paper, §2.3.3, §2.4.1,
§2.4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from aggservice.mechanisms import Bits, Real, exp
from ldp_client.checks import as_list, check_rows, short_text
from ldp_client.errors import ProtocolError
from ldp_client.estimation.steps import (
    Chain,
    Step,
    asked_epsilon,
    chained_ratio,
    check_size,
    epsilon,
    epsilon_pair,
    oue,
    symmetric,
)
from ldp_client.estimation.support import Estimate, Support
from ldp_client.protocols.device import (
    MEMOIZED_ANSWERS,
    CountsValues,
    Device,
    MemoizingColumns,
    as_draws,
    flip_row,
    load_state,
    memo_int,
    memo_row,
)
from ldp_client.protocols.interface import Privacy, check_users, check_value, check_values
from ldp_client.sampling.draws import Draws
from ldp_client.sampling.lanes import LaneCoins
from ldp_client.sampling.packed import Words, count_bits, one_hot, rows_from_bytes, unpack, words_of

UnaryKind = Literal["SUE", "OUE", "L-SUE", "L-OSUE"]

#: The instantaneous step of RAPPOR as deployed: p₂ = ¾, q₂ = ¼ (§2.4.1).
DEPLOYED_STEP = Step(p=Real.of(Fraction(3, 4)), q=Real.of(Fraction(1, 4)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryEncoding(CountsValues):
    """A unary protocol over the values 0, …, k − 1.

    ``epsilon_first_micro`` is ε₁ of the longitudinal kinds; L-SUE without it uses RAPPOR's deployed second step.
    """

    kind: UnaryKind
    k: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    chain: Chain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        object.__setattr__(self, "chain", self._chain())

    def _chain(self) -> Chain:
        limit = epsilon(self.epsilon_permanent_micro)
        once = self.epsilon_first_micro
        match self.kind:
            case "SUE" | "OUE":
                if once is not None:
                    raise ProtocolError(f"{self.kind} reports once: leave out epsilon_first_micro")
                return Chain(permanent=symmetric(exp(limit / 2)) if self.kind == "SUE" else oue(limit))
            case "L-SUE":
                permanent = symmetric(exp(limit / 2))
                if once is None:
                    return Chain(permanent=permanent, instant=DEPLOYED_STEP)
                _, first = epsilon_pair(self.epsilon_permanent_micro, once)
                # Two symmetric steps equal one step, whose odds must be e^{ε₁/2}: two bits differ between two values.
                return Chain(permanent=permanent, instant=symmetric(chained_ratio(exp(limit / 2), exp(first / 2))))
            case "L-OSUE":
                if once is None:
                    raise ProtocolError("L-OSUE needs the ε of a first report: give epsilon_first_micro")
                _, first = epsilon_pair(self.epsilon_permanent_micro, once)
                return Chain(permanent=oue(limit), instant=symmetric(chained_ratio(exp(limit), exp(first))))
        raise ProtocolError(f"kind must be SUE, OUE, L-SUE or L-OSUE, not {short_text(self.kind)}")

    @property
    def support(self) -> Support:
        """The estimator's probabilities."""
        return Support.of(self.chain)

    @property
    def privacy(self) -> Privacy:
        """The ε of a report, of all reports of a value, and over all values (k·ε∞, Table 1)."""
        first = self.chain.first_unary()
        permanent = Chain(permanent=self.chain.permanent).first_unary()
        deployed = self.chain.instant is not None and self.epsilon_first_micro is None
        asked = first if deployed else asked_epsilon(self.epsilon_first_micro)
        return Privacy.of(first=first, permanent=permanent, asked=asked, answers=self.k)

    @property
    def shares(self) -> str:
        """What a device's reports have in common: the memoized rows of L-SUE and L-OSUE, and nothing of SUE and OUE."""
        return MEMOIZED_ANSWERS if self.chain.instant is not None else ""

    def client(self, bits: Bits | Draws) -> UnaryClient:
        """Return a new device."""
        return UnaryClient(self, as_draws(bits), {})

    def restore(self, saved: bytes, bits: Bits | Draws) -> UnaryClient:
        """Return a device from a saved state."""
        stored = load_state(saved, self.describe())
        memo = {memo_int(value, self.k, "a value"): memo_row(row, self.k) for value, row in stored.items()}
        return UnaryClient(self, as_draws(bits), memo)

    def fleet(self, users: int, bits: Bits) -> UnaryFleet:
        """Return ``users`` new devices in columns."""
        return UnaryFleet(self, check_users(users), bits)

    def columns(self, reports: Sequence[bytes]) -> Words:
        """Return clients' reports as rows of words."""
        return rows_from_bytes(as_list(reports, "reports"), self.k)

    def estimate(self, columns: Words) -> Estimate:
        """Return the frequencies behind one collection (Eq. 1 or Eq. 3)."""
        rows = check_rows(columns, words_of(self.k), f"reports over {self.k} values")
        return self.support.estimate(count_bits(rows, self.k), rows.shape[0])


class UnaryClient(Device[UnaryEncoding, int, bytes]):
    """One device: a report is a packed row of randomized bits, and each value has a permanent row."""

    def report(self, value: int) -> bytes:
        """Return a report of ``value``: its permanent row, memoized at its first use and then randomized again."""
        value = check_value(value, self.protocol.k)
        instant = self.protocol.chain.instant
        if instant is None:
            return self._permanent(value)
        kept = self._kept(value, lambda: self._permanent(value))
        return flip_row(self._draws, unpack(kept, self.protocol.k), instant)

    def _permanent(self, value: int) -> bytes:
        return flip_row(self._draws, np.arange(self.protocol.k) == value, self.protocol.chain.permanent)


class UnaryFleet(MemoizingColumns[UnaryEncoding]):
    """Many devices in columns: one memoized row of words per (user, value) that occurred."""

    def __init__(self, protocol: UnaryEncoding, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits, span=protocol.k, width=words_of(protocol.k))
        self._permanent = LaneCoins(protocol.chain.permanent)
        instant = protocol.chain.instant
        self._instant = None if instant is None else LaneCoins(instant)

    def report(self, values: ArrayLike) -> Words:
        """Return one collection's reports, one row of words per user."""
        k = self.protocol.k
        held = check_values(values, k, self.users)
        if self._instant is None:
            return self._permanent.flip(self._bits, one_hot(held, k), k)
        kept = self._memo.get(held, lambda fresh: self._permanent.flip(self._bits, one_hot(held[fresh], k), k))
        return self._instant.flip(self._bits, kept, k)


def sue(*, k: int, epsilon_micro: int) -> UnaryEncoding:
    """Return symmetric unary encoding, one report (§2.3.3)."""
    return UnaryEncoding(kind="SUE", k=k, epsilon_permanent_micro=epsilon_micro)


def optimized_unary(*, k: int, epsilon_micro: int) -> UnaryEncoding:
    """Return OUE, optimized unary encoding, one report (§2.3.3)."""
    return UnaryEncoding(kind="OUE", k=k, epsilon_permanent_micro=epsilon_micro)


#: RAPPOR in its utility-oriented form (§2.4.1); without ε₁, with the deployed second step.
l_sue = partial(UnaryEncoding, kind="L-SUE")
#: L-OSUE: OUE, then SUE (§2.4.2).
l_osue = partial(UnaryEncoding, kind="L-OSUE")
