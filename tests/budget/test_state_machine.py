"""One model of twenty lines, three stores, random jobs, crashes between statements."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aggservice.mechanisms import ManualClock, SeededBits
from budget import (
    BudgetExhaustedError,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    PostgresStore,
    Signer,
    SqliteStore,
    Store,
    verify_store,
)
from budget.errors import JobConflictError
from budget.stores import balances

from .releases import TERMS, release_of

LIMIT = (5_000_000, 3 * 10**12, 4)
UNIVERSE = 700
"""Units: enough that a block of balances is split (256 records), few enough that jobs meet."""


@dataclass
class Model:
    """What a ledger is, in twenty lines."""

    spent: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    jobs: dict[tuple[str, str], tuple[str, bytes, int]] = field(default_factory=dict)
    log: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)

    def commit(
        self, caller: str, job: str, request: str, cost: tuple[int, int, int], units: range, result: bytes
    ) -> Any:
        if (caller, job) in self.jobs:
            return self.jobs[caller, job][1] if self.jobs[caller, job][0] == request else "conflict"
        after = {u: tuple(map(sum, zip(self.spent.get(u, (0, 0, 0)), cost, strict=True))) for u in units}
        lacking = [u for u in units if any(have > most for have, most in zip(after[u], LIMIT, strict=True))]
        if lacking:
            return lacking
        self.spent |= after  # type: ignore[arg-type]
        self.log.append((caller, job, tuple(units)))
        self.jobs[caller, job] = (request, result, len(self.log))
        return result


class CrashError(BaseException):
    """The process is gone."""


class Fuse:
    """Counts statements on connections; burns before or after the one it was set to, and everything dies."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.after = False
        self.dead = False
        self.committed = False

    def set(self, left: int, after: bool) -> None:
        self.left, self.after, self.dead, self.committed = left, after, False, False

    def run(self, statement: object, do: Any) -> Any:
        if self.dead:
            raise CrashError
        if self.left is None:
            return do()
        self.left -= 1
        if self.left < 0 and not self.after:
            self.dead = True
            raise CrashError
        result = do()
        self.committed = self.committed or statement == "COMMIT"
        if self.left < 0:
            self.dead = True
            raise CrashError
        return result


class Fragile:
    """A connection whose statements pass through a fuse."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse

    def execute(self, statement: Any, *values: Any, **options: Any) -> Any:
        return self._fuse.run(statement, lambda: self._inner.execute(statement, *values, **options))

    def executemany(self, statement: Any, *values: Any) -> Any:
        return self._fuse.run(statement, lambda: self._inner.executemany(statement, *values))

    def cursor(self, *values: Any, **options: Any) -> Any:
        return self._fuse.run("cursor", lambda: self._inner.cursor(*values, **options))

    def rollback(self) -> Any:
        return self._fuse.run("ROLLBACK", self._inner.rollback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class FragileSqlite(SqliteStore):
    fuse: Fuse

    def _open(self) -> sqlite3.Connection:
        return Fragile(super()._open(), self.fuse)  # type: ignore[return-value]


class FragilePostgres(PostgresStore):
    fuse: Fuse

    def _open(self) -> psycopg.Connection[Any]:
        return Fragile(super()._open(), self.fuse)  # type: ignore[return-value]


def keys_of(units: range) -> np.ndarray:
    keys = np.zeros((len(units), 20), np.uint8)
    for row, unit in enumerate(units):
        keys[row] = np.frombuffer(hashlib.sha256(str(unit).encode()).digest()[:20], np.uint8)
    keys[:, :3] = 0
    return keys


ORDER = {key.tobytes(): unit for unit, key in enumerate(keys_of(range(UNIVERSE + 60)))}
_schemas = itertools.count()


class LedgerMachine(RuleBasedStateMachine):
    """Every step runs on all three stores and on the model, and they must agree."""

    folder: Path
    dsn: str

    @initialize()
    def begin(self) -> None:
        number = next(_schemas)
        self.clock = ManualClock(1_000)
        self.model = Model()
        self.counter = itertools.count()
        self.fuses = {"sqlite": Fuse(), "postgres": Fuse()}
        self.places = {"sqlite": self.folder / f"machine{number}.db", "postgres": f"machine{number}"}
        self.stores: dict[str, Store] = {"memory": MemoryStore()}
        self.ledgers: dict[str, Ledger] = {}
        self.filter = EpsilonDeltaFilter(epsilon_micro=LIMIT[0], delta_atto=LIMIT[1], uses=LIMIT[2])
        self.signer = Signer.generate(SeededBits("machine"))
        for name in ("memory", "sqlite", "postgres"):
            self.reopen(name, create=True)

    def reopen(self, name: str, create: bool = False) -> None:
        if name == "sqlite":
            kind = type("Once", (FragileSqlite,), {"fuse": self.fuses[name]})
            self.stores[name] = kind(self.places[name])
        elif name == "postgres":
            kind = type("Once", (FragilePostgres,), {"fuse": self.fuses[name]})
            self.stores[name] = kind(self.dsn, schema=self.places[name])
        store = self.stores[name]
        if create:
            self.ledgers[name] = Ledger.create(
                store, terms=TERMS, filter=self.filter, signer=self.signer, clock=self.clock, bits=SeededBits("genesis")
            )
        else:
            self.ledgers[name] = Ledger.open(store, clock=self.clock, signer=self.signer, filter=self.filter)

    def teardown(self) -> None:
        for name, store in getattr(self, "stores", {}).items():
            report = verify_store(store)
            assert report.ok, (name, report.disagreement)
            assert report.units_known == len(self.model.spent)
            store.close()

    callers = st.sampled_from(["anna", "bert"])
    job_ids = st.sampled_from([f"job-{i}" for i in range(12)])
    requests = st.sampled_from(["r1", "r1", "r1", "r2"])
    costs = st.sampled_from([(1_000_000, 0), (2_500_000, 0), (4_999_999, 0), (1_000_000, 10**12), (1, 2 * 10**12)])
    ranges = st.tuples(st.integers(0, UNIVERSE), st.integers(0, UNIVERSE)).map(lambda ends: range(min(ends), max(ends)))

    def ask(
        self, name: str, caller: str, job: str, request: str, cost: tuple[int, int], units: range, result: bytes
    ) -> Any:
        """Commit on one store; return what the model would."""
        epsilon = Epsilon(micro=cost[0])
        mechanism = (
            LaplaceDiscovery(epsilon=epsilon, delta=Delta(atto=cost[1])) if cost[1] else LaplaceNoise(epsilon=epsilon)
        )
        try:
            return (
                self.ledgers[name]
                .commit(
                    job=JobKey(caller=caller, job_id=job),
                    request_digest=hashlib.sha256(request.encode()).digest(),
                    release=release_of(mechanism),
                    units=keys_of(units),
                    result=result,
                )
                .result
            )
        except JobConflictError:
            return "conflict"
        except BudgetExhaustedError as refused:
            assert refused.count == len(refused.units) and len(refused.first) == min(20, refused.count)
            assert refused.total == len(units)
            for one in refused.first:
                unit = ORDER[one.unit]
                mine = [job for who, job, held in self.model.log if who == caller and unit in held]
                assert [use.job_id for use in one.jobs] == mine
                spent = self.model.spent.get(unit, (0, 0, 0))
                assert (one.spent.loss_micro, one.spent.delta_atto, one.spent.uses) == spent
            return sorted(ORDER[key.tobytes()] for key in refused.units)

    @rule(caller=callers, job=job_ids, request=requests, cost=costs, units=ranges, wait=st.integers(0, 5))
    def commit(self, caller: str, job: str, request: str, cost: tuple[int, int], units: range, wait: int) -> None:
        self.clock.advance(wait)
        result = f"noise {next(self.counter)}".encode()
        expected = self.model.commit(caller, job, request, (*cost, 1), units, result)
        for name in self.ledgers:
            assert self.ask(name, caller, job, request, cost, units, result) == expected, name

    # A commit in one piece has some 16 statements, and each further piece of 97 units some 6 more.
    crashes = st.one_of(
        st.tuples(st.integers(0, UNIVERSE).map(lambda first: range(first, first + 60)), st.integers(0, 17)),
        st.tuples(ranges, st.integers(0, 60)),
    )

    @rule(caller=callers, job=job_ids, cost=costs, where=crashes, after=st.booleans())
    def crash(self, caller: str, job: str, cost: tuple[int, int], where: tuple[range, int], after: bool) -> None:
        """Kill each database's process at a statement of the commit, start again, and ask again."""
        units, statement = where
        result = f"noise {next(self.counter)}".encode()
        survived = {}
        for name, fuse in self.fuses.items():
            fuse.set(statement, after)
            with suppress(CrashError):
                self.ask(name, caller, job, "r1", cost, units, result)
            committed, fuse.left, fuse.dead = fuse.committed, None, False
            self.reopen(name)
            found = self.ledgers[name].job(caller, job)
            known = self.model.jobs.get((caller, job))
            trial = Model(dict(self.model.spent), dict(self.model.jobs), list(self.model.log))
            verdict = trial.commit(caller, job, "r1", (*cost, 1), units, result)
            if known is not None:
                assert found is not None and found.result == known[1], name
            elif committed and verdict == result:
                assert found is not None and found.result == result, name
            else:
                assert found is None, name
            survived[name] = found is not None
            report = verify_store(self.stores[name])
            assert report.ok, (name, report.disagreement)
        again = f"noise {next(self.counter)}".encode()
        # What survived on one database is asked of the others with the same result, so that all agree once more.
        keep = result if any(survived.values()) else again
        expected = self.model.commit(caller, job, "r1", (*cost, 1), units, keep)
        for name in self.ledgers:
            fresh = again if survived.get(name) else keep
            assert self.ask(name, caller, job, "r1", cost, units, fresh) == expected, name

    @rule(caller=callers, cost=costs, units=ranges)
    def check(self, caller: str, cost: tuple[int, int], units: range) -> None:
        trial = Model(dict(self.model.spent), {}, [])
        verdict = trial.commit(caller, "dry", "r1", (*cost, 1), units, b"")
        lacking = verdict if isinstance(verdict, list) else []
        epsilon = Epsilon(micro=cost[0])
        mechanism = (
            LaplaceDiscovery(epsilon=epsilon, delta=Delta(atto=cost[1])) if cost[1] else LaplaceNoise(epsilon=epsilon)
        )
        for name, ledger in self.ledgers.items():
            answer = ledger.check(caller=caller, release=release_of(mechanism), units=keys_of(units))
            assert sorted(ORDER[key.tobytes()] for key in answer.lacking) == lacking, name
            assert answer.payable == (not lacking)

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "ledgers"):
            return
        headers = set()
        for name, ledger in self.ledgers.items():
            spent = ledger.balances(keys_of(range(len(ORDER))))
            columns = zip(spent.loss_micro.tolist(), spent.delta_atto.tolist(), spent.uses.tolist(), strict=True)
            found = {ORDER[spent.units[i]]: row for i, row in enumerate(columns) if row[2]}
            assert found == self.model.spent, name
            for (caller, job), (_, result, seq) in self.model.jobs.items():
                kept = ledger.job(caller, job)
                assert kept is not None and (kept.result, kept.entry.seq) == (result, seq), name
            raw = [row.header for row in ledger.store.read("log", lambda t: list(t.entries()))]
            assert len(raw) == 1 + len(self.model.log), name
            headers.add(tuple(bytes(one) for one in raw))
        assert len(headers) == 1, "the three logs must be the same to the byte"


def machine(folder: Path, dsn: str) -> type[LedgerMachine]:
    return type("Machine", (LedgerMachine,), {"folder": folder, "dsn": dsn})


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job of a few hundred units be charged in several pieces, as one of millions is."""
    monkeypatch.setattr(balances, "PIECE_UNITS", 97)


def test_three_stores_and_the_model_agree(tmp_path: Path, postgres_dsn: str) -> None:
    run_state_machine_as_test(
        machine(tmp_path, postgres_dsn), settings=settings(max_examples=10, stateful_step_count=12, deadline=None)
    )


@pytest.mark.soak
def test_three_stores_and_the_model_agree_for_long(tmp_path: Path, postgres_dsn: str) -> None:
    run_state_machine_as_test(
        machine(tmp_path, postgres_dsn), settings=settings(max_examples=150, stateful_step_count=30, deadline=None)
    )
