"""Plans: split ε* over queries that overlap, so that each meets its target error and no report overspends.

A query line asks the same over windows of days (daily, weekly, rolling, once) and batches of reports. A report of one
day and batch pays for every window that contains it, so each such cell bounds a sum of ε, in any order of the queries
(Algorithm 1 of the Privacy Sandbox paper). Each target becomes the least ε that meets it, by exact comparisons.
A plan file is the TOML form of query lines; docs/requerying.md lists every field.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from aggservice.campaign.errors import CampaignError, CampaignFileError
from aggservice.files.settings import Known, amount, choice, choices, exact, flag, read_settings, text, texts, whole
from aggservice.files.toml import Section, read_text, read_toml
from aggservice.mechanisms import DiscreteLaplace, discovery_threshold
from budget.amounts import decimal_text

MICRO: Final = 10**6
ATTO: Final = 10**18
EPSILON_MAX_MICRO: Final = 64 * MICRO
"""The largest ε of one job."""
_COVERED: Final = Fraction(95, 100)
_FACTOR_STEPS: Final = 1000
_MOST: Final = 10**12
_STARVED: Final = 1000


class TargetKind(StrEnum):
    """The kind of error that a target bounds."""

    DEVIATION = "standard deviation"
    HALF_WIDTH = "95 % half-width"
    THRESHOLD = "release threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
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
    target: PlanTarget | None = None
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
class BudgetPlan:
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


def least_epsilon(target: PlanTarget, resources: BudgetLimits, delta_atto: int) -> int | None:
    """Return the least ε (in 10⁻⁶, in whole steps) whose noise meets ``target``; None if that is above 64."""
    meets = _meets(target, resources, delta_atto)
    step, most = resources.step_micro, EPSILON_MAX_MICRO // resources.step_micro
    if not meets(most * step):
        return None
    return step * (1 + bisect_left(range(1, most), True, key=lambda steps: meets(steps * step)))


def _meets(target: PlanTarget, resources: BudgetLimits, delta_atto: int) -> Callable[[int], bool]:
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


def make_plan(lines: Sequence[QueryLine], resources: BudgetLimits) -> BudgetPlan:
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
    return BudgetPlan(
        resources=resources,
        feasible=feasible,
        allotments=tuple(
            _allot(line, resources, spread[place], deltas[place], least[place]) for place, line in enumerate(lines)
        ),
        binding=BindingCell(
            day=binding[0][0], batch=binding[0][1], loads=dict(zip(names, binding[1], strict=True)), needed_micro=needed
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
        target = PlanTarget(measure=line.target.measure, most=line.target.most * factor)
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


KINDS = ("daily", "weekly", "rolling", "once", "drill-down")
"""A drill-down is one query, over some days and batches, for keys chosen from earlier answers."""
TARGETS: Final = {
    "relative_error": TargetKind.DEVIATION,
    "relative_half_width": TargetKind.HALF_WIDTH,
    "standard_deviation": TargetKind.DEVIATION,
    "half_width": TargetKind.HALF_WIDTH,
    "release_above": TargetKind.THRESHOLD,
}
"""The fields of a plan file that set a target; relative ones need a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """``[budget]`` of a plan file: the limits, and the contribution of one counted thing."""

    epsilon: Fraction = amount("ε* of a report", default=Fraction(64), convert=Fraction)
    delta: Fraction = amount(
        "δ* of a report", default=Fraction(1, 100_000), shown='"0.00001"', zero=True, convert=Fraction
    )
    l1: int = whole("Λ₁", default=65_536, least=1, most=1 << 32)
    l0: int = whole("Λ₀", default=lambda known: known.l1, shown="`l1`", least=1, most=lambda known: known.l1)
    value_per_count: Fraction = exact("the contribution of one counted thing", default=Fraction(1), above=0, most=_MOST)

    def check(self, section: Section, known: Known) -> None:
        """Refuse amounts that no ledger has."""
        if self.delta > 1:
            section.refuse("delta", f"is {self.delta}", 'Write delta = "0.00001": a probability')
        if not int(self.epsilon * MICRO):
            section.refuse("epsilon", "is below 10⁻⁶", 'Write epsilon = "64"')


def _target(says: str) -> Any:
    return exact(says, default=None, above=0, most=_MOST)


def _is_rolling(known: Known) -> bool:
    return bool(known.kind == "rolling")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """``[[queries]]`` of a plan file: a line of queries, which names the days from 1 on."""

    name: str = text("as it prints", example="daily")
    kind: str = choice("which windows of days; `drill-down` is once as well, usually over some days and batches", KINDS)
    from_day: int = whole("the first day", default=1, least=1, most=lambda known: known.days)
    to_day: int = whole(
        "the last day", default=lambda known: known.days, shown="`days`", least=1, most=lambda known: known.days
    )
    window_days: int = whole(
        "how long a rolling window is", default=7, least=1, most=lambda known: known.days, when=_is_rolling
    )
    every_days: int = whole(
        "how often a rolling window begins", default=1, least=1, most=lambda known: known.days, when=_is_rolling
    )
    batches: tuple[str, ...] = choices(
        "the batches that are asked about",
        lambda known: known.batches,
        default=lambda known: known.batches,
        shown="all",
        allowed="some of `batches`",
    )
    weight: Fraction = exact(
        "without a target: its share of the ε that is left", default=Fraction(1), above=0, most=10**6
    )
    discovery: bool = flag("find keys, which also pays δ")
    times: int = whole("how often each window is asked", default=1, least=1, most=1000)
    relative_error: Fraction | None = _target("target: the standard deviation over `at_count`")
    relative_half_width: Fraction | None = _target("target: the 95 % half-width over `at_count`")
    standard_deviation: Fraction | None = _target("target: the standard deviation, in counts")
    half_width: Fraction | None = _target("target: the 95 % half-width, in counts")
    release_above: Fraction | None = _target("target of discovery: the count from which a key is released")
    at_count: int | None = whole("the count of a relative target", default=None, least=1, most=_MOST)

    def check(self, section: Section, known: Known) -> None:
        """Refuse days in the wrong order, and targets that do not fit together."""
        if not self.from_day <= self.to_day:
            remedy = f"Write a day from {self.from_day} to {known.days}"
            section.refuse("to_day", f"is {self.to_day}, before from_day", remedy)
        if not self.windows:
            problem = f"needs {self._steps[0]} days, and there are {self.to_day - self.from_day + 1}"
            section.refuse("kind", problem, "Write more days, or a shorter window")
        given = [name for name in section.values if name in TARGETS]
        if len(given) > 1:
            section.refuse(given[1], f"and {given[0]} are both targets", "Write one of them")
        relative = bool(given) and given[0].startswith("relative")
        if relative and self.at_count is None:
            section.missing("at_count", "Write at_count = 1")
        if self.at_count is not None and not given:
            section.refuse("at_count", "has no target beside it", 'Write relative_error = "0.05" as well')
        if self.at_count is not None and not relative:
            section.refuse("at_count", f"has no meaning beside {given[0]}", "Leave it out, or write relative_error")
        if self.release_above is not None and not self.discovery:
            section.refuse("release_above", "is for key discovery", "Write discovery = true as well")

    @property
    def _steps(self) -> tuple[int, int]:
        """The length of a window, and the days from one to the next."""
        days = self.to_day - self.from_day + 1
        rolling = self.window_days, self.every_days
        return {"daily": (1, 1), "weekly": (7, 7), "rolling": rolling}.get(self.kind, (days, days))

    @property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """The windows of days, counted from 0."""
        length, every = self._steps
        return tuple((start, start + length) for start in range(self.from_day - 1, self.to_day - length + 1, every))

    def line(self, value_per_count: Fraction) -> QueryLine:
        """Return the line, with its target in the unit of contributions."""
        target = None
        for name, measure in TARGETS.items():
            if (most := getattr(self, name)) is not None:
                target = PlanTarget(measure=measure, most=most * (self.at_count or 1) * value_per_count)
        return QueryLine(
            name=self.name,
            windows=self.windows * self.times,
            batches=frozenset(self.batches),
            target=target,
            discovery=self.discovery,
            weight=self.weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan file: its query lines, the limits, and the contribution of one counted thing."""

    title: str = text("as it prints", default="Plan")
    days: int = whole("how many days there are", least=1, most=3660)
    batches: tuple[str, ...] = texts(
        "names of sets of reports that can be asked about apart, such as destinations", default=("all",)
    )
    lines: tuple[QueryLine, ...]
    resources: BudgetLimits
    value_per_count: Fraction


def load_plan(path: Path) -> PlanFile:
    """Read a plan file; refuse a bad one with its line and what to write instead."""
    text = read_text(path, remedy="examples/requerying/plan/ has one", error=CampaignFileError)
    return parse_plan(text, file=str(path))


def parse_plan(text: str, *, file: str = "plan") -> PlanFile:
    """Read a plan from its text."""
    top = read_toml(text, file=file, error=CampaignFileError)
    budget, queries = read_settings(top.section("budget"), BudgetSettings), top.sections("queries")
    resources = BudgetLimits(
        epsilon_micro=int(budget.epsilon * MICRO), delta_atto=int(budget.delta * ATTO), l1=budget.l1, l0=budget.l0
    )
    asked = read_settings(top, PlanFile, lines=(), resources=resources, value_per_count=budget.value_per_count)
    lines: list[QueryLine] = []
    for section in queries:
        line = read_settings(section, LineSettings, Known(days=asked.days, batches=asked.batches))
        if line.name in {one.name for one in lines}:
            section.refuse("name", f"is {line.name!r} again", "Give each line of queries a name of its own")
        lines.append(line.line(budget.value_per_count))
    if not lines:
        top.refuse("queries", "is missing", 'Write [[queries]] with name and kind = "daily"')
    return replace(asked, lines=tuple(lines))


def plan_to_plain(asked: PlanFile, plan: BudgetPlan) -> dict[str, Any]:
    """Return a plan as plain values: errors in counts, amounts as decimal text."""
    value = asked.value_per_count
    return {
        "title": asked.title,
        "feasible": plan.feasible,
        "epsilon": decimal_text(plan.resources.epsilon_micro, 6),
        "most_spent_by_a_report": decimal_text(plan.spent_micro, 6),
        "queries": [
            {
                "name": one.line.name,
                "jobs": len(one.line.windows),
                "epsilon": decimal_text(one.epsilon_micro, 6),
                "delta": decimal_text(one.delta_atto, 18),
                "least_epsilon": None if one.least_micro is None else decimal_text(one.least_micro, 6),
                "standard_deviation": float(f"{one.deviation / float(value):.9g}"),
                "half_width_95": float(f"{one.half_width / float(value):.9g}"),
                "release_above": None if one.threshold is None else float(f"{one.threshold / float(value):.9g}"),
                "target": None
                if one.line.target is None
                else {"measure": one.line.target.measure.value, "most": float(one.line.target.most / value)},
                "met": one.met,
            }
            for one in plan.allotments
        ],
        "binding": {
            "day": plan.binding.day + 1,
            "batch": plan.binding.batch,
            "queries": dict(plan.binding.loads),
            "needs_epsilon": decimal_text(plan.binding.needed_micro, 6),
        },
        "needed_epsilon": None if plan.needed_micro is None else decimal_text(plan.needed_micro, 6),
        "factor": None if plan.factor is None else float(plan.factor),
    }


def feasibility_text(plan: BudgetPlan) -> str:
    """Return a sentence that says whether the targets can be met, and if not, why and by how much."""
    starved = [
        repr(one.line.name)
        for one in plan.allotments
        if one.line.target is None and _STARVED * one.epsilon_micro < plan.resources.epsilon_micro
    ]
    text = _verdict(plan)
    if starved:
        text += f" Without a target, {', '.join(starved)} gets only the rest, almost nothing: give it a target."
    return text


def _verdict(plan: BudgetPlan) -> str:
    cell, total = plan.binding, decimal_text(plan.resources.epsilon_micro, 6)
    where = f"a report of day {cell.day + 1} in batch {cell.batch!r}"
    loads = ", ".join(f"{load} of {name!r}" for name, load in cell.loads.items() if load)
    if plan.feasible:
        spent = f"Every target is met. No report spends more than ε = {decimal_text(plan.spent_micro, 6)} of {total}"
        return f"{spent}; the one whose targets need most is {where}: {loads}."
    unreachable = [one.line.name for one in plan.allotments if one.least_micro is None]
    if unreachable:
        reason = f"no job of ε up to 64 meets the target of {', '.join(map(repr, unreachable))}"
    else:
        over = decimal_text(cell.needed_micro - plan.resources.epsilon_micro, 6)
        reason = f"{where} is in {loads}, which need ε = {decimal_text(cell.needed_micro, 6)}, {over} more than {total}"
    if plan.factor is None:
        return f"The targets cannot be met: {reason}; no larger error helps either."
    return (
        f"The targets cannot be met: {reason}. With errors {float(plan.factor):g} times as large they can; "
        "the amounts above are of that plan."
    )
