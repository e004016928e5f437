"""From the first opened report on, a failure that could tell what reports hold is paid for and stays the answer."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggservice.engine import AvroShards, LocalEngine, ledger_terms
from aggservice.engine.jobs import histogram as histogram_module
from aggservice.engine.release import charging as charging_module
from aggservice.engine.release import output as output_module
from aggservice.engine.release.charging import find_result
from aggservice.engine.release.output import Destination
from aggservice.engine.tables.sums import KeySums
from aggservice.job.errors import (
    DomainError,
    InvalidJobError,
    PaidFailureError,
    ResultWriteError,
    ReturnCode,
    UnpaidError,
)
from aggservice.job.request import Discovery
from aggservice.job.result import Outcome
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from aggservice.wire.batch.payloads import SMALLEST_CONTRIBUTION_BYTES
from budget import Delta, EpsilonDeltaFilter, LaplaceNoise, Ledger, MemoryStore, Signer, Staging, verify_store
from budget.errors import StoreError

from .conftest import NOW_MS, SCOPE, Maker
from .test_flow import request

EngineOf = Callable[..., LocalEngine]


def run(engine: LocalEngine, maker: Maker, job: str, destination: Destination | None = None, **changes: Any) -> Outcome:
    changes = {"mechanism": LaplaceNoise.parse(epsilon="40"), **changes}
    session = engine.begin(SCOPE, request(job, **changes), destination=destination)
    session.declare(np.zeros(2, dtype=np.uint64), np.array([1, 2], dtype=np.uint64))
    session.add(maker.batch([maker.kept]))  # type: ignore[attr-defined]
    return session.finish()


@pytest.fixture
def prepared(maker: Maker) -> Maker:
    maker.kept = maker.report({1: 5, 3: 9})  # type: ignore[attr-defined]
    return maker


def failing(problem: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise problem

    return fail


def check_paid(engine: LocalEngine, maker: Maker, fail: Callable[[], Outcome], code: ReturnCode) -> None:
    """The units are charged once, the job keeps its answer, and the ledger audits well."""
    with pytest.raises(PaidFailureError) as caught:
        fail()
    assert caught.value.code == code
    assert engine.ledger.checkpoint().entries == 2
    found = find_result(engine.ledger, SCOPE.caller, "job")
    assert found is not None and found.header.failed and not found.rows
    with pytest.raises(PaidFailureError) as again:
        _ = found.checked
    assert str(again.value) == str(caught.value)
    with pytest.raises(UnpaidError):  # 40 of 64 are gone
        run(engine, maker, "another")
    assert verify_store(engine.ledger.store).ok


def test_sums_that_cannot_be_made_are_paid_for(
    prepared: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(prepared)
    with monkeypatch.context() as broken:
        broken.setattr(KeySums, "add", failing(MemoryError()))
        with pytest.raises(PaidFailureError):
            run(engine, prepared, "job")
    check_paid(
        engine_of(prepared, ledger=engine.ledger),
        prepared,
        lambda: run(engine, prepared, "job"),
        ReturnCode.INTERNAL_ERROR,
    )


def test_noise_that_cannot_be_drawn_is_paid_for(
    prepared: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(prepared)
    monkeypatch.setattr(histogram_module, "release", failing(ValueError("a sum of 5")))

    def fail() -> Outcome:
        try:
            return run(engine, prepared, "job")
        finally:
            monkeypatch.undo()

    check_paid(engine, prepared, fail, ReturnCode.INTERNAL_ERROR)


def test_more_rows_than_the_ledger_keeps_are_refused_when_declared_and_paid_for_when_discovered(
    prepared: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(prepared, noise=Largest())
    monkeypatch.setattr(charging_module, "MOST_ROWS_IN_LEDGER", 1)
    with pytest.raises(ResultWriteError, match="2 declared keys"):
        run(engine, prepared, "job")
    assert engine.ledger.checkpoint().entries == 1
    monkeypatch.setattr(charging_module, "MOST_ROWS_IN_LEDGER", 2)
    discovery = Discovery(delta=Delta.parse("0.000001"))
    check_paid(
        engine, prepared, lambda: run(engine, prepared, "job", discovery=discovery), ReturnCode.RESULT_WRITE_ERROR
    )


class Largest:
    """Noise with which every discovered key passes its threshold."""

    def draw(self, noise: Any, size: int) -> np.ndarray:
        return np.full(size, getattr(noise, "tau", 0), dtype=np.int64)


class SmallStore(MemoryStore):
    """A store whose disk is full for results above some bytes."""

    room = 1 << 30

    def write(self, name: str, work: Callable[[Any], Any]) -> Any:
        def bounded(transaction: Any) -> Any:
            real = transaction.add_job

            def add_job(job: Any) -> None:
                if len(job.result) > self.room:
                    raise StoreError("database or disk is full")
                real(job)

            transaction.add_job = add_job
            return work(transaction)

        return super().write(name, bounded)


def ledger_over(store: MemoryStore, folder: Path | None = None) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        store,
        filter=EpsilonDeltaFilter(),
        terms=ledger_terms(),
        signer=Signer.generate(bits),
        clock=ManualClock(NOW_MS),
        bits=bits,
        staging=None if folder is None else Staging(folder, SecureBits()),
    )


def test_a_store_without_room_for_the_rows_is_paid_for_and_one_without_any_room_is_not(
    prepared: Maker, engine_of: EngineOf
) -> None:
    store = SmallStore()
    engine = engine_of(prepared, ledger=ledger_over(store), noise=Largest())
    discovery = Discovery(delta=Delta.parse("0.000001"))
    store.room = 0
    with pytest.raises(StoreError):
        run(engine, prepared, "job", discovery=discovery)
    assert engine.ledger.checkpoint().entries == 1
    store.room = 1 << 30
    whole = len(run(engine, prepared, "size", mechanism=LaplaceNoise.parse(epsilon="0.1")).committed.result)  # type: ignore[union-attr]
    store.room = whole - 10
    with pytest.raises(PaidFailureError) as caught:
        run(engine, prepared, "job")
    assert caught.value.code == ReturnCode.RESULT_WRITE_ERROR
    assert engine.ledger.checkpoint().entries == 3


@pytest.mark.parametrize("disk", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_files_that_cannot_be_staged_are_paid_for_and_leave_nothing(
    prepared: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Exception
) -> None:
    engine = engine_of(prepared, ledger=ledger_over(MemoryStore(), tmp_path / "staging"))
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(output_module, "write_buckets", failing(disk))

    def fail() -> Outcome:
        try:
            return run(engine, prepared, "job", AvroShards(prefix=tmp_path / "out" / "summary.avro"))
        finally:
            monkeypatch.undo()

    code = ReturnCode.RESULT_WRITE_ERROR if isinstance(disk, OSError) else ReturnCode.INTERNAL_ERROR
    check_paid(engine, prepared, fail, code)
    assert not list((tmp_path / "out").iterdir()) and not list((tmp_path / "staging").iterdir())


def test_a_lost_summary_of_units_that_cannot_pay_is_a_refusal_like_any_other(
    prepared: Maker, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(prepared)
    run(engine, prepared, "first")
    texts = []
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(histogram_module, "release", failing(MemoryError()))
        with pytest.raises(UnpaidError) as caught:
            run(engine, prepared, "job")
        texts.append((str(caught.value), caught.value.first))
    assert texts[0] == texts[1]
    assert engine.ledger.checkpoint().entries == 2


@pytest.mark.parametrize("contributions", [{}, {1: 5}, {7: 5}])
def test_order_and_missing_keys_are_refused_whatever_reports_hold(
    maker: Maker, engine_of: EngineOf, contributions: dict[int, int]
) -> None:
    engine = engine_of(maker)
    session = engine.begin(SCOPE, request())
    with pytest.raises(InvalidJobError, match="declares no key"):
        session.add(maker.batch([maker.report(contributions)]))
    session = engine.begin(SCOPE, request())
    session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    session.add(maker.batch([]))
    with pytest.raises(DomainError, match="after the first reports"):
        session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    session.add(maker.batch([maker.report(contributions)]))
    with pytest.raises(DomainError, match="after the first reports"):
        session.declare(np.zeros(1, dtype=np.uint64), np.ones(1, dtype=np.uint64))
    assert len(session.finish().rows or ()) == 1


def test_found_keys_do_not_count_against_what_a_job_may_discover(
    engine_of: EngineOf, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One report, then junk up to the limit, would otherwise tell for free how many keys the report holds."""
    junk = maker.batch([maker.report({1: 1}, reporting_origin="https://rival.example")])
    ends = []
    for contributions in ({}, {key: 1 for key in range(1, 11)}):
        batch = maker.batch([maker.report(contributions)])
        room = (int(batch.payloads.stops[0]) + int(junk.payloads.stops[0])) // SMALLEST_CONTRIBUTION_BYTES
        monkeypatch.setattr(histogram_module, "MOST_KEYS", room)
        asked = request("found", discovery=Discovery(delta=Delta.parse("0.000001")))
        session = engine_of(maker).begin(SCOPE, asked)
        session.add(batch)
        session.add(junk)  # neither world is refused here
        with pytest.raises(InvalidJobError, match="more keys than a job can discover") as refused:
            session.add(junk)
        ends.append(str(refused.value))
    assert ends[0] == ends[1]


class OnceFullStore(MemoryStore):
    """A store that cannot write the first commit, as SQLite on a full disk before it empties its log."""

    refused = False

    def write(self, name: str, work: Callable[[Any], Any]) -> Any:
        if name == "commit" and not self.refused:
            self.refused = True
            raise StoreError("transaction failed: database or disk is full")
        return super().write(name, work)


def test_a_lost_result_is_offered_to_a_full_store_as_often_as_a_good_one(
    engine_of: EngineOf, prepared: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a full disk tells for free whether a summary could be made."""
    bits = SeededBits("ledger")
    for lost in (False, True):
        ledger = Ledger.create(
            OnceFullStore(),
            filter=EpsilonDeltaFilter(),
            terms=ledger_terms(),
            signer=Signer.generate(bits),
            clock=ManualClock(NOW_MS),
            bits=bits,
        )
        engine = engine_of(prepared, ledger=ledger)
        if lost:
            monkeypatch.setattr(histogram_module, "release", failing(MemoryError()))
            with pytest.raises(PaidFailureError):
                run(engine, prepared, "job")
        else:
            assert run(engine, prepared, "job").header.row_count == 2
        assert ledger.checkpoint().entries == 2, "charged in both cases"
