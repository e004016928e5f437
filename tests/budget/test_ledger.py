"""The ledger through its public calls, on every store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from aggservice.mechanisms import Clock, ManualClock, SeededBits
from budget import (
    BudgetError,
    BudgetExhaustedError,
    Committed,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    Filter,
    GaussianNoise,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    Mechanism,
    MemoryStore,
    Receipt,
    Release,
    Signer,
    Spend,
    Store,
    ZcdpFilter,
    verify_store,
)
from budget.errors import (
    FormatError,
    JobConflictError,
    JobNameError,
    LedgerMismatchError,
    RecoveryForbiddenError,
    StoreError,
    UnsupportedMechanismError,
)
from budget.store import Transaction
from budget.stores.balances import parse_block

from .releases import TERMS, release_of


def units(first: int, count: int) -> np.ndarray:
    keys = np.zeros((count, 20), np.uint8)
    keys[:, 16:] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(-1, 4)
    return keys


def laplace(epsilon: str) -> Release:
    return release_of(LaplaceNoise.parse(epsilon=epsilon))


def make(store: Store, chosen: Filter | None = None, clock: Clock | None = None, recovery: bool = False) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        store,
        terms=TERMS,
        filter=chosen or EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=clock or ManualClock(1_700_000_000_000),
        bits=bits,
        recovery=recovery,
    )


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def spend(ledger: Ledger, job_id: str, epsilon: str | Release, keys: np.ndarray, caller: str = "adtech") -> Committed:
    return ledger.commit(
        job=JobKey(caller=caller, job_id=job_id),
        request_digest=digest(job_id),
        release=laplace(epsilon) if isinstance(epsilon, str) else epsilon,
        units=keys,
        result=job_id.encode(),
    )


@pytest.mark.parametrize(("column", "value"), [("loss", -1), ("loss", 64_000_001), ("delta", -1), ("delta", 10**18)])
def test_a_balance_that_no_charge_can_have_written_pays_nothing(column: str, value: int) -> None:
    """A balance below 0 would buy more than ε*: whoever changed the database gets an error in place of an answer."""
    store = MemoryStore()
    ledger = make(store)
    spend(ledger, "a", "1", units(0, 3))

    def change(transaction: Transaction) -> None:
        ((key, raw),) = transaction.blocks()
        records = parse_block(raw).copy()
        records[column][1] = value
        transaction.replace_blocks([key], [(key, records.tobytes())])

    store.write("change", change)
    with pytest.raises(StoreError, match="out of range"):
        spend(ledger, "b", "1", units(1, 1))
    assert ledger.checkpoint().entries == 2


def test_units_at_the_ends_of_blocks_are_found(store: Store) -> None:
    """The first unit of each block and the last one before it, alone and together."""
    ledger = make(store)
    spend(ledger, "a", "64", units(0, 1000))
    keys = store.read("blocks", lambda transaction: [key for key, _ in transaction.blocks()])
    firsts = [int.from_bytes(key[16:], "big") for key in keys]
    assert len(firsts) > 3
    for first in firsts:
        for asked in (units(first, 1), units(first, 2), *((units(first - 1, 1), units(first - 1, 2)) if first else ())):
            assert ledger.check(caller="adtech", release=laplace("0.000001"), units=asked).count == len(asked)


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
    assert again.repeated and not first.repeated
    assert again.receipt == first.receipt and again.result == b"a"
    with_other_noise = ledger.commit(
        job=JobKey(caller="adtech", job_id="a"),
        request_digest=first.entry.request_digest,
        release=laplace("1"),
        units=units(0, 5),
        result=b"other noise",
    )
    assert with_other_noise.repeated and with_other_noise.result == b"a"
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


def discovery(epsilon: str, delta: str) -> Release:
    return release_of(LaplaceDiscovery(epsilon=Epsilon.parse(epsilon), delta=Delta.parse(delta)))


def test_delta_and_uses_are_budgets_of_their_own(store: Store) -> None:
    ledger = make(store, EpsilonDeltaFilter.parse(epsilon="64", delta="1e-5", uses=4))
    spend(ledger, "a", discovery("0.000001", "0.000009"), units(0, 10))
    with pytest.raises(BudgetExhaustedError) as refused:
        spend(ledger, "b", discovery("0.000001", "0.000001000000000001"), units(0, 10))
    assert "lacks epsilon 0, delta 0.000000000000000001" in str(refused.value)
    for job in "bcd":
        spend(ledger, job, "0.000001", units(0, 10))
    with pytest.raises(BudgetExhaustedError, match="1 use"):
        spend(ledger, "e", "0.000001", units(0, 10))
    assert ledger.remaining(units(0, 20)).least == Spend(loss_micro=63_999_996, delta_atto=10**12, uses=0)
    assert ledger.remaining(units(0, 20)).most == ledger.filter.limit
    assert ledger.remaining(units(0, 0)).least == ledger.filter.limit
    assert verify_store(store).ok


def test_a_zcdp_ledger_prices_laplace_and_gaussian_noise(store: Store) -> None:
    ledger = make(store, ZcdpFilter.parse(rho="1"))
    spend(ledger, "a", "1", units(0, 3))
    gauss = release_of(GaussianNoise.parse(rho="0.5"))
    spend(ledger, "b", gauss, units(0, 3))
    with pytest.raises(BudgetExhaustedError, match=r"rho 0\.000001"):
        spend(ledger, "c", "0.001", units(0, 3))
    assert ledger.balances(units(0, 3)).loss_micro.tolist() == [1_000_000] * 3
    assert verify_store(store).ok


def test_every_unit_that_cannot_pay_can_be_listed_by_page(store: Store) -> None:
    ledger = make(store)
    spend(ledger, "a", "60", units(0, 100))
    spend(ledger, "b", "4", units(50, 100))
    with pytest.raises(BudgetExhaustedError) as refused:
        spend(ledger, "c", "10", units(0, 200))
    assert (refused.value.count, refused.value.total, len(refused.value.first)) == (100, 200, 20)
    pages = [
        ledger.explain(caller="adtech", release=laplace("10"), units=refused.value.units, offset=start, limit=30)
        for start in range(0, 100, 30)
    ]
    every = [one for page in pages for one in page]
    assert [one.unit for one in every] == [row.tobytes() for row in units(0, 100)]
    assert tuple(every[:20]) == refused.value.first
    assert [[use.job_id for use in one.jobs] for one in every] == [["a"]] * 50 + [["a", "b"]] * 50
    assert every[99].to_plain("epsilon") == {
        "unit": units(99, 1).tobytes().hex(),
        "spent": {"epsilon": "64", "delta": "0", "uses": "2"},
        "asked": {"epsilon": "10", "delta": "0", "uses": "1"},
        "lacks": {"epsilon": "10", "delta": "0", "uses": "0"},
        "jobs": [
            {
                "job_id": "a",
                "seq": 1,
                "time_ms": 1_700_000_000_000,
                "cost": {"epsilon": "60", "delta": "0", "uses": "1"},
            },
            {
                "job_id": "b",
                "seq": 2,
                "time_ms": 1_700_000_000_000,
                "cost": {"epsilon": "4", "delta": "0", "uses": "1"},
            },
        ],
    }
    for bad in ({"offset": -1}, {"limit": 0}, {"limit": 1001}):
        with pytest.raises(BudgetError):
            ledger.explain(caller="adtech", release=laplace("10"), units=refused.value.units, **bad)


def test_a_dry_run_changes_nothing(store: Store) -> None:
    ledger = make(store)
    spend(ledger, "a", "64", units(5, 1))
    before = ledger.checkpoint()
    check = ledger.check(caller="adtech", release=laplace("1"), units=units(0, 10))
    assert (check.payable, check.count, check.total) == (False, 1, 10)
    assert check.first[0].unit == units(5, 1).tobytes() and check.first[0].jobs[0].job_id == "a"
    assert ledger.check(caller="adtech", release=laplace("64"), units=units(6, 10)).payable
    assert ledger.checkpoint() == before and ledger.balances(units(6, 1)).uses.tolist() == [0]


def test_jobs_belong_to_their_caller(store: Store) -> None:
    ledger = make(store)
    mine = spend(ledger, "a", "1", units(0, 5), caller="anna")
    theirs = spend(ledger, "a", "1", units(0, 5), caller="bert")
    assert not theirs.repeated and theirs.entry.seq != mine.entry.seq
    assert ledger.job("carl", "a") is None
    for caller, job in (("", "a"), ("anna", ""), ("anna", "x" * 129), ("anna", "a\n"), ("ann\u00e4", "a")):
        with pytest.raises(JobNameError):
            ledger.job(caller, job)


def test_recovery_is_off_by_default_visible_and_once(store: Store) -> None:
    ledger = make(store, recovery=True)
    spend(ledger, "a", "64", units(0, 300))
    receipt = Receipt.from_bytes(ledger.recover_budget(operator="olga", reason="the disk burnt", seq=1))
    assert receipt.entry["type"] == "recovery" and receipt.entry["recovers"] == 1
    assert set(ledger.balances(units(0, 300)).loss_micro.tolist()) == {0}
    again = spend(ledger, "a", "64", units(0, 300))
    assert again.repeated, "the release is not undone: its job id stays taken"
    for seq in (0, 1, 2, 99):
        with pytest.raises(RecoveryForbiddenError):
            ledger.recover_budget(operator="olga", reason="more", seq=seq)
    spend(ledger, "b", "64", units(0, 300))
    report = verify_store(store)
    assert report.ok and report.recoveries == 1, report.disagreement


def test_recovery_needs_a_ledger_that_allows_it(store: Store) -> None:
    ledger = make(store)
    spend(ledger, "a", "64", units(0, 3))
    with pytest.raises(RecoveryForbiddenError, match="off"):
        ledger.recover_budget(operator="olga", reason="because", seq=1)
    assert ledger.balances(units(0, 3)).uses.tolist() == [1, 1, 1]


class Backwards:
    """A clock that was set back."""

    def __init__(self) -> None:
        self.now = 1_000

    def now_ms(self) -> int:
        self.now -= 100
        return self.now


def test_the_log_never_goes_back_in_time(store: Store) -> None:
    ledger = make(store, clock=Backwards())
    first = spend(ledger, "a", "1", units(0, 3))
    assert first.entry.time_ms == ledger.genesis.time_ms
    assert verify_store(store).ok


def test_every_release_has_a_receipt_that_stands_alone(store: Store) -> None:
    ledger = make(store)
    for job in range(9):
        done = spend(ledger, str(job), "1", units(job, 3))
        receipt = Receipt.from_bytes(done.receipt)
        assert receipt.parsed("epsilon") == done.entry and receipt.checkpoint.entries == job + 2
        assert receipt.checkpoint == ledger.checkpoint()
        assert receipt.checkpoint.public_key == ledger.genesis.public_key
        assert digest_of(done.result) in receipt.result_digests()


def digest_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def test_a_ledger_without_its_key_can_only_be_read(store: Store) -> None:
    made = make(store)
    reader = Ledger.open(store, clock=ManualClock())
    with pytest.raises(LedgerMismatchError, match="reading only"):
        spend(reader, "a", "1", units(0, 3))
    assert reader.balances(units(0, 3)).uses.tolist() == [0, 0, 0] and reader.checkpoint() == made.checkpoint()
    with pytest.raises(LedgerMismatchError, match="signing key"):
        Ledger.open(store, clock=ManualClock(), signer=Signer.generate(SeededBits("another")))


def test_a_job_without_units_is_logged_and_charges_nobody(store: Store) -> None:
    ledger = make(store)
    assert spend(ledger, "a", "1", units(0, 0)).entry.units.count == 0
    report = verify_store(store)
    assert report.ok and report.units_known == 0


def test_repeated_units_pay_once_and_order_does_not_matter(store: Store) -> None:
    ledger = make(store)
    keys = np.concatenate([units(5, 5), units(0, 10), units(3, 4)])[::-1]
    assert spend(ledger, "a", "1", keys).entry.units.count == 10
    assert ledger.balances(units(0, 10)).uses.tolist() == [1] * 10


def test_a_charge_of_many_parts_and_blocks_survives_its_audit(store: Store) -> None:
    ledger = make(store)
    rng = np.random.default_rng(7)
    first = rng.integers(0, 256, (150_000, 20), np.uint8)
    first[:, :3], first[:, 3] = 0, first[:, 3] % 24
    spend(ledger, "a", "1", first)
    spend(ledger, "b", "1", first[::3])
    fresh = rng.integers(0, 256, (3_000, 20), np.uint8)
    fresh[:, :3], fresh[:, 3] = 0, fresh[:, 3] % 24
    spend(ledger, "c", "1", np.concatenate([fresh, first[:1000]]))
    spend(ledger, "d", "64", np.full((1, 20), 255, np.uint8))
    with pytest.raises(BudgetExhaustedError) as refused:
        spend(ledger, "e", "1", np.concatenate([first, np.full((1, 20), 255, np.uint8)]))
    assert (refused.value.count, refused.value.total) == (1, 150_001)
    report = verify_store(store)
    assert report.ok, report.disagreement
    assert report.units_known == 153_001 and report.units_charged == 150_000 + 50_000 + 4_000 + 1


@pytest.mark.parametrize("bad", [b"", b"x" * 31, "0" * 32, None])
def test_a_request_digest_is_a_sha256(bad: bytes) -> None:
    ledger = make(MemoryStore())
    with pytest.raises(BudgetError, match="32 bytes"):
        ledger.commit(
            job=JobKey(caller="a", job_id="b"), request_digest=bad, release=laplace("1"), units=bytes(20), result=b""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNoise(Mechanism):
    """A mechanism that is in no table, so that nobody could read its entry."""

    name = "own_noise"
    epsilon: Epsilon

    @property
    def pure_micro(self) -> int:
        return self.epsilon.micro


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedNoise:
    """A mechanism under the name of another."""

    name: ClassVar[str] = LaplaceNoise.name
    epsilon: Epsilon

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class DerivedNoise(LaplaceNoise):
    """A mechanism that is read back as its base."""


class NamelessNoise:
    """A mechanism in nothing but its ε."""

    epsilon = Epsilon.parse("1")


@pytest.mark.parametrize("kind", [OwnNoise, RenamedNoise, DerivedNoise, NamelessNoise])
def test_a_mechanism_that_no_entry_can_hold_is_refused_before_it_is_charged(store: Store, kind: Any) -> None:
    ledger = make(store)
    spend(ledger, "before", "1", units(0, 3))
    own = kind() if kind is NamelessNoise else kind(epsilon=Epsilon.parse("1"))
    with pytest.raises(
        UnsupportedMechanismError, match=f"{kind.__name__} is not a mechanism .* use one of discrete_laplace"
    ):
        Release(mechanisms=(own,))
    if kind is OwnNoise:  # whatever else an entry cannot hold is refused by the commit, as a whole
        forced = laplace("1")
        object.__setattr__(forced, "mechanisms", (own,))
        with pytest.raises(FormatError, match="there is no mechanism 'own_noise'"):
            spend(ledger, "own", forced, units(0, 3))
    assert ledger.checkpoint().entries == 2 and verify_store(store).ok
    assert set(ledger.balances(units(0, 3)).loss_micro.tolist()) == {1_000_000}
    spend(ledger, "after", "1", units(0, 3))
    assert ledger.job("adtech", "before") is not None and verify_store(store).ok
