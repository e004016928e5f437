"""Adaptive adversaries against the real engine and ledger, judged by the truth; and a service that forgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.campaign.assess.losses import ContributionBounds, PrivacyLoss, transcript_to_plain
from aggservice.campaign.requery.adversary import (
    AddSource,
    AddTrigger,
    AdversaryQuery,
    EventLevel,
    MechanismAnswer,
    Move,
    RunOperation,
    play,
)
from aggservice.campaign.requery.interactive import SummaryMechanism, bounds_terms
from aggservice.campaign.requery.random_adversary import GameResult, RandomAdversary, play_games, visible_spend
from aggservice.campaign.service.config import memory_ledger
from aggservice.client import Client
from aggservice.mechanisms import Bits, Clock, ManualClock, SecureBits, SeededBits
from aggservice.service import Limits, ServiceConfig, embedded
from aggservice.wire import Api, KeySet
from ara_client.model import TrigSpec
from budget import Committed, Delta, Epsilon, EpsilonDeltaFilter, Ledger, Sensitivity, Terms, UnitSet
from budget.units import UNIT_BYTES

NOW_MS = 1_700_000_000_000


class ForgetfulLedger(Ledger):
    """A broken ledger: of every tenth job it asks nobody, and charges nobody."""

    jobs = 0

    def require(self, **asked: Any) -> None:
        self.jobs += 1
        if self.jobs % 10:
            super().require(**asked)

    def commit(self, *, units: Any, **rest: Any) -> Committed:
        skipped = np.empty((0, UNIT_BYTES), dtype=np.uint8)
        return super().commit(units=units if self.jobs % 10 else UnitSet(skipped), **rest)


def forgetful(filter: EpsilonDeltaFilter, terms: Terms, clock: Clock, bits: Bits) -> Ledger:
    return memory_ledger(filter, terms, clock=clock, bits=bits, kind=ForgetfulLedger)


def mechanism(
    *,
    api: Api = Api.ATTRIBUTION_REPORTING,
    l1: int = 100,
    l0: int = 10,
    epsilon: str = "3",
    delta: str = "0.00001",
    kind: type[Ledger] = Ledger,
) -> SummaryMechanism:
    clock, bits, bounds = ManualClock(NOW_MS), SecureBits(), ContributionBounds(l1=l1, l0=l0)
    limits = EpsilonDeltaFilter.parse(epsilon=epsilon, delta=delta)
    return SummaryMechanism(
        api=api,
        bounds=bounds,
        ledger=memory_ledger(limits, bounds_terms(api, bounds), clock=clock, bits=bits, kind=kind),
        keys=KeySet.create(bits, clock),
        clock=clock,
        bits=bits,
    )


class Insistent:
    """Fills a source's budget with two triggers, then asks for ε = 1 over both again and again."""

    def __init__(self, rounds: int, trick: bool = False) -> None:
        self.rounds = rounds
        self.trick = trick

    def next_move(self, seen: Sequence[MechanismAnswer]) -> Move | None:
        if len(seen) == self.rounds:
            return None
        events = (
            AddSource(device=0, key=1),
            AddTrigger(device=0, key=2, value=60),
            AddTrigger(device=0, key=2, value=40),
            AddTrigger(device=0, key=2, value=1),  # the source is full: a null report
        )
        query = AdversaryQuery(
            reports=(0, 1, 2), epsilon=Epsilon.parse("1"), domain=(3,), job_id="job" if self.trick else None
        )
        return Move(events=() if seen else events, query=query)


def test_an_insistent_adversary_gets_exactly_epsilon_star() -> None:
    played = mechanism()
    answers = play(played, Insistent(6))
    assert [answer.rows is not None for answer in answers] == [True, True, True, False, False, False]
    assert {answer.return_code for answer in answers[3:]} == {"PRIVACY_BUDGET_EXHAUSTED"}
    assert played.recorder.totals() == {"source 1": PrivacyLoss(played.limit.epsilon)}
    assert not played.recorder.units_over_limit(played.limit)
    assert all(one.lost == one.charged for one in played.recorder.compare(played.balances()))


def test_a_source_with_both_kinds_of_reports_has_one_loss() -> None:
    """ε = 2 by a summary and 1 by event-level reports; a source that converts nothing loses the latter too."""
    played = mechanism()
    events = EventLevel(epsilon=Epsilon.parse("1"), max_reports=1, specs=(TrigSpec(0, (0,), (1,)),))
    silent, sold = (AddSource(device=device, key=1, event_level=events) for device in (0, 1))
    query = AdversaryQuery(reports=(0,), epsilon=Epsilon.parse("2"), domain=(3,))
    answer = played.respond(Move(events=(silent, sold, AddTrigger(device=1, key=2, value=100)), query=query))
    assert len(answer.event_reports) <= 2
    assert played.recorder.totals() == {"source 2": PrivacyLoss(Fraction(2))}
    assert played.recorder.together() == {"source 1": PrivacyLoss(Fraction(1)), "source 2": PrivacyLoss(Fraction(3))}
    comparisons = played.recorder.compare(played.balances())
    assert not any(one.undercharged for one in comparisons)
    plain = transcript_to_plain(played.recorder.rounds, comparisons, bounds=played.recorder.bounds, limit=played.limit)
    assert [(one["unit"], one["together"]["epsilon_exact"]) for one in plain["losses"]] == [
        ("source 2", "3"),
        ("source 1", "1"),
    ]


def test_the_same_job_again_tells_nothing_new() -> None:
    played = mechanism()
    answers = play(played, Insistent(5, trick=True))
    assert len({tuple(answer.rows.items()) for answer in answers if answer.rows}) == 1
    assert played.recorder.totals()["source 1"].epsilon == 1


def test_a_ledger_that_forgets_every_tenth_charge_is_caught_by_the_truth() -> None:
    played = mechanism(epsilon="12", kind=ForgetfulLedger)
    play(played, Insistent(16))
    assert played.recorder.totals()["source 1"].epsilon == 13
    assert set(played.recorder.units_over_limit(played.limit)) == {"source 1"}
    assert [one.undercharged for one in played.recorder.compare(played.balances())] == [True]


def test_private_aggregation_windows_are_units_of_their_own() -> None:
    def pi(storage: dict[str, int]) -> tuple[dict[str, int], int, int]:
        runs = storage.get("runs", 0) + 1
        return {"runs": runs}, 5, min(100, 20 * runs)

    class Windows:
        def next_move(self, seen: Sequence[MechanismAnswer]) -> Move | None:
            if len(seen) == 2:
                return None
            events = tuple(RunOperation(device=1, window=len(seen), pi=pi) for _ in range(3))
            reports = tuple(range(3 * len(seen), 3 * len(seen) + 3))
            return Move(events=events, query=AdversaryQuery(reports=reports, epsilon=Epsilon.parse("2"), domain=(5,)))

    played = mechanism(api=Api.SHARED_STORAGE, l1=100)
    play(played, Windows())
    # Window 0 sends 20, 40 and a null (60 no longer fits); storage goes on, so window 1 sends 80 and two nulls.
    totals = played.recorder.totals()
    assert sorted(totals) == ["device 1, window 0", "device 1, window 1"]
    assert [loss.epsilon * 100 for _, loss in sorted(totals.items())] == [120, 160]


def test_a_random_adversary_is_a_function_of_the_transcript() -> None:
    def build(bits: Bits) -> RandomAdversary:
        return RandomAdversary(
            api=Api.ATTRIBUTION_REPORTING,
            bounds=ContributionBounds(l1=100, l0=10),
            limit_epsilon_micro=3_000_000,
            limit_delta_atto=10**13,
            bits=bits,
        )

    answers = play(mechanism(), build(SeededBits("one adversary")))
    again = build(SeededBits("one adversary"))
    assert [again.next_move(answers[:place]) for place in range(len(answers))] == [answer.move for answer in answers]
    # So it is when its strategy was drawn from the system's entropy.
    drawn = build(SecureBits())
    assert [drawn.next_move(answers[:3]) for _ in range(3)] == [drawn.next_move(answers[:3])] * 3
    # Another answer gives another continuation: it does look.
    changed = [replace(one, rows={3: 10**6}) for one in answers]
    assert any(again.next_move(changed[:place]) != answers[place].move for place in range(1, len(answers)))


def test_belief_counts_a_repeated_job_once() -> None:
    query = AdversaryQuery(
        reports=(0, 0, 1), epsilon=Epsilon.parse("1"), delta=Delta(atto=5), others=Epsilon.parse("0.5")
    )
    answer = MechanismAnswer(
        move=Move(events=(), query=query), job_id="j", rows={}, return_code="SUCCESS", reports_sent=2
    )
    epsilon, delta = visible_spend([answer, answer])
    assert epsilon == {(0, 0): 1_500_000, (1, 0): 1_500_000} and delta == {(0, 0): 5, (1, 0): 5}


def judge(results: list[GameResult]) -> dict[str, int]:
    return {
        "games": len(results),
        "queries": sum(one.rounds for one in results),
        "released": sum(one.released for one in results),
        "refused": sum(one.refused for one in results),
        "units": sum(one.units for one in results),
        "games with a unit at exactly ε*": sum(one.share == 1 for one in results),
        "units past (ε*, δ*)": sum(one.past for one in results),
        "games with a unit past (ε*, δ*)": sum(one.past > 0 for one in results),
        "units undercharged": sum(one.undercharged for one in results),
        "units whose loss is not what the ledger charged": sum(one.disagreeing for one in results),
    }


def check_real(count: int) -> dict[str, int]:
    """What must hold always is compared exactly; what is likely (more than half of the games reach ε*) has room."""
    found = judge(list(play_games(count, bits=SecureBits(), clock=ManualClock(NOW_MS))))
    assert found["games"] == count
    assert found["units past (ε*, δ*)"] == 0
    assert found["units undercharged"] == found["units whose loss is not what the ledger charged"] == 0
    # The adversaries are worth their name: they get answers, meet refusals, and some reach the limit.
    assert found["released"] > count and found["refused"] > count
    assert found["games with a unit at exactly ε*"] > count // 10
    return found


def check_forgetful(count: int) -> dict[str, int]:
    """About one game in five gets past the limit: that none of 80 does has a probability below 10⁻⁷."""
    found = judge(list(play_games(count, bits=SecureBits(), clock=ManualClock(NOW_MS), make_ledger=forgetful)))
    assert found["games with a unit past (ε*, δ*)"] > 0
    assert found["units undercharged"] >= found["units past (ε*, δ*)"]
    return found


def test_random_adversaries_never_get_a_unit_past_the_limit() -> None:
    check_real(60)


def test_random_adversaries_catch_a_forgetful_service() -> None:
    check_forgetful(80)


def test_random_adversaries_over_grpc_fare_no_better(tmp_path: Path) -> None:
    """The same family against a whole service, with its ledger in SQLite."""
    clock, bits, bounds = ManualClock(NOW_MS), SecureBits(), ContributionBounds(l1=100, l0=10)
    keys = KeySet.create(bits, clock)
    limits = EpsilonDeltaFilter.parse(epsilon="3", delta="0.00001")
    released = 0
    for number, api in enumerate((Api.ATTRIBUTION_REPORTING, Api.SHARED_STORAGE) * 3):
        config = ServiceConfig(
            state=tmp_path / str(number),
            listen="127.0.0.1:0",
            filter=limits,
            sensitivities={api: Sensitivity(l1=bounds.l1, l0=bounds.l0)},
            limits=Limits(processes=0),
        )
        with embedded(config, clock=clock, keys=keys) as service, Client(service.address) as client:
            played = SummaryMechanism(
                api=api,
                bounds=bounds,
                ledger=service.ledger,
                keys=keys,
                clock=clock,
                bits=bits,
                runner=client,
            )
            adversary = RandomAdversary(
                api=api,
                bounds=bounds,
                limit_epsilon_micro=limits.epsilon_micro,
                limit_delta_atto=limits.delta_atto,
                bits=bits,
                rounds=15,
            )
            released += sum(answer.rows is not None for answer in play(played, adversary))
            assert not played.recorder.units_over_limit(played.limit)
            assert all(one.lost == one.charged for one in played.recorder.compare(played.balances()))
    # A game without any answer is rarer than one in a thousand; six of them in a row do not happen.
    assert released > 0


@pytest.mark.soak
def test_1000_random_adversaries_never_get_a_unit_past_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    real, broken = check_real(1000), check_forgetful(1000)
    with capsys.disabled():
        for name, found in (("the service as it is", real), ("every tenth charge forgotten", broken)):
            print(f"\n1,000 random adaptive adversaries, {name}:")
            for words, number in found.items():
                print(f"  {words}: {number:,}")
