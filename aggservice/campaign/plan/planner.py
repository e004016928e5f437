"""Splits ε* over queries that overlap, so that each meets its target error and no report pays more than it has.

A query line asks the same over windows of days (daily, weekly, rolling, once) and batches of reports. A report of one
day and batch pays for every window that contains it, so each such cell bounds a sum of ε, in any order of the queries
(Algorithm 1 of the Privacy Sandbox paper). Each target becomes the least ε that meets it, by exact comparisons.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate
from typing import Final

from aggservice.campaign.errors import CampaignError
from aggservice.mechanisms import DiscreteLaplace, discovery_threshold

MICRO: Final = 10**6
ATTO: Final = 10**18
EPSILON_MAX_MICRO: Final = 64 * MICRO
"""The largest ε of one job."""
_COVERED: Final = Fraction(95, 100)
_FACTOR_STEPS: Final = 1000


class TargetKind(StrEnum):
    """The kind of error that a target bounds."""

    DEVIATION = "standard deviation"
    HALF_WIDTH = "95 % half-width"
    THRESHOLD = "release threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target error: ``measure`` must be at most ``most``, in contribution units."""

    measure: TargetKind
    most: Fraction

    def __post_init__(self) -> None:
        if not self.most > 0:
            raise CampaignError("a target error must be above 0: noise cannot be avoided")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLine:
    """One line of queries: its windows of days [first, end), its batches and its target error.

    ``discovery`` queries also pay δ. A line without a target gets its share, by ``weight``, of the ε that is left.
    """

    name: str
    windows: tuple[tuple[int, int], ...]
    batches: frozenset[str]
    target: Target | None = None
    discovery: bool = False
    weight: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if not self.windows or not all(first < end for first, end in self.windows):
            raise CampaignError(f"{self.name}: a query needs windows of at least one day")
        if not self.batches:
            raise CampaignError(f"{self.name}: a query needs at least one batch of reports")
        if self.target and self.target.measure is TargetKind.THRESHOLD and not self.discovery:
            raise CampaignError(f"{self.name}: only key discovery has a threshold")
        if not self.weight > 0:
            raise CampaignError(f"{self.name}: a weight must be above 0")

    def load(self, day: int, batch: str) -> int:
        """Return how many of this line's queries contain a report of that day and batch."""
        if batch not in self.batches:
            return 0
        return sum(first <= day < end for first, end in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """The limits per report: ε* in 10⁻⁶ and δ* in 10⁻¹⁸; Λ₁ and Λ₀; and the step of proposed ε in 10⁻⁶."""

    epsilon_micro: int
    delta_atto: int
    l1: int = 65_536
    l0: int = 65_536
    step_micro: int = 1

    def __post_init__(self) -> None:
        if not (
            self.epsilon_micro >= self.step_micro >= 1
            and self.step_micro <= EPSILON_MAX_MICRO
            and 0 <= self.delta_atto <= ATTO
            and 1 <= self.l0 <= self.l1
        ):
            raise CampaignError(
                "a limit is out of range: choose a step of at most 64, ε* of at least one step, δ* from 0 to 1, "
                "and 1 ≤ Λ₀ ≤ Λ₁"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAllocation:
    """The ε and δ of each query of a line, and the resulting error. ``least_micro`` is the ε that its target needs:
    0 without a target, None if even the largest ε of a job misses it.
    """

    line: QueryLine
    epsilon_micro: int
    delta_atto: int
    least_micro: int | None
    met: bool
    deviation: float
    half_width: int
    threshold: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingCell:
    """The reports of one day and batch that need the most: the number of queries per line that contain them, and the
    total ε those queries need.
    """

    day: int
    batch: str
    loads: Mapping[str, int]
    needed_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A proposal under which no report overspends. ``feasible`` says whether every target is met.

    If not, ``binding`` needs more than ε*; ``needed_micro`` is an ε* that would be enough (None if none is); and
    ``factor`` (in thousandths, rounded up) is how many times larger all target errors must be for a plan to exist. The
    allotments are then those of that plan, or an even split if no factor helps.
    """

    resources: BudgetLimits
    feasible: bool
    allotments: tuple[QueryAllocation, ...]
    binding: BindingCell
    spent_micro: int
    needed_micro: int | None
    factor: Fraction | None


def least_epsilon(target: Target, resources: BudgetLimits, delta_atto: int) -> int | None:
    """Return the least ε (in 10⁻⁶, in whole steps) whose noise meets ``target``; None if that is above 64."""
    meets = _meets(target, resources, delta_atto)
    step, most = resources.step_micro, EPSILON_MAX_MICRO // resources.step_micro
    if not meets(most * step):
        return None
    return step * (1 + bisect_left(range(1, most), True, key=lambda steps: meets(steps * step)))


def _meets(target: Target, resources: BudgetLimits, delta_atto: int) -> Callable[[int], bool]:
    """Return an exact test of whether the noise at an ε meets the target; if it does, it does at every larger ε."""

    def deviation(micro: int) -> bool:
        variance = DiscreteLaplace(epsilon_micro=micro, sensitivity=resources.l1).variance()
        return variance.compare(target.most**2) <= 0

    def half_width(micro: int) -> bool:
        noise = DiscreteLaplace(epsilon_micro=micro, sensitivity=resources.l1)
        width = int(target.most)
        return noise.cdf(width) - noise.cdf(-width - 1) >= _COVERED

    def threshold(micro: int) -> bool:
        if not delta_atto:
            return False
        tau = discovery_threshold(epsilon_micro=micro, delta_atto=delta_atto, l0=resources.l0, l1=resources.l1)
        return tau <= target.most

    by_measure = {TargetKind.DEVIATION: deviation, TargetKind.HALF_WIDTH: half_width, TargetKind.THRESHOLD: threshold}
    return by_measure[target.measure]


def make_plan(lines: Sequence[QueryLine], resources: BudgetLimits) -> Plan:
    """Propose a split: the least ε for each line, then the rest in proportion until some report would overspend."""
    names = [line.name for line in lines]
    if not lines or len(set(names)) != len(names):
        raise CampaignError(
            "there are no query lines, or two have the same name: give at least one, each with its own name"
        )
    cells = _cells(lines)
    deltas = _deltas(lines, cells, resources)
    least = _least(lines, resources, deltas, Fraction(1))
    known = [0 if one is None else one for one in least]
    binding = max(cells, key=lambda cell: _sum(cell[1], known))
    needed = _sum(binding[1], known)
    possible = None not in least
    feasible = possible and needed <= resources.epsilon_micro
    factor: Fraction | None = Fraction(1)
    floor = known
    if not feasible:
        factor, floor = _relaxed(lines, cells, resources, deltas)
    spread = _fill(lines, cells, resources, floor)
    return Plan(
        resources=resources,
        feasible=feasible,
        allotments=tuple(
            _allot(line, resources, spread[place], deltas[place], least[place]) for place, line in enumerate(lines)
        ),
        binding=BindingCell(
            day=binding[0][0],
            batch=binding[0][1],
            loads=dict(zip(names, binding[1], strict=True)),
            needed_micro=needed,
        ),
        spent_micro=max(_sum(loads, spread) for _, loads in cells),
        needed_micro=needed if possible else None,
        factor=factor,
    )


_Cells = list[tuple[tuple[int, str], tuple[int, ...]]]


def _cells(lines: Sequence[QueryLine]) -> _Cells:
    """Return one cell per distinct load; loads change only where a window begins or ends."""
    edges = sorted({edge for line in lines for window in line.windows for edge in window})
    batches = sorted({batch for line in lines for batch in line.batches})
    under_way = []
    for line in lines:
        begun, ended = (Counter(window[side] for window in line.windows) for side in (0, 1))
        under_way.append(list(accumulate(begun[day] - ended[day] for day in edges)))
    found: dict[tuple[int, ...], tuple[int, str]] = {}
    for place, day in enumerate(edges[:-1]):
        for batch in batches:
            loads = tuple(
                count[place] if batch in line.batches else 0 for line, count in zip(lines, under_way, strict=True)
            )
            if any(loads):
                found.setdefault(loads, (day, batch))
    return [(place, loads) for loads, place in found.items()]


def _sum(loads: Sequence[int], amounts: Sequence[int]) -> int:
    return sum(load * amount for load, amount in zip(loads, amounts, strict=True))


def _deltas(lines: Sequence[QueryLine], cells: _Cells, resources: BudgetLimits) -> list[int]:
    """Return δ per query: an even share of δ* where most discovery queries overlap, in whole 10⁻¹⁸."""
    asking = [int(line.discovery) for line in lines]
    most = max(_sum(loads, asking) for _, loads in cells)
    share = resources.delta_atto // most if most else 0
    if most and not share:
        raise CampaignError(
            f"a report is in {most} queries that discover keys, and δ* is too small to divide: give more δ"
        )
    return [share if line.discovery else 0 for line in lines]


def _least(
    lines: Sequence[QueryLine], resources: BudgetLimits, deltas: Sequence[int], factor: Fraction
) -> list[int | None]:
    found: list[int | None] = []
    for line, delta in zip(lines, deltas, strict=True):
        if line.target is None:
            found.append(resources.step_micro)  # every query costs something
            continue
        target = Target(measure=line.target.measure, most=line.target.most * factor)
        found.append(least_epsilon(target, resources, delta))
    return found


def _relaxed(
    lines: Sequence[QueryLine], cells: _Cells, resources: BudgetLimits, deltas: Sequence[int]
) -> tuple[Fraction | None, list[int]]:
    """Return the least factor on all target errors for which a plan exists, and its ε per line."""

    def needs(thousandths: int) -> list[int] | None:
        least = _least(lines, resources, deltas, Fraction(thousandths, _FACTOR_STEPS))
        known = [one for one in least if one is not None]
        if len(known) < len(least) or any(_sum(loads, known) > resources.epsilon_micro for _, loads in cells):
            return None
        return known

    high = 2 * _FACTOR_STEPS
    while needs(high) is None:
        high *= 2
        if high > _FACTOR_STEPS << 40:
            return None, [0] * len(lines)
    low = high // 2
    least = low + bisect_left(range(low, high), True, key=lambda thousandths: needs(thousandths) is not None)
    found = needs(least)
    assert found is not None
    return Fraction(least, _FACTOR_STEPS), found


def _fill(lines: Sequence[QueryLine], cells: _Cells, resources: BudgetLimits, floor: Sequence[int]) -> list[int]:
    """Raise all lines from ``floor`` in proportion to their need, each until one of its cells is full.

    This is progressive filling with exact fractions, rounded down to whole steps, so no cell can overspend.
    """
    typical = max((amount for line, amount in zip(lines, floor, strict=True) if line.target), default=1) or 1
    rates = [
        (Fraction(amount) if line.target and amount else Fraction(typical)) * line.weight
        for line, amount in zip(lines, floor, strict=True)
    ]
    amounts = [Fraction(amount) for amount in floor]
    free = set(range(len(lines)))
    while free:
        room = [(EPSILON_MAX_MICRO - amounts[one]) / rates[one] for one in free]
        for _, loads in cells:
            rising = sum((loads[one] * rates[one] for one in free), Fraction(0))
            if rising:
                used = sum((load * amount for load, amount in zip(loads, amounts, strict=True)), Fraction(0))
                room.append((resources.epsilon_micro - used) / rising)
        step = max(min(room), Fraction(0))
        for one in free:
            amounts[one] += step * rates[one]
        full = {one for one in free if amounts[one] >= EPSILON_MAX_MICRO}
        for _, loads in cells:
            used = sum((load * amount for load, amount in zip(loads, amounts, strict=True)), Fraction(0))
            if used >= resources.epsilon_micro:
                full |= {one for one in free if loads[one]}
        free -= full
    return [int(amount) // resources.step_micro * resources.step_micro for amount in amounts]


def _allot(
    line: QueryLine, resources: BudgetLimits, epsilon_micro: int, delta_atto: int, least: int | None
) -> QueryAllocation:
    if epsilon_micro == 0:
        raise CampaignError(
            f"{line.name}: too many queries overlap to give each ε = {resources.step_micro}·10⁻⁶: ask fewer of them"
        )
    noise = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=resources.l1)
    met = line.target is None or _meets(line.target, resources, delta_atto)(epsilon_micro)
    tau = None
    if line.discovery and delta_atto:
        tau = discovery_threshold(epsilon_micro=epsilon_micro, delta_atto=delta_atto, l0=resources.l0, l1=resources.l1)
    return QueryAllocation(
        line=line,
        epsilon_micro=epsilon_micro,
        delta_atto=delta_atto,
        least_micro=least if line.target else 0,
        met=met,
        deviation=float(noise.variance()) ** 0.5,
        half_width=noise.half_width(),
        threshold=tau,
    )
