"""Every kernel equals its plain twin, word for word, ties included."""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, SeededBits, exp
from aggservice.mechanisms.bernoulli import (
    bernoulli_kernel,
    bernoulli_twin,
    threshold_word,
    uniform_kernel,
    uniform_twin,
)
from aggservice.mechanisms.gaussian import acceptance, gaussian_kernel, gaussian_twin, shape_of
from aggservice.mechanisms.geometric import digits_of, laplace_kernel
from aggservice.mechanisms.laplace import laplace_twin, sample_laplace
from aggservice.mechanisms.words import Progress, Tape, below, fill
from twins.response import RandomizedResponse, response_kernel, response_twin


class ListedBits(Bits):
    """Gives the listed words first, then a seeded stream: lets a test put a tie where it wants one."""

    private = False

    def __init__(self, listed: list[int]) -> None:
        self._listed = list(listed)
        self._rest = SeededBits("after the list")

    def read(self, count: int) -> bytes:
        assert count == 8
        return int(self.words(1)[0]).to_bytes(8, "little")

    def words(self, count: int) -> NDArray[np.uint64]:
        head, self._listed = self._listed[:count], self._listed[count:]
        return np.concatenate((np.array(head, dtype=np.uint64), self._rest.words(count - len(head))))

    def child(self, label: str) -> Bits:
        return self


def word_lists(*special: int) -> st.SearchStrategy[list[int]]:
    """Lists of words in which the special ones and their neighbours are common."""
    near = [min(max(word + step, 0), (1 << 64) - 1) for word in special for step in (-1, 0, 1)]
    anywhere = st.integers(0, (1 << 64) - 1)
    return st.lists(st.one_of(anywhere, st.sampled_from(near)) if near else anywhere, max_size=40)


def assert_equal_to_twin(
    listed: list[int],
    kernel: Callable[[NDArray[np.uint64], NDArray[np.int64]], Progress],
    twin: Callable[[Tape], int],
    dtype: type[np.generic] = np.int64,
    size: int = 60,
) -> None:
    out = np.empty(size, dtype=dtype)
    fill(ListedBits(listed), out, kernel, twin, 0.1)  # small chunks: leftovers are carried over many times
    tape = Tape(ListedBits(listed))
    assert out.tolist() == [twin(tape) for _ in range(size)]


@given(st.data(), st.integers(1, 1 << 63))
@settings(deadline=None)
def test_uniform(data: st.DataObject, n: int) -> None:
    listed = data.draw(word_lists(n - 1, n))
    mask = np.uint64((1 << (n - 1).bit_length()) - 1)
    assert_equal_to_twin(
        listed,
        lambda words, out: uniform_kernel(words, np.uint64(n - 1), mask, out),
        lambda tape: uniform_twin(tape, n),
    )


probabilities = st.one_of(
    st.fractions(min_value=Fraction(1, 10**9), max_value=Fraction(10**9 - 1, 10**9)).map(Real.of),
    st.fractions(min_value=Fraction(1, 10**6), max_value=50).map(lambda x: exp(-x)),
)


@given(st.data(), probabilities)
@settings(deadline=None)
def test_bernoulli(data: st.DataObject, p: Real) -> None:
    threshold = threshold_word(p)
    listed = data.draw(word_lists(int(threshold)))
    assert_equal_to_twin(
        listed,
        lambda words, out: bernoulli_kernel(words, threshold, out),
        lambda tape: bernoulli_twin(tape, p),
        np.bool_,
    )


@given(
    st.data(),
    st.fractions(min_value=Fraction(1, 5000), max_value=5, max_denominator=10**6),
    st.sampled_from([4, 7, 63]),
    st.sampled_from([1, 3, 10]),
    st.one_of(st.integers(1, 50), st.just((1 << 63) - 1)),
)
@settings(deadline=None)
def test_laplace(data: st.DataObject, rate: Fraction, prefix: int, digit_bits: int, tau: int) -> None:
    if rate * tau < Fraction(1, 5):
        tau = (1 << 63) - 1
    digits = digits_of(rate, prefix, digit_bits)
    some = digits.thresholds.ravel()[:: max(1, digits.thresholds.size // 20)]
    special = [min(int(value) << (64 - prefix), (1 << 64) - 1) for value in some]
    listed = data.draw(word_lists(*special))
    assert_equal_to_twin(
        listed,
        lambda words, out: laplace_kernel(
            words, digits.thresholds, digits.guide, digits.shifts, digits.prefix, digits.guide_bits, tau, out
        ),
        lambda tape: laplace_twin(tape, digits, tau),
    )


variances = st.one_of(
    st.fractions(min_value=Fraction(1, 100), max_value=10**10, max_denominator=10**6),
    st.integers(1, 1 << 96).map(Fraction),
)


@given(st.data(), variances)
@settings(deadline=None, max_examples=60)
def test_gaussian(data: st.DataObject, variance: Fraction) -> None:
    shape = shape_of(variance)
    digits = shape.digits
    # Words that accept or reject by a hair: the acceptance thresholds of a few sizes.
    sizes = (0, 1, shape.t, 3 * shape.t)
    near = [int(acceptance(np.uint64(size), shape.numbers, shape.powers)[0]) << 1 for size in sizes]
    listed = data.draw(word_lists(*near))
    assert_equal_to_twin(
        listed,
        lambda words, out: gaussian_kernel(
            words, digits.thresholds, digits.guide, digits.shifts, digits.guide_bits, shape.numbers, shape.powers, out
        ),
        lambda tape: gaussian_twin(tape, shape),
        size=20,
    )


@given(variances, st.integers(0, 1 << 62))
@settings(deadline=None)
def test_the_stated_error_of_the_acceptance_probability_holds(variance: Fraction, raw: int) -> None:
    shape = shape_of(variance)
    size = raw % (80 * shape.t)
    p, error = (int(v) for v in acceptance(np.uint64(size), shape.numbers, shape.powers))
    excess = size - variance / shape.t
    low, high = exp(-excess * excess / (2 * variance)).bounds(63)
    assert p - error <= low and high <= p + error


@settings(deadline=None, max_examples=300)
@given(
    p=st.fractions(min_value=Fraction(1, 1 << 20), max_value=1 - Fraction(1, 1 << 20)),
    width=st.integers(min_value=1, max_value=64),
    steps=st.lists(st.sampled_from((0, 0, -1, 1)), min_size=4, max_size=4),
)
def test_a_tie_is_decided_by_the_words_that_follow_it(p: Fraction, width: int, steps: list[int]) -> None:
    """U, written from p's own digits with a step up or down in one of them, is below p exactly if the number is."""
    own = [(p.numerator << (width + 64 * place)) // p.denominator for place in range(len(steps))]
    value = (own[0] + steps[0]) % (1 << width)
    words = [(digits + step) % (1 << 64) for digits, step in zip(own[1:], steps[1:], strict=True)]
    size = width + 64 * len(words)
    number = reduce(lambda left, word: left << 64 | word, words, value)
    u = Fraction(number, 1 << size)
    assume(u == p or not u <= p < u + Fraction(1, 1 << size))  # otherwise more words would decide
    tape = Tape(SeededBits(0), np.array(words, dtype=np.uint64))
    assert below(tape, value, width, Real.of(p)) == (u < p)


@given(st.integers(1, 40), st.integers(1, 999_999), st.data())
def test_a_narrow_window_is_drawn_to_the_last_bit(tau: int, share: int, data: st.DataObject) -> None:
    """The word beside the 64 bits of e^(-a|x|) decides whether x is kept; the next draw is 0, which always is."""
    rate = Fraction(share, 1_000_000 * tau)
    x = data.draw(st.integers(-tau, tau).filter(bool))
    chance = exp(-rate * abs(x)).floor(64)
    for step, drawn in ((-1, x), (1, 0)):
        found = sample_laplace(ListedBits([x + tau, chance + step, tau]), rate, 1, tau)
        assert found.tolist() == [drawn]


def test_a_twin_reads_no_word_more_than_its_kernel_needs() -> None:
    """Bounds of a quotient are a little wide: a word just below the threshold is decided all the same."""
    for k, epsilon_micro in ((5, 20_093), (3, 7), (2925, 14_000_000), (27, 1_000_000)):
        rate = RandomizedResponse(k=k, epsilon_micro=epsilon_micro).rate
        threshold = int(threshold_word(rate))
        for step in (-3, -2, -1, 1, 2, 3):
            tape = Tape(ListedBits([threshold + step]))
            assert bernoulli_twin(tape, rate) == (step < 0)
            assert tape.used == 1


@given(st.data(), st.integers(2, 1 << 62), st.integers(1, 30_000_000))
@settings(deadline=None)
def test_response(data: st.DataObject, k: int, epsilon_micro: int) -> None:
    rate = RandomizedResponse(k=k, epsilon_micro=epsilon_micro).rate
    threshold = threshold_word(rate)
    mask = np.uint64((1 << (k - 1).bit_length()) - 1)
    assert_equal_to_twin(
        data.draw(word_lists(int(threshold), k - 1)),
        lambda words, out: response_kernel(words, threshold, False, np.uint64(k - 1), mask, out),
        lambda tape: response_twin(tape, rate, k),
    )
