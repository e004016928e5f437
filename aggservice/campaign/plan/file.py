"""Reads plan files, the TOML form of query lines, and shows plans. docs/requerying.md lists every field."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from aggservice.campaign.errors import CampaignError, CampaignFileError
from aggservice.campaign.plan.planner import MICRO, BudgetLimits, Plan, QueryLine, Target, TargetKind
from aggservice.files.toml import Section, read_text, read_toml
from budget.amounts import decimal_text

KINDS = ("daily", "weekly", "rolling", "once", "drill-down")
"""A drill-down is one query, over some days and batches, for keys chosen from earlier answers."""
TARGETS = ("relative_error", "relative_half_width", "standard_deviation", "half_width", "release_above")
_MAX_DAYS = 3660
_MAX = Fraction(10**12)
_STARVED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan file: its query lines, the limits, and the contribution of one counted thing."""

    title: str
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
    title = top.text("title", "Plan")
    days = top.whole("days", None, least=1, most=_MAX_DAYS)
    batches = top.texts("batches", ("all",))
    budget = top.section("budget")
    epsilon = Fraction(budget.amount("epsilon", "64"))
    delta = Fraction(budget.amount("delta", "0.00001", zero=True))
    if delta > 1:
        budget.refuse("delta", f"is {delta}", 'Write delta = "0.00001": a probability')
    l1 = budget.whole("l1", 65_536, least=1, most=1 << 32)
    resources = BudgetLimits(
        epsilon_micro=int(epsilon * MICRO) or budget.refuse("epsilon", "is below 10⁻⁶", 'Write epsilon = "64"'),
        delta_atto=int(delta * 10**18),
        l1=l1,
        l0=budget.whole("l0", l1, least=1, most=l1),
    )
    value = budget.exact("value_per_count", Fraction(1), above=Fraction(0), most=_MAX)
    budget.done()
    lines: list[QueryLine] = []
    for section in top.sections("queries"):
        line = _line(section, days, batches, value)
        if line.name in {one.name for one in lines}:
            section.refuse("name", f"is {line.name!r} again", "Give each line of queries a name of its own")
        lines.append(line)
    if not lines:
        top.refuse("queries", "is missing", 'Write [[queries]] with name and kind = "daily"')
    top.done()
    return PlanFile(title=title, lines=tuple(lines), resources=resources, value_per_count=value)


def _line(section: Section, days: int, batches: tuple[str, ...], value: Fraction) -> QueryLine:
    name = section.text("name", example="daily")
    windows = _windows(section, days)
    own = frozenset(section.choices("batches", batches, batches))
    weight = section.exact("weight", Fraction(1), above=Fraction(0), most=Fraction(10**6))
    discovery = section.flag("discovery", False)
    target = _target(section, value)
    if target and target.measure is TargetKind.THRESHOLD and not discovery:
        section.refuse("release_above", "is for key discovery", "Write discovery = true as well")
    times = section.whole("times", 1, least=1, most=1000)
    try:
        line = QueryLine(
            name=name,
            windows=windows * times,
            batches=own,
            target=target,
            discovery=discovery,
            weight=weight,
        )
    except CampaignError as problem:
        section.refuse("", f"cannot be planned: {problem}", "Correct the line that the message names")
    section.done()
    return line


def _windows(section: Section, days: int) -> tuple[tuple[int, int], ...]:
    """Return the windows of days of a line, counted from 0; the file counts from 1."""
    kind = section.choice("kind", KINDS)
    first = section.whole("from_day", 1, least=1, most=days) - 1
    end = section.whole("to_day", days, least=1, most=days)
    if not first < end:
        section.refuse("to_day", f"is {end}, before from_day", f"Write a day from {first + 1} to {days}")
    length, every = {"daily": (1, 1), "weekly": (7, 7)}.get(kind, (end - first, end - first))
    if kind == "rolling":
        length = section.whole("window_days", 7, least=1, most=days)
        every = section.whole("every_days", 1, least=1, most=days)
    windows = tuple((start, start + length) for start in range(first, end - length + 1, every))
    if not windows:
        problem = f"needs {length} days, and there are {end - first}"
        section.refuse("kind", problem, "Write more days, or a shorter window")
    return windows


def _target(section: Section, value: Fraction) -> Target | None:
    """Return the target in the unit of contributions; counts become contributions by ``value_per_count``."""
    for name in TARGETS:
        section.take(name)
    given = [name for name in section.values if name in TARGETS]
    if len(given) > 1:
        section.refuse(given[1], f"and {given[0]} are both targets", "Write one of them")
    if not given:
        if section.take("at_count") is not None:
            section.refuse("at_count", "has no target beside it", 'Write relative_error = "0.05" as well')
        return None
    name = given[0]
    if not name.startswith("relative") and section.take("at_count") is not None:
        section.refuse("at_count", f"has no meaning beside {name}", "Leave it out, or write relative_error")
    most = section.exact(name, Fraction(1), above=Fraction(0), most=_MAX)
    if name.startswith("relative"):
        most *= section.whole("at_count", None, least=1, most=10**12)
    measure = {
        "relative_error": TargetKind.DEVIATION,
        "standard_deviation": TargetKind.DEVIATION,
        "relative_half_width": TargetKind.HALF_WIDTH,
        "half_width": TargetKind.HALF_WIDTH,
        "release_above": TargetKind.THRESHOLD,
    }[name]
    return Target(measure=measure, most=most * value)


def plan_to_plain(asked: PlanFile, plan: Plan) -> dict[str, Any]:
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


def feasibility_text(plan: Plan) -> str:
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


def _verdict(plan: Plan) -> str:
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
