"""The ledger through its public calls, on every store."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from budget import (
    BudgetExhaustedError,
    Epsilon,
    EpsilonDeltaFilter,
    JobConflictError,
    JobKey,
    LaplaceNoise,
    Ledger,
    LedgerMismatchError,
    Release,
    Signer,
    Store,
    ZcdpFilter,
)
from mechanisms import ManualClock, SeededBits


def units(first: int, count: int) -> np.ndarray:
    keys = np.zeros((count, 20), np.uint8)
    keys[:, 16:] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(-1, 4)
    return keys


def laplace(epsilon: str) -> Release:
    return Release(mechanisms=(LaplaceNoise(epsilon=Epsilon.parse(epsilon)),))


def make(store: Store, **options: object) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        store,
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=ManualClock(1_700_000_000_000),
        bits=bits,
        **options,  # type: ignore[arg-type]
    )


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def spend(ledger: Ledger, job_id: str, epsilon: str, keys: np.ndarray, caller: str = "adtech") -> object:
    return ledger.commit(
        job=JobKey(caller=caller, job_id=job_id),
        request_digest=digest(job_id),
        release=laplace(epsilon),
        units=keys,
        result=job_id.encode(),
    )


def test_requerying_splits_the_budget_and_refuses_the_rest(store: Store) -> None:
    ledger = make(store)
    for job, epsilon in (("a", "16"), ("b", "32"), ("c", "16")):
        spend(ledger, job, epsilon, units(0, 1000))
    with pytest.raises(BudgetExhaustedError) as refused:
        spend(ledger, "d", "0.01", units(0, 1000))
    assert (refused.value.count, refused.value.total, len(refused.value.first)) == (1000, 1000, 20)
    assert [use.job_id for use in refused.value.first[0].jobs] == ["a", "b", "c"]
    assert ledger.job("adtech", "d") is None
    assert set(ledger.balances(units(0, 1000)).loss_micro.tolist()) == {64_000_000}
    with pytest.raises(BudgetExhaustedError) as other:
        spend(ledger, "d", "0.01", units(0, 1000), caller="other")
    assert other.value.first[0].jobs == ()


def test_one_spent_unit_aborts_the_whole_job(store: Store) -> None:
    ledger = make(store)
    spend(ledger, "a", "64", units(500, 1))
    with pytest.raises(BudgetExhaustedError) as refused:
        spend(ledger, "b", "1", units(0, 10_000))
    assert refused.value.count == 1 and refused.value.first[0].unit == units(500, 1).tobytes()
    assert int(ledger.balances(units(0, 10_000)).loss_micro.sum()) == 64_000_000


def test_a_job_happens_once(store: Store) -> None:
    ledger = make(store)
    first = spend(ledger, "a", "1", units(0, 5))
    again = spend(ledger, "a", "1", units(0, 5))
    assert again.repeated and not first.repeated  # type: ignore[attr-defined]
    assert again.receipt == first.receipt and again.result == b"a"  # type: ignore[attr-defined]
    with pytest.raises(JobConflictError):
        ledger.commit(
            job=JobKey(caller="adtech", job_id="a"),
            request_digest=digest("other"),
            release=laplace("1"),
            units=units(0, 5),
            result=b"",
        )
    assert ledger.balances(units(0, 5)).uses.tolist() == [1] * 5


def test_the_filter_is_fixed(store: Store) -> None:
    ledger = make(store)
    assert Ledger.open(store, clock=ManualClock(), filter=ledger.filter).filter == ledger.filter
    with pytest.raises(LedgerMismatchError):
        Ledger.open(store, clock=ManualClock(), filter=ZcdpFilter(rho_micro=10))
    with pytest.raises(LedgerMismatchError):
        make(store)


def test_random_charges_match_a_dictionary(store: Store) -> None:
    ledger = make(store)
    rng = np.random.default_rng(1)
    model: dict[bytes, int] = {}
    for step in range(40):
        keys = rng.integers(0, 256, (int(rng.integers(0, 2000)), 20), np.uint8)
        keys[:, :3] = 0
        keys[:, 4:18] = 0
        spend(ledger, str(step), "1", keys)
        for key in {row.tobytes() for row in keys}:
            model[key] = model.get(key, 0) + 1
    everything = np.frombuffer(b"".join(model), np.uint8).reshape(-1, 20)
    spent = ledger.balances(everything)
    assert {spent.units[i]: int(spent.uses[i]) for i in range(len(spent.units))} == model
    for first_key, block in store.read("blocks", lambda t: list(t.blocks())):
        assert block[:20] == first_key and 0 < len(block) <= 256 * 40
