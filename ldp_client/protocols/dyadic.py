"""Continual collection of a Boolean: each user reports one of his changes, on one level of a tree over time.

Erlingsson et al., "Amplification by Shuffling" (SODA 2019), section 3: Algorithm 1 is the client, Algorithm 2 the
server. The printed step 9 stands inside step 5's test; it belongs outside, or whether a device reports would tell
that its value changed. The printed scale has log₂ d for the number of levels, which is log₂ d + 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, exp, uniform_below_batch
from ldp_client.checks import as_list, is_chance, is_count, shown
from ldp_client.errors import ProtocolError, ReportError, StateError
from ldp_client.estimation.steps import check_size, epsilon, symmetric
from ldp_client.protocols.device import as_draws, load_state, save_state
from ldp_client.protocols.interface import check_users
from ldp_client.sampling.draws import Draws

MOST_PERIODS = 1 << 20
_HALF = Real.of(1) / 2
#: What a client remembers: the κ*, h*, κ and c of Algorithm 1, the period it is in, and the state it last held.
_STATE = ("change", "level", "seen", "sign", "period", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A client's report (h*, t, u): its level, the period, and +1 or −1."""

    level: int
    period: int
    sign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DyadicTree:
    """The protocol over d ``periods`` (a power of two) and at most k ``changes`` a user, for ε in millionths.

    A change beyond the k-th is ignored, by the client as by the fleet: it costs accuracy, never privacy.
    """

    periods: int
    changes: int
    epsilon_micro: int
    keep: Real = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        d = self.periods
        check_size(d, "the number of periods", least=1, most=MOST_PERIODS)
        if d & (d - 1):
            raise ProtocolError(f"the number of periods is a power of two up to {MOST_PERIODS}, not {d!r}")
        check_size(self.changes, "the number of changes of a user", least=1, most=d)
        object.__setattr__(self, "keep", symmetric(exp(epsilon(self.epsilon_micro) / 2)).p)

    @property
    def levels(self) -> int:
        """How many levels the tree has: log₂ d + 1. Leaves are level 1."""
        return self.periods.bit_length()

    @property
    def exact_epsilon(self) -> float:
        """What the whole sequence of reports reveals: ε/2, half of what Theorem 5 states.

        Two inputs give different laws to at most two nodes of the level that is reported, and where they are two
        nodes, each input is uniform on the other's. Enumeration attains it as soon as d ≥ 2k.
        """
        return float(epsilon(self.epsilon_micro)) / 2

    @property
    def gain(self) -> float:
        """c_ε = (e^(ε/2) + 1)/(e^(ε/2) − 1), by which randomized response shrinks a sign."""
        return 1 / math.tanh(float(epsilon(self.epsilon_micro)) / 4)

    @property
    def scale(self) -> float:
        """What a node's sum is multiplied by to be an unbiased count: c_ε·k·(log₂ d + 1)."""
        return self.gain * self.changes * self.levels

    def describe(self) -> dict[str, Any]:
        """Return the name and parameters."""
        return {
            "kind": "dyadic",
            "periods": self.periods,
            "changes": self.changes,
            "epsilon_micro": self.epsilon_micro,
        }

    def error_bound(self, users: int, beta: float) -> float:
        """Return what max |f̃_t − f_t| over all periods stays below with probability 1 − β.

        A user adds at most one ±1 to the nodes that cover [1, t], so Hoeffding's inequality and a union over periods
        give c_ε·k·(log₂ d + 1)·√(2n ln(2d/β)).
        """
        _check_error(users, beta)
        return self.scale * math.sqrt(2 * users * math.log(2 * self.periods / beta))

    def printed_error_bound(self, users: int, beta: float) -> float:
        """Return the last line of Theorem 6's proof: c_ε·k·(log₂ d)^(3/2)·√(n ln(2d/β)).

        With the true number of levels it follows from ``error_bound`` for d ≥ 16; below that it is not proved.
        """
        _check_error(users, beta)
        log = math.log2(self.periods)
        return self.gain * self.changes * log**1.5 * math.sqrt(users * math.log(2 * self.periods / beta))

    def client(self, bits: Bits | Draws) -> DyadicClient:
        """Return a new device: it picks the change and the level that it will report."""
        draws = as_draws(bits)
        state = [1 + draws.below(self.changes), 1 + draws.below(self.levels), 0, 0, 0, 0]
        return DyadicClient(self, draws, state)

    def restore(self, saved: bytes, bits: Bits | Draws) -> DyadicClient:
        """Return a device that goes on from a saved state."""
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
        """Return what many devices send over all periods, added up by node as ``node_index`` numbers them.

        ``states`` has a row of Booleans a user and a column a period.
        """
        if (
            not isinstance(states, np.ndarray)
            or states.dtype.kind not in "biu"
            or states.ndim != 2
            or states.shape[1] != self.periods
            or not bool(((states == 0) | (states == 1)).all())
        ):
            raise ReportError(f"a fleet's states are an array of 0 or 1, {self.periods} a user")
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


class DyadicClient:
    """One device, asked once a period; before the first period the state is 0."""

    def __init__(self, protocol: DyadicTree, draws: Draws, state: list[int]) -> None:
        self.protocol = protocol
        self._draws = draws
        self._change, self._level, self._seen, self._sign, self._period, self._held = state

    def report(self, held: bool) -> NodeReport | None:
        """Take the state of the next period; return the report that is due in it, or None (Algorithm 1, UPDATE)."""
        if not isinstance(held, bool | int | np.bool_ | np.integer) or held not in (0, 1):
            raise ReportError("a state is 0 or 1")
        if self._period >= self.protocol.periods:
            raise ReportError(f"all {self.protocol.periods} periods are over")
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

    def save(self) -> bytes:
        """Return the state as JSON."""
        state = (self._change, self._level, self._seen, self._sign, self._period, self._held)
        return save_state(self.protocol.describe(), dict(zip(_STATE, state, strict=True)))


class DyadicServer:
    """Adds up reports by node and estimates how many users hold the Boolean in each period (Algorithm 2)."""

    def __init__(self, protocol: DyadicTree) -> None:
        self.protocol = protocol
        self._sums = np.zeros(2 * protocol.periods, dtype=np.int64)

    def add(self, reports: Iterable[NodeReport]) -> None:
        """Take in reports of any clients and periods: all of them, or none where one is refused."""
        sent = as_list(reports, "reports")
        nodes = [self._node(report) for report in sent]
        for node, report in zip(nodes, sent, strict=True):
            self._sums[node] += report.sign

    def _node(self, report: NodeReport) -> int:
        """Return where a report is added, refusing one that no client sends."""
        d, levels = self.protocol.periods, self.protocol.levels
        if not isinstance(report, NodeReport) or not is_count(report.level, 1, levels):
            raise ReportError(f"no client of this protocol sends {shown(report)}")
        width = 1 << (report.level - 1)
        there = is_count(report.period, 1, d) and report.period % width == 0
        if not there or not is_count(report.sign, -1, 1) or report.sign == 0:
            raise ReportError(f"no client of this protocol sends {shown(report)}")
        return node_index(d, report.level, report.period // width)

    def add_sums(self, sums: NDArray[np.int64]) -> None:
        """Take in a fleet's sums by node."""
        if not isinstance(sums, np.ndarray) or sums.dtype.kind != "i" or sums.shape != self._sums.shape:
            raise ReportError(
                f"sums over {self.protocol.periods} periods are an array of {self._sums.size} signed whole numbers, "
                "as `fleet_sums` returns them"
            )
        self._sums += sums

    def estimate(self, period: int) -> float:
        """Return the unbiased estimate of how many users hold the Boolean in ``period``."""
        if not is_count(period, 1, self.protocol.periods):
            raise ReportError(f"periods are 1 to {self.protocol.periods}, not {shown(period)}")
        total = sum(int(self._sums[node_index(self.protocol.periods, *node)]) for node in cover(int(period)))
        return self.protocol.scale * total

    def estimates(self) -> NDArray[np.float64]:
        """Return the estimates of all periods."""
        return np.array([self.estimate(period) for period in range(1, self.protocol.periods + 1)])


def cover(period: int) -> list[tuple[int, int]]:
    """Return the nodes (level, number) whose leaves are exactly 1…period: one for each bit set in ``period``.

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
    """Return where a node's sum stands: as in a heap, the root at 1, leaves from ``periods`` on."""
    return (periods >> (level - 1)) + number - 1


def report_twin(
    states: list[list[int]], change: list[int], level: list[int], truthful: list[bool], coins: int, starts: list[int]
) -> list[int]:
    """Return the sums that ``report_kernel`` makes, a device at a time; ``coins`` has coin i in its bit i."""
    periods = len(states[0])
    sums = [0] * (2 * periods)
    for row, pick, height, honest, start in zip(states, change, level, truthful, starts, strict=True):
        changes = [(t, now - before) for t, (before, now) in enumerate(itertools.pairwise([0, *row])) if now != before]
        width = 1 << (height - 1)
        chosen = changes[pick - 1] if pick <= len(changes) else None
        for node in range(periods // width):
            if chosen is not None and chosen[0] // width == node:
                sign = chosen[1] if honest else -chosen[1]
            else:
                sign = 1 if coins >> (start + node) & 1 else -1
            sums[periods // width + node] += sign
    return sums


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
                place = starts[user] + node
                up = (coins[place >> 6] >> np.uint64(place & 63)) & np.uint64(1) != 0
            sums[nodes + node] += 1 if up else -1


def _check_error(users: int, beta: float) -> None:
    if not is_count(users, 1) or not is_chance(beta):
        raise ProtocolError(f"an error bound needs users and 0 < β < 1, not {shown(users)} and {shown(beta)}")
