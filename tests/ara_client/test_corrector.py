"""The corrector is unbiased and knows its own variance.

Statistical tests reject a correct corrector with probability at most 2e-7 each; the normal approximation behind
them is good to far below that at the sizes used.
"""

from __future__ import annotations

from fractions import Fraction
from math import expm1, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggservice.mechanisms import ParameterError, SecureBits
from ara_client import Corrector, StateSpace, TriggerDataSpec, draw_states, response_rate
from ara_client.event_noise.corrector import CorrectedCount
from ara_client.event_noise.response import TRUTHFUL

FALSE_ALARM = 1e-7
FIGURE_3 = StateSpace([TriggerDataSpec(trigger_data=data, windows=2, buckets=2) for data in range(2)], 3)
KINDS: list[dict[str, int]] = [
    {"trigger_data": 0},
    {"trigger_data": 1, "window": 1},
    {"trigger_data": 0, "bucket": 1},
    {"trigger_data": 1, "window": 0, "bucket": 0},
]


def of_kind(space: StateSpace, kind: dict[str, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return, by rank, how many reports of the kind a state has."""
    return np.array(
        [
            sum(
                report.trigger_data == kind["trigger_data"]
                and kind.get("window") in (None, report.window_index)
                and kind.get("bucket") in (None, report.bucket_index)
                for report in space.at(rank)
            )
            for rank in range(space.count)
        ]
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 26), min_size=1, max_size=40), st.sampled_from(KINDS), st.fractions(Fraction(1, 8), 6))
def test_expectation_over_the_noise_is_the_truth(truth: list[int], kind: dict[str, int], epsilon: Fraction) -> None:
    """The estimate is linear in the sources, so the expectation is a sum over them, without any sampling."""
    corrector = Corrector(FIGURE_3, epsilon=epsilon)
    numbers = of_kind(FIGURE_3, kind)
    p = response_rate(27, float(epsilon))
    mean = variance = 0.0
    for state in truth:
        outcomes = np.concatenate(([numbers[state]], numbers))
        chances = np.concatenate(([1 - p], np.full(27, p / 27)))
        estimates = np.array([corrector.total(int(n), 1, **kind).value for n in outcomes])
        mean += float(chances @ estimates)
        variance += float(chances @ estimates**2 - (chances @ estimates) ** 2)
    assert mean == pytest.approx(sum(numbers[truth]), abs=1e-9)
    # The true variance lies below the bound that needs only the (expected) total.
    expected_total = round((1 - p) * sum(numbers[truth]) + p * len(truth) * numbers.mean())
    slack = 1.5 * numbers.max() ** 2 * p / (1 - p) ** 2 + 1e-9
    assert variance <= corrector.total(expected_total, len(truth), **kind).variance + slack


@pytest.mark.parametrize("epsilon", [1e-20, 1e-15, 1e-12, 1e-6, 1.0])
@pytest.mark.parametrize("buckets", [2, 12])
def test_estimates_keep_their_digits_where_nearly_all_is_noise(epsilon: float, buckets: int) -> None:
    """1 − p taken as a double minus a double is off by a tenth at ε = 1e-15, and 0 below that; so is the difference
    of what is observed and what the noise alone sends, for a space of 10¹⁷ states at any ε."""
    space = StateSpace([TriggerDataSpec(trigger_data=d, windows=5, buckets=buckets) for d in range(8)], 2 * buckets)
    truth = expm1(epsilon) / (expm1(epsilon) + space.count)
    law = space.report_counts(3, window=1)
    mean = sum(m * mass for m, mass in enumerate(law))
    corrector = Corrector(space, epsilon=Fraction(epsilon))
    for reports in (0, 123_456, 1_000_000):
        wanted = float(reports - 10**6 * mean) / truth + float(10**6 * mean)
        assert corrector.total(reports, 10**6, trigger_data=3, window=1).value == pytest.approx(wanted, rel=1e-12)
        histogram = [10**6 - reports, reports]
        found = corrector.reports(histogram, trigger_data=3, window=1)
        assert found.value == pytest.approx(wanted, rel=1e-12)
        assert found.variance > 0


def test_estimates_of_states_keep_their_digits() -> None:
    epsilon = 1e-15
    truth = expm1(epsilon) / (expm1(epsilon) + 27)
    estimates, variances = Corrector(FIGURE_3, epsilon=Fraction(epsilon)).states([1000] * 26 + [1027])
    assert estimates == pytest.approx([1001 - 1 / truth] * 26 + [1001 + 26 / truth], rel=1e-12)
    assert (variances > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_and_variances_agree_with_simulation(kind: dict[str, int]) -> None:
    """200 populations of 5,000 sources at ε = 1.5: errors in units of their standard error are standard normal."""
    rng = np.random.default_rng(11)
    epsilon, numbers = Fraction(3, 2), of_kind(FIGURE_3, kind)
    corrector = Corrector(FIGURE_3, epsilon=epsilon)
    truth = rng.choice(27, size=5_000, p=rng.dirichlet(np.ones(27)))
    errors = []
    inside = 0
    for _ in range(200):
        drawn = draw_states(SecureBits(), 27, epsilon, truth.size)
        sent = numbers[np.where(drawn == TRUTHFUL, truth, drawn)]
        estimate = corrector.reports(np.bincount(sent).tolist(), **kind)
        bound = corrector.total(int(sent.sum()), truth.size, **kind)
        assert bound.value == pytest.approx(estimate.value)
        assert bound.variance >= estimate.variance * 0.999
        errors.append((estimate.value - numbers[truth].sum()) / estimate.standard_error)
        low, high = estimate.interval
        inside += low <= numbers[truth].sum() <= high
    assert 2 * stats.norm.sf(abs(sum(errors)) / len(errors) ** 0.5) > FALSE_ALARM
    squares = float(np.square(errors).sum())
    assert stats.chi2(len(errors)).cdf(squares) > FALSE_ALARM / 2
    assert stats.chi2(len(errors)).sf(squares) > FALSE_ALARM / 2
    assert stats.binomtest(inside, len(errors), 0.95).pvalue > FALSE_ALARM


def test_states_are_estimated_without_bias() -> None:
    rng = np.random.default_rng(3)
    epsilon = Fraction(2)
    corrector = Corrector(FIGURE_3, epsilon=epsilon)
    truth = rng.choice(27, size=20_000, p=rng.dirichlet(np.ones(27)))
    true = np.bincount(truth, minlength=27)
    squares = 0.0
    for _ in range(40):
        drawn = draw_states(SecureBits(), 27, epsilon, truth.size)
        estimates, variances = corrector.states(np.bincount(np.where(drawn == TRUTHFUL, truth, drawn), minlength=27))
        assert estimates.sum() == pytest.approx(truth.size)
        squares += float(((estimates - true) ** 2 / variances).sum())
    # 27 estimates that sum to a constant: the sum of squares has mean 40·27; correlation only narrows its law.
    assert abs(squares / (40 * 27) - 1) < 0.5


def test_without_noise_nothing_changes() -> None:
    corrector = Corrector(FIGURE_3, epsilon=Fraction(50))
    estimate = corrector.reports([90, 8, 2], trigger_data=0)
    assert estimate.value == pytest.approx(12)
    assert estimate.variance == pytest.approx(0, abs=1e-15)
    assert Corrector(FIGURE_3, epsilon=Fraction(10**6)).reports([90, 8, 2], trigger_data=0).value == 12
    assert CorrectedCount(value=10.0, variance=4.0, confidence=0.95).interval == pytest.approx((6.08, 13.92), abs=1e-3)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ParameterError, match="too small"):
        Corrector(FIGURE_3, epsilon=Fraction(0))
    corrector = Corrector(FIGURE_3, epsilon=Fraction(1))
    for call in (
        lambda: corrector.reports([], trigger_data=0),
        lambda: corrector.reports([1, 1, 1, 1], trigger_data=0),
        lambda: corrector.reports([-1], trigger_data=0),
        lambda: corrector.reports([nan], trigger_data=0),  # type: ignore[list-item]
        lambda: corrector.reports([1], trigger_data=9),
        lambda: corrector.reports([1], trigger_data=0, confidence=1.0),
        lambda: corrector.total(3, 1, trigger_data=0),
        lambda: corrector.total(0, -1, trigger_data=0),
        lambda: corrector.states([1, 2, 3]),
        lambda: corrector.states([-1] * 27),
    ):
        with pytest.raises(ParameterError):
            call()
