"""Runs an attack: every device's visits through a ``Browser``, with and without what filters and adversary take.

The error is Big Bird's: RMSRE_τ = √(mean over buckets of (2b² + (f − u)²) / max(u, τ)²), where u is the share of a
bucket before filters, f after them, and b the scale of the service's noise over the batch. It is computed, not drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from aggservice.campaign.attacks.settings import (
    AdversaryKind,
    AdversarySettings,
    AttackScenario,
    QuerySettings,
    VisitPopulation,
)
from aggservice.campaign.columns import Floats, Ints
from aggservice.campaign.errors import RunError
from aggservice.campaign.settings.campaign import DAY_MS
from aggservice.campaign.settings.distributions import coins, weighted_indexes
from aggservice.campaign.stages import Progress, no_progress
from aggservice.mechanisms import Bits, ManualClock, SeededBits, uniform_below
from w3c_client import (
    DEFAULT_SERVICE,
    DESIGNS,
    Browser,
    CallError,
    Conversion,
    ConversionOptions,
    ImpressionOptions,
    Page,
    design_config,
)
from w3c_client.rules import GlobalBudget, ScopeColumn, rules_in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """Visits by device and time. An ad has an impression site and a bucket; a purchase has −1 for both.

    ``touched`` is the bucket of the last ad of the same conversion site within the lookback, −1 if there is none: what
    a conversion reports if no filter refuses.
    """

    device: Ints
    time_ms: Ints
    conversion_site: Ints
    impression_site: Ints
    bucket: Ints
    touched: Ints

    def __len__(self) -> int:
        return self.device.size


def simulate_visits(population: VisitPopulation, queries: QuerySettings, bits: Bits) -> Visits:
    """Return the visits of a population within its days: each ad may lead to one purchase on its conversion site."""
    shown = population.ads.counts(bits.child("ads"), population.devices)
    device = np.repeat(np.arange(population.devices), shown)
    count = device.size
    day = bits.child("times").words(count) % np.uint64(population.days * DAY_MS)
    seen_ms = population.start_ms + day.astype(np.int64)
    shop = weighted_indexes(bits.child("conversion sites"), _zipf(population, population.conversion_sites), count)
    site = weighted_indexes(bits.child("impression sites"), _zipf(population, population.impression_sites), count)
    bucket = weighted_indexes(bits.child("buckets"), np.ones(queries.buckets), count)
    leads = np.flatnonzero(coins(bits.child("purchases"), population.conversion_rate, count))
    delay = np.clip(population.delay_days.draw(bits.child("delays"), leads.size), 0, population.days)
    bought_ms = seen_ms[leads] + 1 + (delay * DAY_MS).astype(np.int64)
    kept = bought_ms < population.start_ms + population.days * DAY_MS
    leads, bought_ms = leads[kept], bought_ms[kept]
    none = np.full(leads.size, -1, dtype=np.int64)
    columns = [
        np.concatenate(pair)
        for pair in (
            (device, device[leads]),
            (seen_ms, bought_ms),
            (shop, shop[leads]),
            (site, none),
            (bucket, none),
        )
    ]
    order = np.lexsort((columns[3] < 0, columns[1], columns[0]))
    device, time_ms, shop, site, bucket = (column[order] for column in columns)
    return Visits(
        device=device,
        time_ms=time_ms,
        conversion_site=shop,
        impression_site=site,
        bucket=bucket,
        touched=_last_touch(device, time_ms, shop, bucket, queries.lookback_days * DAY_MS),
    )


def _zipf(population: VisitPopulation, sites: int) -> Floats:
    """Return the weights of sites by rank."""
    return np.asarray((1.0 + np.arange(sites)) ** -population.exponent, dtype=np.float64)


def _last_touch(device: Ints, time_ms: Ints, shop: Ints, bucket: Ints, lookback_ms: int) -> Ints:
    """Return the bucket of the last ad of the same device and conversion site that is within the lookback."""
    order = np.lexsort((np.arange(device.size), shop, device))
    group = np.ones(device.size, dtype=np.bool_)
    group[1:] = (device[order][1:] != device[order][:-1]) | (shop[order][1:] != shop[order][:-1])
    is_ad = bucket[order] >= 0
    place = np.arange(device.size)
    last = np.maximum.accumulate(np.where(is_ad, place, -1))
    start = np.maximum.accumulate(np.where(group, place, 0))
    found = (last >= start) & ~is_ad
    found &= time_ms[order] <= time_ms[order][np.maximum(last, 0)] + lookback_ms
    touched = np.full(device.size, -1, dtype=np.int64)
    touched[order] = np.where(found, bucket[order][np.maximum(last, 0)], -1)
    return touched


CALLER = "sybil-ads.example"
TAB = "sybil"


def sybil(number: int) -> str:
    """Return the name of one of the adversary's sites."""
    return f"sybil-{number}.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An adversary in one browser. With ``tabs`` each visit has one activation, as in the W3C draft."""

    adversary: AdversarySettings
    browser: Browser
    bits: Bits
    tabs: bool = False

    def visit(self, action: int) -> Iterator[Conversion]:
        """Use a visit that the user made; yield the conversions that were measured."""
        if self.tabs:
            self.browser.activate(TAB)
        kind = self.adversary.kind
        if kind is AdversaryKind.NONE:
            return
        if kind is AdversaryKind.RANDOM:
            plan = self._random()
        elif kind is AdversaryKind.OMNISCIENT:
            plan = self._omniscient()
        else:
            plan = ((0, (0,)) for _ in range(self.adversary.redirections))
        for step, (site, targets) in enumerate(plan):
            frame = sybil(step + 1) if kind is AdversaryKind.INTERMEDIARIES else CALLER
            if self.tabs:
                self.browser.navigate(TAB)
            page = Page(top_level=sybil(site), frame=frame, tab=TAB if self.tabs else None, action=action)
            try:
                self.browser.save_impression(page, ImpressionOptions(histogram_index=0, conversion_callers=(frame,)))
                if targets:
                    yield self.browser.measure_conversion(page, self._options(targets))
            except CallError:
                continue  # not activated here
            if kind is AdversaryKind.CLEARING:
                self.browser.clear_impressions_for_site(CALLER)

    def _options(self, targets: Sequence[int]) -> ConversionOptions:
        config = self.browser.config
        return ConversionOptions(
            aggregation_service=DEFAULT_SERVICE,
            histogram_size=1,
            epsilon=config.site_budget_micro / 1_000_000,
            impression_sites=tuple(map(sybil, targets[: config.max_impression_sites])),
        )

    def _random(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Choose sites at random; every conversion names a share of the sites that this visit does not use."""
        every = range(self.adversary.sybils)
        used = self._sample(every, self.adversary.redirections)
        others = [site for site in every if site not in used] or list(every)
        size = max(1, ceil(self.adversary.sybils * self.adversary.share - 0.5))
        fresh: list[int] = []
        for site in used:
            targets: list[int] = []
            while len(targets) < min(size, len(others)):
                if not fresh:
                    fresh = self._sample([one for one in others if one not in targets], len(others))
                targets.append(fresh.pop())
            yield site, targets

    def _omniscient(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Choose sites that have no impression yet, and convert on the one impression site that can still pay."""
        browser, config = self.browser, self.browser.config
        saved = browser.sites_saved()
        fresh = [site for site in range(self.adversary.sybils) if sybil(site) not in saved]
        old = [site for site in range(self.adversary.sybils) if sybil(site) in saved]
        quotas = [rule for rule in config.rules if rule.scope == (ScopeColumn.IMPRESSION_SITE,)]
        rich = iter(
            [
                site
                for site in old
                if all(browser.left(quota, sybil(site)) >= config.site_budget_micro for quota in quotas)
            ]
        )
        for site in [*fresh, *old][: self.adversary.redirections]:
            target = next(rich, None)
            yield site, () if target is None else (target,)

    def _sample(self, sites: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the sites in random order."""
        pool = list(sites)
        for place in range(min(count, len(pool))):
            other = place + uniform_below(self.bits, len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:count]


_MICRO = 1_000_000
_SISTER = 1 << 40
"""The adversary's visits are user actions of their own."""
_KNOWN = tuple(
    rule.name for rule in rules_in_order({rule.name for design in DESIGNS for rule in design_config(design).rules})
)
_OWNED = (ScopeColumn.CONVERSION_SITE, ScopeColumn.IMPRESSION_SITE)
"""Scopes that cost an adversary a domain each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What an attack did to everybody else.

    ``errors`` is RMSRE_τ per conversion site. ``refused`` counts attributable conversions of which some epoch was
    refused, by the first rule that refused one. ``drained_micro`` is the most that the adversary took from the
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

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules of the published designs, and of others that refused something."""
        return (*_KNOWN, *sorted(self.refused.keys() - set(_KNOWN)))

    def refused_share(self, name: str | None = None) -> float:
        """Return the share of attributable conversions that a rule refused, or any rule."""
        count = sum(self.refused.values()) if name is None else self.refused.get(name, 0)
        return count / self.attributable if self.attributable else 0.0

    def to_plain(self) -> dict[str, Any]:
        shares = {name: self.refused_share(name) for name in self.rules}
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
                    self.drained[outcome.epoch] += outcome.prices.of(GlobalBudget())

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
        rule.capacity(config)
        for rule in config.rules
        if rule.refusal == "quota" and not rule.counts_sites and len(rule.scope) == 1 and rule.scope[0] in _OWNED
    ]
    return domains * min(quotas) if quotas else None
