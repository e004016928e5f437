"""Exact neighbour games of W3C Attribution: browsers, sealed reports, engine and ledger, three rounds deep.

Every draw of noise and every coin of a browser is put through them. Neighbours lose the impressions that one device
saved in one epoch. The bound is the site's budget if one site asks, and the global budget if several do.
"""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import exp
from typing import Any

import pytest

from aggservice.audit.exact import Coins, ExactGame, Make, Pick
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.requery.adversary import (
    AddTrigger,
    AdversaryQuery,
    Event,
    MeasureConversion,
    Move,
    PlayedMechanism,
    SaveImpression,
)
from aggservice.campaign.requery.interactive import Adjacency, Without
from aggservice.campaign.requery.on_device import AttributionMechanism
from aggservice.campaign.service.config import memory_ledger
from aggservice.campaign.service.runner import EngineRunner
from aggservice.client import Client
from aggservice.engine import EngineSettings, InlineOpener, LocalEngine, ReleasePlan
from aggservice.engine.release.noise import NoiseSource
from aggservice.job.parameters import AttributionTask
from aggservice.mechanisms import DiscreteLaplace, ManualClock, SecureBits, SeededBits, SystemClock
from aggservice.service import embedded
from aggservice.wire import KeySet
from budget import Epsilon, EpsilonDeltaFilter, OneUseNoise, Terms
from w3c_client import DEFAULT_SERVICE, CallError, Config, ConversionOptions, Page, SharedCost
from w3c_client.budgets import BudgetStores
from w3c_client.rules import RULES, rule_of

CLOCK = ManualClock(1_700_000_000_000)
KEYS = KeySet.create(SecureBits(), CLOCK)
SHOP, STORE = "shop.example", "store.example"
NEWS = "news.example"
TINY = Fraction(1, 10**12)
PLENTY = 64_000_000
EPSILON = 2
"""The ε of every conversion, with noise of scale 2·maxValue/ε = 1."""


def world(
    config: Config, without: Without | None = None, mechanism: type[AttributionMechanism] = AttributionMechanism
) -> Make:
    """Return a world of the game; each call begins it anew."""

    def make(noise: NoiseSource, pick: Pick) -> PlayedMechanism:
        bits = SecureBits()
        ledger = memory_ledger(EpsilonDeltaFilter(), Terms(), clock=CLOCK, bits=bits)
        engine = LocalEngine(
            ledger=ledger,
            opener=InlineOpener(KEYS),
            clock=CLOCK,
            bits=bits,
            settings=EngineSettings(w3c_minimum_batch=1),
            noise_of=lambda _: noise,
        )
        return mechanism(
            config=config,
            ledger=ledger,
            keys=KEYS,
            clock=CLOCK,
            bits=bits,
            runner=EngineRunner(engine=engine),
            without=without,
            draws=Coins(pick),
        )

    return make


def budgets(**chosen: int) -> Config:
    """Return a browser with these limits, and plenty of every other one."""
    limits = {"site_budget_micro": PLENTY, "global_budget_micro": PLENTY, "impression_quota_micro": PLENTY}
    return Config(**{**limits, **chosen}, max_credits=2)  # type: ignore[arg-type]


def saved(index: int, days: int = 0, *sites: str) -> SaveImpression:
    return SaveImpression(device=0, site=NEWS, index=index, days=days, conversion_sites=sites)


def bought(site: str, lookback: int, days: int = 0, credit: tuple[float, ...] = (1,)) -> MeasureConversion:
    options = ConversionOptions(
        aggregation_service=DEFAULT_SERVICE, histogram_size=2, epsilon=EPSILON, credit=credit, lookback_days=lookback
    )
    return MeasureConversion(device=0, site=site, options=options, days=days)


def asked(*events: Event, reports: tuple[int, ...] = (-1,), site: str = SHOP) -> Move:
    """Return events and a query about the newest report."""
    task = AttributionTask(conversion_site=f"https://{site}", histogram_size=2, max_value=1)
    query = AdversaryQuery(reports=reports, epsilon=Epsilon.parse(str(EPSILON)), task=task)
    return Move(events=events, query=query)


def one_site() -> tuple[list[Move], list[Move]]:
    """Windows within one epoch, which pay for the histogram, and over two, which pay for the value.

    In the second opening a coin decides whether the histogram holds anything, so the budget that is left is secret.
    """
    return [
        asked(saved(0, 1), bought(SHOP, 1)),
        asked(saved(0, 1), saved(5), bought(SHOP, 1, credit=(1, 1))),
    ], [
        asked(bought(SHOP, 1)),
        asked(saved(1, 7), bought(SHOP, 14)),
    ]


def two_sites() -> tuple[list[Move], list[Move]]:
    """Windows over two epochs: without the later impression the value goes to the earlier one's index."""
    return [asked(saved(0), saved(1, 7), bought(SHOP, 14))], [
        asked(bought(SHOP, 14)),
        asked(bought(STORE, 14), site=STORE),
    ]


def later_epoch() -> tuple[list[Move], list[Move]]:
    return two_sites()[0], one_site()[1]


def game(config: Config, moves: tuple[list[Move], list[Move]], epoch: int) -> ExactGame:
    gone = Without(how=Adjacency.REMOVED, device=0, epoch=epoch)
    return ExactGame(worlds=(world(config), world(config, gone)), opening=moves[0], moves=moves[1], most=1)


CASES = {
    "a site's budget, first epoch": (game(budgets(site_budget_micro=2_000_000), one_site(), 0), 2),
    "a site's budget, second epoch": (game(budgets(site_budget_micro=2_000_000), later_epoch(), 1), 2),
    "the global budget": (game(budgets(global_budget_micro=4_000_000), two_sites(), 1), 4),
    "a publisher's quota": (game(budgets(impression_quota_micro=4_000_000), two_sites(), 1), 4),
}
"""Each game, and the budget that bounds it. All impressions have one publisher, so its quota bounds all sites too."""


@pytest.mark.parametrize("name", CASES)
def test_no_adaptive_adversary_of_three_rounds_gains_more_than_the_devices_budget(name: str) -> None:
    played, epsilon = CASES[name]
    assert played.advantage(Fraction(epsilon), 3) <= TINY
    assert played.advantage(Fraction(epsilon) * 95 / 100, 3) > Fraction(1, 1000)  # the game is not empty


def test_a_budget_that_depends_on_a_coin_is_no_secret_that_tells() -> None:
    """The second opening alone: its coin decides whether the first or the third conversion is the last one paid."""
    played, epsilon = CASES["a site's budget, first epoch"]
    alone = ExactGame(worlds=played.worlds, opening=played.opening[1:], moves=played.moves[:1], most=1)
    assert len({drawn for drawn, _ in alone.law(0, (0, 0, 0))}) == 2
    assert alone.advantage(Fraction(epsilon) / 2, 3) > 0
    assert alone.advantage(Fraction(epsilon), 3) <= TINY


def test_impressions_of_one_site_alone_are_not_protected_by_its_budget() -> None:
    """Why neighbours lose all impressions of an epoch (docs/guarantees.md).

    The shop pays 1 for a histogram of 1 in a window of one epoch. Without the impression that only the shop may use,
    the global budget has room for the store's conversion, so both releases change, and the loss is 2.
    """
    config = budgets(site_budget_micro=1_000_000 * EPSILON, global_budget_micro=1_000_000 * EPSILON)
    opening = asked(saved(0, 1, SHOP), saved(1, 0, STORE), bought(SHOP, 1))
    later = asked(bought(STORE, 1), site=STORE)
    apart = Without(how=Adjacency.REMOVED, epoch=0, site=SHOP)
    played = ExactGame(worlds=(world(config), world(config, apart)), opening=[opening], moves=[later], most=1)
    assert played.advantage(Fraction(1), 2) > Fraction(1, 10)
    assert played.advantage(Fraction(2), 2) <= TINY
    ratios = [(chance, played.law(1, (0, 0)).get(seen, Fraction(0))) for seen, chance in played.law(0, (0, 0)).items()]
    assert max(float(q / p) for p, q in ratios) == pytest.approx(exp(1), rel=1e-9)  # by the store's answer alone


class Rejecting(AttributionMechanism):
    """Browsers that may reject a call: a page whose conversion is rejected asks again without lists and credits."""

    def _take(self, event: Event) -> None:
        try:
            super()._take(event)
        except CallError:
            if isinstance(event, MeasureConversion):
                super()._take(bought(STORE, 14))


ROOMY = replace(
    budgets(global_budget_micro=2_000_000, conversion_quota_micro=PLENTY, delegated_budget_micro=PLENTY),
    rules=tuple(map(rule_of, RULES)),
    sites_per_action=100,
    activation_duration_ms=1 << 53,
)
"""Only the global budget is small: it bounds every game, and one conversion spends it."""
SMALL: dict[str, Any] = {
    "max_lookback_days": 5,
    "max_conversion_sites": 0,
    "max_impression_sites": 0,
    "max_impression_callers": 0,
    "max_credits": 1,
    "max_match_values": 0,
    "max_histogram_size": 2,
    "impressions_per_site": 1,
    "epoch_days": 30,
    "site_budget_micro": 1_000_000,
    "global_budget_micro": 1_000_000,
    "impression_quota_micro": 1_000_000,
    "conversion_quota_micro": 1_000_000,
    "delegated_budget_micro": 1_000_000,
    "sites_per_action": 1,
    "shared_cost": SharedCost.INDIVIDUAL,
    "activation_duration_ms": 0,
}
"""A value of each limit that changes the game."""
UNPLAYED = {
    "aggregation_services": "names of services; a call that names another is rejected whatever the browser stores",
    "max_service_histogram_size": "compared with the call alone, as max_histogram_size",
    "max_conversion_callers": "compared with the call alone, as max_conversion_sites",
    "rules": "which limits run: here all of them do",
    "attribution": "how a value is divided; last touch here",
    "arithmetic": "doubles have too many values to try",
    "consume_activation": "state of a tab, which follows from calls and not from what they store",
    "reports_kept": "a list for the user that no call reads",
}


@lru_cache(maxsize=8)
def limited(field: str, *, idle: bool = False, epoch: int = 1) -> ExactGame:
    """Return a game of two epochs, one of which loses its impressions; the limit ``field``, if any, is small.

    If the second is ``idle``, only a site that never converts may use its impressions, so it pays nothing.
    """
    news, blog = (Page(top_level=name, action=1) for name in (NEWS, "blog.example"))
    sites = ("never.example",) if idle else ()
    ads = [
        *(replace(saved(index), site=news) for index in (0, 5)),
        replace(saved(1, 0, SHOP, STORE), site=blog),
        *(replace(saved(1, days, *sites), site=news) for days in (9, 0, 0)),
    ]
    picky = replace(bought(STORE, 14), site=Page(top_level=STORE, tab="1"))
    chosen = {"match_values": (0,), "impression_sites": ("blog.example",), "impression_callers": ("blog.example",)}
    picky = replace(picky, options=replace(picky.options, **chosen))
    opening = [asked(*ads, bought(STORE, days), site=STORE) for days in ((14,) if idle else (14, 1))]
    moves = [asked(one, site=STORE) for one in (picky, bought(STORE, 14, credit=(1, 1)), bought(STORE, 1))]
    gone = Without(how=Adjacency.REMOVED, device=0, epoch=epoch)
    config = replace(ROOMY, **({field: SMALL[field]} if field else {}))
    worlds = world(config, mechanism=Rejecting), world(config, gone, mechanism=Rejecting)
    known = {} if idle or epoch else {key: law for key, law in (limited(field)._laws or {}).items() if key[0] == 0}
    return ExactGame(worlds=worlds, opening=opening, moves=moves, most=1, _laws=known)


@pytest.mark.parametrize("field", [one.name for one in fields(Config)])
def test_no_limit_of_a_browser_carries_one_epoch_into_others(field: str) -> None:
    """An epoch that pays nothing changes nothing, and one that pays changes no more than it paid."""
    assert (field in SMALL) != (field in UNPLAYED), f"give {field} a small value that changes the game, or say why not"
    if field in UNPLAYED:
        return
    small, roomy = limited(field), limited("")
    assert any(small.law(0, path) != roomy.law(0, path) for path in product(range(2), range(3)))  # the limit is felt
    assert small.advantage(Fraction(2), 2) <= TINY
    assert limited(field, epoch=0).advantage(Fraction(2), 2) <= TINY
    assert limited(field, idle=True).advantage(Fraction(0), 2) <= TINY


@pytest.mark.parametrize("per_site", [3, None])
def test_what_an_epoch_stores_displaces_nothing_of_another(per_site: int | None) -> None:
    """The shop's three ads of the second epoch, and the store's ad of the first, on one publisher with room for three.

    One limit for both epochs would drop the store's ad, so that its conversion goes to another publisher's ad: a loss
    of 2 beside the 1 of the shop's own conversion, where the epoch has paid 2 (advantage 0.247 at ε = 2).
    """
    config = replace(budgets(global_budget_micro=2_000_000), impressions_per_site=per_site)
    ads = [
        replace(saved(1, 0, STORE), site="blog.example"),
        saved(0, 1, STORE),
        *(saved(1, days, SHOP) for days in (8, 0, 0)),
    ]
    moves = [asked(bought(STORE, 14), site=STORE)]
    played = game(config, ([asked(*ads, bought(SHOP, 14))], moves), 1)
    assert played.advantage(Fraction(1), 2) <= TINY < played.advantage(Fraction(95, 100), 2)


def _broken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "half the noise":
        wrong = property(lambda plan: DiscreteLaplace(epsilon_micro=2_000_000 * EPSILON, sensitivity=2))
        monkeypatch.setattr(ReleasePlan, "declared_noise", wrong)
    elif name == "reports used again":
        monkeypatch.setattr(OneUseNoise, "final", False)
    else:
        right = BudgetStores.pay

        def skipped(self: BudgetStores, *args: Any) -> Any:
            kept = tuple(one for one in self._config.rules if one.name != name)
            self._config = replace(self._config, rules=kept)
            return right(self, *args)

        monkeypatch.setattr(BudgetStores, "pay", skipped)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ("half the noise", "a site's budget, first epoch"),
        ("site-budget", "a site's budget, first epoch"),
        ("global-budget", "the global budget"),
        ("impression-site-quota", "a publisher's quota"),
    ],
)
def test_a_browser_that_skips_a_limit_loses_the_same_game(
    broken: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, epsilon = CASES[name]
    _broken(monkeypatch, broken)
    again = ExactGame(worlds=played.worlds, opening=played.opening[:1], moves=played.moves[:1], most=1)
    assert again.advantage(Fraction(epsilon), 3) > Fraction(1, 1000)


def test_a_report_that_is_released_again_loses_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device paid for one release. The ledger refuses the second."""
    config = budgets(site_budget_micro=1_000_000)
    again = asked()
    gone = Without(how=Adjacency.REMOVED)
    worlds = world(config), world(config, gone)
    opening = [asked(saved(0, 1), bought(SHOP, 1))]
    played = ExactGame(worlds=worlds, opening=opening, moves=[again], most=1)
    assert played.advantage(Fraction(1), 3) <= TINY < played.advantage(Fraction(95, 100), 3)
    assert {seen[0] for _, seen in played.law(0, (0, 0))} == {"PRIVACY_BUDGET_EXHAUSTED"}
    _broken(monkeypatch, "reports used again")
    unpaid = ExactGame(worlds=worlds, opening=opening, moves=[again], most=1)
    assert unpaid.advantage(Fraction(1), 3) > Fraction(1, 10)


def test_a_service_over_grpc_plays_the_same_game() -> None:
    """Without a second world and with the browsers' own draws: 20 devices, since the service has a minimum batch."""
    bits, clock = SeededBits("game"), SystemClock()
    keys = KeySet.create(bits, clock)
    with embedded(bits=bits, clock=clock, keys=keys) as service, Client(service.address) as client:
        mechanism = AttributionMechanism(
            config=budgets(site_budget_micro=2_000_000),
            ledger=memory_ledger(EpsilonDeltaFilter(), Terms(), clock=clock, bits=bits),
            keys=keys,
            clock=clock,
            bits=bits,
            runner=client,
        )
        devices = [
            event for at in range(20) for event in (replace(saved(0), device=at), replace(bought(SHOP, 30), device=at))
        ]
        answers = [
            mechanism.respond(asked(*devices, reports=tuple(range(20)))),
            mechanism.respond(asked(reports=tuple(range(20)))),
        ]
    assert [one.return_code for one in answers] == ["SUCCESS", "PRIVACY_BUDGET_EXHAUSTED"]
    assert answers[0].rows is not None and set(answers[0].rows) == {0, 1}
    assert abs(answers[0].rows[0] - 20) < 20  # seeded noise of scale 1
    assert {browser.left("site-budget", SHOP) for browser in mechanism.browsers.values()} == {0}


def test_worlds_and_events_of_other_apis_are_refused() -> None:
    with pytest.raises(CampaignError, match="neighbours of W3C Attribution are 'removed', not 'moved'"):
        world(budgets(), Without(how=Adjacency.MOVED))(None, lambda chances: 0)  # type: ignore[arg-type]
    mechanism = world(budgets())(None, lambda chances: 0)  # type: ignore[arg-type]
    with pytest.raises(CampaignError, match="play other events with a SummaryMechanism"):
        mechanism.respond(asked(AddTrigger(device=0, key=1, value=1)))
