"""Shuffled local reports in the ledger: what they cost, that they are the first and the last release of their units."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import pytest

from aggservice.mechanisms import AmplificationBound, ManualClock, SeededBits, amplified_micro, shuffled_epsilon
from aggservice.wire import Randomizer
from budget import (
    BudgetError,
    BudgetExhaustedError,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    Filter,
    JobKey,
    LaplaceNoise,
    Ledger,
    LocalReports,
    MemoryStore,
    Release,
    ShuffledReports,
    Signer,
    ZcdpFilter,
    verify_store,
)
from budget.audit.replay import DisagreementError, LogReplay
from budget.errors import FormatError, RecoveryForbiddenError
from budget.log.entries import ReleaseEntry, ResultDigest, UnitsDigest, entry_hash, entry_to_bytes
from budget.release import release_from_plain, release_to_plain

from .releases import TERMS, release_of

RANDOMIZER = Randomizer(
    identity=bytes(16), report_bytes=4, epsilon_micro=500_000, epsilon_permanent_micro=None, independent=True
).hex


def local(count: int) -> Release:
    """A release of ``count`` local reports at ε₀ = 0.5."""
    return release_of(LocalReports(epsilon=Epsilon.parse("0.5")), units=count, randomizer=RANDOMIZER)


LOCAL = local(10)


def shuffled(count: int, **changes: object) -> Release:
    """A shuffle of ``count`` reports with ε₀ = 0.5 at δ = 10⁻⁶, at the price of the numerical bound."""
    bound = AmplificationBound.NUMERICAL
    owed = amplified_micro(bound, local_micro=500_000, reports=count, delta_atto=10**12)
    fields = {
        "epsilon": Epsilon(micro=owed),
        "delta": Delta.parse("0.000001"),
        "local_epsilon": Epsilon.parse("0.5"),
        "reports": count,
        "bound": bound,
    }
    return release_of(ShuffledReports(**(fields | changes)), units=count, randomizer=RANDOMIZER)  # type: ignore[arg-type]


SHUFFLED = shuffled(10_000)
SUMS = release_of(LaplaceNoise.parse(epsilon="1"))


def ledger_of(filter: Filter, *, recovery: bool = False) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        MemoryStore(),
        filter=filter,
        terms=TERMS,
        signer=Signer.generate(bits),
        clock=ManualClock(1_700_000_000_000),
        bits=bits,
        recovery=recovery,
    )


def pay(ledger: Ledger, job: str, release: Release, units: range) -> None:
    raw = b"".join(bytes(16) + number.to_bytes(4, "big") for number in units)
    ledger.commit(
        job=JobKey(caller="adtech", job_id=job),
        request_digest=hashlib.sha256(job.encode()).digest(),
        release=release,
        units=raw,
        result=b"result",
    )


@pytest.mark.parametrize("release", [LOCAL, SHUFFLED])
def test_they_are_read_back_from_the_log(release: Release) -> None:
    assert release_from_plain(release_to_plain(release)) == release
    plain = release_to_plain(release)
    plain["mechanisms"][0]["more"] = "1"
    with pytest.raises(FormatError):
        release_from_plain(plain)


def test_what_they_cost() -> None:
    pure, concentrated = EpsilonDeltaFilter(), ZcdpFilter.parse(rho="1")
    assert pure.cost(LOCAL).loss_micro == 500_000 and pure.cost(LOCAL).delta_atto == 0
    priced = math.ceil(shuffled_epsilon(0.5, 10_000, 1e-6) * 1e6)
    assert pure.cost(SHUFFLED).loss_micro == priced < 20_000 and pure.cost(SHUFFLED).delta_atto == 10**12
    assert concentrated.cost(LOCAL).loss_micro == 125_000
    assert (
        concentrated.cost(SHUFFLED).loss_micro == -(-(priced**2) // (2 * 10**6))
        and concentrated.cost(SHUFFLED).delta_atto == 10**12
    )


@pytest.mark.parametrize("filter", [EpsilonDeltaFilter(), EpsilonDeltaFilter.parse(uses=5), ZcdpFilter.parse(rho="9")])
@pytest.mark.parametrize("release", [local, shuffled])
def test_a_shuffle_is_the_first_and_the_last_release_of_a_unit(
    filter: Filter, release: Callable[[int], Release]
) -> None:
    ledger = ledger_of(filter)
    pay(ledger, "first", release(10), range(10))
    for number, again in enumerate((local(21), shuffled(21), SUMS)):
        with pytest.raises(BudgetExhaustedError) as refused:
            pay(ledger, f"again {number}", again, range(9, 30))
        assert refused.value.count == 1
    pay(ledger, "sums", SUMS, range(100, 110))
    pay(ledger, "more sums", SUMS, range(100, 110))
    with pytest.raises(BudgetExhaustedError) as refused:
        pay(ledger, "late", release(11), range(109, 120))
    assert refused.value.count == 1
    report = verify_store(ledger.store)
    assert report.ok and report.units_known == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": Epsilon.parse("0.016")},
        {"epsilon": Epsilon.parse("0.6")},
        {"reports": 9_000},
        {"reports": 1},
        {"local_epsilon": Epsilon.parse("0.51")},
        {"delta": Delta.parse("0.0000001")},
        {"delta": Delta(atto=0)},
        {"bound": AmplificationBound.CLOSED},
        {"bound": AmplificationBound.SMALL},
    ],
)
def test_a_price_below_its_bound_can_neither_be_charged_nor_read_back(changes: dict[str, object]) -> None:
    with pytest.raises(BudgetError, match=r"owes|does not apply"):
        shuffled(10_000, **changes)
    plain = release_to_plain(SHUFFLED)
    mechanism = plain["mechanisms"][0]
    for name, value in changes.items():
        mechanism[name] = str(value)
    with pytest.raises(BudgetError, match=r"owes|does not apply"):
        release_from_plain(plain)


def test_the_price_is_for_as_many_reports_as_pay_it() -> None:
    ledger = ledger_of(EpsilonDeltaFilter())
    with pytest.raises(BudgetError, match="the price is for 10000 shuffled reports, but 2 units would pay it"):
        pay(ledger, "few", SHUFFLED, range(2))
    replay = LogReplay()
    first = next(iter(ledger.store.read("entries", lambda transaction: list(transaction.entries(0)))))
    genesis = replay.add(first.header, [])
    keys = bytes(20)
    forged = ReleaseEntry(
        seq=1,
        previous=entry_hash(first.header),
        time_ms=genesis.time_ms,
        caller="adtech",
        job_id="forged",
        request_digest=bytes(32),
        release=SHUFFLED,
        cost=ledger.filter.cost(SHUFFLED),
        units=UnitsDigest(count=1, sha256=hashlib.sha256(keys).digest()),
        result=ResultDigest(sha256=bytes(32), size=0, files=()),
    )
    with pytest.raises(DisagreementError, match="the price is for 10000 shuffled reports, but 1 units would pay it"):
        replay.add(entry_to_bytes(forged, "epsilon"), [keys])


@pytest.mark.parametrize("release", [LOCAL, shuffled(10)])
def test_the_budget_of_released_reports_is_not_given_back(release: Release) -> None:
    """With it, releasing all but one of them again would show that one."""
    ledger = ledger_of(EpsilonDeltaFilter(), recovery=True)
    pay(ledger, "first", release, range(10))
    with pytest.raises(RecoveryForbiddenError, match="released reports themselves"):
        ledger.recover_budget(operator="operator", reason="asked to", seq=1)
    assert verify_store(ledger.store).ok
