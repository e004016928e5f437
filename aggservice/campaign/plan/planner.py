"""How to split ε* over queries that overlap, so that each is as exact as asked and no report pays more than it has.

A query line asks the same thing over windows of days (daily, weekly, rolling, once) and batches of reports. A report of
one day in one batch pays for every window that holds it, so each such cell bounds a sum of ε, whatever the order of the
queries (Algorithm 1). Targets turn into the least ε that meets them, by exact comparisons; amounts are whole steps.
"""

from __future__ import annotations

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


class Measure(StrEnum):
    """What a target bounds."""

    DEVIATION = "standard deviation"
    HALF_WIDTH = "95 % half-width"
    THRESHOLD = "release threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An error that is good enough: ``measure`` at most ``most``, in the unit of contributions."""

    measure: Measure
    most: Fraction

    def __post_init__(self) -> None:
        if not self.most > 0:
            raise CampaignError("a target error is above 0: noise cannot be avoided")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLine:
    """One line of queries: its windows of days [first, end), its batches, and the error that is good enough.

    ``discovery`` queries also pay δ. Without a target a line takes its share, by ``weight``, of what is left.
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
        if self.target and self.target.measure is Measure.THRESHOLD and not self.discovery:
            raise CampaignError(f"{self.name}: only key discovery has a threshold")
        if not self.weight > 0:
            raise CampaignError(f"{self.name}: a weight is above 0")

    def load(self, day: int, batch: str) -> int:
        """Return how many of this line's queries a report of that day and batch is in."""
        if batch not in self.batches:
            return 0
        return sum(first <= day < end for first, end in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What there is: ε* in 10⁻⁶ and δ* in 10⁻¹⁸ a report, Λ₁ and Λ₀, and the step of proposed ε in 10⁻⁶."""

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
            raise CampaignError("ε* is at least a step, a step at most 64, δ* from 0 to 1, and 1 ≤ Λ₀ ≤ Λ₁")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What a line gets for each of its queries, and the error that follows. ``least_micro`` is what its target needs.

    ``least_micro`` is 0 without a target and None when no job, however dear, meets it.
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
class Cell:
    """Reports of one day and batch that bind: how many queries of each line they are in, and the ε that needs."""

    day: int
    batch: str
    loads: Mapping[str, int]
    needed_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A proposal that no report overspends by. ``feasible`` says whether every target is met.

    When not: ``binding`` needs more than ε*, ``needed_micro`` is the ε* that would do (None: none would), and
    ``factor`` how many times as large all target errors must be for a plan to exist (in thousandths, rounded up); the
    allotments are then of that plan, or of an even split when no factor helps.
    """

    resources: Resources
    feasible: bool
    allotments: tuple[Allotment, ...]
    binding: Cell
    spent_micro: int
    needed_micro: int | None
    factor: Fraction | None


def least_epsilon(target: Target, resources: Resources, delta_atto: int) -> int | None:
    """Return the least ε (in 10⁻⁶, a whole number of steps) whose noise meets ``target``; None above ε = 64."""
    meets = _meets(target, resources, delta_atto)
    low, high = 0, EPSILON_MAX_MICRO // resources.step_micro
    if not meets(high * resources.step_micro):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle * resources.step_micro):
            high = middle
        else:
            low = middle
    return high * resources.step_micro


def _meets(target: Target, resources: Resources, delta_atto: int) -> Callable[[int], bool]:
    """Return whether noise of an ε meets the target, by exact comparison; true for all larger ε once true."""

    def deviation(micro: int) -> bool:
        variance = DiscreteLaplace(epsilon_micro=micro, sensitivity=resources.l1).variance()
        return variance.compare(target.most**2) <= 0

    def half_width(micro: int) -> bool:
        noise = DiscreteLaplace(epsilon_micro=micro, sensitivity=resources.l1)
        width = int(target.most)
        return (noise.cdf(width) - noise.cdf(-width - 1)).compare(_COVERED) >= 0

    def threshold(micro: int) -> bool:
        if not delta_atto:
            return False
        tau = discovery_threshold(epsilon_micro=micro, delta_atto=delta_atto, l0=resources.l0, l1=resources.l1)
        return tau <= target.most

    by_measure = {Measure.DEVIATION: deviation, Measure.HALF_WIDTH: half_width, Measure.THRESHOLD: threshold}
    return by_measure[target.measure]


def make_plan(lines: Sequence[QueryLine], resources: Resources) -> Plan:
    """Propose a split: each line its least ε, then what is left in proportion, until some report would overspend."""
    names = [line.name for line in lines]
    if not lines or len(set(names)) != len(names):
        raise CampaignError("a plan needs query lines with distinct names")
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
        binding=Cell(
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
    """Return the cells with distinct loads: loads change only where a window begins or ends."""
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


def _deltas(lines: Sequence[QueryLine], cells: _Cells, resources: Resources) -> list[int]:
    """Return δ for each query: an even share of δ* where discovery queries overlap most, whole 10⁻¹⁸."""
    asking = [int(line.discovery) for line in lines]
    most = max(_sum(loads, asking) for _, loads in cells)
    share = resources.delta_atto // most if most else 0
    if most and not share:
        raise CampaignError(f"a report is in {most} queries that discover keys, and no δ is left for each: give more δ")
    return [share if line.discovery else 0 for line in lines]


def _least(
    lines: Sequence[QueryLine], resources: Resources, deltas: Sequence[int], factor: Fraction
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
    lines: Sequence[QueryLine], cells: _Cells, resources: Resources, deltas: Sequence[int]
) -> tuple[Fraction | None, list[int]]:
    """Return the least factor on all target errors that makes a plan exist, and the ε that it needs."""

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
    while high - low > 1:
        middle = (low + high) // 2
        if needs(middle) is None:
            low = middle
        else:
            high = middle
    found = needs(high)
    assert found is not None
    return Fraction(high, _FACTOR_STEPS), found


def _fill(lines: Sequence[QueryLine], cells: _Cells, resources: Resources, floor: Sequence[int]) -> list[int]:
    """Raise all lines from ``floor`` in proportion to what they need, each until a cell of its own is full.

    Progressive filling with exact fractions; the result is rounded down to whole steps, so no cell can overspend.
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


def _allot(line: QueryLine, resources: Resources, epsilon_micro: int, delta_atto: int, least: int | None) -> Allotment:
    if epsilon_micro == 0:
        raise CampaignError(
            f"{line.name}: so many queries overlap that not even {resources.step_micro}·10⁻⁶ of ε is left for each: "
            "ask fewer of them"
        )
    noise = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=resources.l1)
    met = line.target is None or _meets(line.target, resources, delta_atto)(epsilon_micro)
    tau = None
    if line.discovery and delta_atto:
        tau = discovery_threshold(epsilon_micro=epsilon_micro, delta_atto=delta_atto, l0=resources.l0, l1=resources.l1)
    return Allotment(
        line=line,
        epsilon_micro=epsilon_micro,
        delta_atto=delta_atto,
        least_micro=least if line.target else 0,
        met=met,
        deviation=float(noise.variance()) ** 0.5,
        half_width=_half_width(noise),
        threshold=tau,
    )


def _half_width(noise: DiscreteLaplace) -> int:
    """Return the least h with P[|noise| ≤ h] ≥ 0.95."""
    low, high = -1, max(1, noise.quantile(Fraction(975, 1000)))
    while high - low > 1:
        middle = (low + high) // 2
        if (noise.cdf(middle) - noise.cdf(-middle - 1)).compare(_COVERED) >= 0:
            high = middle
        else:
            low = middle
    return high
