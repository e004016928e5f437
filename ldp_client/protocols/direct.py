"""Protocols whose reports are values: GRR, the longitudinal L-GRR, and Bitwise Everlasting Privacy.

GRR and L-GRR are those of the LOLOHA paper, §2.3.1 and §2.4.3. Bitwise Everlasting Privacy (Naor and Vexler, section 6)
has one bit, a permanent noisy copy of it, b' = b ⊕ Ber(1/(e^ε₁ + 1)), and a noisier copy of that in each report,
r = b' ⊕ Ber(1/(e^ε₂ + 1)).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real, exp
from ldp_client.checks import check_error_terms, check_numbers, check_stream, check_value, check_values, whole_numbers
from ldp_client.estimation import (
    Calibration,
    FrequencyEstimate,
    ResponseChain,
    Support,
    asked_epsilon,
    check_size,
    epsilon,
    grr_chain,
    symmetric,
)
from ldp_client.finite_state import FiniteState
from ldp_client.protocols.base import (
    MEMOIZED_ANSWERS,
    LocalProtocol,
    MemoizingColumns,
    MemoizingDevice,
    Owner,
    Privacy,
    ProtocolRequest,
    memo_int,
)
from ldp_client.sampling import ExactDraws, randomized_value, randomized_values
from ldp_client.tracking import BitsLaw, StreamLaw, SymbolLaw, permanent_untrackable

#: The most reports for which ``BitwiseEverlasting.proved`` enumerates all streams.
_MOST_ENUMERATED = 40


class DirectResponse(LocalProtocol):
    """The base of a protocol whose reports are values 0, …, k − 1 after one or two steps of GRR."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def chain(self) -> ResponseChain:
            """The steps of randomization."""

    @property
    def support(self) -> Support:
        return Support.of(self.chain)

    @property
    def shares(self) -> str:
        return MEMOIZED_ANSWERS if self.chain.instant is not None else ""

    def client(self, bits: Bits | ExactDraws) -> DirectClient:
        return DirectClient(self, bits, {})

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> DirectClient:
        stored = self.load(saved)
        memo = {
            memo_int(value, self.k, "a value"): memo_int(kept, self.k, "an answer") for value, kept in stored.items()
        }
        return DirectClient(self, bits, memo)

    def fleet(self, users: int, bits: Bits) -> DirectFleet:
        return DirectFleet(self, users, bits)

    report_bytes: ClassVar[int] = 4

    def pack_report(self, report: Any) -> bytes | None:
        return struct.pack(">I", check_value(report, self.k)) if isinstance(report, int | np.integer) else None

    def unpack_report(self, data: bytes) -> int:
        return check_value(int.from_bytes(data, "big"), self.k)

    def traffic(self) -> tuple[int, int, int]:
        """Return ⌈log₂ k⌉ bits per report, none once, and one step of the server."""
        return (self.k - 1).bit_length(), 0, 1

    def columns(self, reports: Sequence[int]) -> NDArray[np.int64]:
        return whole_numbers(reports, self.k, f"reports of {self.kind}")

    def supports(self, columns: NDArray[np.int64], cell: int) -> NDArray[np.bool_]:
        return np.asarray(columns == cell)

    def estimate(self, columns: NDArray[np.int64]) -> FrequencyEstimate:
        """Return the frequencies behind one collection (Eq. 1 or Eq. 3)."""
        reports = check_numbers(columns, self.k, f"reports of {self.kind}")
        return self.support.estimate(np.bincount(reports, minlength=self.k), reports.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEncoding(DirectResponse):
    """GRR over 0, …, k − 1, or L-GRR if ``epsilon_first_micro`` is given.

    L-GRR's ``paper`` calibration ignores the paths through a third value: for k = 360, ε∞ = 1 and a requested ε₁ of 0.5
    its first report has ε = 0.0106. ``exact`` has the requested ε₁.
    """

    methods: ClassVar = {
        "GRR": "generalized randomized response, one report",
        "L-GRR": "GRR twice, as in the LOLOHA paper",
        "L-GRR-exact": "GRR twice, with exactly the requested ε₁",
    }
    k: int
    epsilon_permanent_micro: int
    epsilon_first_micro: int | None = None
    calibration: Calibration = "paper"
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        chain = grr_chain(self.k, self.epsilon_permanent_micro, self.epsilon_first_micro, self.calibration)
        object.__setattr__(self, "chain", chain)

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> DirectEncoding:
        if name == "GRR":
            return randomized_response(k=request.k, epsilon_micro=request.epsilon_permanent_micro)
        return l_grr(k=request.k, **request.pair, calibration="exact" if name == "L-GRR-exact" else "paper")

    @property
    def kind(self) -> str:
        return "GRR" if self.chain.instant is None else "L-GRR"

    @property
    def privacy(self) -> Privacy:
        """The ε of a report, of all reports of a value, and over all values (k·ε∞, Table 1)."""
        return Privacy.of_grr(self.chain, asked_epsilon(self.epsilon_first_micro), answers=self.k)

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return SymbolLaw(check_value(value, self.k), self.k, self.chain)


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
    chain: ResponseChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        permanent = symmetric(exp(epsilon(self.epsilon_permanent_micro)))
        instant = symmetric(exp(epsilon(self.epsilon_report_micro)))
        object.__setattr__(self, "chain", ResponseChain(permanent=permanent, instant=instant))

    @classmethod
    def for_tracking(cls, name: str, request: ProtocolRequest) -> BitwiseEverlasting:
        """Return the mechanism with ε∞ for the kept bit, and the option ``second`` for a report of it."""
        return cls(
            epsilon_permanent_micro=request.epsilon_permanent_micro, epsilon_report_micro=request.options["second"]
        )

    @classmethod
    def examples(cls) -> Sequence[BitwiseEverlasting]:
        return [cls(epsilon_permanent_micro=1_000_000, epsilon_report_micro=400_000)]

    @property
    def privacy(self) -> Privacy:
        """The ε of a report (two binary responses, Theorem 20), of all reports of a value, and of both values."""
        first = self.chain.first_grr()
        permanent = float(epsilon(self.epsilon_permanent_micro))
        return Privacy(asked=first, first=first, permanent=permanent, worst_case=2 * permanent)

    report_bytes: ClassVar[int] = 1

    def pack_report(self, report: Any) -> bytes | None:
        return bytes([check_value(report, 2)]) if isinstance(report, int | np.integer) else None

    def stream_law(self, value: int, *, cohort: int | Literal["sent"] = 0) -> StreamLaw:
        return BitsLaw(np.array([bool(check_value(value, 2))]), self.chain)

    def proved(self, reports: int) -> dict[str, float]:
        """Return the exact worst case over all streams, for few reports."""
        return {"exact_worst_case": self.finite_state().untrackable(reports)} if reports <= _MOST_ENUMERATED else {}

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


class ResponseDevice(MemoizingDevice[Owner, int, int]):
    """A device that answers by GRR, or, with a second step, by GRR of the memoized answer."""

    def _respond(self, value: int, size: int, chain: ResponseChain) -> int:
        if chain.instant is None:
            return randomized_value(self._draws, value, size, chain.permanent.p)
        kept = self._kept(value, lambda: randomized_value(self._draws, value, size, chain.permanent.p))
        return randomized_value(self._draws, kept, size, chain.instant.p)


class DirectClient(ResponseDevice[DirectResponse]):
    """One device: a report is a value, and each value has a permanent answer."""

    def report(self, value: int) -> int:
        """Return a report of ``value``: its permanent answer, memoized at its first use and then randomized again."""
        return self._respond(check_value(value, self.protocol.k), self.protocol.k, self.protocol.chain)


class ResponseColumns(MemoizingColumns[Owner]):
    """A fleet of ``ResponseDevice``."""

    def _respond(self, values: NDArray[np.int64], size: int, chain: ResponseChain) -> NDArray[np.int64]:
        bits, keep = self._bits, chain.permanent.p
        if chain.instant is None:
            return randomized_values(bits, values, size, keep)
        rows = self._memo.get(
            values, lambda fresh: randomized_values(bits, values[fresh], size, keep).astype(np.uint64)[:, None]
        )
        return randomized_values(bits, rows[:, 0].astype(np.int64), size, chain.instant.p)


class DirectFleet(ResponseColumns[DirectResponse]):
    """Many devices in columns: one memoized answer per (user, value) that occurred."""

    def __init__(self, protocol: DirectResponse, users: int, bits: Bits) -> None:
        super().__init__(protocol, users, bits, span=protocol.k)

    def report(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return one collection's reports."""
        held = check_values(values, self.protocol.k, self.users)
        return self._respond(held, self.protocol.k, self.protocol.chain)


def _flip_matrix(keep: Real) -> NDArray[np.float64]:
    stay, move = float(keep), float(1 - keep)
    return np.array([[stay, move], [move, stay]])


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
