"""Report Noisy Inner Product: an unbiased estimator, its error, the choice of parameters, and tracking."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggservice.mechanisms import SecureBits, SeededBits
from aggservice.mechanisms.composition import advanced_epsilon
from ldp_client import InnerProduct, trackability
from ldp_client.enumeration import distribution, log_ratio
from ldp_client.errors import LdpParameterError, ReportError, StateError
from ldp_client.protocols.inner_product import (
    StoredPairsLaw,
    for_accuracy,
    for_everlasting,
    parity,
    signs_for,
    transform,
)
from twins.ldp_kernels import privacy_loss, signs_for_twin, transform_twin

ALARM = 1e-9


@settings(deadline=None)
@given(st.integers(0, 6).flatmap(lambda d: st.lists(st.integers(-1000, 1000), min_size=1 << d, max_size=1 << d)))
def test_the_transform_is_the_sum_of_signs(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    transform(array)
    assert array.tolist() == transform_twin(values)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.booleans()), max_size=20),
    st.lists(st.integers(0, 2**62), max_size=8),
)
def test_signs_of_candidates_are_counted_one_by_one(pairs: list[tuple[int, bool]], candidates: list[int]) -> None:
    vectors, odd = [vector for vector, _ in pairs], [bit for _, bit in pairs]
    found = signs_for(
        np.array(vectors, dtype=np.uint64), np.array(odd, dtype=np.bool_), np.array(candidates, dtype=np.uint64)
    )
    assert found.tolist() == signs_for_twin(vectors, odd, candidates)
    assert parity(np.array(vectors, dtype=np.uint64)).tolist() == [v.bit_count() % 2 == 1 for v in vectors]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_estimator_is_unbiased_exactly(bits: int) -> None:
    """The expectation over every vector and both outcomes of the coin is 1 for the value held and 0 for the others."""
    protocol = InnerProduct(bits=bits, stored=3, epsilon_pair_micro=700_000)
    keep = float(protocol.keep)
    vectors = range(1, 1 << bits)
    for held in range(1 << bits):
        expected = np.zeros(1 << bits)
        for vector in vectors:
            truth = (vector & held).bit_count() & 1
            for product, chance in ((truth, keep), (1 - truth, 1 - keep)):
                estimate = protocol.estimate(protocol.columns([(vector, product)]))
                expected += chance / len(vectors) * estimate.frequencies
        np.testing.assert_allclose(expected, np.arange(1 << bits) == held, atol=1e-12)


def test_candidates_get_what_the_full_list_gets() -> None:
    protocol = InnerProduct(bits=9, stored=5, epsilon_pair_micro=900_000)
    columns = protocol.fleet(4000, SeededBits("fleet")).report(np.arange(4000) % 512)
    whole = protocol.estimate(columns)
    some = protocol.estimate(columns, [3, 500, 77])
    np.testing.assert_allclose(some.frequencies, whole.frequencies[[3, 500, 77]], rtol=1e-12)
    low, high = some.interval(simultaneous=True)
    assert (low < some.frequencies).all() and (some.frequencies < high).all()


def test_errors_stay_below_hoeffdings_bound() -> None:
    """Alarm 10⁻⁹: 30,000 users, 256 values, two collections of the same fleet."""
    protocol = for_everlasting(bits=8, stored=12, epsilon_total=0.9, delta=1e-4)
    users = 30_000
    values = np.minimum(np.arange(users) // 3000, 5) * 37
    truth = np.bincount(values, minlength=256) / users
    fleet = protocol.fleet(users, SecureBits())
    for _ in range(2):
        error = np.abs(protocol.estimate(fleet.report(values)).frequencies - truth).max()
        bound = protocol.error_bound(users, ALARM)
        assert error <= bound


def test_the_everlasting_guarantee_is_met() -> None:
    protocol = for_everlasting(bits=20, stored=100, epsilon_total=0.8, delta=1e-6)
    printed = 0.8 / (2 * math.sqrt(2 * 100 * math.log(1e6)))
    assert printed - 1e-6 < protocol.epsilon_pair <= printed
    guarantee = protocol.everlasting(1e-6)
    assert guarantee.gamma <= 0.8
    assert guarantee.gamma == advanced_epsilon(protocol.epsilon_pair, 100, 1e-6)
    assert protocol.everlasting(0).gamma == pytest.approx(100 * protocol.epsilon_pair)


@given(st.integers(1, 400), st.floats(0.01, 0.999), st.floats(1e-9, 0.999))
def test_what_is_returned_meets_the_guarantee_or_is_refused(stored: int, epsilon_total: float, delta: float) -> None:
    """δ near 1 is where the printed ε' composes to more than ε; at δ ≤ ½ nothing is refused."""
    try:
        protocol = for_everlasting(bits=8, stored=stored, epsilon_total=epsilon_total, delta=delta)
    except LdpParameterError:
        assert delta > 0.5
        return
    assert min(stored * protocol.epsilon_pair, advanced_epsilon(protocol.epsilon_pair, stored, delta)) <= epsilon_total
    assert epsilon_total <= 4 * math.log(1 / delta)


def test_a_stored_pair_is_as_private_as_it_says() -> None:
    protocol = InnerProduct(bits=2, stored=1, epsilon_pair_micro=650_000)

    def pairs(value: int):  # type: ignore[no-untyped-def]
        return distribution(lambda draws: protocol.client(draws).report(value))

    losses = [privacy_loss(pairs(a), pairs(b)) for a, b in itertools.permutations(range(4), 2)]
    assert max(losses) == pytest.approx(0.65, abs=1e-12)
    two = InnerProduct(bits=1, stored=2, epsilon_pair_micro=650_000)

    def sent(value: int):  # type: ignore[no-untyped-def]
        def program(draws):  # type: ignore[no-untyped-def]
            client = two.client(draws)
            return tuple(client.report(value) for _ in range(3))

        return distribution(program)

    assert privacy_loss(sent(0), sent(1)) <= two.everlasting(0).gamma + 1e-12


@pytest.mark.parametrize("simple", [False, True])
def test_the_parameter_choice_meets_its_three_demands(simple: bool) -> None:
    demands = {"bits": 16, "users": 100_000_000, "epsilon_total": 0.9, "delta": 1e-6, "alpha": 0.1, "beta": 0.01}
    protocol = for_accuracy(**demands, simple=simple)  # type: ignore[arg-type]
    assert protocol.error_bound(100_000_000, 0.01) <= 0.1 + 1e-12
    assert protocol.everlasting(1e-6).gamma <= 0.9
    spread = math.sqrt(2 * (17 * math.log(2) + math.log(100)) / 100_000_000)
    printed = 4 * spread / 0.1 if simple else 2 * spread / (0.1 - spread)
    assert printed <= protocol.epsilon_pair < printed + 1.001e-6
    assert protocol.stored == math.floor(0.9**2 / (8 * protocol.epsilon_pair**2 * math.log(1e6)))
    assert protocol.stored >= 3


def test_impossible_demands_are_refused() -> None:
    with pytest.raises(LdpParameterError, match="vectors alone have an error"):
        for_accuracy(bits=16, users=100, epsilon_total=0.9, delta=1e-6, alpha=0.01, beta=0.1)
    with pytest.raises(LdpParameterError, match="allows no pair"):
        for_accuracy(bits=16, users=10_000, epsilon_total=0.9, delta=1e-6, alpha=0.1, beta=0.1)
    with pytest.raises(LdpParameterError, match="with simple"):
        for_accuracy(bits=16, users=1000, epsilon_total=0.9, delta=1e-6, alpha=0.2, beta=0.1, simple=True)
    for bad in (1.0, math.nan, 0.0):
        with pytest.raises(LdpParameterError):
            for_everlasting(bits=4, stored=2, epsilon_total=bad, delta=1e-6)
    with pytest.raises(LdpParameterError, match=r"4 ln\(1/δ\) = 0\.421"):
        for_everlasting(bits=4, stored=2, epsilon_total=0.9, delta=0.9)
    with pytest.raises(LdpParameterError, match=r"4 ln\(1/δ\)"):
        for_accuracy(bits=4, users=10**9, epsilon_total=0.9, delta=0.9, alpha=0.2, beta=0.1)
    with pytest.raises(LdpParameterError, match=r"compose to ε = 0\.948"):  # within 4 ln(1/δ) = 0.9003, still too much
        for_everlasting(bits=4, stored=2, epsilon_total=0.9, delta=0.7984)
    with pytest.raises(LdpParameterError, match="millionth"):
        for_everlasting(bits=4, stored=10**9, epsilon_total=0.01, delta=1e-6)
    with pytest.raises(LdpParameterError):
        InnerProduct(bits=63, stored=1, epsilon_pair_micro=1)
    protocol = InnerProduct(bits=40, stored=1, epsilon_pair_micro=1)
    with pytest.raises(ReportError, match="give the candidates"):
        protocol.estimate(protocol.columns([(1, 0)]))
    with pytest.raises(ReportError):
        protocol.columns([(0, 1)])
    with pytest.raises(ReportError, match="must not change"):
        fleet = protocol.fleet(2, SeededBits("x"))
        fleet.report(np.array([1, 2]))
        fleet.report(np.array([1, 3]))


def test_the_law_of_streams_is_the_clients() -> None:
    """Every stream of three reports from two stored pairs of two bits, by running the client along each branch."""
    protocol = InnerProduct(bits=2, stored=2, epsilon_pair_micro=500_000)

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        return tuple(client.report(2) for _ in range(3))

    law = StoredPairsLaw(2, protocol)
    exact = distribution(program)
    assert len(exact) == 6 + 6 * 5 * 3
    for stream, chance in exact.items():
        pairs = [(vector, bool(product)) for vector, product in stream]
        assert math.exp(law.log_probability([pairs])[0]) == pytest.approx(float(chance), rel=1e-9)


@pytest.mark.parametrize("bits, stored", [(10, 12), (14, 60)])
def test_two_reports_are_within_the_untrackable_bound(bits: int, stored: int) -> None:
    """The exact distance between one user and two for k = 2, by kinds of pairs of reports, is within k²/L + L²/2^d."""
    protocol = InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=400_000)
    law = StoredPairsLaw(1, protocol)
    vectors = (1 << bits) - 1
    distance = 0.0
    for right_first, right_second in itertools.product((True, False), repeat=2):
        first = (1, right_first)
        for second, ways in (((1, right_second), vectors), ((2 | 1, right_second), vectors * (vectors - 1))):
            together = math.exp(law.log_probability([[first, second]])[0])
            apart = math.exp(law.log_probability([[first]])[0] + law.log_probability([[second]])[0])
            distance += ways * abs(together - apart) / 2
    bound = protocol.untrackable(2)
    assert bound.gamma == 0
    assert 1 / stored * 0.9 < distance <= bound.delta < 1


def test_a_device_stops_and_goes_on() -> None:
    protocol = InnerProduct(bits=6, stored=4, epsilon_pair_micro=500_000)
    client = protocol.client(SeededBits("device"))
    first = {client.report(9) for _ in range(60)}
    assert len(first) == 4
    again = protocol.restore(client.save(), SeededBits("later"))
    assert {again.report(9) for _ in range(60)} == first
    assert again.memoized == 1
    saved = client.save()
    for old, new in ((b'"9"', b'"64"'), (b"[[", b"[[0,0],["), (b'"stored": 4', b'"stored": 5')):
        with pytest.raises(StateError):
            protocol.restore(saved.replace(old, new), SeededBits("later"))


def exact_log(protocol: InnerProduct, value: int, pairs: list[tuple[int, bool]]) -> float:
    """Return ln of the probability of a stream, by rational numbers: Σ over places used of L(L − 1)… ways."""
    keep = Fraction(protocol.keep.floor(400), 1 << 400)
    vectors = (1 << protocol.bits) - 1
    places = [Fraction(1)]
    for (vector, product), times in Counter(pairs).items():
        chance = (keep if ((vector & value).bit_count() & 1 == 1) == product else 1 - keep) / vectors
        stirling = [[1]]
        for n in range(1, times + 1):
            before = [*stirling[-1], 0]
            stirling.append([(before[b - 1] if b else 0) + b * before[b] for b in range(n + 1)])
        ways = [count * chance**blocks for blocks, count in enumerate(stirling[times])]
        grown = [Fraction(0)] * (len(places) + times)
        for (i, a), (j, b) in itertools.product(enumerate(places), enumerate(ways)):
            grown[i + j] += a * b
        places = grown
    total = sum(math.perm(protocol.stored, used) * weight for used, weight in enumerate(places))
    return log_ratio(total / Fraction(protocol.stored) ** len(pairs)) if total else -math.inf


@pytest.mark.parametrize(
    ("bits", "stored", "reports"),
    [(62, 100, 18), (30, 100, 40), (62, 1, 30), (1, 2**31 - 1, 40), (3, 2, 12), (20, 7, 25)],
)
def test_streams_are_weighed_in_logarithms(bits: int, stored: int, reports: int) -> None:
    """2⁻⁶² to the power of 18 reports is below any float. Against rational numbers, to 10⁻¹¹."""
    protocol = InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=1_000_000)
    law = StoredPairsLaw(1, protocol)
    draw = SeededBits(f"{bits} {stored} {reports}")
    kept = [(1 + draw.word() % ((1 << bits) - 1), bool(draw.word() & 1)) for _ in range(min(stored, 9) + 2)]
    checked = 0
    for size in (1, 2, reports // 2, reports):
        stream = [kept[draw.word() % len(kept)] for _ in range(size)]
        expected = exact_log(protocol, 1, stream)
        found = law.log_probability([stream])[0]
        assert found == expected if expected == -math.inf else found == pytest.approx(expected, rel=1e-11)
        checked += 1
    assert checked == 4


@pytest.mark.parametrize(("bits", "stored", "reports"), [(62, 100, 18), (30, 100, 40), (62, 1, 5), (4, 3, 30)])
def test_long_streams_of_long_vectors_have_a_trackability(bits: int, stored: int, reports: int) -> None:
    protocol = InnerProduct(bits=bits, stored=stored, epsilon_pair_micro=1_000_000)
    found = trackability(protocol.stream_law(1), reports, 20, SeededBits("long"))
    assert not np.isnan(found.draws).any()
    assert (found.draws == math.inf).all() == (
        stored < 4
    )  # so few pairs, and both show them all: they cannot be one user
