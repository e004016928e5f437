"""Depletion of the global budget by an adversary: bounded by its domains and quotas in every run, and only then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits, uniform_below
from w3c_client import (
    DEFAULT_SERVICE,
    Browser,
    Config,
    Conversion,
    ConversionOptions,
    ImpressionOptions,
    Page,
    design_config,
)
from w3c_client.rules import GlobalBudget

HOUR_MS = 3_600_000


def rampage(config: Config, domains: int, actions: int, seed: str) -> Iterator[tuple[int, Conversion]]:
    """Let an adversary do anything at random with its domains; yield each conversion and the action it belongs to.

    Impressions of others name their conversion sites, as those of careful publishers do, so the adversary's
    conversions can use only its own.
    """
    bits, clock = SeededBits(seed), ManualClock(1_700_000_000_000)
    browser = Browser(clock=clock, bits=bits.child("browser"), config=config)

    def pick(count: int) -> int:
        return uniform_below(bits, count)

    for action in range(actions):
        clock.advance(pick(40) * HOUR_MS)
        browser.save_impression(
            Page(top_level=f"publisher-{pick(3)}.example", action=1000 + action),
            ImpressionOptions(histogram_index=0, conversion_sites=("shop.example",)),
        )
        for _ in range(1 + pick(6)):
            site, frame = f"sybil-{pick(domains)}.example", (None, "ads.example", "more-ads.example")[pick(3)]
            page = Page(top_level=site, frame=frame, action=action)
            what = pick(5)
            if what < 2:
                browser.save_impression(page, ImpressionOptions(histogram_index=pick(4)))
            elif what < 4:
                most = 1 + pick(5)
                wanted = ConversionOptions(
                    aggregation_service=DEFAULT_SERVICE,
                    histogram_size=3,
                    epsilon=(0.25, 0.5, 1.0, 2.0)[pick(4)],
                    value=1 + pick(most),
                    max_value=most,
                    credit=(1.0,) * (1 + pick(3)),
                    lookback_days=(1, 7, 30)[pick(3)],
                    impression_sites=() if pick(2) else (f"sybil-{pick(domains)}.example",),
                )
                yield action, browser.measure_conversion(page, wanted)
            else:
                browser.clear_impressions_for_site(site)
    browser.check()


def drained(made: list[tuple[int, Conversion]]) -> dict[int, int]:
    """Return what the global budget of each epoch paid."""
    paid: defaultdict[int, int] = defaultdict(int)
    for _, conversion in made:
        for outcome in conversion.epochs:
            if outcome.refused_by is None:
                paid[outcome.epoch] += outcome.prices.of(GlobalBudget())
    return paid


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 62),
    domains=st.integers(1, 4),
    quota=st.sampled_from([500_000, 1_000_000, 2_000_000]),
    design=st.sampled_from(["big-bird", "w3c"]),
)
def test_quotas_bound_what_sybils_drain(seed: int, domains: int, quota: int, design: str) -> None:
    name = "conversion_quota_micro" if design == "big-bird" else "impression_quota_micro"
    config = design_config(design, **{name: quota}, global_budget_micro=4_000_000_000)
    paid = drained(list(rampage(config, domains, 25, str(seed))))
    assert all(amount <= domains * quota for amount in paid.values())
    if design == "big-bird":
        assert all(amount <= domains * config.impression_quota_micro for amount in paid.values())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 62), cap=st.integers(1, 3))
def test_the_cap_bounds_what_one_action_drains(seed: int, cap: int) -> None:
    """However many domains there are, at most ``cap`` of them pay in an action and epoch, each up to its quota."""
    config = design_config("big-bird", sites_per_action=cap, global_budget_micro=4_000_000_000)
    paying: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for action, conversion in rampage(config, 12, 25, str(seed)):
        for outcome in conversion.epochs:
            if outcome.refused_by is None:
                paying[action, outcome.epoch].add(conversion.conversion_site)
    assert all(len(sites) <= cap for sites in paying.values())


def test_the_bound_needs_the_quota() -> None:
    """Without quotas the same adversary takes more than its domains times the quota, within a few runs."""
    quota, domains = 500_000, 2
    loose = design_config("global-only", global_budget_micro=4_000_000_000)
    taken = [max(drained(list(rampage(loose, domains, 25, f"loose {run}"))).values(), default=0) for run in range(10)]
    assert max(taken) > domains * quota
