"""The samplers compare uniform words with the right numbers: to the last of 63 or 64 bits, from arithmetic of mpmath.

Statistics cannot see a rate that is wrong by 10⁻⁶. These tests give a sampler the two words on either side of a
threshold that mpmath computed, so that a rate wrong by 10⁻¹⁷ changes the sample.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest

from aggservice.mechanisms import DiscreteGaussian, DiscreteLaplace, TruncatedDiscreteLaplace, discovery_threshold
from aggservice.mechanisms.bernoulli import bernoulli_batch, bernoulli_exp, uniform_below, uniform_below_batch

from .test_words_and_twins import ListedBits

DIGITS = 80
LAWS = [(10_000_000, 65_536), (64_000_000, 65_536), (1, 1), (1_000_000, 1), (2_000_000, 3), (64_000_000, 1)]
Law = DiscreteLaplace | TruncatedDiscreteLaplace


def digit_sizes(epsilon_micro: int, sensitivity: int) -> tuple[int, int]:
    """Return how many digits a geometric number of this rate has, and the size of each but the last."""
    reach = Fraction(63 * 7, 10) * 10**6 * sensitivity / epsilon_micro
    bits = max(1, (int(reach) + 1).bit_length())
    rows = -(-bits // 10)
    return rows, 1 << -(-bits // rows)


def words_around(epsilon_micro: int, sensitivity: int, digit: int) -> tuple[int, int, int]:
    """Return the last 63-bit prefix whose lowest digit is at most ``digit``, the first above, and how many words."""
    rows, size = digit_sizes(epsilon_micro, sensitivity)
    with mpmath.workdps(DIGITS):
        rate = mpmath.mpf(epsilon_micro) / (10**6 * sensitivity)
        whole = 1 if rows == 1 else 1 - mpmath.exp(-rate * size)
        edge = int(mpmath.floor((1 - mpmath.exp(-rate * (digit + 1))) / whole * 2**63))
    return edge - 1, edge + 1, rows


@pytest.mark.parametrize(("epsilon_micro", "sensitivity"), LAWS)
@pytest.mark.parametrize("truncated", [False, True])
def test_laplace_noise_changes_at_the_thresholds_of_its_rate(
    epsilon_micro: int, sensitivity: int, truncated: bool
) -> None:
    law: Law = DiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity)
    if truncated:
        tau = discovery_threshold(epsilon_micro=epsilon_micro, delta_atto=10**10, l0=1, l1=sensitivity)
        law = TruncatedDiscreteLaplace(epsilon_micro=epsilon_micro, sensitivity=sensitivity, tau=tau)
    for digit in (0, 1, 5):
        if mpmath.mpf(epsilon_micro) / (10**6 * sensitivity) * (digit + 1) > 40:
            continue  # nothing is left of 63 bits
        below, above, rows = words_around(epsilon_micro, sensitivity, digit)
        for prefix, expected in ((below, digit), (above, digit + 1)):
            rest = [0] * (rows - 1)
            assert law.sample(ListedBits([prefix << 1, *rest]), 1).tolist() == [expected]
            if expected:
                assert law.sample(ListedBits([prefix << 1 | 1, *rest]), 1).tolist() == [-expected]


def test_a_negative_zero_is_drawn_again() -> None:
    """Zero would otherwise have twice its probability."""
    law = DiscreteLaplace(epsilon_micro=1_000_000, sensitivity=1)
    below, above, rows = words_around(1_000_000, 1, 0)
    assert rows == 1
    assert law.sample(ListedBits([below << 1 | 1, above << 1]), 1).tolist() == [1]


@pytest.mark.parametrize(("epsilon_micro", "l0", "l1"), [(1_000_000, 1, 1), (500_000, 4, 10), (10_000_000, 20, 65_536)])
def test_the_threshold_of_discovery_is_the_least_whole_number_of_lemma_a_1(
    epsilon_micro: int, l0: int, l1: int
) -> None:
    for delta_atto in (10**18, 10**17, 10**13, 10**10, 1):
        with mpmath.workdps(DIGITS):
            epsilon, delta = mpmath.mpf(epsilon_micro) / 10**6, mpmath.mpf(delta_atto) / 10**18
            tau = int(mpmath.ceil(l1 * (1 + mpmath.log(l0 / delta) / epsilon)))
        found = discovery_threshold(epsilon_micro=epsilon_micro, delta_atto=delta_atto, l0=l0, l1=l1)
        assert found == max(tau, l1)


@pytest.mark.parametrize("x", [Fraction(1, 1000), Fraction(1), Fraction(10)])
def test_coins_change_at_their_probability(x: Fraction) -> None:
    with mpmath.workdps(DIGITS):
        edge = int(mpmath.floor(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * 2**64))
    assert bernoulli_exp(ListedBits([edge - 1]), x) and not bernoulli_exp(ListedBits([edge + 1]), x)
    third = Fraction(1, 3)
    edge = (1 << 64) // 3
    assert bernoulli_batch(ListedBits([edge - 1, edge + 1, edge - 1]), third, 3).tolist() == [True, False, True]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 250, 256, 257])
def test_uniform_numbers_take_each_value_from_one_word_in_their_range(n: int) -> None:
    """Of the words 0 to 2^b - 1, those below n stand for themselves and the others are dropped."""
    span = 1 << (n - 1).bit_length()
    words = list(range(span))
    assert uniform_below_batch(ListedBits(words), n, n).tolist() == list(range(n))
    listed = ListedBits([*words[n:], 0])
    assert uniform_below(listed, n) == 0
    assert uniform_below(ListedBits([n - 1]), n) == n - 1


@pytest.mark.parametrize(("rho_micro", "sensitivity"), [(500_000, 65_536), (1, 3), (2_000_000, 1_000)])
def test_gaussian_noise_has_the_variance_of_its_rho_exactly(rho_micro: int, sensitivity: int) -> None:
    found = DiscreteGaussian.for_zcdp(rho_micro=rho_micro, sensitivity=sensitivity)
    assert found.variance_parameter == Fraction(sensitivity**2, 2) / Fraction(rho_micro, 10**6)


@pytest.mark.parametrize("variance", [Fraction(4), Fraction(7, 2), Fraction(1000)])
def test_gaussian_noise_is_accepted_at_the_probability_of_its_variance(variance: Fraction) -> None:
    """A proposal of 0 from noise of rate 1/t is kept with probability e^(-σ²/2t²)."""
    t = int(variance**0.5) + 1
    edge_words = {}
    with mpmath.workdps(DIGITS):
        sigma2 = mpmath.mpf(variance.numerator) / variance.denominator
        edge = int(mpmath.floor(mpmath.exp(-sigma2 / (2 * t * t)) * 2**63))
    rows, _ = digit_sizes(10**6, t)
    for step in (-1, 1):
        # Zeros propose 0; the next word accepts it or not; the words after it propose another number, and accept it.
        words = [0] * rows + [(edge + step) << 1] + [3 << 62] + [0] * rows
        edge_words[step] = DiscreteGaussian(variance_parameter=variance).sample(ListedBits(words), 1).tolist()[0]
    assert edge_words[-1] == 0
    assert edge_words[1] != 0
