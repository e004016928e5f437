"""Lower bounds on ε: limits are Clopper and Pearson's, a bound is rarely above the truth, and events are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from aggservice.audit.bounds import (
    choose_event,
    gaussian_epsilon,
    limited_epsilon,
    lower_bound,
    lower_limit,
    upper_limit,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (10, 10), (37, 100), (5000, 10_000)])
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_limits_are_those_of_the_binomial_law(hits: int, trials: int, alpha: float) -> None:
    """At the lower limit, so many hits or more have probability α; at the upper one, so many or fewer."""
    low, high = lower_limit(hits, trials, alpha), upper_limit(hits, trials, alpha)
    assert low <= hits / trials <= high
    if hits:
        assert binom.sf(hits - 1, trials, low) == pytest.approx(alpha, rel=1e-6)
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(alpha, rel=1e-6)


def test_a_bound_exceeds_the_truth_no_more_often_than_it_says() -> None:
    """Randomized response of ε = 1 at α = 0.05, exactly: Σ over all counts of two worlds of 60 trials."""
    truth = math.e / (math.e + 1)
    wrong = sum(
        binom.pmf(p, 60, truth) * binom.pmf(q, 60, 1 - truth)
        for p in range(61)
        for q in range(61)
        if limited_epsilon((p, 60), (q, 60), 0.0, 0.05) > 1
    )
    assert 0 < wrong <= 0.05


@pytest.mark.parametrize("world", [0, 1])
def test_each_world_has_half_of_the_chance_to_be_wrong(world: int) -> None:
    """The other world has so many trials that its limit is the truth: then a bound is wrong with at most α/2, exactly.

    Over a grid of truths the worst one comes close to it, because an interval for 60 trials is exact where it ends.
    """
    many, alpha, worst = 10**9, 0.05, 0.0
    for truth in np.linspace(0.02, 0.9, 400):
        known = round(many * (1 - 1e-4)) if world else round(many * truth / 2)
        wrong = 0.0
        for hits in range(61):
            counted = ((known, many), (hits, 60)) if world else ((hits, 60), (known, many))
            epsilon = math.log(known / many / truth) if world else math.log(truth / (known / many))
            # The other world's own limit is off by less than a thousandth.
            wrong += binom.pmf(hits, 60, truth) * (limited_epsilon(*counted, 0.0, alpha) > max(epsilon, 0) + 1e-3)
        worst = max(worst, wrong)
    assert 0.6 * alpha / 2 < worst <= alpha / 2


def test_the_half_that_chooses_an_event_does_not_judge_it() -> None:
    """What tells the worlds apart in one half of the trials only is found or judged there, and never both."""
    trials = np.arange(4000)
    for half in (0, 1):
        tells = (trials % 2 == half).astype(np.int64)
        first, second = {"tell": tells}, {"tell": np.zeros(4000, dtype=np.int64)}
        assert lower_bound(first, second, delta=0.0, alpha=1e-6).epsilon == 0
    always = {"tell": np.ones(4000, dtype=np.int64)}
    assert lower_bound(always, second, delta=0.0, alpha=1e-6).epsilon > 4


def test_an_event_is_found_in_any_feature_and_direction() -> None:
    """Independent of chance: a feature that differs by certainty, hidden among others that say nothing."""
    rng = np.random.default_rng(1)
    same = rng.integers(0, 1 << 20, 2000)
    worlds = [{"noise": same, "tell": np.full(2000, tell)} for tell in (4, 7)]
    event = choose_event(worlds[0], worlds[1], 0.0, 1e-6)
    assert event.feature == "tell"
    first, second = (event.count(world)[0] for world in worlds)
    assert {first, second} == {0, 2000}


@pytest.mark.parametrize("shift", [65_536, -65_536])
def test_laplace_noise_shows_most_of_its_epsilon(shift: int) -> None:
    """Both signs; the bound is above 1 with probability at most 10⁻⁶, and below 0.8 with one below 10⁻⁹."""
    rng = np.random.default_rng()
    first, second = ({"metric": np.rint(rng.laplace(0, 65_536, 60_000)).astype(np.int64) + move} for move in (shift, 0))
    assert 0.8 < lower_bound(first, second, delta=0.0, alpha=1e-6).epsilon <= 1


def test_a_bound_is_the_same_whichever_world_is_given_first() -> None:
    """Shown in half of the trials of one world and in 2 % of the other: ln 25 one way, ln 1.96 the other way.

    No chance is involved: the samples are given.
    """
    often, rarely = ({"shown": (np.arange(20_000) % 100 < share).astype(np.int64)} for share in (50, 2))
    found = [lower_bound(*pair, delta=0.0, alpha=1e-6).epsilon for pair in ((often, rarely), (rarely, often))]
    assert found[0] == found[1] and 2.8 < found[0] < math.log(25)


def test_delta_is_taken_off() -> None:
    """Shown once in 201 trials of one world, never in the other: nothing at δ = 0.01, much at δ = 0."""
    first, second = {"shown": np.arange(100_000) % 201 == 0}, {"shown": np.zeros(100_000, dtype=np.int64)}
    first = {"shown": first["shown"].astype(np.int64)}
    assert lower_bound(first, second, delta=0.01, alpha=1e-6).epsilon == 0
    assert lower_bound(first, second, delta=0.0, alpha=1e-6).epsilon > 1


def test_gaussian_noise_has_the_curve_of_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    for rho in (0.05, 0.5, 2.0):
        law = privacy_loss_distribution.from_gaussian_mechanism(
            (1 / (2 * rho)) ** 0.5, value_discretization_interval=1e-4
        )
        for delta in (0.1, 1e-5):
            assert gaussian_epsilon(rho, delta) == pytest.approx(law.get_epsilon_for_delta(delta), abs=3e-4)
