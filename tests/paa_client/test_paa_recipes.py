"""Recipes: each measured on a small population whose truth is known, with and without the service's noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aggservice.mechanisms import DiscreteLaplace, ManualClock, SecureBits, SeededBits
from aggservice.wire.device import DeviceConfigError
from paa_client import Auction, Browser, Config, InterestGroup
from paa_client.recipes.conversions import CrossSiteConversion
from paa_client.recipes.demographics import UNKNOWN, Demographics
from paa_client.recipes.estimates import estimate, half_width, service_noise
from paa_client.recipes.frequency import FrequencyHistogram, KPlusFrequency, mean_frequency
from paa_client.recipes.reach import CumulativeReach, Reach
from paa_client.recipes.winning_bid import LossGap, WinningBidPrice
from paa_client.reporting.contributions import Cause

ORIGIN = "https://measure.example"
START_MS = 1_700_000_040_000
DAY_MS = 86_400_000
NOISE = service_noise(10)


class Population:
    """Browsers that share a clock; what they contributed, summed by bucket (and filtering ID)."""

    def __init__(self, size: int, **operations: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.browsers = [
            Browser(clock=self.clock, bits=SeededBits(f"device {number}"), config=Config(local_testing_mode=True))
            for number in range(size)
        ]
        for browser in self.browsers:
            for name, operation in operations.items():
                browser.register(ORIGIN, name, operation)

    def run(self, device: int, name: str, data: Any) -> None:
        self.browsers[device].run(ORIGIN, name, data)

    def sums(self, *, filtering_id: int | None = None) -> Counter[int]:
        """Return the true sums, and check that no operation failed."""
        totals: Counter[int] = Counter()
        self.clock.advance(DAY_MS)
        for browser in self.browsers:
            assert browser.journal.console == []
            self.kept = [*getattr(self, "kept", []), *browser.take_due()]
        for delivery in self.kept:
            for made in delivery.report.contributions:
                if filtering_id in (None, made.filtering_id):
                    totals[made.bucket] += made.value
        return totals

    def cut(self) -> int:
        return sum(browser.journal.count(cause=Cause.TEN_MINUTES) for browser in self.browsers)


def noisy(sums: Counter[int], domain: Iterable[int], noise: DiscreteLaplace = NOISE) -> dict[int, int]:
    """Return the summary that a service would release."""
    buckets = list(domain)
    draws = noise.sample(SecureBits(), len(buckets)).tolist()
    return {bucket: sums[bucket] + draw for bucket, draw in zip(buckets, draws, strict=True)}


SURE = 1 - Fraction(1, 10**9)
"""The level of intervals in tests that assert one: each is a false alarm with probability 10⁻⁹ or less."""


def test_an_interval_holds_the_truth_at_its_level() -> None:
    """One bucket: exact coverage of the interval is at least its level, and just so."""
    for level in (Fraction(1, 2), Fraction(95, 100), Fraction(999, 1000)):
        width = half_width(NOISE, level)
        inside = float(NOISE.cdf(width)) - float(NOISE.cdf(-width - 1))
        narrower = float(NOISE.cdf(width - 1)) - float(NOISE.cdf(-width))
        assert narrower < level <= inside + 1e-12
    sample = estimate(655_360, 65_536, NOISE)
    assert sample.value == 10
    assert sample.standard_deviation == pytest.approx(math.sqrt(2) / 10, rel=1e-4)
    assert sample.holds(10) and not sample.holds(9) and not sample.holds(11)
    for bad in ({"level": Fraction(1)}, {"level": Fraction(0)}, {"terms": 0}):
        with pytest.raises(DeviceConfigError):
            half_width(NOISE, **{"level": Fraction(1, 2), **bad})  # type: ignore[arg-type]
    with pytest.raises(DeviceConfigError):
        service_noise(Fraction(1, 3))


@pytest.mark.parametrize("terms", [2, 10, 30])
def test_sums_of_noise_stay_within_their_width(terms: int) -> None:
    """40,000 sums: those outside number at most their expectation and 6 standard errors (false alarms < 10⁻⁸)."""
    level = Fraction(9, 10)
    width = half_width(NOISE, level, terms)
    sums = NOISE.sample(SecureBits(), 40_000 * terms).reshape(40_000, terms).sum(axis=1)
    outside = int(np.count_nonzero(np.abs(sums) > width))
    expected = 40_000 * float(1 - level)
    assert outside <= expected + 6 * math.sqrt(expected)
    assert width < 3.2 * math.sqrt(terms * float(NOISE.variance())), "and the bound is not a useless one"


def test_reach_counts_each_device_once() -> None:
    reach = Reach(cap=3)
    population = Population(60, reach=reach.operation)
    for device in range(60):
        for _ in range(3):
            population.run(device, "reach", 7)
            population.run(device, "reach", 8 if device % 3 == 0 else 7)
    sums = population.sums()
    assert sums == {7: 60 * reach.value, 8: 20 * reach.value}
    summary = noisy(sums, reach.domain([7, 8, 9]))
    for slice_id, truth in ((7, 60), (8, 20), (9, 0)):
        assert reach.estimate(summary, slice_id, NOISE, confidence=SURE).holds(truth)


def test_reach_of_several_levels_at_once() -> None:
    """Campaign, and campaign × place: a device counts once in each, also where only the finer slice is new."""
    reach = Reach(cap=2, levels=2)
    population = Population(10, reach=reach.operation)
    for device in range(10):
        for place in (device % 2, 2):
            population.run(device, "reach", [5, 50 + place])
    sums = population.sums()
    assert reach.value == 65_536 // 4
    assert {bucket: total // reach.value for bucket, total in sums.items()} == {
        reach.bucket(5): 10,
        reach.bucket(50, 1): 5,
        reach.bucket(51, 1): 5,
        reach.bucket(52, 1): 10,
    }
    assert reach.estimate(noisy(sums, reach.domain([52], 1)), 52, NOISE, level=1, confidence=SURE).holds(10)
    assert population.cut() == 0
    with pytest.raises(DeviceConfigError):
        reach.bucket(5, 2)


def test_reach_forgets_after_thirty_days_and_the_cap_bounds_a_window() -> None:
    reach = Reach()
    population = Population(1, reach=reach.operation)
    population.run(0, "reach", 1)
    population.run(0, "reach", 2)
    assert population.cut() == 1, "one slice in ten minutes: the second is cut, and never counted again"
    population.clock.advance(15 * 60_000)
    population.run(0, "reach", 2)
    assert population.sums() == {1: 65_536}
    population.clock.advance(30 * DAY_MS)
    population.run(0, "reach", 1)
    assert population.sums() == {1: 2 * 65_536}


def test_cumulative_reach_by_point_contributions() -> None:
    recipe = CumulativeReach(horizon=4)
    population = Population(30, view=recipe.operation)
    first = [device % 3 + 1 for device in range(30)]
    for step in range(4):
        for device in range(30):
            if step >= first[device]:
                population.run(device, "view", {"slice": 2, "step": step})
        population.clock.advance(DAY_MS)
    sums = population.sums()
    summary = noisy(sums, recipe.domain([2]))
    estimates = recipe.estimate(summary, 2, NOISE, confidence=SURE)
    for made, truth in zip(estimates, [0, 10, 20, 30], strict=True):
        assert made.holds(truth)
    deviations = [made.standard_deviation for made in estimates]
    assert deviations == pytest.approx([deviations[0] * math.sqrt(step + 1) for step in range(4)])
    direct = 4 * math.sqrt(float(NOISE.variance())) / recipe.value
    assert deviations[-1] < direct, "√T against T: a bucket for each `until t` shares the budget four ways"


def test_k_plus_frequency() -> None:
    recipe = KPlusFrequency(thresholds=(1, 2, 5), cap=3)
    population = Population(20, view=recipe.operation)
    for device in range(20):
        for _ in range(device % 7):
            population.run(device, "view", 3)
    counts = [device % 7 for device in range(20)]
    sums = population.sums()
    estimates = recipe.estimate(noisy(sums, recipe.domain([3])), 3, NOISE, confidence=SURE)
    for threshold in (1, 2, 5):
        truth = sum(count >= threshold for count in counts)
        assert sums[recipe.bucket(3, threshold)] == truth * recipe.value
        assert estimates[threshold].holds(truth)
    for bad in ((), (0,), (2, 1), (1, 1)):
        with pytest.raises(DeviceConfigError):
            KPlusFrequency(thresholds=bad)


def test_frequency_histogram() -> None:
    recipe = FrequencyHistogram(bins=4)
    population = Population(24, view=recipe.view, report=recipe.report)
    counts = [device % 6 for device in range(24)]
    for device, count in enumerate(counts):
        for _ in range(count):
            population.run(device, "view", 9)
        population.run(device, "report", 9)
        population.run(device, "report", 9)
    sums = population.sums()
    truth = Counter(min(count, 4) for count in counts if count)
    assert sums == {recipe.bucket(9, f): truth[f] * recipe.value for f in truth}
    estimates = recipe.estimate(noisy(sums, recipe.domain([9])), 9, NOISE, confidence=SURE)
    assert all(estimates[f].holds(truth[f]) for f in range(1, 5))
    exact = recipe.estimate(sums, 9, NOISE)
    assert mean_frequency(exact) == pytest.approx(sum(f * n for f, n in truth.items()) / sum(truth.values()))
    assert population.cut() == 0


def test_demographics_across_sites() -> None:
    recipe = Demographics(attributes={"age": ("18-29", "30-49", "50+"), "language": ("de", "fr")})
    population = Population(12, demo=recipe.operation)
    for device, browser in enumerate(population.browsers):
        if device % 4:
            known = {"age": ("18-29", "30-49", "50+")[device % 3], "language": "de" if device % 2 else "xx"}
            recipe.remember(browser.storage(ORIGIN), known)
        for _ in range(2):
            browser.run(ORIGIN, "demo", 77)
    sums = population.sums()
    visitors = [device for device in range(12) if device % 4]
    truth = {
        ("age", UNKNOWN): 3,
        ("age", "18-29"): sum(device % 3 == 0 for device in visitors),
        ("age", "30-49"): sum(device % 3 == 1 for device in visitors),
        ("age", "50+"): sum(device % 3 == 2 for device in visitors),
        ("language", UNKNOWN): 3 + sum(device % 2 == 0 for device in visitors),
        ("language", "de"): sum(device % 2 for device in visitors),
        ("language", "fr"): 0,
    }
    estimates = recipe.estimate(noisy(sums, recipe.domain(77)), 77, NOISE, confidence=SURE)
    assert estimates.keys() == truth.keys()
    for key, expected in truth.items():
        assert sums[recipe.bucket(77, *key)] == expected * recipe.value
        assert estimates[key].holds(expected)
    with pytest.raises(DeviceConfigError):
        Demographics(attributes={"age": (UNKNOWN,)})


def test_cross_site_conversions() -> None:
    recipe = CrossSiteConversion(max_amount=200, cap=2)
    population = Population(4, view=recipe.view, convert=recipe.convert)
    clock = population.clock

    def view(device: int, campaign: int) -> None:
        population.run(device, "view", {"campaign": campaign, "time_ms": clock.now_ms()})

    def convert(device: int, order: int, amount: int) -> None:
        population.run(device, "convert", {"order": order, "amount": amount, "time_ms": clock.now_ms()})

    view(0, 1)
    view(0, 2)
    convert(0, 100, 50)
    convert(0, 100, 50)
    convert(0, 101, 1_000)
    view(1, 1)
    clock.advance(7 * DAY_MS)
    convert(1, 102, 10)
    view(1, 1)
    convert(1, 102, 10)
    convert(2, 103, 10)
    view(3, 1)
    convert(3, 104, -5)
    counts, amounts = population.sums(filtering_id=1), population.sums(filtering_id=2)
    assert counts == {recipe.bucket(1): 2 * recipe.count_value, recipe.bucket(2): 2 * recipe.count_value}
    assert 2 * (recipe.count_value + recipe.largest_amount) <= 65_536
    summary = noisy(counts, recipe.domain([1, 2]))
    assert recipe.estimate_count(summary, 2, NOISE, confidence=SURE).holds(2)
    spent = recipe.estimate_amount(noisy(amounts, recipe.domain([1, 2], amount=True)), 2, NOISE, confidence=SURE)
    assert spent.holds(250), "the last campaign seen; an order once; 1,000 clipped at 200"
    exact = recipe.estimate_amount(amounts, 1, NOISE)
    assert exact.value == pytest.approx(10, abs=2 / float(recipe.amount_scale)), "negative amounts count as 0"
    assert population.cut() == 0
    for bad in ({"max_amount": 0}, {"max_amount": 1, "count_share": Fraction(1)}, {"max_amount": 1, "cap": 65_536}):
        with pytest.raises(DeviceConfigError):
            CrossSiteConversion(**bad)  # type: ignore[arg-type]


def test_winning_bid_prices_and_the_gap_of_those_who_lost() -> None:
    buyers = ["https://one.example", "https://two.example"]
    recipe = WinningBidPrice(buyers=buyers, max_price=10.0, cap=4)
    gap = LossGap(bucket=1, count_bucket=2, max_gap=5.0, cap=4)
    clock = ManualClock(START_MS)
    browser = Browser(clock=clock, bits=SeededBits(3), config=Config(local_testing_mode=True))
    prices = [(1.0, 2.0), (4.0, 2.5), (3.0, 9.0), (20.0, 1.0)]

    def bidder(owner: str, bid: float) -> InterestGroup:
        def generate_bid(aggregation: Any, signals: Any) -> float:
            if owner == buyers[0]:
                gap.contribute(aggregation, bid)
            return bid

        return InterestGroup(owner=owner, name="g", generate_bid=generate_bid)

    for bids in prices:
        browser.run_ad_auction(
            Auction(
                seller="https://seller.example",
                score_ad=lambda aggregation, signals: signals.bid,
                report_result=recipe.report_result,
                interest_groups=[bidder(owner, bid) for owner, bid in zip(buyers, bids, strict=True)],
            )
        )
    assert browser.journal.console == []
    seller: Counter[int] = Counter()
    losers: Counter[int] = Counter()
    for delivery in browser.take_due():
        into = seller if delivery.report.reporting_origin == "https://seller.example" else losers
        for made in delivery.report.contributions:
            into[made.bucket] += made.value
    won, paid = recipe.estimate(noisy(seller, recipe.domain(buyers)), buyers[0], NOISE, confidence=SURE)
    assert won.holds(2) and paid.holds(14.0), "4, and 20 clipped at 10"
    exact = recipe.estimate(seller, buyers[1], NOISE)
    assert (exact[0].value, exact[1].value) == pytest.approx((2, 11.0), abs=2e-3)
    lost, gaps = gap.estimate(losers, NOISE)
    assert (lost.value, gaps.value) == pytest.approx((2, 7.0), abs=1e-2), "2 - 1 and 9 - 3"
    assert recipe.number("https://stranger.example") == 0
    with pytest.raises(DeviceConfigError):
        WinningBidPrice(buyers=[], max_price=0)
    with pytest.raises(DeviceConfigError):
        LossGap(bucket=1, count_bucket=2, max_gap=-1)


def test_budgets_that_cannot_be_divided_are_refused() -> None:
    bad: list[tuple[Any, dict[str, int]]] = [
        (Reach, {"cap": 65_537}),
        (Reach, {"cap": 0}),
        (FrequencyHistogram, {"bins": 0}),
        (CumulativeReach, {"horizon": 0}),
    ]
    for recipe, arguments in bad:
        with pytest.raises(DeviceConfigError):
            recipe(**arguments)
    assert Reach(cap=65_536).value == 1
