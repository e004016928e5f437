"""Our own scenarios in W3C's e2e format pass, and each defect that W3C's scenarios let through fails at least one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from w3c_client import attribution, budgets, scenarios, storage
from w3c_client.budgets import BudgetStores
from w3c_client.config import Arithmetic, SharedCost
from w3c_client.randomness import FixedW3cChoices
from w3c_client.rules import EpochUse
from w3c_client.scenarios import run_scenarios
from w3c_client.storage import Epochs, ImpressionStore

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "w3c" / "scenarios"
COUNT = 22

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("arithmetic", Arithmetic)
def test_our_scenarios_pass_in_both_arithmetics(arithmetic: Arithmetic) -> None:
    results = list(run_scenarios(FOLDER, arithmetic=arithmetic))
    assert len(results) == COUNT
    assert [result for result in results if result.differences] == []


def _without(name: str) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        made = BudgetStores.__init__

        def init(self: BudgetStores, config: Any) -> None:
            made(self, replace(config, rules=tuple(one for one in config.rules if one.name != name)))

        patch.setattr(BudgetStores, "__init__", init)

    return apply


def _equality_refused(name: str) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        pay = BudgetStores.pay

        def strict(self: BudgetStores, use: EpochUse, cost: Any) -> Any:
            rule = next(one for one in self._config.rules if one.name == name)
            if any(cost(rule) >= self.left(rule, *key) for key in use.keys(rule.scope)):
                return name
            return pay(self, use, cost)

        patch.setattr(BudgetStores, "pay", strict)

    return apply


def _cost_rounded_down(patch: Patch) -> None:
    patch.setitem(budgets.COSTS, Arithmetic.SPEC, lambda norm, most, epsilon: floor(norm / (2 * most / epsilon) * 1e6))


def _site_charged_the_value(patch: Patch) -> None:
    fill = attribution.Attributor._fill
    patch.setattr(attribution.Attributor, "_fill", lambda *given: (fill(*given)[0], 0))


def _cost_drawn_apart_from_the_result(patch: Patch) -> None:
    fill = attribution.Attributor._fill
    patch.setattr(attribution.Attributor, "_fill", lambda *given: (fill(*given)[0], fill(*given)[1]))


def _shared_limits_charged_the_norm(patch: Patch) -> None:
    read = scenarios.read_config
    patch.setattr(scenarios, "read_config", lambda given: replace(read(given), shared_cost=SharedCost.INDIVIDUAL))


def _budget_by_caller(patch: Patch) -> None:
    pay = BudgetStores.pay
    patch.setattr(BudgetStores, "pay", lambda self, use, cost: pay(self, replace(use, site=use.caller), cost))


def _two_epochs_after_a_clear(patch: Patch) -> None:
    starting = Epochs.starting

    def later(self: Epochs, now_ms: int) -> int:
        first = starting(self, now_ms)
        return first if self.last_clear_ms is None else max(first, self.index(self.last_clear_ms) + 2)

    patch.setattr(Epochs, "starting", later)


def _credit_rounded_down_and_the_rest_to_the_first(patch: Patch) -> None:
    def allocate(credit: tuple[float, ...], value: int, draw: Any) -> list[int]:
        shares = [floor(value * one / sum(credit)) for one in credit]
        return [shares[0] + value - sum(shares), *shares[1:]]

    patch.setattr(attribution, "allocate_in_doubles", allocate)


def _credit_with_the_inequality_turned(patch: Patch) -> None:
    coin = FixedW3cChoices.coin
    patch.setattr(attribution, "allocate_in_doubles", lambda *given: None)  # the exact allocation runs in its place
    patch.setattr(FixedW3cChoices, "coin", lambda self, favourable, total: not coin(self, favourable, total))


def _outside_the_histogram_raises(patch: Patch) -> None:
    fill = attribution.Attributor._fill

    def strict(*given: Any) -> Any:
        histogram, outside = fill(*given)
        if outside:
            raise IndexError("outside the histogram")
        return histogram, outside

    patch.setattr(attribution.Attributor, "_fill", strict)


def _forgetting_keeps(name: str, *, all_sites: bool) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        forget = BudgetStores.forget

        def partly(self: BudgetStores, sites: Any, *, through: int) -> None:
            kept = dict(self._left[name])
            forget(self, sites, through=through)
            if (sites is None) == all_sites:
                self._left[name].update(kept)

        patch.setattr(BudgetStores, "forget", partly)

    return apply


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "the global budget is never checked": _without("global-budget"),
    "the global budget refuses equality": _equality_refused("global-budget"),
    "quotas are never checked": _without("impression-site-quota"),
    "quotas refuse equality": _equality_refused("impression-site-quota"),
    "quotas belong to the intermediary": lambda patch: patch.setattr(attribution, "_site", attrgetter("caller")),
    "one epoch charges the value": _site_charged_the_value,
    "cost and result are drawn apart": _cost_drawn_apart_from_the_result,
    "shared limits pay the norm": _shared_limits_charged_the_norm,
    "costs round down": _cost_rounded_down,
    "the budget belongs to the caller": _budget_by_caller,
    "the epoch start is not rounded": lambda patch: patch.setattr(storage, "HOUR_MS", 1),
    "a clear costs two epochs": _two_epochs_after_a_clear,
    "credit is rounded the same way always": _credit_rounded_down_and_the_rest_to_the_first,
    "credit is rounded the other way": _credit_with_the_inequality_turned,
    "an index outside raises": _outside_the_histogram_raises,
    "epsilon has no maximum": lambda patch: patch.setattr("w3c_client.options.MAX_EPSILON", 1e9),
    "forgetting a site keeps its quota": _forgetting_keeps("impression-site-quota", all_sites=False),
    "forgetting a site keeps its budget": _forgetting_keeps("site-budget", all_sites=False),
    "forgetting a site keeps its impressions": lambda patch: patch.setattr(
        ImpressionStore, "keep", lambda self, wanted: None
    ),
    "forgetting everything keeps budgets": _forgetting_keeps("site-budget", all_sites=True),
}


@pytest.mark.parametrize("defect", MUTANTS)
def test_each_defect_fails_a_scenario(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[defect](monkeypatch)
    failed = [result.name for result in run_scenarios(FOLDER) if result.differences]
    assert 1 <= len(failed) < COUNT, failed
