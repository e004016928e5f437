"""Gaussian noise, randomized response, thresholds and composition against exact sums and independent libraries."""

from fractions import Fraction
from itertools import product
from math import exp as float_exp
from math import log

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.stats import binom, norm

from aggservice.mechanisms import (
    DiscreteGaussian,
    ParameterError,
    SecureBits,
    TruncatedDiscreteLaplace,
    discovery_threshold,
    exp,
)
from aggservice.mechanisms.composition import advanced_epsilon
from aggservice.mechanisms.laplace import ATTO, truncated_delta
from stated import assert_frequencies
from twins.composition import epsilon_of_zcdp, rho_of_pure
from twins.response import RandomizedResponse


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(7, 3), Fraction(400), Fraction(65536**2)])
def test_gaussian_noise_agrees_with_its_law(variance: Fraction) -> None:
    """Chi-square over up to 300 cells of a million samples, the law summed term by term; false-alarm rate 10⁻⁸ each."""
    noise = DiscreteGaussian(variance_parameter=variance)
    size = 1_000_000
    samples = noise.sample(SecureBits(), size)
    reach = int(10 * noise.sigma) + 10
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(variance)))
    cumulative = np.cumsum(weights / weights.sum())
    edges = np.unique(np.linspace(-4 * noise.sigma - 3, 4 * noise.sigma + 3, 300).astype(np.int64))
    chances = np.diff(np.concatenate(([0.0], cumulative[edges + reach], [1.0])))
    counts = np.bincount(np.searchsorted(edges, samples, side="left"), minlength=edges.size + 1)
    assert_frequencies(counts, chances * size)
    for x in (*edges[::40], 0, 1, -1):
        assert noise.cdf(int(x)) == pytest.approx(cumulative[x + reach], abs=1e-11)
        assert noise.pmf(int(x)) == pytest.approx(weights[x + reach] / weights.sum(), rel=1e-9)
    squares = (np.arange(-reach, reach + 1) ** 2 * weights / weights.sum()).sum()
    assert noise.variance() == pytest.approx(squares, rel=1e-9)
    assert noise.cdf(noise.quantile(Fraction(39, 40))) >= 0.975 > noise.cdf(noise.quantile(Fraction(39, 40)) - 1)


def test_gaussian_cdf_is_seamless_where_the_method_changes() -> None:
    for sigma in (255, 257):
        noise = DiscreteGaussian(variance_parameter=Fraction(sigma**2))
        terms = sum(float_exp(-(k**2) / (2 * sigma**2)) for k in range(-300, -9000, -1))
        total = 1 + 2 * sum(float_exp(-(k**2) / (2 * sigma**2)) for k in range(1, 9000))
        assert noise.cdf(-300) == pytest.approx(terms / total, abs=1e-12)
    assert DiscreteGaussian(variance_parameter=Fraction(1 << 80)).quantile(Fraction(39, 40)) / 2**40 == pytest.approx(
        norm.ppf(0.975), rel=1e-9
    )


def test_gaussian_parameters_outside_the_range_are_refused() -> None:
    for bad in (0.5, float("nan"), Fraction(0), Fraction(-1), Fraction(1, 101), Fraction(1 << 97), "4"):
        with pytest.raises(ParameterError):
            DiscreteGaussian(variance_parameter=bad)
    with pytest.raises(ParameterError):
        DiscreteGaussian.for_zcdp(rho_micro=0, sensitivity=1)


def test_zcdp_noise_has_the_variance_the_theorem_asks_for() -> None:
    assert DiscreteGaussian.for_zcdp(rho_micro=500_000, sensitivity=7).variance_parameter == 49


@pytest.mark.parametrize(("k", "epsilon_micro"), [(2, 1_000_000), (3, 0), (27, 1_000_000), (5, 14_000_000)])
def test_randomized_response_agrees_with_its_law(k: int, epsilon_micro: int) -> None:
    """Chi-square over the answers to each of two truths; false-alarm rate 10⁻⁸ each. The law is e^ε-bounded exactly."""
    response = RandomizedResponse(k=k, epsilon_micro=epsilon_micro)
    size = 200_000
    for truth in (0, k - 1):
        answers = response.respond(SecureBits(), np.full(size, truth, dtype=np.int64))
        chances = np.array([float(response.pmf(answer, truth)) for answer in range(k)])
        assert chances.sum() == pytest.approx(1, abs=1e-12)
        if epsilon_micro < 10**7:
            assert_frequencies(np.bincount(answers, minlength=k), chances * size)
    ratio = float(response.pmf(0, 0) / response.pmf(0, 1))
    assert log(ratio) == pytest.approx(epsilon_micro / 1e6, abs=1e-12)


def test_randomized_response_known_rates_and_edges() -> None:
    assert float(RandomizedResponse(k=3, epsilon_micro=14_000_000).rate) == 0.000002494582008677539
    only = np.zeros(5, dtype=np.int64)
    assert RandomizedResponse(k=1, epsilon_micro=1).respond(SecureBits(), only).tolist() == only.tolist()
    with pytest.raises(ParameterError):
        RandomizedResponse(k=2, epsilon_micro=1).respond(SecureBits(), np.array([2]))
    with pytest.raises(ParameterError):
        RandomizedResponse(k=0, epsilon_micro=1)


def test_the_exact_delta_is_at_most_the_delta_asked_for() -> None:
    """On a grid of ε from 0.01 to 64 and δ from 10⁻¹² to 10⁻²; τ is the least that Lemma A.1 allows."""
    tried = 0
    for epsilon_micro, delta_atto, l1 in product(
        (10_000, 100_000, 700_000, 1_000_000, 10_000_000, 64_000_000),
        (10**6, 10**9, 10**12, 10**14, 10**16),
        (1, 2, 20, 1000, 1 << 16, 1 << 32),
    ):
        for l0 in {1, min(2, l1), min(20, l1), l1}:
            tau = discovery_threshold(epsilon_micro=epsilon_micro, delta_atto=delta_atto, l0=l0, l1=l1)
            noise = TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=l1, tau=tau)
            assert truncated_delta(noise, l1).compare(Fraction(delta_atto, ATTO)) <= 0
            needed = Fraction(l0 * ATTO, delta_atto)
            rate = Fraction(epsilon_micro, 10**6 * l1)
            assert exp(rate * (tau - l1)).compare(needed) >= 0
            assert tau == l1 or exp(rate * (tau - 1 - l1)).compare(needed) < 0
            tried += 1
    assert tried > 500


def test_the_threshold_of_the_explainer() -> None:
    assert discovery_threshold(epsilon_micro=10_000_000, delta_atto=10**10, l0=1, l1=1 << 16) == 186_258


@pytest.mark.parametrize(("epsilon_micro", "l1", "tau"), [(1_000_000, 2, 5), (300_000, 3, 4), (2_000_000, 1, 1)])
def test_delta_equals_the_sum_over_the_pmf(epsilon_micro: int, l1: int, tau: int) -> None:
    """δ(ε') by brute force over the whole support, for ε' below, at and above the noise's own."""
    noise = TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=l1, tau=tau)
    for shift, asked in product(range(1, 2 * tau + 3), (0, Fraction(1, 7), Fraction(epsilon_micro, 10**6), 3)):
        brute = sum(
            max(0.0, float(noise.pmf(x)) - float_exp(asked) * float(noise.pmf(x - shift))) for x in range(-tau, tau + 1)
        )
        assert float(truncated_delta(noise, shift, Fraction(asked))) == pytest.approx(brute, abs=1e-12)


def test_one_key_that_moves_by_the_whole_bound_is_the_worst() -> None:
    """Exact δ of two keys that share a move of Λ₁ = 4, by brute force over pairs, never exceeds one key's."""
    noise = TruncatedDiscreteLaplace(epsilon_micro=1_000_000, sensitivity=4, tau=9)
    law = {x: float(noise.pmf(x)) for x in range(-20, 21)}
    worst = float(truncated_delta(noise, 4))
    for first in range(5):
        second = 4 - first
        total = sum(
            max(0.0, law[x] * law[y] - float_exp(1) * law.get(x - first, 0.0) * law.get(y - second, 0.0))
            for x, y in product(range(-9, 10), repeat=2)
        )
        assert total <= worst + 1e-12


def test_bad_thresholds_are_refused() -> None:
    good = {"epsilon_micro": 10**6, "delta_atto": 10**10, "l0": 1, "l1": 10}
    for name, values in {
        "epsilon_micro": (0, -1, 64_000_001, 1.0, float("nan")),
        "delta_atto": (0, -1, ATTO + 1, 1e-8, float("nan")),
        "l0": (0, 11, 1.5),
        "l1": (0, (1 << 32) + 1, float("inf")),
    }.items():
        for value in values:
            with pytest.raises(ParameterError):
                discovery_threshold(**{**good, name: value})


def test_zcdp_conversion_agrees_with_dp_accounting() -> None:
    """Against the Rényi accountant on a dense grid of orders, which can only be above the true minimum."""
    orders = [1 + 1.02**i / 100 for i in range(600)]
    for rho, delta in product((0.001, 0.1, 0.5, 5.0), (1e-3, 1e-6, 1e-9)):
        accountant = rdp_privacy_accountant.RdpAccountant(orders)
        accountant.compose(dp_accounting.GaussianDpEvent((1 / (2 * rho)) ** 0.5))
        theirs = accountant.get_epsilon(delta)
        assert epsilon_of_zcdp(rho, delta) <= theirs * (1 + 1e-9)
        assert epsilon_of_zcdp(rho, delta) == pytest.approx(theirs, rel=1e-3)


def test_costs_round_up() -> None:
    assert [rho_of_pure(e) for e in (1, 1414, 1415, 2_000_000, 64_000_000)] == [1, 1, 2, 2_000_000, 2_048_000_000]
    assert advanced_epsilon(0.01, 10_000, 1e-6) < 10_000 * 0.01
    assert advanced_epsilon(1.0, 2, 1e-6) == 2.0


@pytest.mark.parametrize(("epsilon", "count", "slack"), [(0.001, 10_000, 1e-6), (0.01, 400, 1e-9), (0.3, 200, 1e-5)])
def test_advanced_composition_covers_randomized_responses(epsilon: float, count: int, slack: float) -> None:
    """The exact δ of ``count`` binary responses at the composed ε, summed over how many were truthful."""
    total = advanced_epsilon(epsilon, count, slack)
    assert total < count * epsilon
    truths = np.arange(count + 1)
    mass = binom.logpmf(truths, count, 1 / (1 + float_exp(-epsilon)))
    other = binom.logpmf(truths, count, 1 / (1 + float_exp(epsilon)))
    beyond = np.exp(mass) - np.exp(total + other)
    assert 0 < beyond[beyond > 0].sum() <= slack
    assert total == pytest.approx(
        (2 * count * log(1 / slack)) ** 0.5 * epsilon + count * epsilon * (float_exp(epsilon) - 1), rel=1e-12
    )
