"""How far one privacy unit moves the sums, searched for in real clients, against what a job over the reports states.

Each claim has a kind of neighbour (docs/guarantees.md). The search must stay within what is stated and must come near
it, which shows that it is strong enough to pass it; broken rules and broken clients must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import ara_client
import paa_client
from aggservice.wire import Api
from ara_client.storage import limits
from ara_client.storage.sources import StoredSource
from budget import Sensitivity
from paa_client.config import Rules
from paa_client.reporting import budgets

from . import attribution, papers, private_aggregation
from .climbing import Found, Problem, by_l0, by_l1, search
from .worlds import DAY_MS, Bounds, Sent, stated_by_the_larger_bound, stated_with_debug_once

ARA = frozenset({Api.ATTRIBUTION_REPORTING})
DEBUG = frozenset({Api.ATTRIBUTION_REPORTING_DEBUG})
#: How much of what is stated a search must reach.
NEAR = 0.9


def one_unit(reports: Collection[Sent], bounds: Bounds) -> Sensitivity:
    """The bound of one unit, whatever else a job covers.

    It holds for a source over both APIs, whose debug budget is taken out of its contribution budget (WICG), and for
    the debug reports of a context site and day.
    """
    return bounds.get(Api.ATTRIBUTION_REPORTING, Sensitivity())


def _attribution(measure: attribution.Measure) -> Problem[Any]:
    return attribution.problem(measure)


def _aggregation(apis: frozenset[Api], rules: Rules) -> Problem[Any]:
    return private_aggregation.problem(private_aggregation.disabled(apis, rules=rules))


CLAIMS: dict[str, Callable[[], Problem[Any]]] = {
    "a source moves, its attributions": lambda: _attribution(attribution.moved(ARA)),
    "a source moves, its debug reports": lambda: _attribution(attribution.moved(DEBUG, one_unit)),
    "a source moves with the debug reports of its triggers, which alone are summed": lambda: _attribution(
        attribution.moved_with_debug(DEBUG)
    ),
    "a source moves, both, within the bound of one unit": lambda: _attribution(
        attribution.moved(attribution.BOTH, one_unit)
    ),
    "a source moves with the debug reports of its triggers": lambda: _attribution(
        attribution.moved_with_debug(attribution.BOTH)
    ),
    "debug reports of a context site and a day": lambda: _attribution(attribution.debug_removed(DEBUG, one_unit)),
    **{
        f"ten minutes of {' and '.join(sorted(apis))}, {rules}": partial(_aggregation, apis, rules)
        for apis in (private_aggregation.SHARED, private_aggregation.AUCTIONS, private_aggregation.BOTH)
        for rules in Rules
    },
    "a source of Algorithm 2": papers.algorithm_2,
    "a source of a deployed fleet": lambda: papers.fleet("deployed"),
    "a source of the paper's fleet": lambda: papers.fleet("paper"),
    "a window of Algorithm 3": papers.algorithm_3,
    "ten minutes of a fleet of devices": papers.devices,
}
#: The clients whose operators state a Λ₀ that the search can reach.
SPARSE = ("a source of Algorithm 2", "a source of the paper's fleet", "a window of Algorithm 3",
          "ten minutes of a fleet of devices", "ten minutes of protected-audience, specification")  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_unit_moves_the_sums_by_more_than_is_stated_and_one_moves_them_as_far(claim: str) -> None:
    found = search(CLAIMS[claim](), seed=claim, starts=3, steps=50, enough=NEAR)
    assert found.broken == 0, f"{found}\n{found.events}"
    assert found.measured.l1_ratio >= NEAR, f"the search is weak: {found}"


@pytest.mark.parametrize("claim", SPARSE)
def test_as_many_sums_change_as_is_stated(claim: str) -> None:
    found = search(CLAIMS[claim](), seed=claim, score=by_l0, starts=2, steps=50, enough=NEAR)
    assert found.broken == 0, f"{found}\n{found.events}"
    assert found.measured.l0_ratio >= NEAR, f"the search is weak: {found}"


def _find(problem: Problem[Any], seed: str) -> Found[Any]:
    """Search until a sequence passes what is stated by a tenth."""
    return search(problem, seed=seed, until=1.1, starts=40, steps=60)


def test_debug_reports_counted_once_are_found() -> None:
    measure = attribution.moved_with_debug(attribution.BOTH, stated_with_debug_once)
    assert _find(attribution.problem(measure), "debug once").broken


def test_the_larger_bound_of_two_apis_is_found() -> None:
    both = private_aggregation.disabled(private_aggregation.BOTH, stated_by_the_larger_bound)
    assert _find(private_aggregation.problem(both), "larger bound").broken
    pairs = attribution.moved_with_debug(attribution.BOTH, stated_by_the_larger_bound)
    assert _find(attribution.problem(pairs), "larger bound").broken


def test_clearing_that_forgets_budgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = paa_client.Browser.clear

    def forgetful(self: paa_client.Browser, origin: str | None = None) -> None:
        clear(self, origin)
        self.forget_budgets(origin)

    monkeypatch.setattr(paa_client.Browser, "clear", forgetful)
    measure = private_aggregation.disabled(private_aggregation.SHARED)
    assert _find(private_aggregation.problem(measure), "clear").broken


def test_clearing_that_forgets_debug_budgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = ara_client.Browser.clear

    def forgetful(self: ara_client.Browser, origin: str | None = None, *, rate_limits: bool = False) -> None:
        clear(self, origin, rate_limits=rate_limits)
        if rate_limits:
            self.forget_debug_budgets(origin)

    monkeypatch.setattr(ara_client.Browser, "clear", forgetful)
    assert _find(attribution.problem(attribution.debug_removed(DEBUG, one_unit)), "clear").broken


def test_history_that_a_clock_set_forward_drops_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_KEPT_MINUTES", 0)
    monkeypatch.setattr(limits, "_KEPT_MS", 0)
    measure = private_aggregation.disabled(private_aggregation.SHARED)
    assert _find(private_aggregation.problem(measure), "clock").broken
    assert _find(attribution.problem(attribution.debug_removed(DEBUG, one_unit)), "clock").broken


def test_a_debug_budget_that_comes_on_top_of_the_sources_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = StoredSource.__init__

    def generous(self: StoredSource, **fields: Any) -> None:
        made(self, **fields)
        self.remaining_budget = attribution.LAMBDA_1

    monkeypatch.setattr(StoredSource, "__init__", generous)
    measure = attribution.moved(attribution.BOTH, one_unit)
    assert _find(attribution.problem(measure), "on top").broken


#: Neighbours that no job states a bound for, and how many times what is stated the search must find.
UNBOUNDED: dict[str, tuple[Callable[[], Problem[Any]], float]] = {
    "a source is absent, its attributions": (lambda: _attribution(attribution.unattributed(ARA)), 1.3),
    "a source is absent, both": (lambda: _attribution(attribution.unattributed(attribution.BOTH)), 1.1),
    "ten minutes of shared-storage are never charged": (
        lambda: private_aggregation.problem(private_aggregation.disabled(private_aggregation.SHARED, charged=False)),
        1.5,
    ),
}


@pytest.mark.parametrize("reading", UNBOUNDED)
def test_readings_of_the_neighbours_that_are_not_claimed_have_no_such_bound(reading: str) -> None:
    """Why docs/guarantees.md says "moved" and "disabled" and not "absent": other contributions take the place."""
    make, times = UNBOUNDED[reading]
    assert search(make(), seed=reading, starts=40, steps=60, until=times).measured.l1_ratio >= times


def test_contributions_that_are_never_charged_change_all_that_comes_after() -> None:
    """Ten-minute windows that roll: an operation every five minutes, of which the first is in the unit.

    With it the budget lets the first, third, fifth … pass, without it the second, fourth, sixth ….
    """
    calls = private_aggregation.Calls(
        bucket=0, count=1, value=private_aggregation.LAMBDA_1, filtering_id=0, named=False, on=None
    )
    every = private_aggregation.Operation(
        origin=0, calls=(calls,), context_id=False, slow_ms=0, ahead_ms=0, size=None, fails=False
    )
    pause = private_aggregation.Wait(by_ms=300_000)
    events: list[private_aggregation.Event] = []
    for place in range(20):
        own = replace(every, calls=(replace(calls, bucket=place),))
        events += [own, pause]
    charged = private_aggregation.disabled(private_aggregation.SHARED)(tuple(events))
    assert charged.l1_ratio == 1
    silent = private_aggregation.disabled(private_aggregation.SHARED, charged=False)(tuple(events))
    assert silent.l1_ratio == 20


AD = attribution.Source(
    publisher=0, reporter=0, shops=1, priority=0, expiry_days=30, debug_budget=0, debug_value=1, named=0
)
SALE = attribution.Trigger(
    shop=0,
    reporter=0,
    keys=1,
    value=1,
    filtering_id=0,
    debug_value=attribution.LAMBDA_1,
    context_id=True,
    named=False,
    dedup=False,
    ahead_ms=0,
)
ELSEWHERE = replace(SALE, reporter=1)
NEXT_DAY = attribution.Wait(by_ms=DAY_MS)


def test_twenty_days_of_debug_reports_are_stated_twenty_times() -> None:
    """A source contributes Λ₁; on each of 20 days a trigger without a source contributes Λ₁ to a debug report."""
    whole = replace(SALE, value=attribution.LAMBDA_1, debug_value=0)
    events = (AD, whole, *(ELSEWHERE, NEXT_DAY) * 20)
    told = attribution.moved_with_debug(attribution.BOTH)(events)
    assert (told.l1, told.stated.l1) == (21 * attribution.LAMBDA_1, 21 * attribution.LAMBDA_1)
    once = attribution.moved_with_debug(attribution.BOTH, stated_with_debug_once)(events)
    assert once.stated.l1 == 2 * attribution.LAMBDA_1


def test_an_absent_source_lets_one_debug_report_take_the_place_of_another() -> None:
    """Why a source is moved and not absent: on each day the sums lose Λ₁ at one key and gain Λ₁ at another.

    With the source, its triggers are attributed and say nothing, and another trigger of the day contributes Λ₁.
    Without it, its trigger contributes Λ₁ first and the other finds the day's budget spent.
    """
    events = (AD, *(SALE, ELSEWHERE, NEXT_DAY) * 20)
    absent = attribution.unattributed(attribution.BOTH)(events)
    assert absent.stated.l1 == 21 * attribution.LAMBDA_1
    assert absent.l1 == 40 * attribution.LAMBDA_1 + 20
    alone = attribution.unattributed(attribution.BOTH)((AD, *(SALE, NEXT_DAY) * 20))
    assert (alone.l1, alone.holds) == (20 * attribution.LAMBDA_1 + 20, True)


@pytest.mark.soak
@pytest.mark.parametrize("claim", CLAIMS)
def test_no_unit_moves_the_sums_by_more_than_is_stated_in_long_searches(claim: str) -> None:
    for score, most, enough in ((by_l1, 14, NEAR), (by_l0, 14, 0.0), (by_l1, 30, 0.0)):
        seed = f"soak, {claim}, {most}"
        found = search(CLAIMS[claim](), seed=seed, score=score, starts=10, steps=120, most=most, enough=enough)
        print(f"\n{claim} ({score.__name__}, {most} events at most): {found}", end="")
        assert found.broken == 0, f"{found}\n{found.events}"
        assert found.score >= enough, f"the search is weak: {found}"
    print()


@pytest.mark.soak
@pytest.mark.parametrize("reading", UNBOUNDED)
def test_how_far_readings_that_are_not_claimed_go(reading: str) -> None:
    make, times = UNBOUNDED[reading]
    found = search(make(), seed=f"soak, {reading}", starts=10, steps=200, most=30)
    print(f"\n{reading}: {found}")
    assert found.measured.l1_ratio >= times
