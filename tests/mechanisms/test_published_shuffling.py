"""Our shuffling bounds beside the published ones for the same randomizer: ours must not be the larger.

The published forms are written out here from the papers:

* Balle, Bell, Gascón and Nissim, "The Privacy Blanket of the Shuffle Model" (CRYPTO 2019), in its Hoeffding and
  Bennett forms, for any randomizer and with the parameters of k-ary randomized response.
* Feldman, McMillan and Talwar, "Hiding Among the Clones" (FOCS 2021), Theorem 3.1.
* Feldman, McMillan and Talwar, "Stronger Privacy Amplification by Shuffling for Rényi and Approximate Differential
  Privacy" (SODA 2023), the closed form of their general bound and their pair with clones of probability 2/(e^ε₀ + 1).
* Su, Cheng and Wang, "Decomposition-Based Optimal Bounds for Privacy Amplification via Shuffling" (2025): the best that
  any decomposition gives is the blanket's expectation itself, here as a sum over all counts.

The k-ary pairs of the 2023 paper's Theorem 5.2 and of the variation-ratio reduction are not among them: they lie below
the exact value (``test_the_withdrawn_pair_for_k_ary_response_is_refuted_by_enumeration``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom

from aggservice.mechanisms import shuffled_epsilon
from aggservice.mechanisms.clones import shuffled_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Blanket:
    """What the blanket bounds need: its weight γ, and of L = (R(x)(W) − e^ε R(x')(W))/ω(W) largest, range and E L²."""

    weight: float
    largest: float
    width: float
    square: float


def any_blanket(epsilon0: float, epsilon: float) -> Blanket:
    """For any ε₀-LDP randomizer, when all that is known of γ is e^−ε₀ ≤ γ ≤ 1 (their Lemma 5.3)."""
    high, low, grown = math.exp(epsilon0), math.exp(-epsilon0), math.exp(epsilon)
    return Blanket(
        weight=low,
        largest=high * (1 - grown * low * low),
        width=(grown + 1) * (high - low),
        square=high * (grown**2 + 1) - 2 * low * grown * low * low,
    )


def response_blanket(epsilon0: float, epsilon: float, k: int) -> Blanket:
    """For k-ary response L is γ(1 − e^ε), plus (1 − γ)k with probability 1/k, less (1 − γ)k·e^ε with 1/k."""
    grown = math.exp(epsilon)
    weight = k / (math.exp(epsilon0) + k - 1)
    jump, base = (1 - weight) * k, weight * (1 - grown)
    values = np.array([base + jump, base - jump * grown, base])
    chances = np.array([1 / k, 1 / k, 1 - 2 / k])
    assert float(chances @ values) == pytest.approx(1 - grown)
    return Blanket(weight=weight, largest=base + jump, width=jump * (1 + grown), square=float(chances @ values**2))


def hoeffding(blanket: Blanket, reports: int, epsilon: float) -> float:
    """Return τ²/(4aγn)·(1 − γ(1 − e^(−2a²/τ²)))^n with a = e^ε − 1 and τ the range."""
    a, g = math.expm1(epsilon), blanket.weight
    log = reports * math.log1p(g * math.expm1(-2 * a**2 / blanket.width**2))
    return blanket.width**2 / (4 * a * g * reports) * math.exp(log)


def bennett(blanket: Blanket, reports: int, epsilon: float) -> float:
    """Return the mean over m ~ Bin(n, γ), m ≥ 1, of b/(γn ln(1 + β))·e^(−mαφ(β)), α = c/b², β = ab/c."""
    a, g, b, c = math.expm1(epsilon), blanket.weight, blanket.largest, blanket.square
    beta = a * b / c
    rate = c / b**2 * ((1 + beta) * math.log1p(beta) - beta)
    mean = math.exp(reports * math.log1p(g * math.expm1(-rate))) - math.exp(reports * math.log1p(-g))
    return b / (g * reports * math.log1p(beta)) * mean


def clones_of_2021(epsilon0: float, reports: int, delta: float) -> float:
    if not epsilon0 <= math.log(reports / (16 * math.log(2 / delta))):
        return epsilon0
    grown = math.exp(epsilon0)
    part = 8 * math.sqrt(grown * math.log(4 / delta) / reports) + 8 * grown / reports
    return math.log1p((grown - 1) / (grown + 1) * part)


def clones_of_2023(epsilon0: float, reports: int, delta: float) -> float:
    if not math.exp(epsilon0) + 1 <= reports / (8 * math.log(2 / delta)):
        return epsilon0
    grown = math.exp(epsilon0)
    return math.log1p((grown - 1) * (4 * math.sqrt(2 * math.log(4 / delta) / ((grown + 1) * reports)) + 4 / reports))


def smallest(delta_at: Callable[[float], float], delta: float, highest: float) -> float | None:
    """Return the least ε in (0, highest) with ``delta_at(ε) ≤ delta``, or None where the bound says nothing."""
    low, high = highest * 1e-9, highest * (1 - 1e-9)
    if delta_at(high) > delta:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


GRID = list(itertools.product((0.1, 0.5, 1.0, 2.0, 4.0), (1_000, 30_000, 10**6, 10**9), (1e-4, 1e-6, 1e-10)))


def test_the_general_bound_is_at_most_the_published_closed_ones() -> None:
    told = dict.fromkeys(("Hoeffding", "Bennett", "2021", "2023"), 0)
    for epsilon0, reports, delta in GRID:
        ours = shuffled_epsilon(epsilon0, reports, delta)
        theirs = {
            "Hoeffding": smallest(lambda e: hoeffding(any_blanket(epsilon0, e), reports, e), delta, epsilon0),  # noqa: B023
            "Bennett": smallest(lambda e: bennett(any_blanket(epsilon0, e), reports, e), delta, epsilon0),  # noqa: B023
            "2021": clones_of_2021(epsilon0, reports, delta),
            "2023": clones_of_2023(epsilon0, reports, delta),
        }
        for name, bound in theirs.items():
            if bound is not None and bound < epsilon0:
                told[name] += 1
                assert ours <= bound, (name, epsilon0, reports, delta)
    # Where a bound says nothing there is nothing to compare: it must say something often.
    assert told == {"Hoeffding": 49, "Bennett": 49, "2021": 53, "2023": 56}


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_the_bound_for_k_ary_response_is_at_most_the_blankets(k: int) -> None:
    """At the ε of theirs our δ is at most the δ asked for, which is to say that our ε is at most theirs."""
    compared = 0
    for epsilon0, reports, delta in itertools.product((0.3, 1.0, 3.0), (500, 20_000, 10**7), (1e-4, 1e-8)):
        for form in (hoeffding, bennett):
            theirs = smallest(lambda e: form(response_blanket(epsilon0, e, k), reports, e), delta, epsilon0)  # noqa: B023
            if theirs is not None:
                compared += 1
                assert shuffled_delta(epsilon0, reports, theirs, k=k) <= delta, (form, epsilon0, reports, delta)
    assert compared >= 33


def pair_of_2023(epsilon0: float, reports: int, epsilon: float) -> float:
    """Their (A + Δ, C − A + 1 − Δ) against its mirror, C ~ Bin(n − 1, 2/(e^ε₀ + 1)), value by value of C.

    Given C, P/Q falls with the count of the second value, so the event is a tail of two neighbouring binomials.
    """
    keep = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
    c = np.arange(reports)
    weight = binom.pmf(c, reports - 1, 2 / (math.exp(epsilon0) + 1))
    c, weight = c[weight > 1e-18], weight[weight > 1e-18]
    # x of the c + 1 items show the user's value; P(x)/Q(x) = (keep·x + flip·(c+1−x))/(flip·x + keep·(c+1−x)).
    grown = math.exp(epsilon)
    share = (grown * keep - (1 - keep)) / ((2 * keep - 1) * (1 + grown))
    cut = np.ceil(share * (c + 1))
    at, before = binom.sf(cut - 1, c, 0.5), binom.sf(cut - 2, c, 0.5)
    one, two = keep * before + (1 - keep) * at, (1 - keep) * before + keep * at
    return float(weight @ np.maximum(one - grown * two, 0))


@pytest.mark.parametrize("reports, loss", [(200, 1e-7), (3000, 1e-4), (100_000, 3e-4)])
def test_the_general_bound_is_the_pair_of_2023(reports: int, loss: float) -> None:
    """Few reports are summed as they are; of many, blocks of clones cost at most this share of ε."""
    compared = 0
    for epsilon0, delta in itertools.product((0.2, 1.0, 3.0, 5.0), (1e-3, 1e-6, 1e-9)):
        ours = shuffled_epsilon(epsilon0, reports, delta)
        if ours > 0.999 * epsilon0:
            continue
        compared += 1
        assert pair_of_2023(epsilon0, reports, ours) <= delta * (1 + 1e-9)
        assert ours == 0 or pair_of_2023(epsilon0, reports, ours * (1 - loss)) > delta
    assert compared >= 8


def blanket_of_response(epsilon0: float, reports: int, epsilon: float, k: int) -> float:
    """E[(L₁ + … + L_n)₊]/n for k-ary response, over every count of the user's two values and of the other clones."""
    log = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, reports + 1)))])
    high, grown = math.exp(epsilon0), math.exp(epsilon)
    unit = 1 / (high + k - 1)
    a, b, c = np.ogrid[: reports + 1, : reports + 1, : reports + 1]
    rest = reports - a - b - c
    inside = rest >= 0
    rest = np.where(inside, rest, 0)
    chance = log[reports] - log[a] - log[b] - log[c] - log[rest]
    chance = chance + (a + b) * math.log(unit) + c * math.log((k - 2) * unit) + rest * math.log1p(-k * unit)
    total = a * (high - grown) + b * (1 - high * grown) + c * (1 - grown)
    return float(np.where(inside, np.exp(chance) * np.maximum(total, 0), 0).sum()) / reports


@pytest.mark.parametrize("k", [3, 4, 20])
@pytest.mark.parametrize("reports", [2, 9, 60])
def test_the_bound_for_k_ary_response_is_the_best_of_all_decompositions(k: int, reports: int) -> None:
    """To a δ of 10⁻²⁵; below, what the sum leaves out at its sides is added and may be most of the bound."""
    compared = 0
    for epsilon0, share in itertools.product((0.3, 1.5, 4.0), (0.05, 0.3, 0.7, 0.95)):
        exact = blanket_of_response(epsilon0, reports, share * epsilon0, k)
        if exact < 1e-25:
            continue
        compared += 1
        bound = shuffled_delta(epsilon0, reports, share * epsilon0, k=k)
        assert exact <= bound <= exact * (1 + 3e-7)
    assert compared >= 9
