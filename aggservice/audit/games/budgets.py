"""Games against the budget: asking until it is spent, retries, a crash, filtering IDs, callers, shared IDs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from aggservice.audit.games.game import Game, Played
from aggservice.audit.games.sums import Metrics, compared, together
from aggservice.audit.target import L1, Attacked, Target
from aggservice.client import ClientError
from aggservice.engine.opening.coverage import PrivacyUnit
from aggservice.mechanisms import SecureBits, SystemClock
from aggservice.wire import AggregatableReport, Contribution, KeySet
from budget import EpsilonDeltaFilter

_MOST_ROUNDS = 8
_PATIENCE_S = 300.0
_LIMITS = EpsilonDeltaFilter.parse(epsilon="2")


def until_refused(ask: Callable[[int], Metrics | None]) -> list[Metrics]:
    """Ask until a refusal, at most eight times; return the answers."""
    answers: list[Metrics] = []
    while len(answers) < _MOST_ROUNDS and (found := ask(len(answers))) is not None:
        answers.append(found)
    return answers


def _asked(
    attacked: Attacked, reports: list[AggregatableReport], keys: int, *, caller: int = 0, **more: object
) -> Metrics | None:
    summary = attacked.ask(attacked.parameters("1", **more), reports, keys, caller=caller)
    return None if summary is None else attacked.metrics(summary)


def _exhausted(target: Target, units: int, *, unit: PrivacyUnit = PrivacyUnit.REPORT, callers: int = 1) -> Played:
    with target.open(_LIMITS, unit=unit, callers=callers) as attacked:
        reports = attacked.units(units, every=2)
        answers = until_refused(lambda number: _asked(attacked, reports, 4 * units, caller=number % callers))
        return compared(together(answers), units, attacked.charged(reports)[0])


def exhaustion(target: Target, scale: int) -> list[Played]:
    return [_exhausted(target, 2_000 * scale)]


def shared_ids(target: Target, scale: int) -> list[Played]:
    return [_exhausted(target, 1_000 * scale, unit=PrivacyUnit.SHARED_ID)]


def callers(target: Target, scale: int) -> list[Played]:
    return [_exhausted(target, 1_000 * scale, callers=2)]


def retries(target: Target, scale: int) -> list[Played]:
    """Send the same job four times: four equal answers reveal what one reveals, and pay once."""
    units = 2_000 * scale
    with target.open() as attacked:
        reports, job = attacked.units(units, every=2), attacked.new_job()
        answers = [
            attacked.metrics(attacked.ask(attacked.parameters("1"), reports, 4 * units, job=job)) for _ in range(4)
        ]
        return [compared(together(answers), units, attacked.charged(reports)[0])]


def filtering_ids(target: Target, scale: int) -> list[Played]:
    """Put half of Λ₁ under each of two IDs; ask for each and for both. A half pays for jobs that ask for its ID."""
    units = 2_000 * scale
    with target.open() as attacked:
        reports = [
            attacked.report([Contribution(bucket=2 * at, value=L1 // 2, filtering_id=one) for one in (0, 1)])
            for at in range(units)
        ]
        asked = ((0,), (1,), (0, 1))
        answers = [
            attacked.metrics(attacked.ask(attacked.parameters("2", filtering_ids=ids), reports, 4 * units))
            for ids in asked
        ]
        halves = [attacked.charged(reports, (one,))[0] for one in (0, 1)]
        return [compared(together(answers, [len(ids) * L1 // 2 for ids in asked]), units, sum(halves) / 2)]


def _answer_and_die(
    state: str, keys: str, reports: list[AggregatableReport], count: int, job: str, pipe: Connection
) -> None:
    """Run a service over the ledger in ``state``, ask once, send the answer to ``pipe``, and kill this process."""
    clock = SystemClock()
    target = Target(bits=SecureBits(), clock=clock, _keys=KeySet.parse(keys))
    with target.open(_LIMITS, state=Path(state)) as attacked:
        summary = attacked.ask(attacked.parameters("1"), reports, count, job=job)
        pipe.send_bytes(attacked.metrics(summary).tobytes())
        pipe.recv_bytes()
        os.kill(os.getpid(), signal.SIGKILL)


def crash(target: Target, scale: int) -> list[Played]:
    """Kill a service after one answer, start one over its ledger, repeat the job, then ask others until a refusal."""
    units, job = 1_500 * scale, "audit-crash"
    spawn = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="aggservice-audit-") as state:
        with target.open(_LIMITS) as maker:
            reports = maker.units(units, every=2)
        here, there = spawn.Pipe()
        child = spawn.Process(
            target=_answer_and_die, args=(state, target.keys().serialise(), reports, 4 * units, job, there)
        )
        child.start()
        there.close()
        if not here.poll(_PATIENCE_S):
            child.kill()
            raise ClientError("the service that was to be killed gave no answer: run the audit again")
        answers = [np.frombuffer(here.recv_bytes(), dtype=np.int64)]
        here.send_bytes(b"die")
        child.join(60)
        with target.open(_LIMITS, state=Path(state)) as attacked:
            again = attacked.metrics(attacked.ask(attacked.parameters("1"), reports, 4 * units, job=job))
            answers += [] if np.array_equal(again, answers[0]) else [again]
            answers += until_refused(lambda _: _asked(attacked, reports, 4 * units))
            return [compared(together(answers), units, attacked.charged(reports)[0])]


GAMES = (
    Game("requerying until exhaustion", "charges that are forgotten, lost or too small", exhaustion, own=True),
    Game("retries", "fresh noise for a job that was paid once", retries),
    Game("crash and restart", "charges or answers that a killed process takes with it", crash, own=True),
    Game("filtering IDs", "IDs that are released and not charged", filtering_ids),
    Game("two callers", "a budget for each caller in place of one for each report", callers, own=True),
    Game("shared IDs", "a budget for each report in place of one for what they share", shared_ids, own=True),
)
