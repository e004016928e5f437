"""Games against W3C Attribution: limits on the device, and reports that a service may release once.

Neighbours lose the impressions that one device saved in one epoch (docs/guarantees.md). What a device paid is read from
its own budgets, which no site can see. The service has noise for 2 · maxValue at each report's ε, so a browser that
reports more than it paid for reveals more than was charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aggservice.audit.games.game import Game, Played
from aggservice.audit.games.sums import Metrics, worlds
from aggservice.audit.target import Attacked, Target
from aggservice.client import AttributionTask, JobParameters
from aggservice.mechanisms import ManualClock
from aggservice.wire import AggregatableReport
from budget.amounts import MICRO_PLACES, decimal_text
from w3c_client import DEFAULT_SERVICE, Browser, Config, ConversionOptions, ImpressionOptions, OnDeviceRule
from w3c_client.config import DAY_MS
from w3c_client.rules import GlobalBudget, ImpressionQuota, ScopeColumn, SiteBudget

_NEWS, _SHOP = "news.example", "shop.example"
_VALUE = 4
_BATCH = 100
"""Units of each world in one job: a histogram has two keys for each of them."""
_BUDGET_MICRO, _PLENTY_MICRO = 2_000_000, 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """A conversion for all of maxValue; its window lies within the second week or covers the first one too."""

    site: str = _SHOP
    both_weeks: bool = False

    def measure(self, browser: Browser, epsilon_micro: int) -> tuple[AggregatableReport, tuple[int, ...]]:
        """Return the report that the page gets, and its histogram."""
        asked = ConversionOptions(
            aggregation_service=DEFAULT_SERVICE,
            histogram_size=4 * _BATCH,
            epsilon=epsilon_micro / 1e6,
            value=_VALUE,
            max_value=_VALUE,
            lookback_days=14 if self.both_weeks else 1,
        )
        done = browser.measure_conversion(self.site, asked)
        assert done.sealed is not None
        return done.sealed, done.histogram


def _job(site: str, epsilon_micro: int) -> JobParameters:
    """Return the job of a conversion site over its reports."""
    task = AttributionTask(conversion_site=f"https://{site}", histogram_size=4 * _BATCH, max_value=_VALUE)
    epsilon = decimal_text(epsilon_micro, MICRO_PLACES)
    return JobParameters(reporting_site=f"https://{site}", epsilon=epsilon, attribution_task=task)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What each device does after an impression in each of two weeks, and which limit bounds what it releases.

    ``holder`` is the scope of ``limit``. Every conversion asks for all that the limit has. Every other limit is too
    large to matter.
    """

    limit: OnDeviceRule
    bought: Sequence[Bought]
    holder: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """The browsers' limits: 2 for a limit that reads its capacity from the configuration."""
        rules = tuple(dict.fromkeys((*Config().rules, self.limit)))
        limits = {one.field: _BUDGET_MICRO if one == self.limit else _PLENTY_MICRO for one in rules if one.field}
        return Config(max_histogram_size=4 * _BATCH, max_credits=1, rules=rules, **limits)  # type: ignore[arg-type]

    @property
    def epsilon_micro(self) -> int:
        """What the limit has."""
        return self.limit.capacity(self.config)


_EVERYWHERE = [Bought(site=f"store{at}.example", both_weeks=True) for at in (0, 1) for _ in range(3)]
PLANS: Mapping[str, DevicePlan] = {
    "a site's budget": DevicePlan(limit=SiteBudget(), holder=(_SHOP,), bought=[Bought(), Bought(both_weeks=True)] * 3),
    "sites together": DevicePlan(limit=GlobalBudget(), bought=_EVERYWHERE),
    "a publisher's quota": DevicePlan(limit=ImpressionQuota(), holder=(_NEWS,), bought=_EVERYWHERE),
}
"""Ways in which a device could release more than a limit allows."""


@dataclass(slots=True)
class Collected:
    """The reports of one job, and what a device of each world puts under its two keys."""

    reports: list[AggregatableReport] = field(default_factory=list)
    sums: dict[bool, Metrics] = field(default_factory=dict)


def _device(attacked: Attacked, plan: DevicePlan, unit: int, neighbour: bool) -> tuple[dict[str, Collected], float]:
    """Return the reports of one device, by conversion site, and what its limit paid for the second week."""
    config = plan.config
    clock = ManualClock(attacked.clock.now_ms() - config.max_lookback_ms)
    browser = Browser(clock=clock, bits=attacked.bits, config=config, keys=attacked.keys)
    browser.measure_conversion(_NEWS, ConversionOptions(aggregation_service=DEFAULT_SERVICE, histogram_size=1))
    assert browser.epoch_start_ms is not None  # drawn by the conversion before; weeks count from it
    for week in (1, 2):
        clock.advance_to(browser.epoch_start_ms + week * config.epoch_ms + DAY_MS)
        if week == 1 or not neighbour:
            browser.save_impression(_NEWS, ImpressionOptions(histogram_index=2 * unit + week - 1))
    clock.advance(DAY_MS)
    made: dict[str, Collected] = {}
    for one in plan.bought:
        report, histogram = one.measure(browser, plan.epsilon_micro)
        job = made.setdefault(one.site, Collected())
        job.reports.append(report)
        job.sums[neighbour] = job.sums.get(neighbour, 0) + np.array(histogram[2 * unit : 2 * unit + 2], dtype=np.int64)
    left_micro = max(0, browser.left(plan.limit, *plan.holder))  # a limit pays at most what it has
    return made, (plan.epsilon_micro - left_micro) / 1e6


def _played(attacked: Attacked, plan: DevicePlan) -> tuple[Metrics, float]:
    """Return the likelihood ratio of every unit, those of the first world first, and the most that one of them paid.

    Each job is asked for until it is refused, which must be the second time. For Laplace noise the logarithm of the
    ratio is Σ |metric − sum without| − |metric − sum with|, up to a factor.
    """
    jobs: dict[str, Collected] = {}
    most = 0.0
    for unit in range(2 * _BATCH):
        made, paid = _device(attacked, plan, unit, neighbour=unit >= _BATCH)
        most = most if unit >= _BATCH else max(most, paid)
        for site, one in made.items():
            job = jobs.setdefault(site, Collected())
            job.reports += one.reports
            job.sums |= one.sums
    ratio = np.zeros(2 * _BATCH, dtype=np.int64)
    for site, job in jobs.items():
        for _ in range(3):
            summary = attacked.ask(_job(site, plan.epsilon_micro), job.reports)
            if summary is None:
                break
            metrics = attacked.metrics(summary).reshape(-1, 2)
            ratio += (np.abs(metrics - job.sums[True]) - np.abs(metrics - job.sums[False])).sum(axis=1)
    return ratio, most


def plan_of(limit: OnDeviceRule) -> DevicePlan:
    """Return the plan for any limit on a loss: six conversions within one scope, or on two sites if it covers them."""
    holders = {ScopeColumn.CONVERSION_SITE: _SHOP, ScopeColumn.IMPRESSION_SITE: _NEWS, ScopeColumn.CALLER: _SHOP}
    one_site = not {*limit.scope} <= {ScopeColumn.IMPRESSION_SITE}
    bought = [Bought(), Bought(both_weeks=True)] * 3 if one_site else _EVERYWHERE
    return DevicePlan(limit=limit, holder=tuple(holders[one] for one in limit.scope), bought=bought)


def attribution_limits(target: Target, scale: int) -> list[Played]:
    return limits_played(target, scale, PLANS)


def limits_played(target: Target, scale: int, plans: Mapping[str, DevicePlan]) -> list[Played]:
    """Play each plan, with what its devices paid."""
    played = []
    with target.open() as attacked:
        for name, plan in plans.items():
            batches = [_played(attacked, plan) for _ in range(6 * scale)]
            halves = [worlds({"likelihood ratio": ratio}, _BATCH) for ratio, _ in batches]
            first, second = (
                {"likelihood ratio": np.concatenate([half[world]["likelihood ratio"] for half in halves])}
                for world in (0, 1)
            )
            paid = max(paid for _, paid in batches)
            played.append(Played(first=first, second=second, epsilon=paid, name=name))
    return played


GAMES = (
    Game(
        "W3C Attribution limits",
        "a browser that releases more than its limits paid for, reports that are released twice",
        attribution_limits,
        parts=len(PLANS),
        own=True,
    ),
)
