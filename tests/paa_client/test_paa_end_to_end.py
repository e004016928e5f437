"""Reach from devices to summary: worklets, encryption, the service over gRPC, its ledger, and the interval."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from aggservice import wire
from aggservice.client import Client, ClientError, JobParameters
from aggservice.mechanisms import ManualClock, SecureBits
from aggservice.service import embedded
from paa_client import Browser, Fleet
from paa_client.config import AWS_COORDINATOR
from paa_client.recipes.estimates import service_noise
from paa_client.recipes.reach import Reach

ORIGIN = "https://ad.example"
START_MS = 1_700_000_040_000
HOUR_MS = 3_600_000
EPSILON = 10
NOISE = service_noise(EPSILON)
LEVELS = [Fraction(50, 100), Fraction(80, 100), Fraction(95, 100)]
CAMPAIGNS = [11, 12, 13]
FALSE_ALARM = 1e-7


def browse(devices: int, keys: wire.PublicKeySet) -> tuple[list[wire.AggregatableReport], dict[int, int]]:
    """Let each device see some campaigns, some of them again, on its own browser; return its reports and the truth."""
    draws = np.random.Generator(np.random.PCG64())
    reach = Reach(cap=len(CAMPAIGNS))
    sees = draws.random((devices, len(CAMPAIGNS))) < [0.9, 0.3, 0.01]
    views = draws.integers(1, 3, (devices, len(CAMPAIGNS)))
    clock = ManualClock(START_MS)
    bits = SecureBits()
    browsers = []
    for device in range(devices):
        browser = Browser(clock=clock, bits=bits, keys={AWS_COORDINATOR: keys})
        browser.register(ORIGIN, "reach", reach.operation)
        for place, campaign in enumerate(CAMPAIGNS):
            for _ in range(views[device, place] if sees[device, place] else 0):
                browser.run(ORIGIN, "reach", campaign)
        browsers.append(browser)
    clock.advance(HOUR_MS)
    reports = [sent.sealed for browser in browsers for sent in browser.send_due()]
    assert all(browser.journal.count() == 0 for browser in browsers), "nothing is cut at this cap"
    return reports, {campaign: int(sees[:, place].sum()) for place, campaign in enumerate(CAMPAIGNS)}


def repeat(repetitions: int, devices: int, tmp_path: Path) -> str:
    """Measure reach again and again; check how often each level's interval holds the truth; return the figures.

    An interval of one bucket is exact, so the number that hold is binomial with the exact probability, which is the
    level or a hair above; it must lie between quantiles of false-alarm rate 10⁻⁷ each (over 6 assertions: < 10⁻⁶).
    """
    reach = Reach(cap=len(CAMPAIGNS))
    held = dict.fromkeys(LEVELS, 0)
    clock = ManualClock(START_MS)
    keys = wire.KeySet.create(SecureBits(), clock)
    service_clock = ManualClock(START_MS + 2 * HOUR_MS)
    sent = 0
    with (
        embedded(state=tmp_path / "state", clock=service_clock, keys=keys) as service,
        Client(service.address) as client,
    ):
        for repetition in range(repetitions):
            reports, truth = browse(devices, keys.public(clock))
            sent += len(reports)
            parameters = JobParameters(attribution_report_to=ORIGIN, epsilon=str(EPSILON))
            summary = client.aggregate(f"reach {repetition}", parameters, reports, domain=reach.domain(CAMPAIGNS))
            assert (summary.return_code, summary.statement.private) == ("SUCCESS", True)
            rows = summary.to_dict()
            for level in LEVELS:
                for campaign, true in truth.items():
                    held[level] += reach.estimate(rows, campaign, NOISE, confidence=level).holds(true)
        audit = client.verify_ledger([summary.receipt])
        assert audit.ok
        assert {balance.spent.epsilon for balance in client.balances([reports[0].shared_info])} == {str(EPSILON)}
    measured = repetitions * len(CAMPAIGNS)
    lines = [f"{repetitions} repetitions of {devices:,} devices, {sent:,} sealed reports, {measured} intervals a level"]
    for level, count in held.items():
        width = int(NOISE.quantile((1 + level) / 2))
        exact = float(NOISE.cdf(width)) - float(NOISE.cdf(-width - 1))
        low, high = binom.ppf(FALSE_ALARM, measured, exact), binom.isf(FALSE_ALARM, measured, exact)
        assert low <= count <= high, f"{count} of {measured} intervals of level {level} hold; expected {low} to {high}"
        share = f"{count} hold ({count / measured:.3f})"
        lines.append(f"level {float(level):.2f}: {share}; accepted {low:.0f} to {high:.0f}")
    return "\n".join(lines)


def test_reach_is_covered_as_stated(tmp_path: Path) -> None:
    repeat(15, 30, tmp_path)


@pytest.mark.soak
def test_reach_is_covered_as_stated_over_200_repetitions_of_2000_devices(tmp_path: Path) -> None:
    print(repeat(200, 2_000, tmp_path))


def fleet_once(devices: int, tmp_path: Path, processes: int) -> str:
    """Measure the reach of a fleet once, through one job; the truth must lie in the interval of level 1 - 10⁻⁷.

    Returns the figures with the intervals of 99.9 %.
    """
    reach = Reach(cap=len(CAMPAIGNS))
    bits = SecureBits()
    draws = np.random.Generator(np.random.PCG64())
    shares = [0.6, 0.3, 0.1]
    views = draws.poisson(1.2, devices)
    owner = np.repeat(np.arange(devices), views)
    name = draws.choice(CAMPAIGNS, owner.size, p=shares)
    when = START_MS + draws.integers(0, 24 * HOUR_MS, owner.size)
    truth = {campaign: len(np.unique(owner[name == campaign])) for campaign in CAMPAIGNS}
    fleet = Fleet(recipe=reach, origin=ORIGIN)
    columns = fleet.run(owner, when, name, devices=devices, bits=bits)
    assert columns.asked == len(columns) == sum(truth.values())
    clock = ManualClock(START_MS)
    keys = wire.KeySet.create(bits, clock)
    public = keys.public(clock)

    def sealed() -> Iterator[wire.AggregatableReport]:
        for report in fleet.reports(columns):
            yield report.seal(public, bits)

    started = time.perf_counter()
    late = ManualClock(START_MS + 30 * HOUR_MS)
    with (
        embedded(state=tmp_path / "state", clock=late, keys=keys, processes=processes) as service,
        Client(service.address) as client,
    ):
        parameters = JobParameters(attribution_report_to=ORIGIN, epsilon=str(EPSILON), input_report_count=len(columns))
        summary = client.aggregate("reach", parameters, sealed(), domain=reach.domain(CAMPAIGNS))
        assert summary.return_code == "SUCCESS"
        assert client.verify_ledger([summary.receipt]).ok
        first = next(fleet.reports(columns)).shared_info
        assert {balance.spent.epsilon for balance in client.balances([first])} == {str(EPSILON)}
        again = JobParameters(attribution_report_to=ORIGIN, epsilon="60")
        with pytest.raises(ClientError) as refused:
            client.aggregate("again", again, [next(sealed())], domain=reach.domain(CAMPAIGNS))
        assert refused.value.return_code == "PRIVACY_BUDGET_EXHAUSTED"
    taken = time.perf_counter() - started
    rows: dict[int, Any] = summary.to_dict()
    lines = [f"{devices:,} devices, {owner.size:,} views, {len(columns):,} sealed reports in one job, {taken:.0f} s"]
    for campaign, true in truth.items():
        sure = reach.estimate(rows, campaign, NOISE, confidence=1 - Fraction(1, 10**7))
        assert sure.holds(true)
        stated = reach.estimate(rows, campaign, NOISE, confidence=Fraction(999, 1000))
        within = f"{stated.low:,.2f} to {stated.high:,.2f}"
        lines.append(
            f"campaign {campaign}: truth {true:,}, estimate {stated.value:,.2f} ± {stated.standard_deviation:.2f}, "
            f"99.9 % interval {within}: {'holds' if stated.holds(true) else 'does not hold'}"
        )
    return "\n".join(lines)


def test_reach_of_a_fleet_end_to_end(tmp_path: Path) -> None:
    fleet_once(2_000, tmp_path, processes=0)


@pytest.mark.soak
def test_reach_of_a_million_devices_end_to_end(tmp_path: Path) -> None:
    """Also the 99.9 % intervals hold: by construction, three of those fail once in 333 runs."""
    figures = fleet_once(1_000_000, tmp_path, processes=1)
    print(figures)
    assert "does not hold" not in figures
