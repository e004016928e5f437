"""Numerical privacy amplification by shuffling: a user hides among the clones that the others' randomizers make.

The others' reports are decomposed: with some probability a report is a *clone*, drawn from a law that does not
depend on its sender, and otherwise the adversary is told it. What remains is one user among a binomial number C of
clones. For k-ary randomized response a clone is uniform over the k values and occurs with probability
k/(e^ε₀ + k − 1) (Balle, Bell, Gascón and Nissim 2019; Feldman, McMillan and Talwar 2021). For *any* ε₀-LDP randomizer
the binary case k = 2 is an upper bound: docs/shuffling.md has the argument (three lines of convex order), which also
mends what the erratum of "Stronger Privacy Amplification by Shuffling" (2023) withdrew.

Everything here is an upper bound by construction: tails are added, not dropped; blocks of C use that more clones never
reveal more; and the sum is inflated by more than the floats can have lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mechanisms.errors import ParameterError
from mechanisms.shuffling import check_shuffle, closed_epsilon

Floats = NDArray[np.float64]

_INFLATION = 1 + 1e-8
_OUTER_BLOCKS = 512
#: For more than two values: blocks of the number of clones, and of how many of them fall on the user's two values.
#: Few reports are summed one by one; of many, blocks this fine cost a part in a thousand of epsilon.
_FEW_REPORTS = 4096
_FEW_BLOCKS = (400, 2000)
_MANY_BLOCKS = (96, 400)
_NEGLIGIBLE = 1e-7
_EXACT_LIMIT = 4096
_DROPPED = 1e-150


def _at_least(successes: Floats, trials: Floats, probability: float) -> Floats:
    """Return P[Bin(trials, probability) ≥ successes], elementwise, for any whole numbers."""
    from scipy.special import betainc  # a tenth of a second that no other use of this package should pay

    inside = (successes >= 1) & (successes <= trials)
    tail = np.where(successes <= 0, 1.0, 0.0)
    if inside.any():
        s, t = np.broadcast_arrays(successes, trials)
        tail = np.array(np.broadcast_to(tail, inside.shape))
        tail[inside] = betainc(s[inside], t[inside] - s[inside] + 1, probability)
    return tail


def _at_most(successes: Floats, trials: Floats, probability: float) -> Floats:
    """Return P[Bin(trials, probability) ≤ successes], elementwise."""
    return _at_least(trials - successes, trials, 1 - probability)


def _blocks(trials: int, probability: float, negligible: float, most: int) -> tuple[Floats, Floats, Floats, float]:
    """Cut the range of Bin(trials, probability) into at most ``most`` blocks of consecutive values.

    Return the first value, the last value and the probability of each block, and the probability of what was left
    out on both sides, which is at most ``negligible``.
    """
    half = negligible / 2
    # Chernoff's bound in Bernstein's form: this far from the mean, each side has less than half of what is negligible.
    reach = -math.log(half)
    variance = trials * probability * (1 - probability)
    width = reach / 3 + math.sqrt(reach**2 / 9 + 2 * variance * reach)
    low = max(0, math.floor(trials * probability - width))
    high = min(trials, math.ceil(trials * probability + width))
    count = min(most, high - low + 1)
    edges = np.unique(np.floor(np.linspace(low, high + 1, count + 1)))
    first, last = edges[:-1], edges[1:] - 1
    n = np.array([float(trials)])
    below = _at_most(last, n, probability) - _at_most(first - 1, n, probability)
    above = _at_least(first, n, probability) - _at_least(last + 1, n, probability)
    weight = np.where(last < trials * probability, below, above)
    sides = _at_most(np.array([low - 1.0]), n, probability) + _at_least(np.array([high + 1.0]), n, probability)
    return first, last, np.maximum(weight, 0), float(sides[0])


def _shortfall(threshold: Floats, trials: Floats) -> Floats:
    """Return E[(threshold − X)₊] for X ~ Bin(trials, ½)."""
    last = np.ceil(threshold) - 1
    mean_part = np.where(trials > 0, trials / 2 * _at_most(last - 1, np.maximum(trials - 1, 0), 0.5), 0.0)
    return np.maximum(threshold * _at_most(last, trials, 0.5) - mean_part, 0)


def _gain(epsilon0: float, epsilon: float) -> float:
    """Return e^ε₀ − e^ε without losing digits where the two are close."""
    return -math.exp(epsilon0) * math.expm1(epsilon - epsilon0)


def _given_items(items: Floats, epsilon0: float, epsilon: float, k: int, negligible: float, blocks: int) -> Floats:
    """Return the δ of one user among ``items − 1`` clones, for each entry of ``items``.

    With M items uniform on k values, a of them at the user's first possible value and b at the second, it is
    E[(aA + bB + cD)₊]·k/(M(e^ε₀ + k − 1)) with A = e^ε₀ − e^ε, B = 1 − e^(ε₀+ε), D = 1 − e^ε, c = M − a − b. Given
    m = a + b, b is Bin(m, ½). In a block of m the largest m and a shift by the mean bound the expectation, because
    a centred sum of more terms is larger in convex order.
    """
    gain = _gain(epsilon0, epsilon)  # A
    span = math.expm1(epsilon0) * (math.exp(epsilon) + 1)  # A − B
    rest = -math.expm1(epsilon)  # D
    pair = rest * (math.exp(epsilon0) + 1) / 2  # (A + B)/2
    scale = k / (math.exp(epsilon0) + k - 1)
    if k == 2:
        return scale * span / items * _shortfall(items * gain / span, items)
    delta = np.empty_like(items)
    for index, count in enumerate(items):
        low, high, weight, outside = _blocks(int(count), 2 / k, negligible, blocks)
        threshold = (high * gain + (count - high) * rest + (low - high) * pair) / span
        inside = float(weight @ _shortfall(threshold, high)) * span / count
        delta[index] = scale * (inside + outside * gain)
    return delta


def shuffled_delta(epsilon0: float, reports: int, epsilon: float, *, k: int = 2) -> float:
    """Return an upper bound on the δ at ``epsilon`` of ``reports`` shuffled reports of one ε₀-LDP randomizer.

    With ``k = 2`` it holds for every randomizer; with a larger k, for k-ary randomized response, and is then smaller.
    """
    check_shuffle(epsilon0, reports)
    if not epsilon >= 0:
        raise ParameterError(f"the central epsilon is a number at least 0, not {epsilon!r}")
    if not k >= 2:
        raise ParameterError(f"randomized response needs at least 2 values, not {k!r}")
    if epsilon >= epsilon0:
        return 0.0
    if epsilon0 > 700:
        return 1.0
    clone = k / (math.exp(epsilon0) + k - 1)
    alone = _gain(epsilon0, epsilon) / (math.exp(epsilon0) + k - 1)
    outer, inner = (_OUTER_BLOCKS, 0) if k == 2 else _FEW_BLOCKS if reports <= _FEW_REPORTS else _MANY_BLOCKS
    negligible = _NEGLIGIBLE * 1e-12
    for _ in range(2):
        first, _last, weight, outside = _blocks(reports - 1, clone, negligible, outer)
        inside = float(weight @ _given_items(first + 1, epsilon0, epsilon, k, negligible, inner))
        if outside * alone <= _NEGLIGIBLE * inside or negligible < 1e-290:
            break
        negligible = max(1e-300, _NEGLIGIBLE * inside * 1e-3)
    return min(1.0, min(alone, inside + outside * alone) * _INFLATION + 1e-300)


def _smallest(delta_at: Callable[[float], float], delta: float, highest: float) -> float:
    """Return an ε, at most a part in 10⁹ above the smallest, with ``delta_at(ε) ≤ delta``; δ falls as ε grows.

    ``highest`` must be such an ε. False position on ln δ (the Illinois form: an end that stays has its height
    halved), with a bisection whenever three steps have not halved the bracket. The end returned has been tried.
    """
    target = math.log(delta)
    low, high = 0.0, highest
    over = math.log(max(delta_at(low), 1e-320)) - target
    if over <= 0:
        return 0.0
    under = math.log(max(delta_at(high), 1e-320)) - target
    before, steps, moved = high, 0, 0
    while high - low > 1e-9 * high:
        steps += 1
        if steps % 4 == 0 and high - low > before / 2:
            middle, moved = (low + high) / 2, 0
        else:
            middle = low + (high - low) * over / (over - under)
            middle = min(max(middle, low + 4e-10 * high), high - 4e-10 * high)
        if steps % 4 == 0:
            before = high - low
        value = math.log(max(delta_at(middle), 1e-320)) - target
        if value <= 0:
            high, under = middle, value
            over = over / 2 if moved == 1 else over
            moved = 1
        else:
            low, over = middle, value
            under = under / 2 if moved == -1 else under
            moved = -1
    return high


@lru_cache(maxsize=1024)
def shuffled_epsilon(epsilon0: float, reports: int, delta: float, *, k: int = 2) -> float:
    """Return an upper bound on the central ε at δ of ``reports`` shuffled reports of one ε₀-LDP randomizer.

    It never exceeds ε₀ nor Theorem 7's closed bound, being the least of the three. ``k`` as in ``shuffled_delta``.
    """
    check_shuffle(epsilon0, reports, delta)
    highest = epsilon0 if reports < 2 else min(epsilon0, closed_epsilon(epsilon0, reports, delta))
    return _smallest(lambda epsilon: shuffled_delta(epsilon0, reports, epsilon, k=k), delta, highest)


@njit(cache=True)
def sums_of_two(probability: float, others: int) -> Floats:
    """Return the law of Bin(m, 1−p) + Bin(others−m, p) for m = 0…others, a row each, without what is below 10⁻¹⁵⁰."""
    rows = np.zeros((others + 1, others + 1))
    log_factorial = np.zeros(others + 1)
    for i in range(1, others + 1):
        log_factorial[i] = log_factorial[i - 1] + math.log(i)
    low = math.log(probability)
    high = math.log1p(-probability)
    first = np.empty(others + 1)
    second = np.empty(others + 1)
    for m in range(others + 1):
        rest = others - m
        for i in range(m + 1):
            first[i] = math.exp(log_factorial[m] - log_factorial[i] - log_factorial[m - i] + i * high + (m - i) * low)
        for i in range(rest + 1):
            second[i] = math.exp(
                log_factorial[rest] - log_factorial[i] - log_factorial[rest - i] + i * low + (rest - i) * high
            )
        start, stop = 0, rest
        while second[start] < _DROPPED:
            start += 1
        while second[stop] < _DROPPED:
            stop -= 1
        for i in range(m + 1):
            if first[i] >= _DROPPED:
                for j in range(start, stop + 1):
                    rows[m, i + j] += first[i] * second[j]
    return rows


class ExactBinaryShuffle:
    """The exact privacy of shuffled binary randomized response, over every data set that the others can hold.

    Time and memory grow with the square of the number of reports, which is limited to 4,096: it exists to check the
    bounds, and the bounds to be used. A δ below about 10⁻¹⁴⁰ is not to be trusted.
    """

    def __init__(self, *, epsilon0: float, reports: int) -> None:
        check_shuffle(epsilon0, reports)
        if not reports <= _EXACT_LIMIT:
            raise ParameterError(f"the exact computation is for at most {_EXACT_LIMIT} reports, not {reports}")
        self._epsilon0 = epsilon0
        self._flip = 1 / (math.exp(epsilon0) + 1)
        rows = sums_of_two(self._flip, reports - 1)
        zero = np.zeros((reports, 1))
        self._at = np.hstack([rows, zero])
        self._before = np.hstack([zero, rows])

    def delta(self, epsilon: float) -> float:
        """Return the exact δ at ``epsilon``: the worst over the others' values, in the worse direction."""
        stay = self._flip * _gain(self._epsilon0, epsilon)
        move = self._flip * math.expm1(epsilon + self._epsilon0)
        # The other direction is the mirror image: the same row with the others' values flipped.
        return float(np.maximum(stay * self._at - move * self._before, 0).sum(axis=1).max())

    def epsilon(self, delta: float) -> float:
        """Return the exact ε at ``delta``, to a part in 10⁹."""
        return _smallest(self.delta, delta, self._epsilon0)
