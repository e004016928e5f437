"""Algorithm 3 of the paper, its Figure 2 step by step, and where it and the browser must agree."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits
from aggservice.wire.device import DeviceConfigError
from paa_client import Browser, Config, PaaSrClient, model
from paa_client.config import Rules
from paa_client.model import SummaryReport
from paa_client.recipes.reach import Reach
from paa_client.reporting.contributions import Cause

BUDGET = 1 << 16
MINUTE_MS = 60_000
CAMPAIGNS = {"shoes": 1, "pants": 2, "jackets": 3, "shirts": 4}
STORY = [("shoes", 0), ("pants", 0), ("jackets", 0), ("shirts", 1), ("shoes", 1)]


def first_view(campaign: str, value: int) -> model.Pi:
    """The figure's π: ``value`` the first time a campaign is seen, 0 after that."""

    def pi(seen: frozenset[str]) -> tuple[frozenset[str], str, int]:
        return seen | {campaign}, campaign, 0 if campaign in seen else value

    return pi


def test_the_algorithm_fits_in_a_hundred_lines() -> None:
    assert len(inspect.getsource(model).splitlines()) <= 100


def test_figure_2_under_the_model() -> None:
    """Shoes and pants are sent, jackets cut, shirts sent in the next window, shoes again null."""
    client = PaaSrClient(lambda_1=BUDGET, lambda_0=2, bits=SeededBits("figure 2"), empty=frozenset)
    reports = [client.event("phone", t, first_view(campaign, BUDGET // 2)) for campaign, t in STORY]
    assert [(report.k, report.v) for report in reports] == [
        ("shoes", BUDGET // 2),
        ("pants", BUDGET // 2),
        (None, None),
        ("shirts", BUDGET // 2),
        (None, None),
    ]
    assert [report.is_null for report in reports] == [False, False, True, False, True]
    assert len({report.r for report in reports}) == 5
    assert client.contributed == {("phone", 0): BUDGET, ("phone", 1): BUDGET // 2}
    assert client.storage["phone"] == set(CAMPAIGNS), "jackets are stored as seen although their report was cut"


@pytest.mark.parametrize("rules", list(Rules))
def test_figure_2_under_the_browser(rules: Rules) -> None:
    """The same with the browser's own windows: the second one begins when ten whole minutes have passed.

    Each view has a context ID, so that each has a report, null or not.
    """
    clock = ManualClock(1_700_000_040_000)
    browser = Browser(clock=clock, bits=SeededBits(2), config=Config(rules=rules, keep_losses=True))
    reach = Reach(cap=2)
    browser.register("https://ad.example", "reach", reach.operation)
    start_ms = clock.now_ms()
    for step, (campaign, window) in enumerate(STORY):
        clock.advance_to(start_ms + window * 10 * MINUTE_MS + step * 1000)
        browser.run("https://ad.example", "reach", CAMPAIGNS[campaign], context_id=f"{step} {campaign}")
    clock.advance(MINUTE_MS)
    reports = [delivery.report for delivery in browser.take_due()]
    half = BUDGET // 2
    assert [(r.context_id, [(c.bucket, c.value) for c in r.contributions]) for r in reports] == [
        ("0 shoes", [(1, half)]),
        ("1 pants", [(2, half)]),
        ("2 jackets", []),
        ("3 shirts", [(4, half)]),
        ("4 shoes", []),
    ]
    assert [(loss.cause, loss.contribution.bucket) for loss in browser.journal.losses] == [(Cause.TEN_MINUTES, 3)]


def test_sparsity_caps_reports_where_the_browser_caps_only_values() -> None:
    client = PaaSrClient(lambda_1=BUDGET, lambda_0=2, bits=SeededBits(3))
    sent = [not client.event(0, 0, lambda state: (state, 7, 1)).is_null for _ in range(4)]
    assert sent == [True, True, False, False]
    assert client.contributed[0, 0] == 2


def test_what_pi_may_return() -> None:
    client = PaaSrClient(lambda_1=5, lambda_0=5, bits=SeededBits(4))
    assert isinstance(client.event(0, 0, lambda state: (state, 7, 5)), SummaryReport)
    for value in (-1, 6):
        with pytest.raises(DeviceConfigError):
            client.event(0, 0, lambda state, value=value: (state, 7, value))
    with pytest.raises(DeviceConfigError):
        PaaSrClient(lambda_1=0, lambda_0=1, bits=SeededBits(5))


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([0, 1, 1000, BUDGET // 3, BUDGET // 2, BUDGET])),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, steps=st.lists(st.sampled_from([0, 1]), min_size=60, max_size=60), rules=st.sampled_from(Rules))
def test_the_browser_is_the_model_where_their_windows_are_the_same(
    events: list[tuple[int, int, int]], steps: list[int], rules: Rules
) -> None:
    """One contribution a run, a context ID, Λ₀ = Λ₁, at most 16 windows, all of a window's runs in its first minute.

    Then the ten minutes that end with a run hold the runs of its own fixed window only, and the day never binds.
    """
    client = PaaSrClient(lambda_1=BUDGET, lambda_0=BUDGET, bits=SeededBits(6), empty=tuple)
    clock = ManualClock(1_700_000_040_000)
    browsers = [Browser(clock=clock, bits=SeededBits(7), config=Config(rules=rules)) for _ in range(3)]

    def operation(storage: Any, aggregation: Any, data: Any) -> None:
        key, value = data
        storage.append("seen", f"{key},")
        repeated = (storage.get("seen") or "").split(",")[:-1].count(str(key)) > 3
        aggregation.contribute_to_histogram(bucket=key, value=0 if repeated else value)

    for browser in browsers:
        browser.register("https://ad.example", "operation", operation)
    window = 0
    expected: list[list[tuple[Any, Any]]] = [[], [], []]
    for (device, key, value), step in zip(events, steps, strict=False):
        window = min(window + step, 15)
        clock.advance_to(1_700_000_040_000 + window * 10 * MINUTE_MS)

        def pi(seen: tuple[int, ...], key: int = key, value: int = value) -> tuple[tuple[int, ...], int, int]:
            seen = (*seen, key)
            return seen, key, 0 if seen.count(key) > 3 else value

        report = client.event(device, window, pi)
        expected[device].append((report.k, report.v))
        browsers[device].run("https://ad.example", "operation", (key, value), context_id="c")
    clock.advance(60 * MINUTE_MS)
    for browser, wanted in zip(browsers, expected, strict=True):
        made = [delivery.report.contributions for delivery in browser.take_due()]
        assert [(c[0].bucket, c[0].value) if c else (None, None) for c in made] == wanted
