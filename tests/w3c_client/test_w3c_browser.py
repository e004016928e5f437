"""The browser's surface: options, the order of checks, policy, activation, headers, clearing, what users see."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from aggservice.kits.rules import CREDITS, LISTS, random_events, run_in_browser, site
from aggservice.mechanisms import ForbiddenBits, ManualClock, SecureBits, SeededBits
from aggservice.wire import KeySet, SharedInfo
from aggservice.wire.device import DeviceConfigError
from w3c_client import (
    DEFAULT_SERVICE,
    Arithmetic,
    Browser,
    CallError,
    Config,
    ConversionOptions,
    FixedW3cChoices,
    ImpressionOptions,
    Page,
)
from w3c_client.budgets import exact_cost, spec_cost
from w3c_client.config import DAP_PROTOCOL, UINT32_MAX, specification_minimums
from w3c_client.model import Question, SavedImpression, UserAgent
from w3c_client.options import check_conversion, check_impression
from w3c_client.randomness import W3cWordChoices

DAY_MS = 86_400_000
NOW_MS = 1_000 * 7 * DAY_MS


def browser_of(**config: Any) -> Browser:
    fixed = FixedW3cChoices(epoch_start=0.5, fractions=(0.5,))
    return Browser(clock=ManualClock(NOW_MS), bits=ForbiddenBits(), config=Config(**config), draws=fixed)


def clock_of(browser: Browser) -> ManualClock:
    clock = browser._clock
    assert isinstance(clock, ManualClock)
    return clock


MEASURE = {"aggregationService": DEFAULT_SERVICE, "histogramSize": 4}


def name_of(browser: Browser, page: Page | str, options: dict[str, Any] | None = None, *, save: bool = False) -> str:
    """The name of the error that a call is rejected with, or nothing."""
    try:
        if save:
            browser.save_impression(page, {"histogramIndex": 0, **(options or {})})
        else:
            browser.measure_conversion(page, {**MEASURE, **(options or {})})
    except CallError as error:
        return str(error.name)
    return ""


def test_defaults_are_those_of_the_specification() -> None:
    saved, asked = ImpressionOptions(histogram_index=0), ConversionOptions(aggregation_service="", histogram_size=1)
    assert (saved.lifetime_days, saved.match_value, saved.priority) == (30, 0, 0)
    assert (saved.conversion_sites, saved.conversion_callers) == ((), ())
    assert (asked.epsilon, asked.value, asked.max_value, tuple(asked.credit)) == (1.0, 1, 1, (1,))
    assert (asked.lookback_days, asked.match_values, asked.impression_sites, asked.impression_callers) == (
        None,
        (),
        (),
        (),
    )
    least = specification_minimums()
    assert (least.max_lookback_days, least.max_conversion_sites, least.max_conversion_callers) == (30, 5, 10)
    assert (least.max_impression_sites, least.max_impression_callers, least.max_credits) == (30, 10, 10)
    assert (least.max_match_values, least.impressions_per_site) == (30, 1_000)


def test_errors_come_in_the_order_of_the_specification() -> None:
    """Each option set has every later fault too; the first one decides, a TypeError before all others."""
    saving: list[tuple[str, Any, str]] = [
        ("histogramIndex", 4096, "RangeError"),
        ("lifetimeDays", 0, "RangeError"),
        ("conversionSites", ["localhost"] * 11, "RangeError"),
        ("conversionSites", ["localhost"], "SyntaxError"),
        ("conversionCallers", ["com"] * 11, "RangeError"),
        ("conversionCallers", ["com"], "SyntaxError"),
    ]
    measuring: list[tuple[str, Any, str]] = [
        ("aggregationService", "https://unknown.example", "ReferenceError"),
        ("epsilon", 0, "RangeError"),
        ("histogramSize", 0, "RangeError"),
        ("value", 0, "RangeError"),
        ("value", 3, "RangeError"),
        ("credit", [], "RangeError"),
        ("credit", [1, 0], "RangeError"),
        ("credit", [1] * 21, "RangeError"),
        ("lookbackDays", 0, "RangeError"),
        ("matchValues", list(range(31)), "RangeError"),
        ("impressionSites", ["localhost"] * 31, "RangeError"),
        ("impressionSites", ["1.2.3.4"], "SyntaxError"),
        ("impressionCallers", ["x"] * 11, "RangeError"),
        ("impressionCallers", ["x.example/path"], "SyntaxError"),
    ]
    browser = browser_of()
    for faults, save in ((saving, True), (measuring, False)):
        for first in range(len(faults)):
            given: dict[str, Any] = {}
            for member, value, _ in reversed(faults[first:]):
                given[member] = value
            assert name_of(browser, "shop.example", given, save=save) == faults[first][2], given
            other = "priority" if save else "maxValue"
            assert name_of(browser, "shop.example", {**given, other: "1"}, save=save) == "TypeError"
            denied = Page(top_level="shop.example", may_save=False, may_measure=False)
            assert name_of(browser, denied, given, save=save) == "NotAllowedError"
            assert name_of(browser, Page(top_level="localhost"), given, save=save) == "SyntaxError"
    assert browser.impressions == () and browser.reports == () and browser.epoch_start_ms is None


def test_limits_are_clamped_or_refused_at_their_edges() -> None:
    config = Config()
    long = check_impression(ImpressionOptions(histogram_index=4095, lifetime_days=999_999_999_999_999), config)
    assert long.lifetime_ms == 30 * DAY_MS
    asked = ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=4096, lookback_days=31, epsilon=4294)
    assert check_conversion(asked, config).lookback_ms == 30 * DAY_MS
    service = replace(config, max_service_histogram_size={DEFAULT_SERVICE: 8})
    with pytest.raises(CallError, match="RangeError"):
        check_conversion(replace(asked, histogram_size=9), service)
    dap = replace(config, aggregation_services={DEFAULT_SERVICE: DAP_PROTOCOL})
    check_conversion(replace(asked, max_value=UINT32_MAX, value=UINT32_MAX), dap)
    with pytest.raises(CallError, match="RangeError"):  # our own protocol holds 31 bits
        check_conversion(replace(asked, max_value=1 << 31), config)
    for bad in ({"site_budget_micro": 1 << 32}, {"epoch_days": 0}, {"aggregation_services": {"x": "tee-00"}}):
        with pytest.raises(DeviceConfigError):
            Config(**bad)  # type: ignore[arg-type]
    with pytest.raises(DeviceConfigError, match="max_credits"):
        Config(max_credits=1001)


def test_an_activation_enables_a_tab_until_it_leaves_the_site() -> None:
    browser = browser_of(activation_duration_ms=5_000)
    page = Page(top_level="shop.example", tab="1")
    assert name_of(browser, page) == "NotAllowedError"
    browser.activate("1")
    assert name_of(browser, replace(page, tab="2"), save=True) == "NotAllowedError"
    clock_of(browser).advance(5_000)
    assert name_of(browser, page, save=True) == ""  # the last moment passes
    clock_of(browser).advance(DAY_MS)
    browser.navigate("1", same_site=True)
    assert name_of(browser, replace(page, frame="tag.example")) == ""  # all frames, as long as the site stays
    browser.navigate("1")
    assert name_of(browser, page) == "NotAllowedError"
    browser.activate("1")
    clock_of(browser).advance(5_001)
    assert name_of(browser, page) == "NotAllowedError"
    browser.activate("1")
    assert name_of(browser, page) == ""
    browser.navigate("1")
    assert name_of(browser, page) == ""  # the text does not consume an activation
    consuming = browser_of(activation_duration_ms=5_000, consume_activation=True)
    consuming.activate("1")
    assert name_of(consuming, page) == ""
    consuming.navigate("1")
    assert name_of(consuming, page) == "NotAllowedError"


def test_headers_save_before_they_measure_and_only_where_they_may() -> None:
    save = "histogram-index=1"
    measure = f'aggregation-service="{DEFAULT_SERVICE}", histogram-size=2, report-url="/sink?x"'
    headers = {"save-impression": save, "Measure-Conversion": measure}
    browser = browser_of()
    (sent,) = browser.respond("shop.example", "https://px.tag.example/a", headers, destination="image")
    assert sent.url == "https://px.tag.example/sink?x" and sent.conversion.histogram == (0, 1)
    assert (sent.conversion.caller, sent.conversion.conversion_site) == ("tag.example", "shop.example")
    (held,) = browser.impressions
    assert (held.impression_site, held.intermediary) == ("shop.example", "tag.example")
    for url, destination in (
        ("https://px.tag.example/a", "document"),
        ("http://px.tag.example/a", "image"),
        ("about:blank", ""),
    ):
        assert browser.respond("shop.example", url, headers, destination=destination) == []
    denied = Page(top_level="shop.example", may_save=False, may_measure=False)
    assert browser.respond(denied, "https://px.tag.example/a", headers) == []
    bad = {"Save-Impression": "!", "Measure-Conversion": measure}
    assert len(browser.respond("shop.example", "https://shop.example/a", bad)) == 1
    assert len(browser.impressions) == 1
    for text, destination in (('"cookies", "impressions"', "document"), ('"*"', "")):
        clear = {"Clear-Site-Data": text}
        browser.respond("shop.example", "https://cdn.tag.example/a", clear, destination=destination)
        assert browser.impressions == ()
        browser.respond("shop.example", "https://px.tag.example/a", {"Save-Impression": save})
    browser.respond("shop.example", "https://cdn.tag.example/a", {"Clear-Site-Data": '"cookies"'})
    assert len(browser.impressions) == 1


def test_a_browser_that_is_off_answers_alike_and_stores_nothing() -> None:
    browser = browser_of()
    browser.enabled = False
    browser.save_impression("news.example", {"histogramIndex": 1})
    done = browser.measure_conversion("shop.example", MEASURE)
    assert done.histogram == (0,) * 4 and not done.enabled
    assert browser.impressions == () and browser.budgets == () and browser.epoch_start_ms is None
    assert name_of(browser, "shop.example", {"value": 0}) == "RangeError"
    assert len(browser.reports) == 1
    browser.enabled = True
    assert not any(browser.measure_conversion("shop.example", MEASURE).histogram)


def test_a_site_that_clears_leaves_what_others_saved_without_it() -> None:
    browser = browser_of()

    def save(index: int, top: str = "news.example", frame: str | None = None, **options: Any) -> None:
        browser.save_impression(Page(top_level=top, frame=frame), {"histogramIndex": index, **options})

    save(0)  # goes: saved by the site itself
    save(1, frame="tag.example")  # stays: the intermediary saved it
    save(2, top="blog.example", frame="news.example")  # goes: the intermediary is the site
    save(3, top="blog.example", conversionSites=["news.example"])  # goes with its last conversion site
    save(4, top="blog.example", conversionSites=["news.example", "a.example"], conversionCallers=["news.example"])
    save(5, top="blog.example", conversionSites=["news.example", "a.example"], conversionCallers=["b.example"])
    save(6, top="blog.example")
    browser.clear_impressions_for_site("www.news.example")
    held = {one.histogram_index: one for one in browser.impressions}
    assert set(held) == {1, 5, 6}
    assert held[5].conversion_sites == {"a.example"} and held[5].conversion_callers == {"b.example"}
    browser.clear_impressions_for_site("localhost")
    assert len(browser.impressions) == 3


def test_clearing_site_data_spends_every_epoch_within_reach() -> None:
    browser = browser_of()
    browser.save_impression("news.example", {"histogramIndex": 1})
    browser.clear_site_data(["shop.example"])
    left = [one for one in browser.budgets if one.rule == "site-budget"]
    assert {(one.site, one.left_micro) for one in left} == {("shop.example", 0)}
    # The start is drawn 30 days back less half a week, so that today is in epoch 4 and the earliest in epoch 0.
    assert [one.epoch for one in left] == [0, 1, 2, 3, 4]
    done = browser.measure_conversion("shop.example", MEASURE)
    assert not any(done.histogram) and done.refused_by == {"site-budget"}
    assert any(browser.measure_conversion("other.example", MEASURE).histogram)
    with pytest.raises(CallError, match="at least one"):
        browser.clear_site_data([])
    with pytest.raises(CallError, match="not a site"):
        browser.forget_visits(["com"])
    assert len(browser.impressions) == 1


def test_users_see_impressions_budgets_and_reports() -> None:
    browser = browser_of(reports_kept=2)
    browser.save_impression("news.example", {"histogramIndex": 1})
    for _ in range(3):
        clock_of(browser).advance(1)
        browser.measure_conversion("shop.example", {**MEASURE, "value": 2, "maxValue": 8})
    assert [one.time_ms - NOW_MS for one in browser.reports] == [2, 3]
    assert {(one.conversion_site, one.histogram_size, one.epsilon_micro) for one in browser.reports} == {
        ("shop.example", 4, 1_000_000)
    }
    assert [(one.rule, one.site, one.left_micro) for one in browser.budgets] == [
        ("site-budget", "shop.example", 1_000_000 - 3 * 250_000),
        ("global-budget", "", 8_000_000 - 3 * 250_000),
        ("impression-site-quota", "news.example", 4_000_000 - 3 * 250_000),
    ]
    browser.check()


def test_exact_costs_are_never_a_micro_epsilon_too_much() -> None:
    too_much = 0
    for k in range(1, 10_001):
        exact, spec = exact_cost(2, 1, k / 1000), spec_cost(2, 1, k / 1000)
        assert exact == 1000 * k <= spec <= exact + 1
        too_much += spec > exact
    assert too_much == 857  # so many of these ε are charged too much by doubles
    for arithmetic, third in ((Arithmetic.EXACT, True), (Arithmetic.SPEC, False)):
        browser = browser_of(arithmetic=arithmetic, site_budget_micro=39_000)
        browser.save_impression("news.example", {"histogramIndex": 1})
        asked = {**MEASURE, "epsilon": 0.013}
        answers = [any(browser.measure_conversion("shop.example", asked).histogram) for _ in range(3)]
        assert answers == [True, True, third]


def test_the_model_of_the_specification_agrees_with_the_browser() -> None:
    """Results and all three stores on random worlds without clears, with the same words for coins."""
    draw = random.Random(5)
    compared = 0
    for _ in range(300):
        config = Config(
            site_budget_micro=draw.choice((1_000_000, 1_500_000)),
            global_budget_micro=draw.choice((1_000_000, 3_000_000)),
            impression_quota_micro=draw.choice((1_000_000, 2_000_000)),
            max_lookback_days=30,
        )
        events = [{**event, "enabled": True} for event in random_events(draw, 0) if event["kind"] != 2]
        converted = [event for event in events if event["kind"] == 1]
        if not converted:
            continue
        offset = draw.randrange(config.epoch_ms)
        words = [[draw.getrandbits(64) for _ in CREDITS[event["credit"]][1:]] for event in converted]
        results, budgets, _ = run_in_browser(events, config, offset, words)
        start = (converted[0]["time_ms"] - offset) // 3_600_000 * 3_600_000
        agent = UserAgent(
            per_site_privacy_budget=config.site_budget_micro,
            global_privacy_budget=config.global_budget_micro,
            impression_site_quota=config.impression_quota_micro,
            maximum_lookback=config.max_lookback_ms,
            epoch_start=start,
            period=config.epoch_ms,
        )
        found = []
        for event in events:
            top, inner = site(event["site"]), event["intermediary"]
            frame = None if inner < 0 or inner == event["site"] else site(inner)
            if event["kind"] == 0:
                agent.impression_store.append(
                    SavedImpression(
                        match_value=event["match_value"],
                        impression_site=top,
                        intermediary_site=frame,
                        conversion_sites=frozenset(map(site, LISTS[event["conversion_sites"]])),
                        conversion_callers=frozenset(map(site, LISTS[event["conversion_callers"]])),
                        timestamp=event["time_ms"],
                        lifetime=min(event["lifetime_days"], 30) * DAY_MS,
                        histogram_index=event["histogram_index"],
                        priority=event["priority"],
                    )
                )
                continue
            draws = W3cWordChoices(0)
            draws.words = iter(words[len(found)])

            def rand(chance: Fraction, draws: W3cWordChoices = draws) -> bool:
                return chance == 1 or (chance > 0 and draws.coin(chance.numerator, chance.denominator))

            question = Question(
                epsilon=Fraction(event["epsilon_micro"], 1_000_000),
                histogram_size=event["histogram_size"],
                lookback=min(event["lookback_days"], 30) * DAY_MS,
                value=event["value"],
                max_value=event["max_value"],
                credit=tuple(Fraction(str(item)) for item in CREDITS[event["credit"]]),
                match_values=frozenset(LISTS[event["match_values"]]),
                impression_sites=frozenset(map(site, LISTS[event["impression_sites"]])),
                impression_callers=frozenset(map(site, LISTS[event["impression_callers"]])),
            )
            found.append(tuple(agent.do_attribution_and_fill_a_histogram(question, top, frame, event["time_ms"], rand)))
            compared += 1
        assert found == [result[0] for result in results]
        stores = [("site-budget", epoch, (name,), left) for (epoch, name), left in agent.privacy_budget_store.items()]
        stores += [("global-budget", epoch, (), left) for epoch, left in agent.global_privacy_budget_store.items()]
        quotas = agent.impression_site_quota_store
        stores += [("impression-site-quota", epoch, (name,), left) for (epoch, name), left in quotas.items()]
        assert sorted(stores) == sorted(budgets)
    assert compared > 800


def test_epochs_begin_at_random_and_impressions_do_not_draw_them() -> None:
    clock = ManualClock(NOW_MS)
    browser = Browser(clock=clock, bits=SeededBits("epochs"))
    browser.save_impression("news.example", {"histogramIndex": 0})
    assert browser.epoch_start_ms is None
    browser.measure_conversion("shop.example", MEASURE)
    start = browser.epoch_start_ms
    assert start is not None and NOW_MS - 7 * DAY_MS - 3_600_000 < start <= NOW_MS and start % 3_600_000 == 0
    browser.measure_conversion("other.example", MEASURE)
    assert browser.epoch_start_ms == start


class SetClock:
    """A clock that goes where it is told, back too."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("epochs", [(5, 3, 5), (6, 5, 6)], ids=["forgotten twice", "forgotten while set back"])
def test_a_clock_set_back_gives_no_epoch_its_budgets_twice(epochs: tuple[int, int, int], everything: bool) -> None:
    """The epoch is queried, visits are forgotten at the first two moments, and the clock returns to the epoch."""
    first, back, again = epochs
    clock = SetClock(NOW_MS)
    fixed = FixedW3cChoices(epoch_start=0.5, fractions=(0.5,))
    config = Config(site_budget_micro=500_000)  # one conversion within an epoch
    browser = Browser(clock=clock, bits=ForbiddenBits(), config=config, draws=fixed)
    paid = 0

    def ask() -> int:
        browser.save_impression("news.example", {"histogramIndex": 0})
        return sum(browser.measure_conversion("shop.example", {**MEASURE, "lookbackDays": 1}).histogram)

    forget = [None] if everything else [["shop.example"]]
    ask()  # draws the start of epochs
    clock.time_ms = NOW_MS + first * 7 * DAY_MS
    paid += ask()
    assert paid == 1 and ask() == 0, "the site's budget of this epoch is spent"
    if first - back > 1:
        browser.forget_visits(*forget)
    clock.time_ms = NOW_MS + back * 7 * DAY_MS
    browser.forget_visits(*forget)
    clock.time_ms = NOW_MS + again * 7 * DAY_MS
    paid += ask()
    assert paid == 1, "the same epoch was paid for once and answered twice"
    clock.time_ms += 7 * DAY_MS
    assert ask() == 1, "the next epoch has budgets of its own"


def test_every_valid_call_has_a_report_of_the_same_size() -> None:
    """Whatever was attributed, to however many indexes, and whether or not the API is on."""
    clock, bits = ManualClock(NOW_MS), SecureBits()
    sizes: dict[str, int] = {}
    infos = []
    for name, indexes, credit in (
        ("nothing saved", (), [1.0]),
        ("one index", (1,), [1.0]),
        ("one credit of two", (0, 1), [1.0]),
        ("two indexes", (0, 1), [1.0, 1.0]),
        ("all indexes", (0, 1, 2, 3), [1.0, 1.0, 1.0, 1.0]),
        ("beyond the histogram", (9,), [1.0]),
        ("off", (0, 1), [1.0, 1.0]),
        ("budget spent", (0, 1), [1.0, 1.0]),
    ):
        config = Config(site_budget_micro=0) if name == "budget spent" else Config()
        keys = KeySet.create(bits, clock).public(clock)
        browser = Browser(clock=clock, bits=bits, config=config, keys=keys)
        for index in indexes:
            browser.save_impression("news.example", {"histogramIndex": index})
        browser.enabled = name != "off"
        done = browser.measure_conversion("shop.example", {**MEASURE, "value": 8, "maxValue": 8, "credit": credit})
        used = sum(amount > 0 for amount in done.histogram)
        assert used == {"one index": 1, "one credit of two": 1, "two indexes": 2, "all indexes": 4}.get(name, 0)
        assert done.sealed is not None
        sizes[name] = len(done.sealed.payloads[0].payload)
        infos.append(SharedInfo.parse(done.sealed.shared_info))
    assert len(set(sizes.values())) == 1, sizes
    # The public parts differ in the id alone, though all calls are of the same moment.
    assert len({info.report_id for info in infos}) == len(infos)
    assert len({replace(info, report_id=infos[0].report_id) for info in infos}) == 1


class Slow(dict[Any, int]):
    """Looks up so slowly that another thread looks up before this one has written, unless it has to wait."""

    def get(self, *key: Any) -> Any:
        found = super().get(*key)
        time.sleep(0.05)
        return found


def test_conversions_at_once_share_one_budget() -> None:
    """Budget 1 and four calls at ε = 1 in four threads: one is answered (the specification's attribution lock)."""
    browser = browser_of(site_budget_micro=1_000_000)
    browser.save_impression("news.example", {"histogramIndex": 0})
    browser._budgets._left["site-budget"] = Slow()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: browser.measure_conversion("shop.example", MEASURE), range(4)))
    assert sum(any(one.histogram) for one in answers) == 1
    assert browser.left("site-budget", "shop.example") == 0
