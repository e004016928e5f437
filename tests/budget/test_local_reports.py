"""Shuffled local reports in the ledger: what they cost, that they are the first and the last release of their units."""

from __future__ import annotations

import hashlib

import pytest

from budget import (
    BudgetExhaustedError,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    Filter,
    FormatError,
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
from budget.release import release_from_plain, release_to_plain
from mechanisms import ManualClock, SeededBits

LOCAL = Release(mechanisms=(LocalReports(epsilon=Epsilon.parse("0.5")),), parameters={"randomizer": "00"})
SHUFFLED = Release(mechanisms=(ShuffledReports(epsilon=Epsilon.parse("0.01"), delta=Delta.parse("0.000001")),))
SUMS = Release(mechanisms=(LaplaceNoise(epsilon=Epsilon.parse("1")),))


def ledger_of(filter: Filter) -> Ledger:
    bits = SeededBits("ledger")
    return Ledger.create(
        MemoryStore(), filter=filter, signer=Signer.generate(bits), clock=ManualClock(1_700_000_000_000), bits=bits
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
    assert pure.cost(SHUFFLED).loss_micro == 10_000 and pure.cost(SHUFFLED).delta_atto == 10**12
    assert concentrated.cost(LOCAL).loss_micro == 125_000
    assert concentrated.cost(SHUFFLED).loss_micro == 50 and concentrated.cost(SHUFFLED).delta_atto == 10**12


@pytest.mark.parametrize("filter", [EpsilonDeltaFilter(), EpsilonDeltaFilter.parse(uses=5), ZcdpFilter.parse(rho="9")])
@pytest.mark.parametrize("release", [LOCAL, SHUFFLED])
def test_a_shuffle_is_the_first_and_the_last_release_of_a_unit(filter: Filter, release: Release) -> None:
    ledger = ledger_of(filter)
    pay(ledger, "first", release, range(10))
    for number, again in enumerate((LOCAL, SHUFFLED, SUMS)):
        with pytest.raises(BudgetExhaustedError) as refused:
            pay(ledger, f"again {number}", again, range(9, 30))
        assert refused.value.count == 1
    pay(ledger, "sums", SUMS, range(100, 110))
    pay(ledger, "more sums", SUMS, range(100, 110))
    with pytest.raises(BudgetExhaustedError) as refused:
        pay(ledger, "late", release, range(109, 120))
    assert refused.value.count == 1
    report = verify_store(ledger.store)
    assert report.ok and report.units_known == 20
