"""Amplification by shuffling: Theorem 7 in many digits, and the numerical bound between exact and closed."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from aggservice.audit.finite import largest_loss, least_delta, mixture
from aggservice.mechanisms import (
    AmplificationBound,
    ExactBinaryShuffle,
    ParameterError,
    amplified_micro,
    clones,
    closed_epsilon,
    shuffled_epsilon,
    small_epsilon,
)
from aggservice.mechanisms.clones import shuffled_delta, sums_of_two
from aggservice.mechanisms.shuffling import (
    epsilon_of_shuffles,
    moderate_epsilon,
    rdp_epsilon,
    small_case_refusal,
    step_epsilon,
    subsampled,
)

GRID = list(itertools.product((0.01, 0.1, 0.3, 0.49, 1.0, 1.5), (1_000, 10_000, 10**6, 10**9), (1e-3, 1e-8, 1e-12)))


def printed(epsilon0: float, reports: int, delta: float) -> dict[str, float]:
    """Theorem 7's three formulas and Remark 1 (for α = 2), in sixty digits."""
    with localcontext() as context:
        context.prec = 60
        e0, n, d = Decimal(epsilon0), Decimal(reports), Decimal(delta)
        growth = (2 * e0).exp() * (e0.exp() - 1)
        log = (1 / d).ln()
        step = 2 * growth / n
        return {
            "closed": float(step * (2 * n * log).sqrt() + n * step * (step.exp() - 1)),
            "moderate": float(growth * (8 * log / n).sqrt() + 6 * growth * growth / n),
            "small": float(12 * e0 * (log / n).sqrt()),
            "renyi": float(2 * 2 * growth * growth / n),
        }


@pytest.mark.parametrize("epsilon0, reports, delta", GRID)
def test_theorem_7_and_its_cases_to_twelve_digits(epsilon0: float, reports: int, delta: float) -> None:
    expected = printed(epsilon0, reports, delta)
    closed = closed_epsilon(epsilon0, reports, delta)
    assert closed == pytest.approx(expected["closed"], rel=1e-12)
    assert rdp_epsilon(epsilon0, reports, 2) == pytest.approx(expected["renyi"], rel=1e-12)
    if epsilon0 <= math.log(reports / 4) / 3:
        moderate = moderate_epsilon(epsilon0, reports, delta)
        assert moderate == pytest.approx(expected["moderate"], rel=1e-12)
        assert closed <= moderate
    if epsilon0 < 0.5:
        small = small_epsilon(epsilon0, reports, delta)
        assert small == pytest.approx(expected["small"], rel=1e-12)
        assert closed <= small


def test_the_special_cases_refuse_what_they_were_not_proved_for() -> None:
    assert small_case_refusal(0.3, 1000, 1e-6) is None
    with pytest.raises(ParameterError, match="at least 1000 reports of the same randomizer and there are 999"):
        small_epsilon(0.3, 999, 1e-6)
    with pytest.raises(ParameterError, match=r"below 0\.5"):
        small_epsilon(0.5, 1000, 1e-6)
    with pytest.raises(ParameterError, match=r"delta below 0\.01"):
        small_epsilon(0.3, 1000, 0.01)
    with pytest.raises(ParameterError, match="ln"):
        moderate_epsilon(3.0, 1000, 1e-6)
    with pytest.raises(ParameterError, match="two reports"):
        closed_epsilon(0.3, 1, 1e-6)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_nonsense_is_refused(bad: float) -> None:
    for function in (closed_epsilon, moderate_epsilon, small_epsilon, shuffled_epsilon):
        with pytest.raises(ParameterError):
            function(bad, 1000, 1e-6)
    for delta in (bad, 1.0):
        if delta != math.inf:
            with pytest.raises(ParameterError):
                closed_epsilon(1.0, 1000, delta)
            with pytest.raises(ParameterError):
                shuffled_epsilon(1.0, 1000, delta)
    with pytest.raises(ParameterError):
        shuffled_epsilon(1.0, 0, 1e-6)
    with pytest.raises(ParameterError):
        shuffled_delta(1.0, 10, 0.1, k=1)
    with pytest.raises(ParameterError):
        shuffled_delta(1.0, 10, math.nan)
    with pytest.raises(ParameterError):
        rdp_epsilon(1.0, 10, 0.5)


@pytest.mark.parametrize("count", [1000.5, 1000.0, np.float64(1000), "1000", None, math.nan, math.inf])
def test_counts_are_whole_numbers(count: Any) -> None:
    """The whole number is asked for first: its answer, kept for the next time, must not serve 1000.0."""
    assert shuffled_epsilon(1.0, 1000, 1e-6) == shuffled_epsilon(1.0, np.int64(1000), 1e-6)
    for function in (closed_epsilon, moderate_epsilon, small_epsilon, shuffled_epsilon, small_case_refusal):
        with pytest.raises(ParameterError, match="whole number"):
            function(0.3, count, 1e-6)
    for last in (rdp_epsilon, shuffled_delta):
        with pytest.raises(ParameterError, match="whole number"):
            last(1.0, count, 2.0)
    with pytest.raises(ParameterError, match="whole number"):
        step_epsilon(1.0, count)
    with pytest.raises(ParameterError, match="whole number"):
        epsilon_of_shuffles(1.0, count, 3, 1e-6)
    with pytest.raises(ParameterError, match="whole number"):
        epsilon_of_shuffles(1.0, 1000, count, 1e-6)
    with pytest.raises(ParameterError, match="whole number"):
        ExactBinaryShuffle(epsilon0=1.0, reports=count)
    shuffled_epsilon(1.0, 100, 1e-6, k=3)
    for values in (2.5, 3.0, count):
        with pytest.raises(ParameterError, match="whole number"):
            shuffled_delta(1.0, 100, 0.1, k=values)
        with pytest.raises(ParameterError, match="whole number"):
            shuffled_epsilon(1.0, 100, 1e-6, k=values)
    amount = {"local_micro": 300_000, "reports": 1000, "delta_atto": 10**12}
    assert amplified_micro(AmplificationBound.NUMERICAL, **amount) < 300_000
    for name in amount:
        with pytest.raises(ParameterError, match="whole number"):
            amplified_micro(AmplificationBound.NUMERICAL, **{**amount, name: count})


@pytest.mark.parametrize("epsilon0", [1e-300, 1e-20, 1e-6, 1.0, 299.0, 301.0, 700.0, 710.0, 1e6, 1e308])
@pytest.mark.parametrize("reports", [1, 2, 1000, 10**12, 10**20, 10**300], ids=lambda n: f"{n:.0e}")
def test_extremes_are_answered(epsilon0: float, reports: int) -> None:
    before = 1.0
    for share in (0.0, 1e-300, 1e-9, 0.01, 0.5, 1 - 1e-9):
        delta = shuffled_delta(epsilon0, reports, share * epsilon0)
        assert 0 <= delta <= before * (1 + 1e-12)
        before = delta
    for delta in (1e-310, 1e-18, 0.5, 1 - 1e-15):
        bound = shuffled_epsilon(epsilon0, reports, delta)
        assert 0 <= bound <= epsilon0
        if reports > 1:
            assert bound <= closed_epsilon(epsilon0, reports, delta)
        assert epsilon_of_shuffles(epsilon0, reports, 10**300, delta) >= 0
    assert 0 <= shuffled_delta(epsilon0, min(reports, 1000), 0.5 * epsilon0, k=2**50) <= 1


@pytest.mark.parametrize("bound", list(AmplificationBound))
@pytest.mark.parametrize(("local_micro", "reports", "delta_atto"), [(300_000, 10_000, 10**12), (20_001, 5_000, 10**9)])
def test_a_price_is_its_bound_at_its_own_delta_rounded_up(
    bound: AmplificationBound, local_micro: int, reports: int, delta_atto: int
) -> None:
    owed = bound.epsilon(local_micro / 1e6, reports, delta_atto / 1e18) * 1e6
    price = amplified_micro(bound, local_micro=local_micro, reports=reports, delta_atto=delta_atto)
    assert price == local_micro < owed or 0 <= price - owed <= 1.001
    assert amplified_micro(bound, local_micro=local_micro, reports=reports, delta_atto=delta_atto // 2) >= price
    with pytest.raises(ParameterError):
        amplified_micro(bound, local_micro=local_micro, reports=1, delta_atto=delta_atto)


def test_too_large_a_count_is_refused() -> None:
    for function in (closed_epsilon, shuffled_epsilon):
        with pytest.raises(ParameterError, match=r"10\*\*300"):
            function(1.0, 10**301, 1e-6)
    with pytest.raises(ParameterError, match=r"10\*\*300"):
        epsilon_of_shuffles(1.0, 1000, 10**301, 1e-6)
    with pytest.raises(ParameterError, match=r"2\*\*50"):
        shuffled_delta(1.0, 1000, 0.1, k=2**50 + 1)
    with pytest.raises(ParameterError, match="at most 300"):
        ExactBinaryShuffle(epsilon0=301.0, reports=2)
    exact = ExactBinaryShuffle(epsilon0=1.0, reports=10)
    assert exact.delta(1.0) == exact.delta(math.inf) == 0
    with pytest.raises(ParameterError):
        exact.delta(math.nan)
    with pytest.raises(ParameterError):
        exact.epsilon(0.0)


def test_shuffles_add_up_through_the_best_renyi_order() -> None:
    epsilon0, reports, shuffles, delta = 0.2, 50_000, 30, 1e-7
    orders = np.linspace(1.001, 400, 400_000)
    rho = shuffles * rdp_epsilon(epsilon0, reports, 1)
    best = float((rho * orders - math.log(delta) / (orders - 1)).min())
    assert epsilon_of_shuffles(epsilon0, reports, shuffles, delta) == pytest.approx(best, rel=1e-6)


def clones_delta(epsilon0: float, reports: int, epsilon: float, clone: float) -> float:
    """The δ of Feldman, McMillan and Talwar's pair, summed term by term from the two laws.

    C ~ Bin(n−1, clone), A ~ Bin(C, ½), Δ ~ Bern(e^ε₀/(e^ε₀+1)); (A + Δ, C − A + 1 − Δ) against (A + 1 − Δ, C − A + Δ).
    """
    keep = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
    total = 0.0
    for c, weight in enumerate(binom.pmf(np.arange(reports), reports - 1, clone)):
        at = binom.pmf(np.arange(c + 2), c, 0.5)
        before = binom.pmf(np.arange(-1, c + 1), c, 0.5)
        one = keep * before + (1 - keep) * at
        two = (1 - keep) * before + keep * at
        total += weight * float(np.maximum(one - math.exp(epsilon) * two, 0).sum())
    return total


@pytest.mark.parametrize("epsilon0", [0.1, 0.7, 2.0, 4.0])
@pytest.mark.parametrize("reports", [1, 2, 3, 17, 300])
def test_the_numerical_delta_is_the_sum_it_stands_for(epsilon0: float, reports: int) -> None:
    for share in (0.0, 0.02, 0.2, 0.6, 0.95):
        epsilon = share * epsilon0
        direct = clones_delta(epsilon0, reports, epsilon, 2 / (math.exp(epsilon0) + 1))
        bound = shuffled_delta(epsilon0, reports, epsilon)
        assert direct <= bound <= direct * (1 + 1e-6) + 1e-14


def clones_in_many_digits(epsilon0: float, reports: int, epsilon: float, fewest: int) -> mpmath.mpf:
    """The same δ for an ε₀ so small that all but a few others are clones, of which ``fewest`` or more are counted.

    Given M = C + 1 it is (A − B)/M·2/(e^ε₀ + 1)·E(t − X)₊ with X ~ Bin(M, ½) and t = M·A/(A − B); the shortfall is
    summed from its largest term on in 200-bit integers, and every real number has sixty digits.
    """
    mpmath.mp.dps = 60
    local, central = mpmath.mpf(epsilon0), mpmath.mpf(epsilon)
    span = mpmath.expm1(local) * (mpmath.exp(central) + 1)
    part = (mpmath.exp(local) - mpmath.exp(central)) / span
    flip = mpmath.expm1(local) / (mpmath.exp(local) + 1)
    total = mpmath.mpf(0)
    for told in range(reports - fewest):
        items = reports - told
        m = int(mpmath.ceil(items * part)) - 1
        term, plain, sloped, i = 1 << 200, 1 << 200, 0, 0
        while i < m and term > 1 << 140:
            term = term * (m - i) // (items - m + 1 + i)
            i += 1
            plain += term
            sloped += i * term
        log = mpmath.loggamma(items + 1) - mpmath.loggamma(m + 1) - mpmath.loggamma(items - m + 1)
        shortfall = mpmath.exp(log - items * mpmath.log(2)) * ((items * part - m) * plain + sloped) / (1 << 200)
        weight = mpmath.binomial(reports - 1, told) * flip**told * (1 - flip) ** (reports - 1 - told)
        total += weight * span / items * 2 / (mpmath.exp(local) + 1) * shortfall
    return total


@pytest.mark.parametrize(
    "epsilon0, reports, epsilon",
    [(1e-3, 10**4, 4e-5), (1e-5, 10**6, 6e-8), (1e-7, 10**8, 6e-11), (1e-7, 10**8, 3e-11), (1e-9, 10**10, 6e-14)],
)
def test_never_below_the_clones_however_many_the_reports(epsilon0: float, reports: int, epsilon: float) -> None:
    """Where cancellation once put the bound below: by 2.7·10⁻⁸ at the third of these and by 1.5·10⁻⁶ at the last.

    The sum in many digits leaves out what has a probability of 10⁻¹⁰, so it is itself a little below the clones.
    """
    direct = clones_in_many_digits(epsilon0, reports, epsilon, reports - 25)
    bound = shuffled_delta(epsilon0, reports, epsilon)
    assert 5e-9 < float(bound / direct - 1) < 1e-6


BINARY = [*itertools.product((0.05, 0.3, 1.0, 2.5, 5.0), (2, 3, 9, 64, 401, 1000)), (0.3, 2000), (2.5, 2000)]


@pytest.mark.parametrize("epsilon0, reports", BINARY)
def test_never_below_the_exact_value_and_never_above_the_closed_bound(epsilon0: float, reports: int) -> None:
    exact = ExactBinaryShuffle(epsilon0=epsilon0, reports=reports)
    for delta in (1e-2, 1e-5, 1e-8):
        bound = shuffled_epsilon(epsilon0, reports, delta)
        assert bound >= exact.epsilon(delta) * (1 - 2e-9)
        assert bound <= closed_epsilon(epsilon0, reports, delta)
        assert bound <= epsilon0
        # In delta there is no tolerance: the bound at its own epsilon holds, exactly.
        assert exact.delta(bound) <= delta
        for epsilon in (0.0, bound / 3, bound, (bound + epsilon0) / 2):
            there = shuffled_delta(epsilon0, reports, epsilon)
            assert there >= exact.delta(epsilon) or there < 1e-130


@settings(deadline=None, max_examples=30)
@given(st.floats(min_value=0.01, max_value=0.5), st.integers(0, 40))
def test_the_kernel_of_the_exact_value_is_a_convolution(probability: float, others: int) -> None:
    rows = sums_of_two(probability, others)
    for m in range(others + 1):
        first = binom.pmf(np.arange(m + 1), m, 1 - probability)
        second = binom.pmf(np.arange(others - m + 1), others - m, probability)
        np.testing.assert_allclose(rows[m], np.convolve(first, second), rtol=1e-10, atol=1e-140)


def test_the_exact_value_by_brute_force() -> None:
    """Every data set of five users, every output, both directions: the class must find the worst."""
    epsilon0, epsilon, users = 1.3, 0.4, 5
    flip = 1 / (math.exp(epsilon0) + 1)

    def law(values: tuple[int, ...]) -> np.ndarray:
        total = np.ones(1)
        for value in values:
            one = 1 - flip if value else flip
            total = np.convolve(total, [1 - one, one])
        return total

    worst = 0.0
    for others in itertools.product((0, 1), repeat=users - 1):
        for mine in (0, 1):
            gap = law((mine, *others)) - math.exp(epsilon) * law((1 - mine, *others))
            worst = max(worst, float(np.maximum(gap, 0).sum()))
    assert ExactBinaryShuffle(epsilon0=epsilon0, reports=users).delta(epsilon) == pytest.approx(worst, rel=1e-12)
    with pytest.raises(ParameterError, match="at most"):
        ExactBinaryShuffle(epsilon0=1.0, reports=10**6)


def histogram_law(channel: np.ndarray, values: list[int]) -> dict[tuple[int, ...], float]:
    law = {(0,) * channel.shape[1]: 1.0}
    for value in values:
        grown: dict[tuple[int, ...], float] = {}
        for counts, chance in law.items():
            for output, probability in enumerate(channel[value]):
                key = (*counts[:output], counts[output] + 1, *counts[output + 1 :])
                grown[key] = grown.get(key, 0.0) + chance * float(probability)
        law = grown
    return law


def exact_delta(channel: np.ndarray, others: list[int], epsilon: float) -> float:
    one, two = histogram_law(channel, [0, *others]), histogram_law(channel, [1, *others])
    return sum(max(0.0, chance - math.exp(epsilon) * two[counts]) for counts, chance in one.items())


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.floats(min_value=0.2, max_value=4),
    st.integers(2, 4),
    st.integers(2, 5),
    st.floats(min_value=0, max_value=0.99),
)
def test_the_bound_holds_for_any_randomizer(seed: int, epsilon0: float, outputs: int, users: int, share: float) -> None:
    """Random ε₀-LDP channels over three inputs, mostly extremal, one more output taking up the slack."""
    generator = np.random.default_rng(seed)
    levels = generator.choice([0.0, 1.0, generator.uniform()], size=(3, outputs))
    channel = np.exp(epsilon0 * levels) * generator.dirichlet(np.ones(outputs))
    channel /= channel.sum(axis=1).max()
    slack = 1 - channel.sum(axis=1)
    slack += max(0.0, (slack.max() - math.exp(epsilon0) * slack.min()) / math.expm1(epsilon0))
    channel = np.column_stack([channel, slack])
    channel /= channel.sum(axis=1, keepdims=True)
    spread = channel[:, channel.max(axis=0) > 0]
    local = float(np.log(spread.max(axis=0) / spread.min(axis=0)).max())
    epsilon = share * local
    if local < 1e-6:
        return
    for others in ([2] * (users - 1), list(generator.integers(0, 3, users - 1))):
        assert exact_delta(channel, others, epsilon) <= shuffled_delta(local, users, epsilon) + 1e-13


def k_response(epsilon0: float, k: int) -> np.ndarray:
    low = 1 / (math.exp(epsilon0) + k - 1)
    channel = np.full((k, k), low)
    np.fill_diagonal(channel, math.exp(epsilon0) * low)
    return channel


@pytest.mark.parametrize("k", [3, 4, 6])
@pytest.mark.parametrize("users", [2, 3, 4])
def test_k_ary_response_lies_between_its_exact_value_and_the_general_bound(k: int, users: int) -> None:
    epsilon0 = 2.0
    channel = k_response(epsilon0, k)
    for epsilon in np.linspace(0, 1.95, 14):
        exact = max(
            exact_delta(channel, list(others), float(epsilon))
            for others in itertools.combinations_with_replacement(range(3), users - 1)
        )
        bound = shuffled_delta(epsilon0, users, float(epsilon), k=k)
        assert exact <= bound + 1e-13
        assert bound <= shuffled_delta(epsilon0, users, float(epsilon)) * (1 + 1e-6) + 1e-14


def test_the_withdrawn_pair_for_k_ary_response_is_refuted_by_enumeration() -> None:
    """Two users, four values: what the 2023 paper withdrew (and others still print) lies below the exact value.

    Its pair forgets who reported the values that are not the user's, which is why our bound counts them.
    """
    epsilon0, epsilon, k = 2.0, 1.7, 4
    low = 1 / (math.exp(epsilon0) + k - 1)
    high = math.exp(epsilon0) * low
    one: dict[tuple[int, int], float] = {}
    two: dict[tuple[int, int], float] = {}
    for other, chance in (((1, 0), low), ((0, 1), low), ((0, 0), 1 - 2 * low)):
        for mine, here, there in (((1, 0), high, low), ((0, 1), low, high), ((0, 0), 1 - high - low, 1 - high - low)):
            key = (other[0] + mine[0], other[1] + mine[1])
            one[key] = one.get(key, 0.0) + chance * here
            two[key] = two.get(key, 0.0) + chance * there
    withdrawn = sum(max(0.0, one[key] - math.exp(epsilon) * two[key]) for key in one)
    exact = exact_delta(k_response(epsilon0, k), [2], epsilon)
    assert withdrawn < exact <= shuffled_delta(epsilon0, 2, epsilon, k=k)


@pytest.mark.parametrize("epsilon0", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("reports", [50, 400])
def test_at_least_as_tight_as_the_clones_of_2021(epsilon0: float, reports: int) -> None:
    """Their clones come with probability e^−ε₀, ours with 2/(e^ε₀ + 1): more, and never a larger δ."""
    for share in (0.05, 0.2, 0.5, 0.9):
        epsilon = share * epsilon0
        theirs = clones_delta(epsilon0, reports, epsilon, math.exp(-epsilon0))
        assert shuffled_delta(epsilon0, reports, epsilon) <= theirs * (1 + 1e-6) + 1e-14


def test_the_published_figure_of_2021() -> None:
    """Their code's own example: 100,000 reports of ε₀ = 4 at δ = 10⁻⁶ give between 0.16754 and 0.17279."""
    ours = shuffled_epsilon(4.0, 100_000, 1e-6)
    assert ours == pytest.approx(0.118165, abs=1e-6)
    assert ours < 0.1675385583317841


def test_more_reports_and_a_larger_delta_never_hurt() -> None:
    by_reports = [shuffled_epsilon(1.0, 10**power, 1e-8) for power in range(1, 10)]
    assert by_reports == sorted(by_reports, reverse=True)
    by_delta = [shuffled_epsilon(1.0, 1000, 10.0**-power) for power in range(1, 20)]
    assert by_delta == sorted(by_delta)
    by_values = [shuffled_epsilon(1.0, 9000, 1e-6, k=k) for k in (2, 3, 5, 33)]
    assert by_values == sorted(by_values, reverse=True)
    assert shuffled_epsilon(1.0, 1, 1e-8) == pytest.approx(1.0, rel=1e-6)
    assert shuffled_epsilon(40.0, 1000, 1e-8) <= 40.0


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=5).filter(
        lambda pairs: all(sum(column) > 0 for column in zip(*pairs, strict=True))
    ),
    st.fractions(0, 1, max_denominator=50),
    st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]),
)
def test_lemma_4_holds_for_every_pair_of_laws(pairs: list[tuple[int, int]], share: Fraction, epsilon: float) -> None:
    """μ₁ and μ₀ over a few symbols, δ of them exactly; the mixture is as close as the lemma says, both ways."""
    none, one = (
        {at: Fraction(pair[side], sum(each[side] for each in pairs)) for at, pair in enumerate(pairs)}
        for side in (0, 1)
    )
    mixed = mixture([(1 - share, none), (share, one)])
    delta = float(least_delta(one, none, Fraction(math.exp(epsilon))))
    bound, rest = subsampled(epsilon, min(1.0, delta), float(share))
    assert float(least_delta(mixed, none, Fraction(math.exp(bound)))) <= rest + 1e-12
    assert bound <= share * math.expm1(epsilon) + 1e-15


@pytest.mark.parametrize("share", [Fraction(1, 100), Fraction(1, 3), Fraction(49, 100), Fraction(9, 10)])
def test_lemma_4_is_attained_by_a_binary_response(share: Fraction) -> None:
    """Odds of 3 that tell of μ₁: ln(1 + 2q) exactly."""
    none, one = ({"y": Fraction(a, 4), "n": Fraction(4 - a, 4)} for a in (1, 3))
    mixed = mixture([(1 - share, none), (share, one)])
    found = largest_loss(mixed, none)
    assert found == pytest.approx(subsampled(math.log(3), 0, float(share))[0], rel=1e-12)
    assert found == pytest.approx(math.log1p(2 * share), rel=1e-12)


def test_sampling_at_the_ends() -> None:
    assert subsampled(2.0, 0.1, 1.0) == (pytest.approx(2.0), 0.1)
    assert subsampled(2.0, 0.1, 0.0) == (0.0, 0.0)
    with mpmath.workdps(40):
        for epsilon, share in ((800.0, 1e-300), (800.0, 0.25), (5000.0, 1.0), (5000.0, 0.0), (710.0, 1e-320)):
            exact = mpmath.log(1 - mpmath.mpf(share) + mpmath.mpf(share) * mpmath.exp(epsilon))
            assert subsampled(epsilon, 0, share)[0] == pytest.approx(float(exact), rel=1e-12)
    for bad in ((-1, 0, 0.1), (math.nan, 0, 0.1), (math.inf, 0, 0.1), (1, 2, 0.1), (1, 0, 1.1), (1, 0, math.nan)):
        with pytest.raises(ParameterError, match="share"):
            subsampled(*bad)


@pytest.mark.parametrize("k", [2, 3, 50])
def test_what_lies_outside_all_blocks_counts_as_if_nobody_hid_the_user(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the blocks are given as the rest outside: δ may only grow, because nothing is dropped."""
    right = clones._blocks

    def half(law: Any, negligible: float, most: int) -> Any:
        first, last, weight, outside = right(law, negligible, most)
        cut = weight.size // 2
        return first[cut:], last[cut:], weight[cut:], outside + float(weight[:cut].sum())

    for epsilon0, reports, epsilon in ((1.0, 50, 0.1), (3.0, 1000, 0.5), (0.2, 10, 0.05)):
        whole = clones.shuffled_delta(epsilon0, reports, epsilon, k=k)
        with monkeypatch.context() as changed:
            changed.setattr(clones, "_blocks", half)
            assert clones.shuffled_delta(epsilon0, reports, epsilon, k=k) > whole
