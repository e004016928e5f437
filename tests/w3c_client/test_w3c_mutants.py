"""What the published vectors do not see: each check below fails for at least one change of a line, and none without it.

The changes are those that upstream's 26 scenarios let pass (docs/conformance.md), but for its two clamps of lifetime
and lookback: each of them has no effect while the other stands.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import w3c_client
from aggservice.mechanisms import ForbiddenBits, ManualClock

from .mutation import mutated

DAY_MS = 86_400_000
NOW_MS = 100 * 7 * DAY_MS
ADVERTISERS = [f"shop{number}.example" for number in range(10)]


def browser_of(w3c: Any, draws: tuple[float, ...] = (0.5,), epoch_start: float = 0.5, **config: Any) -> Any:
    """A browser in the middle of an epoch, whose choices are given."""
    fixed = w3c.FixedW3cChoices(epoch_start=epoch_start, fractions=draws)
    big = {"global_budget_micro": 10**9, "impression_quota_micro": 10**9, "site_budget_micro": 10**9}
    browser = w3c.Browser(
        clock=ManualClock(NOW_MS), bits=ForbiddenBits(), config=w3c.Config(**{**big, **config}), draws=fixed
    )
    return browser


def save(browser: Any, site: Any = "news.example", index: int = 0, **options: Any) -> None:
    browser.save_impression(site, {"histogramIndex": index, **options})
    browser._clock.advance(1000)


def measure(w3c: Any, browser: Any, site: Any = "shop.example", **options: Any) -> tuple[int, ...]:
    given = {"aggregationService": w3c.DEFAULT_SERVICE, "histogramSize": 2, **options}
    return browser.measure_conversion(site, given).histogram


def left(browser: Any, kind: str) -> dict[str, int]:
    """What a filter has left, by site."""
    return {one.site: one.left_micro for one in browser.budgets if one.rule == kind}


def answered(w3c: Any, browser: Any) -> int:
    return sum(any(measure(w3c, browser, site)) for site in ADVERTISERS)


def check_global_budget(w3c: Any) -> None:
    """Budget 2, ten advertisers at ε = 1: two answers, the second of which empties it."""
    browser = browser_of(w3c, global_budget_micro=2_000_000)
    save(browser)
    assert answered(w3c, browser) == 2 and left(browser, "global-budget") == {"": 0}


def check_impression_quota(w3c: Any) -> None:
    """Quota 3 for one publisher, ten advertisers at ε = 1: three answers; another publisher has its own."""
    browser = browser_of(w3c, impression_quota_micro=3_000_000)
    save(browser)
    assert answered(w3c, browser) == 3
    save(browser, "blog.example")
    assert measure(w3c, browser, impressionSites=["blog.example"]) == (1, 0)


def check_quota_of_the_publisher(w3c: Any) -> None:
    """Two intermediaries on one publisher: its quota pays once, 10⁶, and theirs nothing."""
    browser = browser_of(w3c)
    for frame in ("tag.example", "other.example"):
        save(browser, w3c.Page(top_level="news.example", frame=frame))
    assert measure(w3c, browser) == (1, 0)
    assert left(browser, "impression-site-quota") == {"news.example": 10**9 - 10**6}


def check_cost_within_one_epoch(w3c: Any) -> None:
    """Value 3 of at most 3, credit 1 : 2, the 2 beyond the histogram: ‖h‖₁ = 1, so the site pays ⌈10⁶ / 6⌉ = 166,667,
    and the shared limits ε · 3 / 3 = 10⁶."""
    browser = browser_of(w3c)
    save(browser, index=7)
    save(browser, index=1)
    assert measure(w3c, browser, value=3, maxValue=3, credit=[1, 2], lookbackDays=1) == (0, 1)
    assert left(browser, "site-budget") == {"shop.example": 10**9 - 166_667}
    assert left(browser, "global-budget") == {"": 10**9 - 10**6}
    assert left(browser, "impression-site-quota") == {"news.example": 10**9 - 10**6}


def check_budget_of_the_conversion_site(w3c: Any) -> None:
    """Two intermediaries measure on one site: its budget of 1 pays 0.5 twice, and a third call is refused."""
    browser = browser_of(w3c, site_budget_micro=1_000_000)
    save(browser)
    frames = ("tag.example", "other.example", "third.example")
    pages = [w3c.Page(top_level="shop.example", frame=frame) for frame in frames]
    assert [any(measure(w3c, browser, page, lookbackDays=1)) for page in pages] == [True, True, False]
    assert left(browser, "site-budget") == {"shop.example": 0}


def check_epochs_begin_at_whole_hours(w3c: Any) -> None:
    browser = browser_of(w3c, epoch_start=0.123456)
    save(browser)
    measure(w3c, browser)
    exact_ms = NOW_MS + 1000 - 0.123456 * 7 * DAY_MS
    assert browser.epoch_start_ms % 3_600_000 == 0 and 0 <= exact_ms - browser.epoch_start_ms < 3_600_000


def check_attribution_resumes_with_the_next_epoch(w3c: Any) -> None:
    browser = browser_of(w3c)
    measure(w3c, browser)
    browser.forget_visits()
    save(browser)
    assert measure(w3c, browser) == (0, 0)
    browser._clock.advance(7 * DAY_MS)
    save(browser)
    assert measure(w3c, browser) == (1, 0)


def check_rounding_follows_the_draws(w3c: Any) -> None:
    """Value 1 over credit 1 : 3, shares ¼ and ¾: below ¾ the newer impression is rounded down, else the older one."""
    for draw, expected in ((0.0, (1, 0)), (0.74, (1, 0)), (0.75, (0, 1)), (0.99, (0, 1))):
        browser = browser_of(w3c, draws=(draw,))
        save(browser, index=0)
        save(browser, index=1)
        assert measure(w3c, browser, credit=[1, 3]) == expected


def check_an_index_beyond_the_histogram_loses_its_value(w3c: Any) -> None:
    browser = browser_of(w3c)
    save(browser, index=0)
    save(browser, index=2)
    done = browser.measure_conversion(
        "shop.example", {"aggregationService": w3c.DEFAULT_SERVICE, "histogramSize": 2, "value": 1}
    )
    assert done.histogram == (0, 0) and done.outside == 1


def check_the_largest_epsilon(w3c: Any) -> None:
    browser = browser_of(w3c)
    assert measure(w3c, browser, epsilon=4294) == (0, 0)
    with pytest.raises(w3c.CallError, match="RangeError"):
        measure(w3c, browser, epsilon=4294.000001)


def spent(w3c: Any) -> Any:
    """A browser whose three stores have entries of two publishers and two advertisers."""
    browser = browser_of(w3c)
    for number, site in enumerate(("news.example", "blog.example")):
        save(browser, site, index=number)
    for site in ("shop.example", "blog.example"):
        assert any(measure(w3c, browser, site))
    return browser


def check_forgetting_one_site(w3c: Any) -> None:
    browser = spent(w3c)
    kept = left(browser, "global-budget")
    browser.forget_visits(["www.blog.example"])
    assert [one.impression_site for one in browser.impressions] == ["news.example"]
    assert set(left(browser, "site-budget")) == {"shop.example"}
    assert set(left(browser, "impression-site-quota")) == {"news.example"}
    assert left(browser, "global-budget") == kept == {"": 10**9 - 2 * 10**6}


def check_forgetting_everything(w3c: Any) -> None:
    browser = spent(w3c)
    start = browser.epoch_start_ms
    browser.forget_visits()
    assert browser.budgets == () and browser.impressions == () and browser.epoch_start_ms == start


CHECKS: dict[str, Callable[[Any], None]] = {
    name: check for name, check in list(globals().items()) if name.startswith("check_")
}
_PAYS = "if amount > left.get(key, capacity):"
#: Name: the check that must fail, the module, and the change.
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "global filter never checked": (
        "check_global_budget",
        "budgets",
        _PAYS,
        "if name != 'global-budget' and amount > left.get(key, capacity):",
    ),
    "global budget refuses at equality": (
        "check_global_budget",
        "budgets",
        _PAYS,
        "if amount > left.get(key, capacity) - (name == 'global-budget'):",
    ),
    "quota never checked": (
        "check_impression_quota",
        "budgets",
        _PAYS,
        "if name != 'impression-site-quota' and amount > left.get(key, capacity):",
    ),
    "quota keyed by intermediary": (
        "check_quota_of_the_publisher",
        "attribution",
        '_site = attrgetter("impression_site")',
        '_site = attrgetter("caller")',
    ),
    "single epoch charged the value": (
        "check_cost_within_one_epoch",
        "attribution",
        "norm=options.value - outside",
        "norm=options.value",
    ),
    "shared limits charged the L1 cost": (
        "check_cost_within_one_epoch",
        "rules",
        "config.shared_cost is SharedCost.INDIVIDUAL",
        "True",
    ),
    "cost rounded down": (
        "check_cost_within_one_epoch",
        "budgets",
        "-(-epsilon_micro(epsilon) * sensitivity // (2 * max_value))",
        "epsilon_micro(epsilon) * sensitivity // (2 * max_value)",
    ),
    "budget keyed by caller": (
        "check_budget_of_the_conversion_site",
        "attribution",
        "site=wanted.site, caller=wanted.caller",
        "site=wanted.caller, caller=wanted.caller",
    ),
    "no hour rounding": (
        "check_epochs_begin_at_whole_hours",
        "storage",
        "floor(moment / HOUR_MS) * HOUR_MS",
        "floor(moment)",
    ),
    "last clear plus two epochs": (
        "check_attribution_resumes_with_the_next_epoch",
        "storage",
        "self.index(self.last_clear_ms) + 1",
        "self.index(self.last_clear_ms) + 2",
    ),
    "deterministic rounding": (
        "check_rounding_follows_the_draws",
        "credit",
        "coin(favourable, of))",
        "2 * favourable > of)",
    ),
    "rounding with the inequality turned": (
        "check_rounding_follows_the_draws",
        "credit",
        "coin(favourable, of))",
        "not coin(favourable, of))",
    ),
    "index out of range throws": (
        "check_an_index_beyond_the_histogram_loses_its_value",
        "attribution",
        "if rank != NOBODY and best[rank].histogram_index < options.histogram_size:",
        "if rank != NOBODY:",
    ),
    "no maximum epsilon": (
        "check_the_largest_epsilon",
        "options",
        "if not 0 < options.epsilon <= MAX_EPSILON:",
        "if not 0 < options.epsilon:",
    ),
    "forgetting one site keeps its quota": (
        "check_forgetting_one_site",
        "budgets",
        "for left in self._left.values():",
        "for left in (self._left['site-budget'],):",
    ),
    "forgetting one site keeps its budgets": (
        "check_forgetting_one_site",
        "budgets",
        "for left in self._left.values():",
        "for left in (self._left['impression-site-quota'],):",
    ),
    "forgetting one site keeps its impressions": (
        "check_forgetting_one_site",
        "storage",
        "impressions.keep(lambda held: held.impression_site not in sites)",
        "pass",
    ),
    "forgetting everything keeps budgets": (
        "check_forgetting_everything",
        "budgets",
        "sites is None or any(",
        "sites is not None and any(",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_browser_passes_each_check(name: str) -> None:
    CHECKS[name](w3c_client)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_changed_line_is_noticed(name: str) -> None:
    check, module, old, new = MUTANTS[name]
    package: ModuleType
    with mutated(module, old, new) as package, pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        CHECKS[check](package)


def test_all_killable_mutants_are_listed_and_every_check_is_used() -> None:
    assert len(MUTANTS) == 18
    assert {check for check, *_ in MUTANTS.values()} == set(CHECKS)
