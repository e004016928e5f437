"""Designs of on-device budgets against pdslib's scenarios, and what each design's rules charge and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SeededBits
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    Config,
    ConversionOptions,
    FixedW3cChoices,
    ImpressionOptions,
    Page,
    design_config,
)
from w3c_client.budgets import BudgetStores
from w3c_client.config import DAY_MS
from w3c_client.rules import EpochUse, rule_of

PDSLIB = json.loads((Path(__file__).parent / "pdslib.json").read_text(encoding="utf-8"))
FIELDS = {
    "site-budget": "site_budget_micro",
    "global-budget": "global_budget_micro",
    "conversion-site-quota": "conversion_quota_micro",
    "impression-site-quota": "impression_quota_micro",
}


def micro(amount: float) -> int:
    return round(amount * 1_000_000)


def test_all_of_pdslibs_scenarios_are_here() -> None:
    assert (len(PDSLIB["budgets"]), len(PDSLIB["attribution"])) == (4, 2)


@pytest.mark.parametrize("scenario", PDSLIB["budgets"], ids=lambda one: one["name"])
def test_budgets_of_pdslib(scenario: dict[str, Any]) -> None:
    capacities = scenario["capacities"]
    values = {FIELDS[name]: micro(amount) for name, amount in capacities.items()}
    stores = BudgetStores(Config(rules=tuple(capacities), **values))
    for step in scenario["steps"]:
        cost = micro(step["loss"])
        for epoch in step["epochs"]:
            others = frozenset(step.get("impression_sites", ()))
            use = EpochUse(epoch=epoch, site=step["site"], caller=step["site"], impression_sites=others)
            assert stores.pay(use, lambda _, cost=cost: cost) == step.get("refused_by")
        for name, epoch, site, left in step.get("left", ()):
            assert stores.left(rule_of(name), epoch, *([site] if site else ())) == micro(left), (name, epoch, site)
        stores._check()


@pytest.mark.parametrize("scenario", PDSLIB["attribution"], ids=lambda one: one["name"])
def test_attribution_of_pdslib(scenario: dict[str, Any]) -> None:
    """Weeks are epochs: the first conversion draws the start, half a week before it."""
    clock = ManualClock(0)
    draws = FixedW3cChoices(epoch_start=0.5, fractions=(0.5,))
    browser = Browser(clock=clock, bits=SeededBits("x"), config=design_config("big-bird"), draws=draws)
    options = ConversionOptions(
        aggregation_service=DEFAULT_SERVICE,
        histogram_size=scenario["buckets"],
        value=scenario["value"],
        max_value=scenario["max_value"],
        epsilon=scenario["epsilon"],
    )
    clock.advance_to(3 * DAY_MS)
    browser.measure_conversion("shop.example", options)  # draws the start of epochs and pays nothing
    for ad in scenario["ads"]:
        clock.advance_to((3 + 7 * ad["week"]) * DAY_MS)
        browser.save_impression("blog.example", ImpressionOptions(histogram_index=ad["bucket"]))
        if ad["week"] in scenario.get("spent_weeks", ()):
            clock.advance(1)
            spend = ConversionOptions(
                aggregation_service=DEFAULT_SERVICE, histogram_size=1, max_value=1, epsilon=2, lookback_days=1
            )
            browser.measure_conversion("shop.example", spend)  # outside its histogram: costs 0
            browser._budgets.empty_site("shop.example", range(ad["week"], ad["week"] + 1))
    clock.advance_to((3 + 7 * 4) * DAY_MS)
    assert list(browser.measure_conversion("shop.example", options).histogram) == scenario["ours"]


def _browser(design: str, **changes: Any) -> tuple[Browser, ManualClock]:
    clock = ManualClock(40 * DAY_MS)
    browser = Browser(clock=clock, bits=SeededBits("designs"), config=design_config(design, **changes))
    for number in range(4):
        browser.save_impression(f"publisher-{number}.example", ImpressionOptions(histogram_index=number))
        clock.advance(1000)
    return browser, clock


def _ask(browser: Browser, site: str, **options: Any) -> frozenset[str]:
    wanted = {"aggregation_service": DEFAULT_SERVICE, "histogram_size": 4, **options}
    return browser.measure_conversion(site, ConversionOptions(**wanted)).refused_by


@pytest.mark.parametrize(
    ("design", "same_site", "many_sites"),
    [
        ("w3c", "site-budget", "impression-site-quota"),
        ("big-bird", "site-budget", "impression-site-quota"),
        ("cookie-monster", "site-budget", None),
        ("global-only", "global-budget", "global-budget"),
    ],
)
def test_which_filter_refuses_first(design: str, same_site: str, many_sites: str | None) -> None:
    """Twelve conversions of ε = 1 from one site, then one from each of twelve sites."""
    browser, _ = _browser(design)
    first = [refused for _ in range(12) if (refused := _ask(browser, "shop.example"))]
    assert first[0] == {same_site}
    browser, _ = _browser(design)
    refusals = [_ask(browser, f"shop-{number}.example") for number in range(12)]
    found = next((refused for refused in refusals if refused), frozenset())
    assert found == (frozenset() if many_sites is None else {many_sites})
    browser.check()


def test_big_bird_charges_shared_limits_the_norm_within_one_epoch() -> None:
    """Its global filter and conversion quotas pay ‖h‖₁ / (2 · maxValue); W3C's shared limits pay the value."""
    for design, shared in (("big-bird", 500_000), ("w3c", 1_000_000)):
        browser, _ = _browser(design)
        _ask(browser, "shop.example", lookback_days=1, impression_sites=("publisher-1.example",))
        assert browser.left("site-budget", "shop.example") == 500_000
        assert browser.left("global-budget") == 8_000_000 - shared


@pytest.mark.parametrize(("sites", "paid"), [(("publisher-1.example",), 500_000), ((), 1_000_000)])
def test_big_birds_quotas_pay_the_norm_only_where_one_impression_site_is_named(
    sites: tuple[str, ...], paid: int
) -> None:
    """Otherwise the conversion could move from one publisher to another, by twice the value."""
    browser, _ = _browser("big-bird")
    _ask(browser, "shop.example", lookback_days=1, impression_sites=sites)
    assert browser.left("impression-site-quota", "publisher-1.example") == 2_000_000 - paid


def test_the_cap_counts_sites_that_save_and_sites_that_measure() -> None:
    browser, _ = _browser("big-bird", sites_per_action=2)
    wanted = ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=4, epsilon=0.1)

    def convert(site: str) -> frozenset[str]:
        return browser.measure_conversion(Page(top_level=site, action=1), wanted).refused_by

    assert convert("shop-1.example") == frozenset()  # draws the start of epochs
    browser.save_impression(Page(top_level="blog.example", action=1), ImpressionOptions(histogram_index=0))
    assert convert("shop-2.example") == {"action-cap"}
    assert convert("shop-1.example") == frozenset()  # a site already counted passes
    before = len(browser.impressions)
    browser.save_impression(Page(top_level="news.example", action=1), ImpressionOptions(histogram_index=0))
    assert len(browser.impressions) == before  # dropped, and nothing tells
    browser.save_impression(Page(top_level="news.example", action=2), ImpressionOptions(histogram_index=0))
    assert len(browser.impressions) == before + 1


def test_a_caller_spends_what_a_site_delegates_and_no_more() -> None:
    """A budget of 1 and a part of 0.5 each: two callers at ε = 0.5 for the norm of one epoch, and a third gets nothing.

    The cost is 2 · 0.25 · ‖h‖₁ / 2, that is 250,000, so a caller has two conversions.
    """
    browser, _ = _browser("w3c", rules=("site-budget", "delegated-budget"))

    def convert(frame: str) -> list[str]:
        page = Page(top_level="shop.example", frame=frame)
        wanted = ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=4, epsilon=0.5, lookback_days=1)
        return sorted(browser.measure_conversion(page, wanted).refused_by)

    assert [convert("tag.example") for _ in range(3)] == [[], [], ["delegated-budget"]]
    assert [convert("other.example") for _ in range(3)] == [[], [], ["site-budget"]]
    assert browser.left("delegated-budget", "shop.example", "tag.example") == 0
    assert browser.left("delegated-budget", "shop.example", "third.example") == 500_000
    browser.forget_visits(["tag.example"])
    assert browser.left("delegated-budget", "shop.example", "tag.example") == 500_000
    assert browser.left("delegated-budget", "shop.example", "other.example") == 0
