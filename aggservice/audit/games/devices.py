"""Games against browsers: contribution budgets and windows, event-level noise, and null reports.

The service sums what a browser sends. Its noise is scaled to Λ₁, so a browser that lets a unit contribute more than Λ₁
reveals more than was charged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from aggservice.audit.games.game import Game, Played
from aggservice.audit.games.sums import compared, pairs
from aggservice.audit.target import L1, Target
from aggservice.mechanisms import Bits, ManualClock
from aggservice.wire import Contribution, PublicKeySet
from ara_client import Browser, Request, Response
from ara_client.event_noise.response import TRUTHFUL, draw_states
from ara_client.model import Source, SummaryClient
from ara_client.reports import AggregatableAttributionReport, EventLevelReport, OutgoingReport
from paa_client import Browser as StorageBrowser
from paa_client import Config, PaaSrClient

_NOW_MS = 1_700_000_000_000
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_SHOP, _NEWS, _REPORTER = "https://shop.example", "https://news.example", "https://adtech.example"
_SOURCE, _TRIGGER = "Attribution-Reporting-Register-Source", "Attribution-Reporting-Register-Trigger"
Sent = list[tuple[int, int]]
"""What left a browser: (filtering ID, value)."""


def _browser(bits: Bits, keys: PublicKeySet | None = None) -> tuple[Browser, ManualClock]:
    clock = ManualClock(_NOW_MS)
    return Browser(clock=clock, bits=bits, keys=keys), clock


def _click(browser: Browser, **fields: Any) -> None:
    request = Request(context=_NEWS, eligible="navigation-source")
    source = {"destination": _SHOP, "aggregation_keys": {"a": "0x1", "b": "0x2"}, **fields}
    browser.register(request, Response(url=_REPORTER, headers={_SOURCE: json.dumps(source)}))


def _buy(browser: Browser, **fields: Any) -> list[OutgoingReport]:
    """Register a trigger; return the reports that are sent at once."""
    return browser.register(Request(context=_SHOP), Response(url=_REPORTER, headers={_TRIGGER: json.dumps(fields)}))


def _value(value: int, key: str = "a", filtering_id: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "aggregatable_trigger_data": [{"key_piece": "0x10", "source_keys": ["a", "b"]}],
        "aggregatable_values": {key: {"value": value, "filtering_id": str(filtering_id)}},
        **more,
    }


def _attribution(bits: Bits, source: dict[str, Any], triggers: Sequence[dict[str, Any]]) -> Sent:
    """Return what one source contributes over some triggers."""
    browser, clock = _browser(bits)
    _click(browser, **source)
    for trigger in triggers:
        clock.advance(1000)
        _buy(browser, **trigger)
    reports = [one for one in browser.pending if isinstance(one, AggregatableAttributionReport)]
    return [(one.filtering_id, one.value) for report in reports for one in report.contributions]


_DEBUG = {"budget": L1 // 2, "key_piece": "0x1", "debug_data": []}
ATTRIBUTION: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "triggers": ({}, [_value(L1), _value(L1), _value(1)]),
    "named budgets": (
        {"named_budgets": {"n": L1, "m": L1}},
        [_value(L1, named_budgets=[{"name": "n"}]), _value(L1, named_budgets=[{"name": "m"}]), _value(L1)],
    ),
    "filtering IDs and keys": ({}, [_value(L1, filtering_id=1), _value(L1, "b"), _value(L1, filtering_id=2)]),
    "debug budget": ({"aggregatable_debug_reporting": _DEBUG}, [_value(L1 // 2), _value(L1 // 2), _value(L1)]),
}
"""Ways in which a source could contribute more than Λ₁: what it registers, and its triggers."""


def _storage(bits: Bits, origins: Sequence[str], minutes: Sequence[int], days: int = 0) -> Sent:
    """Return what one device contributes for a site when operations ask for Λ₁ at these minutes."""

    def ask(storage: Any, aggregation: Any, data: Any) -> None:
        aggregation.contribute_to_histogram(bucket=1, value=L1)

    clock = ManualClock(_NOW_MS // _MINUTE_MS * _MINUTE_MS)
    config = Config(local_testing_mode=True, larger_budget=L1 if days else 1 << 20)
    browser = StorageBrowser(clock=clock, bits=bits, config=config)
    sent: Sent = []
    for number, minute in enumerate(minutes):
        clock.advance((minute - (minutes[number - 1] if number else 0)) * _MINUTE_MS)
        origin = origins[number % len(origins)]
        browser.register(origin, f"ask {number}", ask)
        browser.run(origin, f"ask {number}")
        sent += [(one.filtering_id, one.value) for due in browser.take_due() for one in due.report.contributions]
    return sent


STORAGE: dict[str, Callable[[Bits], Sent]] = {
    "ten minutes": lambda bits: _storage(bits, [_REPORTER], [0, 1, 9]),
    "ten minutes across an hour": lambda bits: _storage(bits, [_REPORTER], [3, 12]),
    "origins of a site": lambda bits: _storage(bits, ["https://a.ad.example", "https://b.ad.example"], [0, 0, 5]),
    "a day": lambda bits: _storage(bits, [_REPORTER], [0, 20, 1439], days=1),
}


def _summed(target: Target, units: int, name: str, act: Callable[[Bits], Sent]) -> Played:
    """Let each unit act in its own browser, and sum what that sends under the unit's own key in a job of ε = 1."""
    with target.open() as attacked:
        reports = []
        for at in range(units):
            for filtering_id, value in act(target.bits):
                made = [Contribution(bucket=2 * at, value=value, filtering_id=filtering_id)]
                reports.append(attacked.report(made))
        metrics = attacked.metrics(attacked.ask(attacked.parameters("1", filtering_ids=(0, 1, 2)), reports, 4 * units))
        return compared(pairs(metrics), units, attacked.charged(reports)[0], name=name)


def attribution_caps(target: Target, scale: int) -> list[Played]:
    def act(source: dict[str, Any], triggers: list[dict[str, Any]]) -> Callable[[Bits], Sent]:
        return lambda bits: _attribution(bits, source, triggers)

    return [_summed(target, 1_400 * scale, name, act(*asked)) for name, asked in ATTRIBUTION.items()]


def storage_caps(target: Target, scale: int) -> list[Played]:
    return [_summed(target, 1_400 * scale, name, act) for name, act in STORAGE.items()]


def counts(target: Target, scale: int) -> list[Played]:
    """Count what the paper's clients send beyond Λ₀ = 3, which the threshold τ does not cover: it must be none."""
    trials, l0 = 300 * scale, 3
    ara, paa = [], []
    for _ in range(trials):
        client = SummaryClient(contribution_budget=100, sparsity_budget=l0, bits=target.bits)
        every = frozenset({"any"})
        client.register_source(Source(src_id=1, dest="d", exp_date=9, src_filt=every, src_key=1))
        made = [
            client.register_trigger(0, dest="d", trig_id=at, trig_filt=every, trig_key=at << 4, trig_value=1)
            for at in range(6)
        ]
        ara.append(max(0, len([one for one in made if one.key is not None]) - l0))
        device = PaaSrClient(lambda_1=100, lambda_0=l0, bits=target.bits)
        sent = [device.event("u", 0, lambda storage, at=at: (storage, at, 1)) for at in range(6)]  # type: ignore[misc]
        paa.append(max(0, len([one for one in sent if not one.is_null]) - l0))
    none = {"beyond": np.zeros(trials, dtype=np.int64)}
    return [
        Played(first={"beyond": np.array(found, dtype=np.int64)}, second=none, epsilon=0.0, name=name)
        for name, found in (("Attribution Reporting", ara), ("Private Aggregation", paa))
    ]


def responses(target: Target, scale: int) -> list[Played]:
    """Compare sources in the first and the second of three states; and sources in browsers, converted and not."""
    trials = 60_000 * scale
    drawn = [draw_states(target.bits, 3, Fraction(1), trials) for _ in range(2)]
    first, second = ({"state": np.where(one == TRUTHFUL, truth, one)} for truth, one in enumerate(drawn))
    return [
        Played(first=first, second=second, epsilon=1.0, name="fleet"),
        Played(
            first={"reports": _event_reports(target.bits, 3_000 * scale, True)},
            second={"reports": _event_reports(target.bits, 3_000 * scale, False)},
            epsilon=1.0,
            name="browser",
        ),
    ]


def _event_reports(bits: Bits, trials: int, converts: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how many event-level reports (0 or 1) each of ``trials`` sources sends."""
    found = np.zeros(trials, dtype=np.int64)
    source = {"event_level_epsilon": 1, "trigger_data": [0], "max_event_level_reports": 1,
              "event_report_windows": {"end_times": [86_400]}}  # fmt: skip
    for at in range(trials):
        browser, clock = _browser(bits)
        _click(browser, **source)
        clock.advance(1000)
        if converts:
            _buy(browser, event_trigger_data=[{"trigger_data": "0"}])
        found[at] = len([one for one in browser.pending if isinstance(one, EventLevelReport)])
    return found


def null_reports(target: Target, scale: int) -> list[Played]:
    """Compare triggers with and without a source: with a context ID both send one report of the same length."""
    trials, keys = 250 * scale, target.keys().public(target.clock)
    features = []
    for attributed in (True, False):
        number, size = np.zeros(trials, dtype=np.int64), np.zeros(trials, dtype=np.int64)
        for at in range(trials):
            browser, clock = _browser(target.bits, keys)
            if attributed:
                _click(browser)
            clock.advance(1000)
            asked = {"trigger_context_id": "c", "aggregatable_source_registration_time": "exclude"}
            sent = [*_buy(browser, **asked, **_value(5)), *browser.advance(_NOW_MS + _DAY_MS)]
            aggregatable = [one for one in sent if isinstance(one, AggregatableAttributionReport)]
            number[at] = len(aggregatable)
            size[at] = sum(len(one.to_json()) for one in aggregatable)
        features.append({"reports": number, "bytes": size})
    return [Played(first=features[0], second=features[1], epsilon=0.0)]


GAMES = (
    Game("Attribution Reporting caps", "a source that contributes more than Λ₁", attribution_caps, parts=4),
    Game("Private Aggregation caps", "a device that contributes more than Λ₁ within a window", storage_caps, parts=4),
    Game("contributions beyond Λ₀", "more contributions than the threshold is for", counts, parts=2, service=False),
    Game("event-level response", "a wrong probability, states never faked", responses, parts=2, service=False),
    Game("null reports", "a report's existence or length that tells of a source", null_reports, service=False),
)
