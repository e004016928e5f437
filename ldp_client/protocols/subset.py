"""Subset selection: a report is a set of d of the k values, which holds the user's value more often than chance.

Wang and others, "Mutual information optimally local private discrete distribution estimation" (2016); Ye and Barg,
"Optimal schemes for discrete distribution estimation under locally differential privacy" (IEEE Transactions on
Information Theory, 2018). One report; devices keep nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp
from ldp_client.checks import check_rows, check_value, check_values
from ldp_client.errors import ReportError
from ldp_client.estimation import FrequencyEstimate, Support, check_size, epsilon
from ldp_client.protocols.base import DeviceColumns, MemoizingDevice, Privacy, ProtocolRequest, RowsOfBits
from ldp_client.sampling import ExactDraws, Words, one_hot, pack, sample, sample_batch, unpack, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetSelection(RowsOfBits):
    """Subset selection over 0, …, k − 1 with sets of ``chosen`` values (d), for ε in millionths.

    A set with the user's value is e^ε times as likely as one without: a report holds it with probability
    p = d·e^ε/(d·e^ε + k − d), and is uniform otherwise.
    """

    methods: ClassVar = {"SS": "subset selection, one report"}
    kind: ClassVar[str] = "SS"
    k: int
    chosen: int
    epsilon_micro: int
    keep: Real = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_size(self.k, "the number of values k")
        check_size(self.chosen, "the number of chosen values d", least=1, most=self.k - 1)
        odds = exp(epsilon(self.epsilon_micro)) * self.chosen
        object.__setattr__(self, "keep", odds / (odds + (self.k - self.chosen)))

    @classmethod
    def for_values(cls, name: str, request: ProtocolRequest) -> SubsetSelection:
        """Return the protocol with the best number of values in a set, or the option ``chosen``."""
        micro = request.epsilon_permanent_micro
        best = (Real.of(request.k) / (exp(epsilon(micro)) + 1) * 2 + 1).floor() // 2  # nearest to k/(e^ε + 1)
        return cls(k=request.k, chosen=request.options.get("chosen", max(1, best)), epsilon_micro=micro)

    @classmethod
    def examples(cls) -> Sequence[SubsetSelection]:
        """Return sets of one, two and three of four values."""
        return [cls(k=4, chosen=chosen, epsilon_micro=1_000_000) for chosen in (2, 1, 3)]

    @property
    def privacy(self) -> Privacy:
        once = float(epsilon(self.epsilon_micro))
        return Privacy.of(first=once, permanent=once, asked=None, answers=0)

    @property
    def support(self) -> Support:
        """The estimator's probabilities: p, and that of another value, q = (p(d − 1) + (1 − p)d)/(k − 1)."""
        other = (self.keep * (self.chosen - 1) + (1 - self.keep) * self.chosen) / (self.k - 1)
        return Support(p=float(self.keep), q=float(other))

    def client(self, bits: Bits | ExactDraws) -> SubsetClient:
        return SubsetClient(self, bits, {})

    def fleet(self, users: int, bits: Bits) -> SubsetFleet:
        return SubsetFleet(self, users, bits)

    def unpack_report(self, data: bytes) -> bytes:
        if unpack(data, self.k).sum() != self.chosen:
            raise ReportError(f"a report of SS must hold {self.chosen} of {self.k} values")
        return data

    def estimate(self, columns: Words) -> FrequencyEstimate:
        rows = check_rows(columns, words_of(self.k), f"reports over {self.k} values")
        if (np.bitwise_count(rows).sum(axis=1) != self.chosen).any():
            raise ReportError(f"a report of SS must hold {self.chosen} of {self.k} values")
        return RowsOfBits.estimate(self, rows)


class SubsetClient(MemoizingDevice[SubsetSelection, int, bytes]):
    """One device: a report is a packed row with the bits of the chosen values set."""

    def report(self, value: int) -> bytes:
        """Return a set of d values: ``value`` with d − 1 others with probability p, else d others."""
        k, d = self.protocol.k, self.protocol.chosen
        value = check_value(value, k)
        held = self._draws.coin(self.protocol.keep)
        others = np.array(sample(self._draws, k - 1, d - held), dtype=np.int64)
        row = np.zeros(k, dtype=np.bool_)
        row[others + (others >= value)] = True
        row[value] = held
        return pack(row)


class SubsetFleet(DeviceColumns[SubsetSelection]):
    """Many devices in columns."""

    def report(self, values: ArrayLike) -> Words:
        """Return one collection's reports, one row of words per user."""
        k, d = self.protocol.k, self.protocol.chosen
        held = check_values(values, k, self.users)
        inside = bernoulli_batch(self._bits, self.protocol.keep, self.users)
        rows = np.where(inside[:, None], one_hot(held, k), np.uint64(0))
        for users, size in ((np.flatnonzero(inside), d - 1), (np.flatnonzero(~inside), d)):
            if users.size and size:
                others = sample_batch(self._bits, users.size, k - 1, size).astype(np.int64)
                for column in (others + (others >= held[users, None])).T:
                    rows[users] |= one_hot(column, k)
        return rows
