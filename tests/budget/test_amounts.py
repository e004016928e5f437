"""Amounts are read without floats and refused by name; a refusal changes nothing."""

from __future__ import annotations

import hashlib
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggservice.mechanisms import ManualClock, SeededBits
from budget import (
    AmountError,
    BudgetError,
    Delta,
    Epsilon,
    EpsilonDeltaFilter,
    GaussianNoise,
    JobKey,
    LaplaceDiscovery,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    Release,
    Rho,
    Signer,
    Spend,
    ZcdpFilter,
)
from budget.amounts import zcdp_of_pure
from budget.errors import (
    AmountTooLargeError,
    AmountTooLongError,
    InfiniteAmountError,
    MechanismNotAllowedError,
    NegativeAmountError,
    NotANumberError,
    OffGridError,
    ZeroAmountError,
)

from .releases import TERMS, release_of

BAD_EPSILON: list[tuple[object, type[AmountError]]] = [
    ("NaN", NotANumberError),
    ("nan", NotANumberError),
    (float("nan"), NotANumberError),
    ("inf", InfiniteAmountError),
    ("-Infinity", InfiniteAmountError),
    (float("inf"), InfiniteAmountError),
    (float("-inf"), InfiniteAmountError),
    ("-1", NegativeAmountError),
    (-1, NegativeAmountError),
    ("-0.000001", NegativeAmountError),
    ("0", ZeroAmountError),
    ("-0", ZeroAmountError),
    ("0.000000", ZeroAmountError),
    ("0e999999999", ZeroAmountError),
    ("0.0000001", OffGridError),
    ("1e-7", OffGridError),
    ("1e-999999999", OffGridError),
    ("0.1234567", OffGridError),
    ("65", AmountTooLargeError),
    (65, AmountTooLargeError),
    ("64.000001", AmountTooLargeError),
    ("1e400", AmountTooLargeError),
    ("9e999999999", AmountTooLargeError),
    ("1" * 1_000_000, AmountTooLongError),
    ("0." + "0" * 1_000_000, AmountTooLongError),
    ("", NotANumberError),
    (".", NotANumberError),
    ("e5", NotANumberError),
    ("ten", NotANumberError),
    ("1,5", NotANumberError),
    ("1 000", NotANumberError),
    ("0x10", NotANumberError),
    ("1_0", NotANumberError),
    ("１０", NotANumberError),
    ("10\n", NotANumberError),
    ("1e1e1", NotANumberError),
    (0.5, NotANumberError),
    (True, NotANumberError),
    (None, NotANumberError),
    (b"1", NotANumberError),
    ([], NotANumberError),
]
BAD_DELTA: list[tuple[object, type[AmountError]]] = [
    ("NaN", NotANumberError),
    (float("nan"), NotANumberError),
    ("-1e-8", NegativeAmountError),
    ("-inf", InfiniteAmountError),
    ("1e-19", OffGridError),
    ("1.5", AmountTooLargeError),
    ("1.000000000000000001", AmountTooLargeError),
    ("x", NotANumberError),
]


def small_ledger() -> Ledger:
    bits = SeededBits("amounts")
    return Ledger.create(
        MemoryStore(),
        terms=TERMS,
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=ManualClock(),
        bits=bits,
    )


def commit(ledger: Ledger, job_id: str, release: Release) -> None:
    ledger.commit(
        job=JobKey(caller="adtech", job_id=job_id),
        request_digest=hashlib.sha256(job_id.encode()).digest(),
        release=release,
        units=bytes(20),
        result=b"",
    )


@pytest.mark.parametrize(("text", "error"), BAD_EPSILON, ids=lambda value: repr(value)[:24])
def test_a_bad_epsilon_is_refused_by_name_and_changes_nothing(text: object, error: type[AmountError]) -> None:
    ledger = small_ledger()
    before = ledger.checkpoint()
    start = time.perf_counter()
    with pytest.raises(error) as refused:
        commit(ledger, "a", release_of(LaplaceNoise.parse(epsilon=text)))  # type: ignore[arg-type]
    assert refused.value.code == "INVALID_JOB" and len(str(refused.value)) < 300
    assert time.perf_counter() - start < 5, "a million digits must be refused by their length, not read"
    assert ledger.checkpoint() == before and ledger.job("adtech", "a") is None


@pytest.mark.parametrize(("text", "error"), BAD_DELTA, ids=lambda value: repr(value)[:24])
def test_a_bad_delta_is_refused_by_name_and_changes_nothing(text: object, error: type[AmountError]) -> None:
    ledger = small_ledger()
    before = ledger.checkpoint()
    with pytest.raises(error):
        mechanism = LaplaceDiscovery(epsilon=Epsilon.parse("1"), delta=Delta.parse(text))  # type: ignore[arg-type]
        commit(ledger, "a", release_of(mechanism))
    assert ledger.checkpoint() == before


def test_delta_zero_is_for_known_keys_only() -> None:
    with pytest.raises(ZeroAmountError, match="discovery"):
        LaplaceDiscovery(epsilon=Epsilon.parse("1"), delta=Delta.parse("0"))
    ledger = small_ledger()
    commit(ledger, "a", release_of(LaplaceNoise.parse(epsilon="1")))
    assert int(ledger.balances(bytes(20)).delta_atto[0]) == 0


@pytest.mark.parametrize("bad", [float("nan"), 1.5, True, None, "1"])
def test_the_types_themselves_refuse_what_is_not_a_whole_number(bad: object) -> None:
    for make in (lambda: Epsilon(micro=bad), lambda: Delta(atto=bad), lambda: Rho(micro=bad)):  # type: ignore[arg-type]
        with pytest.raises(AmountError):
            make()
    with pytest.raises(BudgetError):
        EpsilonDeltaFilter(epsilon_micro=bad)  # type: ignore[arg-type]


@given(st.integers(1, 64_000_000))
def test_epsilon_survives_its_text(micro: int) -> None:
    assert Epsilon.parse(str(Epsilon(micro=micro))).micro == micro
    assert Fraction(str(Epsilon(micro=micro))) == Fraction(micro, 10**6)


@given(st.integers(0, 10**18))
def test_delta_survives_its_text(atto: int) -> None:
    assert Delta.parse(str(Delta(atto=atto))).atto == atto
    assert Fraction(str(Delta(atto=atto))) == Fraction(atto, 10**18)


@given(st.text(max_size=80) | st.from_regex(r"[+-]?[0-9]{0,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,5})?", fullmatch=True))
def test_any_text_is_an_amount_on_the_grid_or_a_named_refusal(text: str) -> None:
    try:
        found = Epsilon.parse(text)
    except AmountError:
        return
    assert Fraction(text) * 10**6 == found.micro


@given(st.integers(1, 64_000_000))
def test_the_zcdp_price_of_pure_epsilon_rounds_up(micro: int) -> None:
    exact = Fraction(micro, 10**6) ** 2 / 2
    price = zcdp_of_pure(micro)
    assert exact <= Fraction(price, 10**6) < exact + Fraction(1, 10**6)


def test_costs_of_both_filters() -> None:
    laplace = LaplaceNoise.parse(epsilon="2")
    found = LaplaceDiscovery(epsilon=Epsilon.parse("1"), delta=Delta.parse("1e-8"))
    gauss = GaussianNoise(rho=Rho.parse("0.125"), delta=Delta.parse("1e-9"))
    sums, zcdp = EpsilonDeltaFilter(), ZcdpFilter(rho_micro=10**9)
    assert sums.cost(Release(mechanisms=(laplace, found))) == Spend(loss_micro=3_000_000, delta_atto=10**10, uses=1)
    assert zcdp.cost(Release(mechanisms=(laplace, found, gauss))) == Spend(
        loss_micro=2_000_000 + 500_000 + 125_000, delta_atto=11 * 10**9, uses=1
    )
    large = release_of(LaplaceNoise.parse(epsilon="10"))
    assert zcdp.cost(large).loss_micro == 50_000_000
    with pytest.raises(MechanismNotAllowedError, match="zCDP"):
        sums.cost(release_of(gauss))


def test_deltas_that_add_up_to_more_than_one_are_refused() -> None:
    half = LaplaceDiscovery(epsilon=Epsilon.parse("1"), delta=Delta.parse("0.6"))
    with pytest.raises(AmountTooLargeError):
        EpsilonDeltaFilter().cost(Release(mechanisms=(half, half)))


def test_limits_round_down_and_defaults_are_the_deployed_ones() -> None:
    assert EpsilonDeltaFilter().limit == Spend(loss_micro=64 * 10**6, delta_atto=10**13, uses=2**32 - 1)
    assert EpsilonDeltaFilter.parse(epsilon="0.0000019", delta="1.9e-18").limit.loss_micro == 1
    assert EpsilonDeltaFilter.parse(delta="1.9e-18").delta_atto == 1
    assert EpsilonDeltaFilter.parse(delta="0").delta_atto == 0
    with pytest.raises(ZeroAmountError):
        EpsilonDeltaFilter.parse(epsilon="0.0000009")
    for bad in ("NaN", "inf", "-1", "1e400", "x"):
        with pytest.raises(AmountError):
            ZcdpFilter.parse(rho=bad)


@pytest.mark.parametrize("uses", [0, -1, 2**32, 1.5])
def test_a_bad_bound_on_uses_is_refused(uses: int) -> None:
    with pytest.raises(BudgetError):
        EpsilonDeltaFilter(uses=uses)


def test_balances_are_refused_before_arithmetic_can_wrap() -> None:
    spent = np.array([2**62], dtype=np.int64)
    from budget import UnitSet
    from budget.stores.balances import SpentColumns

    held = SpentColumns(units=UnitSet.of(bytes(20)), loss_micro=spent, delta_atto=spent, uses=spent)
    cost = Spend(loss_micro=10**15, delta_atto=10**18, uses=1)
    assert held.cannot_pay(cost, EpsilonDeltaFilter().limit).all()
