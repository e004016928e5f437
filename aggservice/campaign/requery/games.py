"""Plays many adversaries against the service and checks that no unit loses more than (ε*, δ*).

Each game draws an API, Λ₁, Λ₀, ε*, δ* and a random adversary, plays it against the real engine and ledger, and
recomputes the losses from the truth. The same check detects a service that forgets to charge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from aggservice.campaign.assess.losses import ContributionBounds, PrivacyLoss
from aggservice.campaign.assess.transcript import RELEASED
from aggservice.campaign.requery.adversary import play
from aggservice.campaign.requery.interactive import SummaryMechanism, bounds_terms
from aggservice.campaign.requery.random_adversary import RandomAdversary
from aggservice.campaign.service.config import memory_ledger
from aggservice.mechanisms import Bits, Clock, uniform_below
from aggservice.wire import Api, KeySet
from budget import EpsilonDeltaFilter, Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """The result of one game. ``share`` is the largest part of ε* that a unit lost; ``past`` counts units above ε*."""

    number: int
    api: Api
    rounds: int
    released: int
    refused: int
    units: int
    share: Fraction
    past: int
    undercharged: int
    disagreeing: int


def play_games(
    count: int, *, bits: Bits, clock: Clock, make_ledger: Callable[..., Ledger] = memory_ledger, first: int = 0
) -> Iterator[GameResult]:
    """Play ``count`` games, each with its own adversary, bounds and limits; yield each result."""
    keys = KeySet.create(bits.child("keys"), clock)
    for number in range(first, first + count):
        yield _game(number, bits.child(f"game {number}"), keys, clock, make_ledger)


def _game(number: int, bits: Bits, keys: KeySet, clock: Clock, make_ledger: Callable[..., Ledger]) -> GameResult:
    draw = bits.child("setting")
    api = (Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE)[uniform_below(draw, 2)]
    l1 = (1, 7, 100, 65_536)[uniform_below(draw, 4)]
    l0 = min(l1, (1, 3, 20, l1)[uniform_below(draw, 4)])
    limits = EpsilonDeltaFilter(
        epsilon_micro=(1, 999_999, 3_000_000, 64_000_000)[uniform_below(draw, 4)],
        delta_atto=(0, 10**8, 10**13)[uniform_below(draw, 3)],
    )
    bounds = ContributionBounds(l1=l1, l0=l0)
    mechanism = SummaryMechanism(
        api=api,
        bounds=bounds,
        ledger=make_ledger(limits, bounds_terms(api, bounds), clock=clock, bits=bits.child("ledger")),
        keys=keys,
        clock=clock,
        bits=bits.child("mechanism"),
    )
    adversary = RandomAdversary(
        api=api,
        bounds=bounds,
        limit_epsilon_micro=limits.epsilon_micro,
        limit_delta_atto=limits.delta_atto,
        bits=bits.child("adversary"),
        rounds=6 + uniform_below(draw, 15),
    )
    answers = play(mechanism, adversary)
    recorder = mechanism.recorder
    totals = recorder.totals()
    comparisons = recorder.compare(mechanism.balances())
    limit = PrivacyLoss.of(limits.limit)
    return GameResult(
        number=number,
        api=api,
        rounds=len(answers),
        released=sum(one.outcome == RELEASED for one in recorder.rounds),
        refused=sum(answer.rows is None for answer in answers),
        units=len({one.unit for one in recorder.sent.values() if one.contributions}),
        share=max((loss.epsilon for loss in totals.values()), default=Fraction(0)) / limit.epsilon,
        past=len(recorder.units_over_limit(limit)),
        undercharged=sum(one.undercharged for one in comparisons),
        disagreeing=sum(one.lost != one.charged for one in comparisons),
    )
