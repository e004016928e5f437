"""Runs an attack: every device's visits through a ``Browser``, with and without what filters and adversary take.

The error is Big Bird's: RMSRE_τ = √(mean over buckets of (2b² + (f − u)²) / max(u, τ)²), where u is the share of a
bucket before filters, f after them, and b the scale of the service's noise over the batch. It is computed, not drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggservice.campaign.attacks.adversaries import Attack
from aggservice.campaign.attacks.visits import Visits, simulate_visits
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.attacks import AdversaryKind, AttackScenario, QuerySettings
from aggservice.campaign.stages import Progress, no_progress
from aggservice.mechanisms import ManualClock, SeededBits, uniform_below
from w3c_client import DEFAULT_SERVICE, Browser, Conversion, ConversionOptions, Filter, ImpressionOptions, Page

Floats = NDArray[np.float64]

_MICRO = 1_000_000
_SISTER = 1 << 40
"""The adversary's visits are user actions of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What an attack did to everybody else.

    ``errors`` is RMSRE_τ per conversion site. ``refused`` counts attributable conversions of which some epoch was
    refused, by the first filter that refused one. ``drained_micro`` is the most that the adversary took from the
    global budget of one device and epoch. ``bound_micro`` is the most that the quotas of its domains allow; None
    without quotas.
    """

    name: str
    conversions: int
    attributable: int
    errors: tuple[float, ...]
    refused: dict[str, int]
    attacked_visits: int
    attack_conversions: int
    drained_micro: int
    drained_mean_micro: float
    bound_micro: int | None

    @property
    def median_error(self) -> float:
        """The median of the errors of conversion sites."""
        return float(np.median(self.errors))

    @property
    def p95_error(self) -> float:
        """The error that 95 % of the conversion sites do not exceed."""
        return float(np.quantile(self.errors, 0.95, method="higher"))

    def refused_share(self, name: Filter | None = None) -> float:
        """Return the share of attributable conversions that a filter refused, or any filter."""
        count = sum(self.refused.values()) if name is None else self.refused.get(name, 0)
        return count / self.attributable if self.attributable else 0.0

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shares = {str(name): self.refused_share(name) for name in Filter}
        return {
            **asdict(self),
            "median_error": self.median_error,
            "p95_error": self.p95_error,
            "refused_share": {**shares, "all": self.refused_share()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteQuery:
    """One conversion site's query: how many conversions, the shares of its buckets before filters, and ε."""

    size: int
    shares: Floats
    epsilon: float

    @classmethod
    def plan(cls, size: int, shares: Floats, queries: QuerySettings, most: float) -> SiteQuery:
        """Return the query whose noise alone has the wanted error: b = error / √(mean 2/max(u, τ)²), ε = 2/(b·size)."""
        scale = queries.error / float(np.sqrt(np.mean(2 / np.maximum(shares, queries.tau) ** 2)))
        return cls(size=size, shares=shares, epsilon=min(most, round(2 / (scale * size), 6)))

    def error(self, found: Floats, tau: float) -> float:
        """Return RMSRE_τ of the shares after filters."""
        noise = 2 / (self.epsilon * self.size)
        off = 2 * noise**2 + (found - self.shares) ** 2
        return float(np.sqrt(np.mean(off / np.maximum(self.shares, tau) ** 2)))


def plan_batches(scenario: AttackScenario, visits: Visits) -> list[SiteQuery]:
    """Return the query of every conversion site."""
    queries, count = scenario.queries, scenario.population.conversion_sites
    bought = visits.impression_site < 0
    sizes = np.bincount(visits.conversion_site[bought], minlength=count)
    if not sizes.min(initial=1):
        raise RunError(f"{scenario.name}: some conversion site has no conversion. Write more devices or fewer sites")
    true = np.zeros((count, queries.buckets))
    rows = np.flatnonzero(visits.touched >= 0)
    np.add.at(true, (visits.conversion_site[rows], visits.touched[rows]), 1)
    most = scenario.config.site_budget_micro / _MICRO
    return [SiteQuery.plan(int(size), row / size, queries, most) for size, row in zip(sizes, true, strict=True)]


def run_attack(scenario: AttackScenario, *, seed: str | None = None, progress: Progress = no_progress) -> AttackResult:
    """Run the scenario. The population and its ε depend on the seed alone, not on design or adversary."""
    bits = SeededBits(f"attack {scenario.seed if seed is None else seed}")
    visits = simulate_visits(scenario.population, scenario.queries, bits.child("population"))
    batches = plan_batches(scenario, visits)
    tally = _Tally(scenario, batches)
    bounds = np.searchsorted(visits.device, np.arange(scenario.population.devices + 1))
    for device in range(scenario.population.devices):
        rows = range(int(bounds[device]), int(bounds[device + 1]))
        _run_device(scenario, visits, rows, batches, tally, bits.child(f"device {device}"))
        progress("devices", device + 1, scenario.population.devices)
    return tally.result()


def _run_device(
    scenario: AttackScenario, visits: Visits, rows: range, batches: list[SiteQuery], tally: _Tally, bits: SeededBits
) -> None:
    clock = ManualClock(scenario.population.start_ms)
    browser = Browser(clock=clock, bits=bits.child("browser"), config=scenario.config)
    adversary = scenario.adversary
    attack = Attack(adversary=adversary, browser=browser, bits=bits.child("adversary"), tabs=scenario.activation)
    last = adversary.first_rank - 1 + adversary.top_sites
    tally.drained.clear()
    for row in rows:
        clock.advance_to(max(clock.now_ms(), int(visits.time_ms[row])))
        site, shop = int(visits.impression_site[row]), int(visits.conversion_site[row])
        rank = site if site >= 0 else shop
        attracted = adversary.kind is not AdversaryKind.NONE and adversary.first_rank - 1 <= rank < last
        first = uniform_below(attack.bits, _MICRO) < adversary.genuine_first * _MICRO if attracted else True
        if first:
            _visit(browser, scenario, visits, row, batches[shop], tally)
        if attracted:
            tally.attacked(attack.visit(_SISTER + row))
        if not first:
            _visit(browser, scenario, visits, row, batches[shop], tally)
    tally.close_device()


def _visit(
    browser: Browser, scenario: AttackScenario, visits: Visits, row: int, batch: SiteQuery, tally: _Tally
) -> None:
    """Let the visited site save its impression, or measure its conversion."""
    site, shop = int(visits.impression_site[row]), int(visits.conversion_site[row])
    advertiser = f"advertiser-{shop}.example"
    if site >= 0:
        browser.save_impression(
            Page(top_level=f"publisher-{site}.example", action=row),
            ImpressionOptions(histogram_index=int(visits.bucket[row]), conversion_sites=(advertiser,)),
        )
        return
    options = ConversionOptions(
        aggregation_service=DEFAULT_SERVICE,
        histogram_size=scenario.queries.buckets,
        epsilon=batch.epsilon,
        lookback_days=scenario.queries.lookback_days,
    )
    made = browser.measure_conversion(Page(top_level=advertiser, action=row), options)
    tally.measured(shop, made, attributable=bool(visits.touched[row] >= 0))


class _Tally:
    """Adds up what conversions reported, which filters refused them, and what the adversary paid."""

    def __init__(self, scenario: AttackScenario, batches: list[SiteQuery]) -> None:
        self.scenario, self.batches = scenario, batches
        self.found = np.zeros((len(batches), scenario.queries.buckets))
        self.refused: Counter[str] = Counter()
        self.conversions = self.attributable = self.visits = self.attacks = 0
        self.drained: defaultdict[int, int] = defaultdict(int)
        self.most, self.sum, self.epochs = 0, 0, 0

    def measured(self, shop: int, made: Conversion, *, attributable: bool) -> None:
        """Count a conversion of the population."""
        self.conversions += 1
        self.attributable += attributable
        self.found[shop] += made.histogram
        refusals = [outcome.refused_by for outcome in made.epochs if outcome.refused_by is not None]
        if refusals:
            self.refused[refusals[0]] += 1

    def attacked(self, made: Iterable[Conversion]) -> None:
        """Count a visit that the adversary used, and what each epoch's global budget paid for it."""
        self.visits += 1
        for conversion in made:
            self.attacks += 1
            for outcome in conversion.epochs:
                if outcome.refused_by is None:
                    self.drained[outcome.epoch] += outcome.charge.shared

    def close_device(self) -> None:
        """Add the epochs of one device to the rest."""
        self.most = max(self.most, *self.drained.values()) if self.drained else self.most
        self.sum += sum(self.drained.values())
        self.epochs += len(self.drained)

    def result(self) -> AttackResult:
        """Return what was found."""
        errors = [
            batch.error(row / batch.size, self.scenario.queries.tau)
            for batch, row in zip(self.batches, self.found, strict=True)
        ]
        return AttackResult(
            name=self.scenario.name,
            conversions=self.conversions,
            attributable=self.attributable,
            errors=tuple(errors),
            refused=dict(self.refused),
            attacked_visits=self.visits,
            attack_conversions=self.attacks,
            drained_micro=self.most,
            drained_mean_micro=self.sum / self.epochs if self.epochs else 0.0,
            bound_micro=depletion_bound(self.scenario),
        )


def depletion_bound(scenario: AttackScenario) -> int | None:
    """Return the most that an adversary's domains can take from one global budget; None if no quota bounds it.

    Every paid conversion charges a conversion-site quota, and at least one impression-site quota, at least what it
    charges the global budget. Both sides belong to the adversary, so the smaller of the two sums is the bound.
    """
    config, domains = scenario.config, scenario.adversary.domains
    quotas = [
        quota
        for name, quota in (
            (Filter.CONVERSION_QUOTA, config.conversion_quota_micro),
            (Filter.IMPRESSION_QUOTA, config.impression_quota_micro),
        )
        if name in config.filters
    ]
    return domains * min(quotas) if quotas else None
