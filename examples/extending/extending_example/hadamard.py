"""A local-DP protocol: Hadamard response (Acharya, Sun and Zhang, "Hadamard Response", 2019), one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp, uniform_below_batch
from ldp_client import FrequencyEstimate, LocalProtocol
from ldp_client.checks import check_numbers, check_value, check_values, whole_numbers
from ldp_client.estimation import Support, check_size, epsilon
from ldp_client.protocols.base import DeviceColumns, MemoizingDevice, Privacy, ProtocolRequest
from ldp_client.sampling import ExactDraws

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HadamardResponse(LocalProtocol):
    """Hadamard response over 0, …, k - 1, for ε in millionths.

    The columns of a Hadamard matrix with K > k rows, a power of two, are 0, …, K - 1. Row v + 1 stands for the value v:
    its +1s are the columns y for which (v + 1) AND y has an even number of ones, half of all. A report is one of these
    with probability e^ε/(e^ε + 1), else one of the others. Half of them are +1s of any other row too, so a report
    supports another value with probability 1/2. Devices keep nothing; every report costs ε again.
    """

    methods: ClassVar = {"HR": "Hadamard response, one report"}
    kind: ClassVar[str] = "HR"
    report_bytes: ClassVar[int] = 4
    k: int
    epsilon_micro: int
    keep: Real = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k", most=(1 << 31) - 1)
        odds = exp(epsilon(self.epsilon_micro))
        object.__setattr__(self, "keep", odds / (odds + 1))

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> HadamardResponse:
        return cls(k=request.k, epsilon_micro=request.epsilon_permanent_micro)

    @property
    def columns_in_all(self) -> int:
        """K, the least power of two above k."""
        return 1 << self.k.bit_length()

    @property
    def privacy(self) -> Privacy:
        once = float(epsilon(self.epsilon_micro))
        return Privacy.of(first=once, permanent=once, asked=None, answers=0)

    @property
    def support(self) -> Support:
        return Support(p=float(self.keep), q=0.5)

    def client(self, bits: Bits | ExactDraws) -> HadamardClient:
        return HadamardClient(self, bits, {})

    def fleet(self, users: int, bits: Bits) -> HadamardFleet:
        return HadamardFleet(self, users, bits)

    def pack_report(self, report: Any) -> bytes | None:
        if not isinstance(report, int | np.integer):
            return None
        return check_value(report, self.columns_in_all).to_bytes(4, "big")

    def unpack_report(self, data: bytes) -> int:
        return check_value(int.from_bytes(data, "big"), self.columns_in_all)

    def columns(self, reports: Sequence[int]) -> Numbers:
        return whole_numbers(reports, self.columns_in_all, "reports of HR")

    def supports(self, columns: Numbers, cell: int) -> NDArray[np.bool_]:
        return np.bitwise_count(columns & (cell + 1)) % 2 == 0

    def estimate(self, columns: Numbers) -> FrequencyEstimate:
        """Return the frequencies: reports are counted by column, and one fast Hadamard transform serves all values."""
        reports = check_numbers(columns, self.columns_in_all, "reports of HR")
        sums = np.bincount(reports, minlength=self.columns_in_all)
        for bit in range(self.k.bit_length()):
            low, high = np.moveaxis(sums.reshape(-1, 2, 1 << bit), 1, 0)
            sums = np.stack((low + high, low - high), axis=1).ravel()
        return self.support.estimate((reports.size + sums[1 : self.k + 1]) // 2, reports.size)


def column_of(rows: Any, others: Any, odd: Any) -> Any:
    """Return the column whose bits are those of ``others``, with one bit put in at the lowest bit of the row.

    That bit makes the number of ones that row and column share odd or even, as ``odd`` says. So each half of the
    columns is reached from 0, …, K/2 - 1, once per column.
    """
    lowest = rows & -rows
    column = (others & (lowest - 1)) | ((others & -lowest) << 1)
    return np.where(np.bitwise_count(rows & column) % 2 == odd, column, column | lowest)


class HadamardClient(MemoizingDevice[HadamardResponse, int, int]):
    """One device: a report is the number of a column."""

    def report(self, value: int) -> int:
        row = check_value(value, self.protocol.k) + 1
        odd = not self._draws.coin(self.protocol.keep)
        return int(column_of(row, self._draws.below(self.protocol.columns_in_all // 2), odd))


class HadamardFleet(DeviceColumns[HadamardResponse]):
    """Many devices in columns."""

    def report(self, values: ArrayLike) -> Numbers:
        rows = check_values(values, self.protocol.k, self.users) + 1
        odd = ~bernoulli_batch(self._bits, self.protocol.keep, self.users)
        others = uniform_below_batch(self._bits, self.protocol.columns_in_all // 2, self.users)
        found: Numbers = column_of(rows, others, odd)
        return found
