"""Numerical privacy amplification by shuffling: a user hides among the clones that the others' randomizers make.

Each report of the others is split into two cases. With some probability it is a *clone*, drawn from a law that does not
depend on its sender; otherwise we assume that the adversary knows it. One user remains among C clones, and C is
binomial. For k-ary randomized response, a clone is uniform over the k values and has probability k/(e^ε₀ + k − 1)
(Balle, Bell, Gascón and Nissim 2019; Feldman, McMillan and Talwar 2021). For *any* ε₀-LDP randomizer, the binary case
k = 2 is an upper bound. docs/shuffling.md has the proof; it also covers the general case that the erratum of "Stronger
Privacy Amplification by Shuffling" (2023) withdrew.

Every step gives an upper bound on δ. Tails are added, not dropped. A block of values of C is replaced by its smallest
value, because more clones never reveal more. Floats are rounded towards more δ: fewer clones, a higher threshold,
heavier blocks. The sum is multiplied by 1 + 10⁻⁸, a thousand times the error of ``aggservice.mechanisms.binomial``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numba import njit

from aggservice.mechanisms.binomial import MOST_TRIALS, RELATIVE_ERROR, Binomial, Floats, shortfalls
from aggservice.mechanisms.errors import ParameterError
from aggservice.mechanisms.shuffling import check_shuffle, check_whole, closed_epsilon

#: A thousand times ``RELATIVE_ERROR``. A block's weight and its shortfall have that error each; everything else, such
#: as the sum of some thousand positive terms, has an error of about 10⁻¹³.
_INFLATION = 1 + 1e-8
#: A few units in the last place: more than the error of an exponential or a hyperbolic tangent.
_NUDGE = 2.0**-48
_OUTER_BLOCKS = 512
#: For more than two values: the number of blocks for the number of clones, and for how many of the clones have one of
#: the user's two values. Up to ``_FEW_REPORTS`` reports each number is a block; beyond, blocks cost about 0.1 % of ε.
_FEW_REPORTS = 4096
_FEW_BLOCKS = (400, 2000)
_MANY_BLOCKS = (96, 400)
_NEGLIGIBLE = 1e-7
#: For a larger ε₀, 2⁵⁰ reports over 2⁵⁰ values have no clone among them, and e^ε₀ would exceed the range of floats.
_NO_CLONES = 300
_EXACT_LIMIT = 4096
_EXACT_EPSILON = 300
_DROPPED = 1e-150


def _blocks(law: Binomial, negligible: float, most: int) -> tuple[Floats, Floats, Floats, float]:
    """Divide the range of a binomial law into at most ``most`` blocks of consecutive values.

    Return the first value, the last value and the probability of each block, and the probability outside all blocks,
    which is at most ``negligible``. Each probability is exact or too small, by at most a relative ``RELATIVE_ERROR``.
    """
    half = negligible / 2
    # Bernstein's form of Chernoff's bound: each tail beyond this width has less than half of ``negligible``.
    reach = -math.log(half)
    mean = law.trials * law.chance
    width = Fraction(reach / 3 + math.sqrt(reach**2 / 9 + 2 * float(mean * (1 - law.chance)) * reach))
    low = max(0, math.floor(mean - width))
    high = min(law.trials, math.ceil(mean + width))
    below, above = law.tails(np.array([low, high + 1.0]))
    outside = float(below[0] + above[1])
    if high - low < most:
        first = np.arange(low, high + 1, dtype=np.float64)
        return first, first, law.masses(low, high), outside
    edges = np.unique(np.floor(np.linspace(low, high + 1, most + 1)))
    below, above = law.tails(edges)
    # A difference of two tails may lose all its digits: add the most that it can have lost.
    left = np.diff(below) + RELATIVE_ERROR * (below[1:] + below[:-1])
    right = -np.diff(above) + RELATIVE_ERROR * (above[1:] + above[:-1])
    weight = np.where(below[1:] < above[:-1], left, right)
    return edges[:-1], edges[1:] - 1, np.maximum(weight, 0), outside


def _gain(epsilon0: float, epsilon: float) -> float:
    """Return e^ε₀ − e^ε, precise also if the two are close."""
    return -math.exp(epsilon0) * math.expm1(epsilon - epsilon0)


def _given_items(items: Floats, epsilon0: float, epsilon: float, k: int, negligible: float, blocks: int) -> Floats:
    """Return the δ of one user among ``items − 1`` clones, for each entry of ``items``.

    Let M items be uniform on k values, of which a have the user's first possible value, b the second, and c = M − a − b
    another one. Then δ = E[(aA + bB + cD)₊]·k/(M(e^ε₀ + k − 1)) with A = e^ε₀ − e^ε, B = 1 − e^(ε₀+ε) and D = 1 − e^ε.
    Given m = a + b, b is Bin(m, ½). For a block of values of m, take the largest m and shift by the mean: this bounds
    the expectation, because a centred sum of more terms is larger in convex order.
    """
    share = math.tanh(epsilon / 2) / math.tanh(epsilon0 / 2)  # −(A + B)/(A − B)
    # 2A/(A − B), which is 1 − share, from numbers that neither cancel nor overflow
    rest = 2 * math.expm1(epsilon - epsilon0) / (math.expm1(-epsilon0) * (math.exp(epsilon) + 1))
    fall = math.tanh(epsilon / 2) * math.exp(-epsilon0) / -math.expm1(-epsilon0)  # −D/(A − B)
    likely = k / (math.exp(epsilon0) + k - 1)
    scale = likely * math.expm1(epsilon0) * (math.exp(epsilon) + 1)  # of A − B
    if k == 2:
        threshold = items / 2 * rest * (1 + _NUDGE)
        return scale / items * shortfalls(threshold, items / 2 * share * (1 - _NUDGE), items)
    delta = np.empty_like(items)
    for index, count in enumerate(items):
        law = Binomial(trials=int(count), chance=Fraction(2, k))
        low, high, weight, outside = _blocks(law, negligible, blocks)
        more = high * (rest / 2) + (high - low) * (share / 2)
        less = (count - high) * fall
        deficit = (low * (share / 2) + less) * (1 - _NUDGE)
        threshold = (more - less) + (more + less) * _NUDGE
        inside = float(weight @ shortfalls(threshold, deficit, high)) * scale / count
        delta[index] = inside + outside * likely * _gain(epsilon0, epsilon)
    return delta


def _clones(epsilon0: float, k: int) -> Fraction:
    """Return the probability of a clone, k/(e^ε₀ + k − 1), rounded down: fewer clones never reveal less."""
    total = math.exp(epsilon0) + k - 1
    others = math.expm1(epsilon0) / total
    if others < 0.5:
        return 1 - Fraction(max(others * (1 + _NUDGE), 1e-300))
    return Fraction(k / total * (1 - _NUDGE))


def _check_values(k: int) -> None:
    check_whole(k, "the number of values of randomized response")
    if not 2 <= k <= MOST_TRIALS:
        raise ParameterError(f"randomized response must have from 2 to 2**50 values, not {k!r}")


def shuffled_delta(epsilon0: float, reports: int, epsilon: float, *, k: int = 2) -> float:
    """Return an upper bound on the δ at ``epsilon`` of ``reports`` shuffled reports of one ε₀-LDP randomizer.

    With ``k = 2`` it holds for every randomizer; with a larger k, only for k-ary randomized response, and is smaller.
    If there are more than 2⁵⁰ reports, only 2⁵⁰ count, which is safe: the bound holds even if the others are known.
    """
    check_shuffle(epsilon0, reports)
    _check_values(k)
    if not epsilon >= 0:
        raise ParameterError(f"the central epsilon must be a number of at least 0, not {epsilon!r}")
    reports = min(int(reports), MOST_TRIALS)
    if epsilon >= epsilon0:
        return 0.0
    alone = -math.expm1(epsilon - epsilon0) / (1 + (k - 1) * math.exp(-epsilon0))
    if epsilon0 > _NO_CLONES:
        return min(1.0, alone * _INFLATION)
    clones = Binomial(trials=reports - 1, chance=_clones(epsilon0, k))
    outer, inner = (_OUTER_BLOCKS, 0) if k == 2 else _FEW_BLOCKS if reports <= _FEW_REPORTS else _MANY_BLOCKS
    negligible = _NEGLIGIBLE * 1e-12
    for _ in range(2):
        first, _last, weight, outside = _blocks(clones, negligible, outer)
        inside = float(weight @ _given_items(first + 1, epsilon0, epsilon, k, negligible, inner))
        if outside * alone <= _NEGLIGIBLE * inside or negligible < 1e-290:
            break
        negligible = max(1e-300, _NEGLIGIBLE * inside * 1e-3)
    return min(1.0, min(alone, inside + outside * alone) * _INFLATION + 1e-300)


def _smallest(delta_at: Callable[[float], float], delta: float, highest: float) -> float:
    """Return the smallest ε with ``delta_at(ε) ≤ delta``, or one that is above it by at most a relative 10⁻⁹.

    ``delta_at`` must be decreasing. ``highest`` must be known to be such an ε; it is returned if ``delta_at`` cannot
    confirm it. The search is the Illinois form of false position on ln δ, with a bisection if three steps did not halve
    the interval. It returns only an ε at which ``delta_at`` was evaluated.
    """
    target = math.log(delta)
    low, high = 0.0, highest
    over = math.log(max(delta_at(low), 1e-320)) - target
    if over <= 0:
        return 0.0
    under = math.log(max(delta_at(high), 1e-320)) - target
    if under > 0 or high < 1e-290:
        return high
    before, steps, moved = high, 0, 0
    while high - low > 1e-9 * high:
        steps += 1
        if steps % 4 == 0 and high - low > before / 2:
            middle, moved = low + (high - low) / 2, 0
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


@lru_cache(maxsize=1024, typed=True)  # by type: 1000.0 must be refused even if 1000 is cached
def shuffled_epsilon(epsilon0: float, reports: int, delta: float, *, k: int = 2) -> float:
    """Return an upper bound on the central ε at δ of ``reports`` shuffled reports of one ε₀-LDP randomizer.

    It is the least of the numerical bound, ε₀ and Theorem 7's closed bound. ``k`` is as in ``shuffled_delta``.
    """
    check_shuffle(epsilon0, reports, delta)
    _check_values(k)
    highest = epsilon0 if reports < 2 else min(epsilon0, closed_epsilon(epsilon0, reports, delta))
    return _smallest(lambda epsilon: shuffled_delta(epsilon0, reports, epsilon, k=k), delta, highest)


@njit(cache=True)
def sums_of_two(probability: float, others: int) -> Floats:
    """Return the law of Bin(m, 1−p) + Bin(others−m, p), one row per m = 0…others; factors below 10⁻¹⁵⁰ count as 0."""
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

    Use it to check the bounds: time and memory grow with the square of the number of reports, at most 4,096. Do not
    rely on a δ below about 10⁻¹⁴⁰.
    """

    def __init__(self, *, epsilon0: float, reports: int) -> None:
        check_shuffle(epsilon0, reports)
        if not epsilon0 <= _EXACT_EPSILON:
            raise ParameterError(f"this class needs a local epsilon of at most {_EXACT_EPSILON}, not {epsilon0!r}")
        if not reports <= _EXACT_LIMIT:
            raise ParameterError(f"this class takes at most {_EXACT_LIMIT} reports, not {reports}")
        self._epsilon0 = epsilon0
        self._flip = 1 / (math.exp(epsilon0) + 1)
        rows = sums_of_two(self._flip, reports - 1)
        zero = np.zeros((reports, 1))
        self._at = np.hstack([rows, zero])
        self._before = np.hstack([zero, rows])

    def delta(self, epsilon: float) -> float:
        """Return the exact δ at ``epsilon``: the largest over the others' values and both directions."""
        if not epsilon >= 0:
            raise ParameterError(f"the central epsilon must be a number of at least 0, not {epsilon!r}")
        if epsilon >= self._epsilon0:
            return 0.0
        stay = self._flip * _gain(self._epsilon0, epsilon)
        move = self._flip * math.expm1(epsilon + self._epsilon0)
        # The other direction is the mirror image: the same row with the others' values flipped.
        return float(np.maximum(stay * self._at - move * self._before, 0).sum(axis=1).max())

    def epsilon(self, delta: float) -> float:
        """Return the exact ε at ``delta``, with a relative error of at most 10⁻⁹."""
        check_shuffle(self._epsilon0, 1, delta)
        return _smallest(self.delta, delta, self._epsilon0)
