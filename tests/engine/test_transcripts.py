"""Exact transcripts: for tiny Λ₁ and τ, every adaptive tree of three queries satisfies (ε*, δ*).

The engine itself runs, with every possible draw of its noise put through it one after another; each draw's weight is
the exact probability of the law that the engine asked for. Two databases are neighbours when one source's
contributions are nulls in the other (Algorithm 6); its reports are there in both, and pay in both.

What an adversary can gain is Σ max(0, P[t] - e^ε*·Q[t]) over transcripts t, maximised over trees. It must not exceed
δ*, nor the exact price of the queries that the budget affords (the mass outside the common support, Lemma A.1).
The second bound is the sharp one: the paper's τ leaves so much room below δ* that a threshold one lower stays below it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from aggservice.engine import InlineOpener, LocalEngine, ReleasePlan, Scope, ledger_terms
from aggservice.job.errors import UnpaidError
from aggservice.job.request import Discovery, HistogramRequest, JobRequest
from aggservice.mechanisms import (
    DiscreteLaplace,
    NoiseLaw,
    Real,
    SeededBits,
    TruncatedDiscreteLaplace,
    discovery_threshold,
)
from aggservice.mechanisms.laplace import truncated_delta
from aggservice.wire import Api, ReportBatch
from budget import Delta, Epsilon, EpsilonDeltaFilter, LaplaceNoise, Sensitivity, Spend

from .conftest import Maker, new_ledger

L1, L0 = 2, 2
EPSILON_TOTAL, DELTA_TOTAL = "3", "0.4"
PRECISION = 60
CLAMP = 3
TREE_DEPTH = 3
A, B = 1, 2
Outcome = tuple[tuple[int, int], ...] | str


def exact(value: Real | int) -> Decimal:
    """Return a real number to 60 digits."""
    if isinstance(value, int):
        return Decimal(value)
    low, high = value.bounds(240)
    return (Decimal(low) + Decimal(high)) / 2 / Decimal(2) ** 240


@dataclass(frozen=True)
class Query:
    """One query: which reports, at what price, and how keys are chosen."""

    slice: tuple[int, ...]
    epsilon: str
    delta: str = ""

    def request(self, number: int) -> JobRequest:
        return HistogramRequest(
            job_request_id=f"query-{number}",
            attribution_report_to="https://adtech.example",
            mechanism=LaplaceNoise.parse(epsilon=self.epsilon),
            discovery=Discovery(delta=Delta.parse(self.delta)) if self.delta else None,
        )


class Recorder:
    """Notes which laws the engine draws from; draws zeros."""

    def __init__(self) -> None:
        self.asked: list[NoiseLaw] = []

    def draw(self, noise: NoiseLaw, size: int) -> np.ndarray:
        self.asked += [noise] * size
        return np.zeros(size, dtype=np.int64)


class Script:
    """Gives the engine the draws that the test chose."""

    def __init__(self, draws: tuple[int, ...]) -> None:
        self._draws = list(draws)

    def draw(self, noise: NoiseLaw, size: int) -> np.ndarray:
        taken, self._draws = self._draws[:size], self._draws[size:]
        return np.array(taken, dtype=np.int64)


def support(noise: NoiseLaw) -> list[tuple[int, Decimal]]:
    """Return every draw with its probability; beyond ±R the two tails are one draw each, which clamping makes exact."""
    if isinstance(noise, TruncatedDiscreteLaplace):
        return [(x, exact(noise.pmf(x))) for x in range(-noise.tau, noise.tau + 1)]
    assert isinstance(noise, DiscreteLaplace)
    reach = CLAMP + L1
    inner = [(x, exact(noise.pmf(x))) for x in range(-reach + 1, reach)]
    return [(-reach, exact(noise.cdf(-reach))), *inner, (reach, exact(1 - noise.cdf(reach - 1)))]


class Database:
    """Reports, some of which are one source's; ``without`` is the neighbour in which that source gives nulls."""

    def __init__(self, maker: Maker, reports: list[dict[int, int]], source: tuple[int, ...]) -> None:
        ids = [maker.info().report_id for _ in reports]
        self.maker = maker
        self.source = source
        self.values = reports
        self.with_source = [maker.report(values, report_id=one) for values, one in zip(reports, ids, strict=True)]
        self.without = [
            maker.report({} if index in source else values, report_id=one)
            for index, (values, one) in enumerate(zip(reports, ids, strict=True))
        ]

    def shifts(self, query: Query) -> dict[int, int]:
        """Return by how much the source moves each key's sum in a query."""
        moved: dict[int, int] = {}
        for index in set(query.slice) & set(self.source):
            for key, value in self.values[index].items():
                moved[key] = moved.get(key, 0) + value
        return moved


def engine_for(maker: Maker, noise_of: Callable[[Any], Any]) -> LocalEngine:
    bounds = {Api.ATTRIBUTION_REPORTING: Sensitivity(l1=L1, l0=L0)}
    return LocalEngine(
        ledger=new_ledger(
            EpsilonDeltaFilter.parse(epsilon=EPSILON_TOTAL, delta=DELTA_TOTAL), terms=ledger_terms(sensitivities=bounds)
        ),
        opener=InlineOpener(maker.keys),
        clock=maker.clock,
        bits=SeededBits("transcripts"),
        noise_of=noise_of,
    )


def ask(engine: LocalEngine, reports: list[Any], query: Query, number: int) -> Outcome:
    """Put one query to the engine and return what the adversary sees."""
    session = engine.begin(Scope(caller="adversary"), query.request(number))
    if not query.delta:
        session.declare(np.zeros(1, dtype=np.uint64), np.array([A], dtype=np.uint64))
    session.add(ReportBatch.of([reports[index] for index in query.slice]))
    try:
        rows = session.finish().rows
    except UnpaidError:
        return "refused"
    assert rows is not None
    if query.delta:
        return tuple(sorted(rows.to_dict().items()))
    return tuple((key, max(-CLAMP, min(CLAMP, metric))) for key, metric in rows.to_dict().items())


def distribution(database: Database, reports: list[Any], query: Query) -> dict[Outcome, Decimal]:
    """Return the exact distribution of a query's answer, by running the engine on every draw."""
    recorder = Recorder()
    ask(engine_for(database.maker, lambda _: recorder), reports, query, 0)
    found: dict[Outcome, Decimal] = {}
    for draws in itertools.product(*(support(noise) for noise in recorder.asked)):
        weight = Decimal(1)
        for _, probability in draws:
            weight *= probability
        script = Script(tuple(draw for draw, _ in draws))
        outcome = ask(engine_for(database.maker, lambda _, script=script: script), reports, query, 0)
        found[outcome] = found.get(outcome, Decimal(0)) + weight
    assert abs(sum(found.values()) - 1) < Decimal(10) ** -50
    return found


def classes(database: Database, query: Query) -> list[tuple[Decimal, Decimal]]:
    """Return (P, Q) of the answers, those of equal ratio as one: merging them loses an adversary nothing."""
    first = distribution(database, database.with_source, query)
    second = distribution(database, database.without, query)
    merged: list[tuple[Decimal, Decimal]] = []
    for outcome in first.keys() | second.keys():
        p, q = first.get(outcome, Decimal(0)), second.get(outcome, Decimal(0))
        for index, (other_p, other_q) in enumerate(merged):
            if abs(p * other_q - q * other_p) <= Decimal(10) ** -45 * (p + q) * (other_p + other_q):
                merged[index] = (other_p + p, other_q + q)
                break
        else:
            merged.append((p, q))
    return merged


def granted(database: Database, queries: tuple[Query, ...]) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield every sequence of up to three queries, and whether the engine grants its last one."""

    def walk(path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], bool]]:
        engine = engine_for(database.maker, lambda _: Recorder())
        last: Outcome = ()
        for number, index in enumerate(path):
            last = ask(engine, database.with_source, queries[index], number)
        if path:
            yield path, last != "refused"
        if len(path) < TREE_DEPTH:
            for index in range(len(queries)):
                yield from walk((*path, index))

    return walk(())


def worst(database: Database, queries: tuple[Query, ...], *, reverse: bool) -> Decimal:
    """Return the most that an adaptive tree of three queries gains at ε*, in one direction."""
    told = [classes(database, query) for query in queries]
    allowed = dict(granted(database, queries))
    factor = exact_exp(EPSILON_TOTAL)

    def gain(path: tuple[int, ...], p: Decimal, q: Decimal) -> Decimal:
        if p <= 0:
            return Decimal(0)
        stop = max(Decimal(0), p - factor * q)
        if q <= 0 or len(path) == TREE_DEPTH:
            return stop
        best = stop
        for index in range(len(queries)):
            following = (*path, index)
            if not allowed[following]:
                value = gain(following, p, q)
            else:
                value = sum(
                    (gain(following, *((p * b, q * a) if reverse else (p * a, q * b))) for a, b in told[index]),
                    Decimal(0),
                )
            best = max(best, value)
        return best

    return gain((), Decimal(1), Decimal(1))


def exact_exp(text: str) -> Decimal:
    return Decimal(text).exp()


def affordable(database: Database, queries: tuple[Query, ...]) -> Decimal:
    """Return the largest exact δ of up to three queries that the budget affords, from arithmetic of its own."""
    price = {}
    for query in queries:
        cost = Decimal(0)
        if query.delta:
            epsilon, delta = Epsilon.parse(query.epsilon).micro, Delta.parse(query.delta).atto
            tau = discovery_threshold(epsilon_micro=epsilon, delta_atto=delta, l0=L0, l1=L1)
            noise = TruncatedDiscreteLaplace(epsilon_micro=epsilon, sensitivity=L1, tau=tau)
            for shift in database.shifts(query).values():
                cost += exact(truncated_delta(noise, shift))
        price[query] = cost
    best = Decimal(0)
    for count in range(TREE_DEPTH + 1):
        for path in itertools.product(queries, repeat=count):
            spent: dict[int, tuple[Decimal, Decimal]] = {}
            for query in path:
                for index in query.slice:
                    epsilon_spent, delta_spent = spent.get(index, (Decimal(0), Decimal(0)))
                    spent[index] = (epsilon_spent + Decimal(query.epsilon), delta_spent + Decimal(query.delta or 0))
            if all(e <= Decimal(EPSILON_TOTAL) and d <= Decimal(DELTA_TOTAL) for e, d in spent.values()):
                best = max(best, sum((price[query] for query in path), Decimal(0)))
    return best


def one_report(maker: Maker) -> tuple[Database, tuple[Query, ...]]:
    """A source with all of Λ₁ in one report, alone on its key."""
    return Database(maker, [{A: 2}], (0,)), (
        Query((0,), "1", "0.1"),
        Query((0,), "2", "0.2"),
        Query((0,), "3", "0.4"),
        Query((0,), "3"),
    )


def two_reports(maker: Maker) -> tuple[Database, tuple[Query, ...]]:
    """A source with Λ₁ over two reports, which slices take apart and together."""
    return Database(maker, [{A: 1}, {A: 1}], (0, 1)), (
        Query((0,), "2", "0.2"),
        Query((1,), "2", "0.2"),
        Query((0, 1), "1", "0.2"),
        Query((0, 1), "1"),
    )


def two_keys(maker: Maker) -> tuple[Database, tuple[Query, ...]]:
    """A source on two keys, one of which other sources have lifted to where the threshold is."""
    return Database(maker, [{A: 1, B: 1}, {B: 2}, {B: 2}, {B: 1}], (0,)), (
        Query((0, 1, 2, 3), "2", "0.2"),
        Query((0,), "1", "0.1"),
    )


def lifted(maker: Maker) -> tuple[Database, tuple[Query, ...]]:
    """A source on a key that others have lifted above 2τ: it is always shown, so that each draw of its noise counts."""
    return Database(maker, [{A: 2}, *({A: 2} for _ in range(8))], (0,)), (
        Query(tuple(range(9)), "2", "0.2"),
        Query(tuple(range(9)), "1", "0.2"),
    )


CASES = (one_report, two_reports, two_keys, lifted)


def check(build: Callable[[Maker], tuple[Database, tuple[Query, ...]]]) -> tuple[Decimal, Decimal]:
    """Return (worst gain over all trees and both directions, what the budget affords)."""
    with localcontext() as context:
        context.prec = PRECISION
        database, queries = build(Maker(SeededBits("reports")))
        gains = [worst(database, queries, reverse=reverse) for reverse in (False, True)]
        bound = min(Decimal(DELTA_TOTAL), affordable(database, queries))
        return max(gains), bound


@pytest.mark.parametrize("build", CASES)
def test_every_tree_of_three_queries_stays_within_the_budget(build: Any) -> None:
    gain, bound = check(build)
    assert 0 < gain <= bound + Decimal(10) ** -40
    assert bound <= Decimal(DELTA_TOTAL)


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of half the scale, everywhere."""

    def declared(plan: ReleasePlan) -> DiscreteLaplace:
        return DiscreteLaplace(epsilon_micro=2 * plan.mechanism.pure_micro, sensitivity=plan.sensitivity.l1)

    def discovered(plan: ReleasePlan) -> TruncatedDiscreteLaplace:
        return TruncatedDiscreteLaplace(
            epsilon_micro=2 * plan.mechanism.pure_micro, sensitivity=plan.sensitivity.l1, tau=plan.threshold
        )

    monkeypatch.setattr(ReleasePlan, "declared_noise", property(declared))
    monkeypatch.setattr(ReleasePlan, "discovered_noise", property(discovered))


def halve_discovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of half the scale for discovered keys alone."""
    kept = ReleasePlan.declared_noise
    halve_noise(monkeypatch)
    monkeypatch.setattr(ReleasePlan, "declared_noise", kept)


def lower_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A threshold one below τ; the noise stays truncated at τ, and the ledger is told that the threshold is τ."""
    right = ReleasePlan.threshold.fget  # type: ignore[attr-defined]
    stated = ReleasePlan.parameters

    def discovered(plan: ReleasePlan) -> TruncatedDiscreteLaplace:
        return TruncatedDiscreteLaplace(
            epsilon_micro=plan.mechanism.pure_micro, sensitivity=plan.sensitivity.l1, tau=right(plan)
        )

    monkeypatch.setattr(ReleasePlan, "discovered_noise", property(discovered))
    monkeypatch.setattr(ReleasePlan, "threshold", property(lambda plan: right(plan) - 1))
    monkeypatch.setattr(ReleasePlan, "parameters", lambda plan: stated(plan) | {"threshold": str(right(plan))})


def skip_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that writes everything down and charges nothing."""
    monkeypatch.setattr(EpsilonDeltaFilter, "cost", lambda *_: Spend(loss_micro=0, delta_atto=0, uses=1))


@pytest.mark.parametrize(
    ("spoil", "build"),
    [(halve_noise, one_report), (lower_threshold, one_report), (skip_charge, one_report), (halve_discovered, lifted)],
)
def test_a_broken_engine_fails_the_same_check(spoil: Any, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    gain, bound = check(build)
    assert gain > bound * Decimal("1.01")


def test_a_refusal_depends_on_what_was_asked_and_never_on_the_data() -> None:
    database, queries = two_reports(Maker(SeededBits("reports")))
    patterns = []
    for reports in (database.with_source, database.without):
        database.with_source = reports
        patterns.append(dict(granted(database, queries)))
    assert patterns[0] == patterns[1]
    assert not all(patterns[0].values())


def test_an_answer_after_others_has_the_law_of_a_first_answer() -> None:
    database, queries = one_report(Maker(SeededBits("reports")))
    with localcontext() as context:
        context.prec = PRECISION
        alone = distribution(database, database.with_source, queries[0])
        noise = Recorder()
        engine = engine_for(database.maker, lambda _: noise)
        ask(engine, database.with_source, queries[1], 0)
        first = len(noise.asked)
        ask(engine, database.with_source, queries[0], 1)
        recorded = noise.asked[first:]
        later: dict[Outcome, Decimal] = {}
        for draw, weight in support(recorded[0]):
            fresh = engine_for(database.maker, lambda _, draw=draw: Script((draw,)))
            ask(fresh, database.with_source, queries[1], 0)
            outcome = ask(fresh, database.with_source, queries[0], 1)
            later[outcome] = later.get(outcome, Decimal(0)) + weight
    assert len(recorded) == 1
    assert later == alone
