"""Continual collection of a Boolean: each user reports one of their changes, on one level of a tree over time.

Erlingsson and others, "Amplification by Shuffling" (SODA 2019), section 3: Algorithm 1 is the client, Algorithm 2 the
server. The paper prints step 9 inside the condition of step 5; here it is outside, because otherwise the existence of a
report would show that the value changed. The printed scale has log₂ d for the number of levels, which is log₂ d + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp, uniform_below_batch
from ldp_client.checks import as_list, check_error_terms, check_users, is_count, short_text
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.estimation import check_size, epsilon, symmetric
from ldp_client.protocols.base import MemoizingDevice, as_draws, load_state
from ldp_client.sampling import ExactDraws

MOST_PERIODS = 1 << 20
_HALF = Real.of(1) / 2
#: What a client keeps: κ*, h*, κ and c of Algorithm 1, the current period, and the last state.
_STATE = ("change", "level", "seen", "sign", "period", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A client's report (h*, t, u): its level, the period, and +1 or −1."""

    level: int
    period: int
    sign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DyadicTree:
    """The protocol over d ``periods`` (a power of two) and at most k ``changes`` per user, for ε in millionths.

    Client and fleet ignore a change after the k-th: it costs accuracy, never privacy.
    """

    kind: ClassVar[str] = "dyadic"
    periods: int
    changes: int
    epsilon_micro: int
    keep: Real = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        d = self.periods
        check_size(d, "the number of periods", least=1, most=MOST_PERIODS)
        if d & (d - 1):
            raise LdpParameterError(f"the number of periods must be a power of two up to {MOST_PERIODS}, not {d!r}")
        check_size(self.changes, "the number of changes of a user", least=1, most=d)
        object.__setattr__(self, "keep", symmetric(exp(epsilon(self.epsilon_micro) / 2)).p)

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them."""
        named = ("kind", "periods", "changes", "epsilon_micro")
        return {name: getattr(self, name) for name in named}

    @property
    def levels(self) -> int:
        """The number of levels of the tree: log₂ d + 1. Leaves are level 1."""
        return self.periods.bit_length()

    @property
    def exact_epsilon(self) -> float:
        """The ε of the whole sequence of reports: ε/2, half of what Theorem 5 states.

        Two inputs differ in the laws of at most two nodes of the reported level; if they are two nodes, each input is
        uniform on the other's node. Enumeration attains this value for d ≥ 2k.
        """
        return float(epsilon(self.epsilon_micro)) / 2

    @property
    def gain(self) -> float:
        """c_ε = (e^(ε/2) + 1)/(e^(ε/2) − 1): randomized response shrinks a sign by this factor."""
        return 1 / math.tanh(float(epsilon(self.epsilon_micro)) / 4)

    @property
    def scale(self) -> float:
        """The factor that turns a node's sum into an unbiased count: c_ε·k·(log₂ d + 1)."""
        return self.gain * self.changes * self.levels

    def error_bound(self, users: int, beta: float) -> float:
        """Return a bound on max |f̃_t − f_t| over all periods that holds with probability 1 − β.

        A user adds at most one ±1 to the nodes that cover [1, t], so Hoeffding's inequality and a union over periods
        give c_ε·k·(log₂ d + 1)·√(2n ln(2d/β)). For d ≥ 16 it is below what Theorem 6 prints,
        c_ε·k·(log₂ d)^(3/2)·√(n ln(2d/β)).
        """
        check_error_terms(users, beta)
        return self.scale * math.sqrt(2 * users * math.log(2 * self.periods / beta))

    def client(self, bits: Bits | ExactDraws) -> DyadicClient:
        """Return a new device, which draws the change and the level that it will report."""
        draws = as_draws(bits)
        state = [1 + draws.below(self.changes), 1 + draws.below(self.levels), 0, 0, 0, 0]
        return DyadicClient(self, draws, state)

    def restore(self, saved: bytes, bits: Bits | ExactDraws) -> DyadicClient:
        """Return a device from a saved state."""
        memo = load_state(saved, self.describe())
        limits = ((1, self.changes), (1, self.levels), (0, self.periods), (-1, 1), (0, self.periods), (0, 1))
        state = []
        for name, (low, high) in zip(_STATE, limits, strict=True):
            value = memo.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise StateError(f"{name} of a saved client must be in [{low}, {high}]")
            state.append(value)
        return DyadicClient(self, as_draws(bits), state)

    def fleet_sums(self, states: NDArray[np.int8], bits: Bits) -> NDArray[np.int64]:
        """Return the sums of what many devices send over all periods, by node in the order of ``node_index``.

        ``states`` has one row of Booleans per user and one column per period.
        """
        if (
            not isinstance(states, np.ndarray)
            or states.dtype.kind not in "biu"
            or states.ndim != 2
            or states.shape[1] != self.periods
            or not bool(((states == 0) | (states == 1)).all())
        ):
            raise ReportError(f"a fleet's states must be an array of 0 and 1 with {self.periods} columns")
        users = check_users(int(states.shape[0]))
        change = 1 + uniform_below_batch(bits, self.changes, users)
        level = 1 + uniform_below_batch(bits, self.levels, users)
        truthful = bernoulli_batch(bits, self.keep, users)
        nodes = (self.periods >> (level - 1)).astype(np.int64)
        ends = np.cumsum(nodes)
        coins = bits.words(-(-int(ends[-1]) // 64))
        sums = np.zeros(2 * self.periods, dtype=np.int64)
        report_kernel(states.astype(np.int8), change, level, truthful, coins, ends - nodes, sums)
        return sums


class DyadicClient(MemoizingDevice[DyadicTree, str, int]):
    """One device, called once per period; before the first period the state is 0."""

    def __init__(self, protocol: DyadicTree, draws: ExactDraws, state: list[int]) -> None:
        super().__init__(protocol, draws, {})
        self._change, self._level, self._seen, self._sign, self._period, self._held = state

    def report(self, held: bool) -> NodeReport | None:
        """Take the state of the next period; return the report due in it, or None (Algorithm 1, UPDATE)."""
        if not isinstance(held, bool | int | np.bool_ | np.integer) or held not in (0, 1):
            raise ReportError("a state must be 0 or 1")
        if self._period >= self.protocol.periods:
            raise ReportError(f"all {self.protocol.periods} periods have passed: choose a protocol with more periods")
        change = int(held) - self._held
        self._held = int(held)
        self._period += 1
        if change:
            self._seen = min(self._seen + 1, self.protocol.periods)
            if self._seen == self._change:
                self._sign = change
        if self._period % (1 << (self._level - 1)):
            return None
        if self._sign == 0:
            sign = 1 if self._draws.coin(_HALF) else -1
        else:
            sign = self._sign if self._draws.coin(self.protocol.keep) else -self._sign
            self._sign = 0
        return NodeReport(level=self._level, period=self._period, sign=sign)

    def _saved(self) -> dict[str, Any]:
        state = (self._change, self._level, self._seen, self._sign, self._period, self._held)
        return dict(zip(_STATE, state, strict=True))


class DyadicServer:
    """Adds up reports by node and estimates how many users hold the Boolean in each period (Algorithm 2)."""

    def __init__(self, protocol: DyadicTree) -> None:
        self.protocol = protocol
        self._sums = np.zeros(2 * protocol.periods, dtype=np.int64)

    def add(self, reports: Iterable[NodeReport]) -> None:
        """Add reports of any clients and periods; if one is refused, add none of them."""
        sent = as_list(reports, "reports")
        nodes = [self._node(report) for report in sent]
        for node, report in zip(nodes, sent, strict=True):
            self._sums[node] += report.sign

    def _node(self, report: NodeReport) -> int:
        """Return the node that a report is added to; ReportError if no client can send it."""
        d, levels = self.protocol.periods, self.protocol.levels
        if not isinstance(report, NodeReport) or not is_count(report.level, 1, levels):
            raise ReportError(f"no client of this protocol sends {short_text(report)}")
        width = 1 << (report.level - 1)
        there = is_count(report.period, 1, d) and report.period % width == 0
        if not there or not is_count(report.sign, -1, 1) or report.sign == 0:
            raise ReportError(f"no client of this protocol sends {short_text(report)}")
        return node_index(d, report.level, report.period // width)

    def add_sums(self, sums: NDArray[np.int64]) -> None:
        """Add a fleet's sums by node."""
        if not isinstance(sums, np.ndarray) or sums.dtype.kind != "i" or sums.shape != self._sums.shape:
            raise ReportError(
                f"sums over {self.protocol.periods} periods must be an array of {self._sums.size} signed integers, "
                "as `fleet_sums` returns them"
            )
        self._sums += sums

    def estimate(self, period: int) -> float:
        """Return the unbiased estimate of how many users hold the Boolean in ``period``."""
        if not is_count(period, 1, self.protocol.periods):
            raise ReportError(f"period must be an integer from 1 to {self.protocol.periods}, not {short_text(period)}")
        total = sum(int(self._sums[node_index(self.protocol.periods, *node)]) for node in cover(int(period)))
        return self.protocol.scale * total

    def estimates(self) -> NDArray[np.float64]:
        """Return the estimates of all periods."""
        return np.array([self.estimate(period) for period in range(1, self.protocol.periods + 1)])


def cover(period: int) -> list[tuple[int, int]]:
    """Return the nodes (level, number) whose leaves are exactly 1…period: one per bit set in ``period``.

    >>> cover(6)
    [(3, 1), (2, 3)]
    """
    nodes = []
    start = 0
    for bit in reversed(range(period.bit_length())):
        if period >> bit & 1:
            nodes.append((bit + 1, (start >> bit) + 1))
            start += 1 << bit
    return nodes


def node_index(periods: int, level: int, number: int) -> int:
    """Return the index of a node's sum: as in a heap, with the root at 1 and the leaves from ``periods`` on."""
    return (periods >> (level - 1)) + number - 1


@njit(cache=True)
def report_kernel(
    states: NDArray[np.int8],
    change: NDArray[np.int64],
    level: NDArray[np.int64],
    truthful: NDArray[np.bool_],
    coins: NDArray[np.uint64],
    starts: NDArray[np.int64],
    sums: NDArray[np.int64],
) -> None:  # pragma: no cover - compiled
    """Add every device's signs to ``sums``.

    Node j of user i takes the fair coin number ``starts[i]`` + j − 1, unless it holds the picked change: then
    ``truthful[i]`` decides.
    """
    users, periods = states.shape
    for user in range(users):
        held = 0
        seen = 0
        picked = -1
        sign = 0
        for period in range(periods):
            step = states[user, period] - held
            if step != 0:
                held = states[user, period]
                seen += 1
                if seen == change[user]:
                    picked = period
                    sign = step
        height = level[user] - 1
        nodes = periods >> height
        for node in range(nodes):
            if sign != 0 and picked >> height == node:
                up = (sign > 0) == truthful[user]
            else:
                coin = starts[user] + node
                up = (coins[coin >> 6] >> np.uint64(coin & 63)) & np.uint64(1) != 0
            sums[nodes + node] += 1 if up else -1
