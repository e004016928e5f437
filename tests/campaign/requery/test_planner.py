"""Plans: never overspent on a real ledger, and feasible exactly when brute force finds a split."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.campaign import BudgetPlan, CampaignError, make_plan
from aggservice.campaign.plan import BudgetLimits, PlanTarget, QueryLine, TargetKind, least_epsilon
from aggservice.campaign.service.config import memory_ledger
from aggservice.mechanisms import DiscreteLaplace, ManualClock, SeededBits
from budget import (
    BudgetExhaustedError,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    Sensitivity,
    Terms,
)
from budget import Delta as BudgetDelta
from budget import Epsilon as BudgetEpsilon

BATCHES = ("shop", "outlet")


def daily(days: int) -> tuple[tuple[int, int], ...]:
    return tuple((day, day + 1) for day in range(days))


def rolling(days: int, length: int, every: int = 1) -> tuple[tuple[int, int], ...]:
    return tuple((first, first + length) for first in range(0, days - length + 1, every))


def everywhere(name: str, windows: tuple[tuple[int, int], ...], target: PlanTarget | None = None) -> QueryLine:
    return QueryLine(name=name, windows=windows, batches=frozenset(BATCHES), target=target)


def at_most(most: int | Fraction, measure: TargetKind = TargetKind.DEVIATION) -> PlanTarget:
    return PlanTarget(measure=measure, most=Fraction(most))


def charge(plan: BudgetPlan) -> Ledger:
    """Charge a real ledger for every query of the plan over one report a day and batch; raises if any cannot pay."""
    ledger = memory_ledger(
        EpsilonDeltaFilter(epsilon_micro=plan.resources.epsilon_micro, delta_atto=plan.resources.delta_atto),
        Terms(bounds={"any": Sensitivity()}),
        clock=ManualClock(0),
        bits=SeededBits("plan"),
    )
    for one in plan.allotments:
        epsilon = BudgetEpsilon(micro=one.epsilon_micro)
        mechanism = LaplaceNoise(epsilon=epsilon)
        if one.line.discovery:
            mechanism = LaplaceDiscovery(epsilon=epsilon, delta=BudgetDelta(atto=one.delta_atto))  # type: ignore[assignment]
        for place, (first, end) in enumerate(one.line.windows):
            units = [
                day.to_bytes(4, "big") + batch.encode().ljust(16, b"\0")
                for day in range(first, end)
                for batch in sorted(one.line.batches)
            ]
            ledger.commit(
                job=JobKey(caller="planner", job_id=f"{one.line.name} {place}"),
                request_digest=bytes(32),
                release=ledger.terms.release(mechanism, covers={"any": 1}),
                units=np.frombuffer(b"".join(sorted(units)), dtype=np.uint8).reshape(-1, 20),
                result=b"",
            )
    return ledger


def test_daily_weekly_and_rolling_share_epsilon() -> None:
    windows = {"daily": daily(28), "weekly": rolling(28, 7, 7), "rolling": rolling(28, 7)}
    lines = [everywhere(name, of) for name, of in windows.items()]
    plan = make_plan(lines, BudgetLimits(epsilon_micro=64_000_000, delta_atto=0))
    # A report of a middle day is in 1 daily, 1 weekly and 7 rolling queries: nine equal parts of 64.
    assert [one.epsilon_micro for one in plan.allotments] == [64_000_000 // 9] * 3
    assert plan.feasible and plan.factor == 1 and plan.spent_micro <= 64_000_000
    assert dict(plan.binding.loads) == {"daily": 1, "weekly": 1, "rolling": 7}
    ledger = charge(plan)
    with pytest.raises(BudgetExhaustedError):
        ledger.commit(
            job=JobKey(caller="planner", job_id="one more"),
            request_digest=bytes(32),
            release=ledger.terms.release(LaplaceNoise(epsilon=BudgetEpsilon(micro=10)), covers={"any": 1}),
            units=(10).to_bytes(4, "big") + b"shop".ljust(16, b"\0"),
            result=b"",
        )


def test_a_drill_down_into_one_batch_leaves_the_others_more() -> None:
    lines = [
        everywhere("weekly", rolling(7, 7)),
        QueryLine(name="drill-down", windows=rolling(7, 7), batches=frozenset({"shop"}), target=at_most(10_000)),
        QueryLine(name="outlet daily", windows=daily(7), batches=frozenset({"outlet"})),
    ]
    plan = make_plan(lines, BudgetLimits(epsilon_micro=20_000_000, delta_atto=0))
    weekly, drill, outlet = plan.allotments
    assert plan.feasible and drill.met and drill.deviation <= 10_000
    # The shop's reports are the ones that bind; the outlet's daily queries take all that its weekly one leaves.
    assert weekly.epsilon_micro + drill.epsilon_micro in (19_999_999, 20_000_000)
    assert weekly.epsilon_micro + outlet.epsilon_micro in (19_999_999, 20_000_000)
    charge(plan)


def test_a_target_that_cannot_be_met_is_said_to_be_missed_and_by_how_much() -> None:
    target = at_most(5_000)
    least = least_epsilon(target, BudgetLimits(epsilon_micro=64_000_000, delta_atto=0), 0)
    assert least is not None
    resources = BudgetLimits(epsilon_micro=2 * least, delta_atto=0)
    plan = make_plan([everywhere("rolling", rolling(10, 4), target)], resources)
    assert not plan.feasible and not plan.allotments[0].met
    assert plan.needed_micro == 4 * least == plan.binding.needed_micro
    # Twice too little ε is an error about twice as large.
    assert plan.factor is not None and Fraction(199, 100) < plan.factor < Fraction(201, 100)
    assert plan.allotments[0].deviation <= 5_000 * float(plan.factor)
    charge(plan)
    enough = BudgetLimits(epsilon_micro=plan.needed_micro, delta_atto=0)
    assert make_plan([everywhere("rolling", rolling(10, 4), target)], enough).feasible
    too_little = BudgetLimits(epsilon_micro=plan.needed_micro - 1, delta_atto=0)
    assert not make_plan([everywhere("rolling", rolling(10, 4), target)], too_little).feasible


def test_what_no_job_can_reach_is_said_so() -> None:
    plan = make_plan([everywhere("daily", daily(3), at_most(1))], BudgetLimits(epsilon_micro=64_000_000, delta_atto=0))
    assert not plan.feasible and plan.needed_micro is None and plan.allotments[0].least_micro is None
    assert plan.factor is not None and plan.factor > 1000
    charge(plan)


def test_discovery_shares_delta_and_has_thresholds() -> None:
    lines = [
        QueryLine(
            name="keys",
            windows=rolling(6, 3),
            batches=frozenset(BATCHES),
            discovery=True,
            target=at_most(3_000_000, TargetKind.THRESHOLD),
        ),
        everywhere("daily", daily(6)),
    ]
    plan = make_plan(lines, BudgetLimits(epsilon_micro=30_000_000, delta_atto=10**13))
    keys, days = plan.allotments
    assert keys.delta_atto == 10**13 // 3 and days.delta_atto == 0
    assert plan.feasible and keys.threshold is not None and keys.threshold <= 3_000_000 and days.threshold is None
    charge(plan)


@pytest.mark.parametrize("measure", [TargetKind.DEVIATION, TargetKind.HALF_WIDTH])
def test_the_least_epsilon_is_the_least(measure: TargetKind) -> None:
    resources = BudgetLimits(epsilon_micro=64_000_000, delta_atto=0, l1=1000, l0=1000)
    for most in (50, 333, 4000):
        least = least_epsilon(at_most(most, measure), resources, 0)
        assert least is not None

        def error(micro: int) -> float:
            noise = DiscreteLaplace(epsilon_micro=micro, sensitivity=1000)
            if measure is TargetKind.DEVIATION:
                return float(noise.variance()) ** 0.5
            width = 0
            while float(noise.cdf(width)) - float(noise.cdf(-width - 1)) < 0.95:
                width += 1
            return width

        assert error(least) <= most + 1e-6
        assert error(least - max(1, least // 10_000)) > most - 1e-6


@st.composite
def tiny(draw: st.DrawFn) -> tuple[list[QueryLine], BudgetLimits]:
    """Return up to three lines over four days and two batches, and ε* of up to eight steps."""
    step, l1 = 500_000, 4
    resources = BudgetLimits(epsilon_micro=step * draw(st.integers(2, 8)), delta_atto=0, l1=l1, l0=l1, step_micro=step)
    lines = []
    for place in range(draw(st.integers(1, 3))):
        windows = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3))
        target = None
        if draw(st.booleans()):
            target = PlanTarget(measure=TargetKind.DEVIATION, most=Fraction(draw(st.integers(1, 60)), 4))
        lines.append(
            QueryLine(
                name=str(place),
                windows=tuple((first, first + length) for first, length in windows),
                batches=frozenset(draw(st.sets(st.sampled_from(BATCHES), min_size=1))),
                target=target,
            )
        )
    return lines, resources


def brute_force(lines: list[QueryLine], resources: BudgetLimits) -> bool:
    """Try every split into whole steps: does one meet every target with every cell within ε*?"""
    steps = resources.epsilon_micro // resources.step_micro
    good = []
    for line in lines:
        amounts = range(1, steps + 1)
        if line.target is not None:
            limit = float(line.target.most) ** 2
            amounts = [  # type: ignore[assignment]
                one
                for one in amounts
                if float(DiscreteLaplace(epsilon_micro=one * resources.step_micro, sensitivity=resources.l1).variance())
                <= limit
            ]
        good.append(list(amounts))
    cells = [[line.load(day, batch) for line in lines] for day in range(7) for batch in BATCHES]
    return any(
        all(sum(load * one for load, one in zip(loads, split, strict=True)) <= steps for loads in cells)
        for split in product(*good)
    )


@settings(max_examples=150, deadline=None)
@given(tiny())
def test_a_plan_is_feasible_exactly_when_brute_force_finds_a_split(case: tuple[list[QueryLine], BudgetLimits]) -> None:
    lines, resources = case
    try:
        plan = make_plan(lines, resources)
    except CampaignError as problem:
        assert "ask fewer" in str(problem)
        assert not brute_force(lines, resources)
        return
    assert plan.feasible == brute_force(lines, resources)
    assert plan.feasible == all(one.met for one in plan.allotments)
    assert all(one.epsilon_micro % resources.step_micro == 0 for one in plan.allotments)
    charge(plan)
    if not plan.feasible:
        assert plan.factor is None or plan.factor > 1


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.integers(10**4, 64 * 10**6),
    lengths=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=3),
    most=st.integers(2_000, 10**6),
)
def test_plans_never_overspend_a_real_ledger(epsilon: int, lengths: list[tuple[int, int]], most: int) -> None:
    lines = [
        everywhere(f"{place}", rolling(14, length, every), at_most(most) if place % 2 == 0 else None)
        for place, (length, every) in enumerate(lengths)
    ]
    plan = make_plan(lines, BudgetLimits(epsilon_micro=epsilon, delta_atto=0))
    ledger = charge(plan)
    assert plan.spent_micro <= epsilon
    # What is left of the fullest cell is less than one step for each query in it: nothing was wasted.
    assert plan.spent_micro > epsilon - 60 or max(one.epsilon_micro for one in plan.allotments) == 64_000_000
    assert ledger.filter.limit.loss_micro == epsilon


def test_nonsense_is_refused() -> None:
    for build in (
        lambda: PlanTarget(measure=TargetKind.DEVIATION, most=Fraction(0)),
        lambda: everywhere("x", ()),
        lambda: everywhere("x", ((3, 3),)),
        lambda: everywhere("x", daily(1), at_most(5, TargetKind.THRESHOLD)),
        lambda: make_plan([], BudgetLimits(epsilon_micro=1, delta_atto=0)),
        lambda: make_plan([everywhere("x", daily(1))] * 2, BudgetLimits(epsilon_micro=1, delta_atto=0)),
        lambda: BudgetLimits(epsilon_micro=0, delta_atto=0),
        lambda: make_plan([everywhere("x", rolling(5, 3))], BudgetLimits(epsilon_micro=2, delta_atto=0)),
    ):
        with pytest.raises(CampaignError):
            build()


def test_discovery_without_delta_is_no_plan() -> None:
    """A job that discovers keys needs δ above 0: a plan that gives it none could not be carried out."""
    week = QueryLine(name="found", windows=rolling(14, 7), batches=frozenset({"all"}), discovery=True)
    for delta in (0, 6):
        with pytest.raises(CampaignError, match=r"in 7 queries that discover keys, and δ\* is too small"):
            make_plan([week], BudgetLimits(epsilon_micro=10_000_000, delta_atto=delta))
    assert make_plan([week], BudgetLimits(epsilon_micro=10_000_000, delta_atto=7)).allotments[0].delta_atto == 1


def test_years_of_queries_asked_a_thousand_times_are_planned() -> None:
    """Loads are counted edge by edge, not window by window: 3.7 million windows take seconds and not hours."""
    line = everywhere("daily", daily(3660) * 1000)
    week = everywhere("weekly", rolling(3660, 7, 7) * 2)
    plan = make_plan([line, week], BudgetLimits(epsilon_micro=64_000_000, delta_atto=0))
    assert plan.binding.loads == {"daily": 1000, "weekly": 2} and plan.spent_micro <= 64_000_000
    for cell_day in (0, 6, 7, 3_654, 3_659):
        assert line.load(cell_day, BATCHES[0]) == 1000


def test_impossible_resources_are_refused() -> None:
    for bad in ({"delta_atto": 10**18 + 1}, {"delta_atto": 0, "step_micro": 64_000_001}):
        with pytest.raises(CampaignError, match="a step of at most 64"):
            BudgetLimits(epsilon_micro=100_000_000, **bad)
