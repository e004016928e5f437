"""Unary encoding: SUE and OUE, and the longitudinal L-SUE (RAPPOR) and L-OSUE.

A value is a row of k bits with one bit set; a report is a row of randomized bits (LOLOHA paper, §2.3.3, §2.4.1,
§2.4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from aggservice.mechanisms import Bits, Real, exp
from ldp_client.checks import check_value, check_values, short_text
from ldp_client.errors import LdpParameterError
from ldp_client.estimation import (
    ResponseChain,
    ResponseStep,
    Support,
    asked_epsilon,
    chained_ratio,
    check_size,
    epsilon,
    epsilon_pair,
    oue,
    symmetric,
)
from ldp_client.protocols.base import (
    MEMOIZED_ANSWERS,
    SMALL,
    MemoizingColumns,
    MemoizingDevice,
    Privacy,
    ProtocolRequest,
    RowsOfBits,
    memo_int,
    memo_row,
)
from ldp_client.sampling import ExactDraws, LaneCoins, Words, one_hot, unpack, words_of
from ldp_client.tracking import BitsLaw, StreamLaw

UnaryKind = Literal["SUE", "OUE", "L-SUE", "L-OSUE"]

#: The instantaneous step of RAPPOR as deployed: p₂ = ¾, q₂ = ¼ (§2.4.1).
DEPLOYED_STEP = ResponseStep(p=Real.of(Fraction(3, 4)), q=Real.of(Fraction(1, 4)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryEncoding(RowsOfBits):
    """A unary protocol over the values 0, …, k − 1.

    ``epsilon_first_micro`` is ε₁ of the longitudinal kinds; L-SUE without it uses RAPPOR's deployed second step.
    """

    methods: ClassVar = {
        "L-OSUE": "OUE, then SUE",
        "SUE": "symmetric unary encoding, one report",
        "OUE": "optimized unary encoding, one report",
    }
    kind: UnaryKind
    k: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        object.__setattr__(self, "chain", self._chain())

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> UnaryEncoding:
        if name in ("SUE", "OUE"):
            make = sue if name == "SUE" else optimized_unary
            return make(k=request.k, epsilon_micro=request.epsilon_permanent_micro)
        return cls(kind="L-OSUE" if name == "L-OSUE" else "L-SUE", k=request.k, **request.pair)

    @classmethod
    def examples(cls) -> Sequence[UnaryEncoding]:
        return [cls.for_values(name, SMALL) for name in get_args(UnaryKind)]

    def _chain(self) -> ResponseChain:
        limit = epsilon(self.epsilon_permanent_micro)
        once = self.epsilon_first_micro
        match self.kind:
            case "SUE" | "OUE":
                if once is not None:
                    raise LdpParameterError(f"{self.kind} reports once: leave out epsilon_first_micro")
                return ResponseChain(permanent=symmetric(exp(limit / 2)) if self.kind == "SUE" else oue(limit))
            case "L-SUE":
                permanent = symmetric(exp(limit / 2))
                if once is None:
                    return ResponseChain(permanent=permanent, instant=DEPLOYED_STEP)
                _, first = epsilon_pair(self.epsilon_permanent_micro, once)
                # Two symmetric steps equal one step, whose odds must be e^{ε₁/2}: two bits differ between two values.
                again = symmetric(chained_ratio(exp(limit / 2), exp(first / 2)))
                return ResponseChain(permanent=permanent, instant=again)
            case "L-OSUE":
                if once is None:
                    raise LdpParameterError("L-OSUE needs the ε of a first report: give epsilon_first_micro")
                _, first = epsilon_pair(self.epsilon_permanent_micro, once)
                return ResponseChain(permanent=oue(limit), instant=symmetric(chained_ratio(exp(limit), exp(first))))
        raise LdpParameterError(f"kind must be SUE, OUE, L-SUE or L-OSUE, not {short_text(self.kind)}")

    @property
    def support(self) -> Support:
        return Support.of(self.chain)

    @property
    def privacy(self) -> Privacy:
        """The ε of a report, of all reports of a value, and over all values (k·ε∞, Table 1)."""
        first = self.chain.first_unary()
        permanent = ResponseChain(permanent=self.chain.permanent).first_unary()
        deployed = self.chain.instant is not None and self.epsilon_first_micro is None
        asked = first if deployed else asked_epsilon(self.epsilon_first_micro)
        return Privacy.of(first=first, permanent=permanent, asked=asked, answers=self.k)

    @property
    def shares(self) -> str:
        return MEMOIZED_ANSWERS if self.chain.instant is not None else ""

    def client(self, bits: Bits | ExactDraws) -> UnaryClient:
        return UnaryClient(self, bits, {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> UnaryClient:
        stored = self.load(saved)
        memo = {memo_int(value, self.k, "a value"): memo_row(row, self.k) for value, row in stored.items()}
        return UnaryClient(self, bits, memo)

    def fleet(self, users: int, bits: Bits) -> UnaryFleet:
        return UnaryFleet(self, users, bits)

    def traffic(self) -> tuple[int, int, int]:
        """Return k bits per report, none once, and k steps of the server."""
        return self.k, 0, self.k

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return BitsLaw(np.arange(self.k) == check_value(value, self.k), self.chain)


class UnaryClient(MemoizingDevice[UnaryEncoding, int, bytes]):
    """One device: a report is a packed row of randomized bits, and each value has a permanent row."""

    def report(self, value: int) -> bytes:
        """Return a report of ``value``: its permanent row, memoized at its first use and then randomized again."""
        value = check_value(value, self.protocol.k)
        instant = self.protocol.chain.instant
        if instant is None:
            return self._permanent(value)
        kept = self._kept(value, lambda: self._permanent(value))
        return self._flip(unpack(kept, self.protocol.k), instant)

    def _permanent(self, value: int) -> bytes:
        return self._flip(np.arange(self.protocol.k) == value, self.protocol.chain.permanent)


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
