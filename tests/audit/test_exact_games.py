"""Exact neighbour games: adversaries who choose events and queries from earlier answers, three rounds deep.

Clients, sealed reports, engine and ledger are the real ones; every draw of noise and of event-level responses is put
through them. The bound of a game is (ε*, δ*), with the ε of event-level reports added for a source that sends both.
"""

from __future__ import annotations

import doctest
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import exp
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from aggservice.audit.exact import ExactGame, Make, Pick, summary_world
from aggservice.campaign.assess.losses import ContributionBounds
from aggservice.campaign.requery.adversary import (
    AddSource,
    AddTrigger,
    AdversaryQuery,
    EventLevel,
    MechanismAnswer,
    Move,
    PlayedMechanism,
    RunOperation,
)
from aggservice.campaign.requery.interactive import Adjacency, Without
from aggservice.engine.opening.coverage import PROTECTED
from aggservice.engine.release.charging import Charge
from aggservice.engine.release.noise import ReleasePlan
from aggservice.mechanisms import DiscreteLaplace
from aggservice.wire import Api
from ara_client.model import SummaryClient, TrigSpec
from budget import Delta, Epsilon, EpsilonDeltaFilter, Spend
from paa_client import PaaSrClient

BOUNDS = ContributionBounds(l1=2, l0=2)
ARA, PAA = Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE
MOVED = Without(how=Adjacency.MOVED, source=1)
TINY = Fraction(1, 10**12)
"""What rounding may add to an advantage: proportions are compared to twelve digits."""


def world(api: Api, without: Without | None, epsilon: str, delta: str) -> Make:
    return summary_world(api, BOUNDS, epsilon=epsilon, delta=delta, without=without)


def game(
    api: Api, without: Without, moves: tuple[list[Move], list[Move]], *, epsilon: str, delta: str = "0"
) -> ExactGame:
    worlds = world(api, None, epsilon, delta), world(api, without, epsilon, delta)
    return ExactGame(worlds=worlds, opening=moves[0], moves=moves[1], most=4 if api is PAA else 2)


def query(reports: tuple[int, ...], epsilon: str, delta: str = "", key: int = 3) -> AdversaryQuery:
    """Ask about reports by their place; -1 is the newest."""
    return AdversaryQuery(
        reports=reports,
        epsilon=Epsilon.parse(epsilon),
        domain=() if delta else (key,),
        delta=Delta.parse(delta) if delta else None,
    )


def trigger(value: int) -> AddTrigger:
    return AddTrigger(device=0, key=2, value=value)


def attribution() -> tuple[list[Move], list[Move]]:
    """A source whose conversions fill it or half of it; then conversions that overfill it, or another source."""
    source = AddSource(device=0, key=1)
    return [
        Move(events=(source, trigger(2)), query=query((0,), "1")),
        Move(events=(source, trigger(1)), query=query((0,), "1")),
    ], [
        Move(events=(trigger(1), trigger(1)), query=query((0, 1), "1")),
        Move(events=(source, trigger(2)), query=query((-1,), "2")),
    ]


def discovery() -> tuple[list[Move], list[Move]]:
    source = AddSource(device=0, key=1)
    return [
        Move(events=(source, trigger(2)), query=query((0,), "2", "0.2")),
    ], [
        Move(events=(trigger(2),), query=query((0, 1), "1", "0.1")),
        Move(events=(trigger(1),), query=query((0,), "2", "0.2")),
    ]


def first_visit(storage: dict[str, int]) -> tuple[dict[str, int], int, int]:
    """Contribute 2 at the first visit, and 1 at any other."""
    return {"seen": 1}, 3, 1 if storage else 2


def private_aggregation() -> tuple[list[Move], list[Move]]:
    """Visits in two windows; what a visit contributes depends on what storage holds."""
    early, late = (RunOperation(device=0, window=window, pi=first_visit) for window in (0, 1))
    return [
        Move(events=(early,), query=query((0,), "1")),
        Move(events=(late, early), query=query((0, 1), "1")),
    ], [
        Move(events=(early, early), query=query((0, 1), "1")),
        Move(events=(late,), query=query((-1,), "2")),
    ]


EVENTS = EventLevel(epsilon=Epsilon.parse("1"), max_reports=1, specs=(TrigSpec(0, (0, 1), (1,)),))
"""One report at most, at the end of the round of registration or of the next: three states."""


def both_levels() -> tuple[list[Move], list[Move]]:
    """A source with summary and event-level reports, which converts at once, later or never."""
    source = AddSource(device=0, key=1, event_level=EVENTS)
    return [
        Move(events=(source, trigger(2)), query=query((0,), "1")),
        Move(events=(source, AddTrigger(device=1, key=2, value=1)), query=query((0,), "0.5")),
    ], [
        Move(events=(trigger(1),), query=query((-1,), "1")),
        Move(events=(AddTrigger(device=1, key=2, value=1),), query=query((0,), "0.5")),
    ]


SECOND = Without(how=Adjacency.MOVED, source=2)
CASES = {
    "ARA": (game(ARA, MOVED, attribution(), epsilon="2"), 2, Fraction(0)),
    "ARA, a later source": (game(ARA, SECOND, attribution(), epsilon="2"), 2, Fraction(0)),
    "ARA, discovery": (game(ARA, MOVED, discovery(), epsilon="3", delta="0.4"), 3, Fraction(4, 10)),
    **{
        f"PAA, window {at}": (
            game(PAA, Without(how=Adjacency.DISABLED, window=at), private_aggregation(), epsilon="2"),
            2,
            Fraction(0),
        )
        for at in (0, 1)
    },
    "event level with summaries": (game(ARA, MOVED, both_levels(), epsilon="1"), 2, Fraction(0)),
}
"""Each game, its ε* (with that of event-level reports) and its δ*."""


@pytest.mark.parametrize("name", CASES)
def test_no_adaptive_adversary_of_three_rounds_gains_more_than_the_budget(name: str) -> None:
    played, epsilon, delta = CASES[name]
    assert played.advantage(Fraction(epsilon), 3) <= delta + TINY


@pytest.mark.parametrize("name", ["ARA", "ARA, a later source", "PAA, window 0", "event level with summaries"])
def test_the_best_adversary_gets_nearly_all_of_it(name: str) -> None:
    """At 95 % of the budget there is something to gain: the games are not empty."""
    played, epsilon, _ = CASES[name]
    assert played.advantage(Fraction(epsilon) * 95 / 100, 3) > Fraction(1, 1000)


CHANCES = {"rare": ((1, 9), (5, 5)), "tilted": ((6, 4), (4, 6)), "equal": ((3, 7), (3, 7))}
"""Answers 0 and 1 of three coins, in tenths, in the first world and in the second."""


class Coin:
    """Answers each move with the coin of that name, in one of two worlds."""

    def __init__(self, world: int, pick: Pick) -> None:
        self.world, self.pick = world, pick

    def respond(self, move: Move) -> MechanismAnswer:
        chances = CHANCES[move.query.caller][self.world]
        drawn = self.pick([Fraction(one, 10) for one in chances])
        return MechanismAnswer(move=move, job_id="", rows={1: drawn}, return_code="SUCCESS", reports_sent=0)


def best_tree(first: int, factor: float) -> float:
    """Return the largest Σ max(0, P[t] - e^ε·Q[t]) over all trees of two coins, P being that of the world ``first``."""

    def gain(trail: list[tuple[str, int]]) -> float:
        p, q = (float(np.prod([CHANCES[name][at][seen] / 10 for name, seen in trail])) for at in (first, 1 - first))
        return max(0.0, p - factor * q)

    trees = product(CHANCES, repeat=3)
    return max(
        sum(gain([(start, 0), (zero, seen)]) + gain([(start, 1), (one, seen)]) for seen in (0, 1))
        for start, zero, one in trees
    )


def test_the_advantage_is_the_larger_of_both_directions() -> None:
    """The answer 1 is five times as likely in the second world, the answer 0 less than twice as likely in the first.

    So at ε = 1 one round gains 1/2 - e/10 from the second world and nothing from the first; two rounds gain something
    from both. Whichever world is given first, the larger one counts.
    """
    moves = [
        Move(events=(), query=AdversaryQuery(reports=(), epsilon=Epsilon.parse("1"), caller=one)) for one in CHANCES
    ]
    worlds: list[Make] = [lambda noise, pick: Coin(0, pick), lambda noise, pick: Coin(1, pick)]
    gains = [best_tree(first, exp(1)) for first in (0, 1)]
    assert 0.1 < gains[0] < gains[1] - 0.1
    for pair in (worlds[0], worlds[1]), (worlds[1], worlds[0]):
        played = ExactGame(worlds=pair, opening=moves, moves=moves, most=1)
        assert float(played.advantage(Fraction(1), 1)) == pytest.approx(1 / 2 - exp(1) / 10, abs=1e-12)
        assert float(played.advantage(Fraction(1), 2)) == pytest.approx(gains[1], abs=1e-11)


def test_a_key_that_one_unit_shows_counts_whichever_world_is_given_first() -> None:
    """Only the world with the source can show its key, so that no event of the other is likelier than e^ε times."""
    source = AddSource(device=0, key=1)
    moves = [Move(events=(source, trigger(2)), query=query((0,), "2", "0.2"))], list[Move]()
    with_source, without = world(ARA, None, "3", "0.4"), world(ARA, MOVED, "3", "0.4")
    plan = ExactGame(worlds=(with_source, without), opening=moves[0], moves=moves[1], most=2)
    shown = sum(chance for (_, seen), chance in plan.law(0, (0,)).items() if seen[1])
    assert 0 < shown < Fraction(1, 5) and all(not seen[1] for _, seen in plan.law(1, (0,)))
    for pair in (with_source, without), (without, with_source):
        played = ExactGame(worlds=pair, opening=moves[0], moves=moves[1], most=2)
        assert float(played.advantage(Fraction(3), 1)) == pytest.approx(float(shown), rel=1e-12)


def test_answers_do_not_depend_on_earlier_noise() -> None:
    """Refusals and laws of later answers are the same after every noise of earlier rounds, in both worlds."""
    played = CASES["ARA"][0]
    for which in (0, 1):
        for shift in (-9, 0, 9):

            class Shifted:
                def draw(self, noise: Any, size: int, shift: int = shift) -> Any:
                    return np.full(size, shift, dtype=np.int64)

            mechanism = played.worlds[which](Shifted(), lambda chances: 0)
            moves = (played.opening[0], played.moves[0], played.moves[0])
            codes = [mechanism.respond(move) for move in moves]
            assert [one.return_code for one in codes] == ["SUCCESS", "SUCCESS", "PRIVACY_BUDGET_EXHAUSTED"]
            expected = [2, 2] if which == 0 else [0, 0]
            assert [one.rows[3] - shift for one in codes[:2] if one.rows] == expected


def test_theorem_5_1_by_enumeration() -> None:
    """The loss of event-level reports alone is ε exactly, whatever the adversary adds between the windows."""
    source = AddSource(device=0, key=1, event_level=EVENTS)
    opening = [Move(events=(source, trigger(1)), query=query((0,), "0.000001"))]
    later = [Move(events=(trigger(1),), query=query((0,), "0.000001"))]
    played = game(ARA, MOVED, (opening, later), epsilon="0.000002")
    assert played.advantage(Fraction(1) + Fraction(2, 10**6), 2) <= TINY
    assert played.advantage(Fraction(99, 100), 2) > 0
    truthful = exp(1) / (exp(1) + 2)
    law = played.law(0, (0,))
    sent = {seen[2] for _, seen in law}
    assert len(sent) == 2  # a report at the end of the round, or none
    first = sum(chance for (_, seen), chance in law.items() if seen[2])
    assert float(first) == pytest.approx(truthful, abs=1e-12)


@pytest.mark.parametrize(("how", "api"), [(Adjacency.ABSENT, ARA), (Adjacency.EMPTIED, PAA)])
def test_worlds_that_are_not_claimed_are_farther_apart(how: Adjacency, api: Api) -> None:
    """A source that is absent, or storage that is emptied, moves the sums by 2·Λ₁: the loss is 2ε (docs/paper.md)."""
    if how is Adjacency.ABSENT:
        sources = (AddSource(device=0, key=4), AddSource(device=0, key=1))
        move = Move(events=(*sources, AddTrigger(device=0, key=0, value=2)), query=both_keys(1, 4))
        apart = Without(how=how, source=2)
    else:

        def elsewhere(storage: dict[str, int]) -> tuple[dict[str, int], int, int]:
            return {"seen": 1}, 1 if storage else 2, 2

        before = RunOperation(device=0, window=0, pi=elsewhere)
        move = Move(
            events=(before, RunOperation(device=0, window=1, pi=elsewhere)), query=both_keys(1, 2, reports=(1,))
        )
        apart = Without(how=how, device=0, window=1)
    played = ExactGame(
        worlds=(world(api, None, "1", "0"), world(api, apart, "1", "0")), opening=[move], moves=[], most=2
    )
    assert played.advantage(Fraction(1), 1) > Fraction(1, 10)
    ratios = [(chance, played.law(1, (0,)).get(seen, Fraction(0))) for seen, chance in played.law(0, (0,)).items()]
    assert max(float(p / q) for p, q in ratios) == pytest.approx(exp(2), rel=1e-9)
    assert played.advantage(Fraction(2), 1) <= TINY


class Rekeyed:
    """A world whose sources have another key than the adversary gave them."""

    def __init__(self, world: PlayedMechanism, key: int) -> None:
        self.world, self.key = world, key

    def respond(self, move: Move) -> MechanismAnswer:
        events = tuple(replace(one, key=self.key) if isinstance(one, AddSource) else one for one in move.events)
        return self.world.respond(replace(move, events=events))


def test_the_statement_of_attribution_reports_is_the_one_that_holds() -> None:
    """Against a dummy source that contributes nothing the loss is ε; against one with other keys alone it is 2ε."""
    assert "a dummy source that contributes nothing" in PROTECTED[ARA].moves
    move = Move(events=(AddSource(device=0, key=1), AddTrigger(device=0, key=0, value=2)), query=both_keys(1, 4))
    here, silent = world(ARA, None, "1", "0"), world(ARA, MOVED, "1", "0")
    worlds: dict[int, Make] = {1: silent, 2: lambda noise, pick: Rekeyed(here(noise, pick), 4)}
    for loss, dummy in worlds.items():
        played = ExactGame(worlds=(here, dummy), opening=[move], moves=[], most=2)
        ratios = [played.law(0, (0,))[seen] / chance for seen, chance in played.law(1, (0,)).items()]
        assert float(max(ratios)) == pytest.approx(exp(loss), rel=1e-9)
        assert played.advantage(Fraction(loss), 1) <= TINY
        assert played.advantage(Fraction(loss) * 95 / 100, 1) > Fraction(1, 1000)


def both_keys(first: int, second: int, reports: tuple[int, ...] = (0,)) -> AdversaryQuery:
    return AdversaryQuery(reports=reports, epsilon=Epsilon.parse("1"), domain=(first, second))


def _broken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "half the noise":
        wrong = property(lambda plan: DiscreteLaplace(epsilon_micro=2 * plan.mechanism.pure_micro, sensitivity=2))
        monkeypatch.setattr(ReleasePlan, "declared_noise", wrong)
    elif name == "no charge":
        monkeypatch.setattr(EpsilonDeltaFilter, "cost", lambda *_: Spend(loss_micro=0, delta_atto=0, uses=1))
    elif name == "only late reports pay":
        commit = Charge.commit

        def late_only(self: Charge, make: Any, *, units: Any, **rest: Any) -> Any:
            """Charge the reports that no earlier release charged (docs/guarantees.md, "Late reports")."""
            paid = charged.setdefault(self.ledger, set())
            late = [unit for unit in units if unit.tobytes() not in paid]
            paid.update(unit.tobytes() for unit in units)
            return commit(self, make, units=np.array(late, dtype=np.uint8).reshape(-1, units.shape[1]), **rest)

        charged: WeakKeyDictionary[Any, set[bytes]] = WeakKeyDictionary()
        monkeypatch.setattr(Charge, "commit", late_only)
    elif name == "no cap of a source":
        right = SummaryClient.register_trigger

        def uncapped(self: SummaryClient, *args: Any, **fields: Any) -> Any:
            self.lambda1 = 100
            return right(self, *args, **fields)

        monkeypatch.setattr(SummaryClient, "register_trigger", uncapped)
    else:
        right_event = PaaSrClient.event

        def fresh(self: PaaSrClient, *args: Any) -> Any:
            self.contributed.clear()
            return right_event(self, *args)

        monkeypatch.setattr(PaaSrClient, "event", fresh)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ("half the noise", "ARA"),
        ("no charge", "ARA"),
        ("only late reports pay", "ARA"),
        ("no cap of a source", "ARA"),
        ("no cap of a window", "PAA, window 0"),
    ],
)
def test_a_broken_client_or_service_loses_the_same_game(
    broken: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, epsilon, delta = CASES[name]
    _broken(monkeypatch, broken)
    again = ExactGame(worlds=played.worlds, opening=played.opening, moves=played.moves, most=4)
    assert again.advantage(Fraction(epsilon), 3) > delta + Fraction(1, 1000)


def test_the_example_about_late_reports_runs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "guarantees.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0 and tried >= 10
