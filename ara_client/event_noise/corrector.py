"""Correcting counts of event-level reports for randomized response: unbiased, with variance and interval.

A source with |O| states reports truthfully with probability 1 − p and otherwise a uniformly drawn state (Algorithm 8 of
Ghazi et al.). So if x of its reports are truly of some kind, the observed number is x with probability 1 − p and
otherwise a draw X from a known distribution with mean μ and variance σ². Over n sources with true total T the observed
total C has

    E[C] = (1−p)·T + n·p·μ,    Var[C] = n·p·σ² + p(1−p)·Σ(xᵢ−μ)²,

hence T̂ = (C − n·p·μ)/(1−p) is unbiased. Its variance covers the noise only: the true reports are fixed.

If nearly every report is random, 1 − p is lost in the rounding of p to a double, and C and n·p·μ agree to many digits.
So 1 − p comes from its own formula, and T̂ from (C − n·μ)/(1−p) + n·μ with an exact difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import ParameterError
from ara_client.event_noise.response import exact_rate, exact_truth
from ara_client.event_noise.state_space import StateSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedCount:
    """A corrected count. It is unbiased, so it may be negative; the interval is a normal approximation."""

    value: float
    variance: float
    confidence: float

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate."""
        return sqrt(self.variance)

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided interval that holds the true count with probability about ``confidence``."""
        reach = NormalDist().inv_cdf((1 + self.confidence) / 2) * self.standard_error
        return self.value - reach, self.value + reach


class Corrector:
    """Corrects counts from sources that share one specification and one ε.

    >>> from ara_client import TriggerDataSpec
    >>> space = StateSpace([TriggerDataSpec(trigger_data=data, windows=3) for data in range(8)], 3)
    >>> corrector = Corrector(space, epsilon=Fraction(14))
    >>> seen = corrector.reports([990_500, 9_400, 90, 10], trigger_data=0)
    >>> round(seen.value, 1), round(seen.standard_error, 1)
    (8757.8, 34.0)
    """

    def __init__(self, space: StateSpace, *, epsilon: Fraction) -> None:
        self.space = space
        self.rate = float(exact_rate(space.count, epsilon))
        self._truth = float(exact_truth(space.count, epsilon))
        if not self._truth**2 > 0:
            raise ParameterError("epsilon is too small: every report is random; use a larger epsilon")

    def reports(
        self,
        histogram: Sequence[int],
        *,
        trigger_data: int,
        window: int | None = None,
        bucket: int | None = None,
        confidence: float = 0.95,
    ) -> CorrectedCount:
        """Estimate how many reports of a kind the sources would have sent without noise.

        ``histogram[m]`` is the number of sources that sent exactly m reports with this trigger data and, if given,
        window and bucket, for m = 0, 1, …; include sources without reports. The estimate of the variance is unbiased,
        except that it is never below the variance of the random states alone.
        """
        law = self.space.report_counts(trigger_data, window=window, bucket=bucket)
        if not 0 < len(histogram) <= len(law):
            raise ParameterError(
                f"the histogram has {len(histogram)} entries: give 1 to {len(law)}, for 0, 1, … reports"
            )
        if not all(0 <= count < inf for count in histogram):
            raise ParameterError("the histogram has a negative or infinite entry: each entry is a number of sources")
        mean, spread = _moments(law)
        counts = [Fraction(count) for count in histogram]
        sources = sum(counts, Fraction(0))
        squares = sum((count * (m - mean) ** 2 for m, count in enumerate(counts)), Fraction(0))
        observed = sum((count * m for m, count in enumerate(counts)), Fraction(0))
        return self._estimate(observed, sources, mean, spread, self._undone(squares, sources * spread), confidence)

    def total(
        self,
        reports: int,
        sources: int,
        *,
        trigger_data: int,
        window: int | None = None,
        bucket: int | None = None,
        confidence: float = 0.95,
    ) -> CorrectedCount:
        """Estimate what ``reports`` estimates, from the total number of reports; the variance is an upper bound."""
        law = self.space.report_counts(trigger_data, window=window, bucket=bucket)
        most = len(law) - 1
        if not (sources >= 0 and 0 <= reports <= sources * most):
            raise ParameterError(f"{reports} reports from {sources} sources are impossible: give 0 to {sources * most}")
        mean, spread = _moments(law)
        true = min(max(self._undone(Fraction(reports), sources * mean), 0.0), float(sources * most))
        # For a given total, the squares are largest when each source sends the maximum or nothing.
        squares = float(most - 2 * mean) * true + float(sources * mean**2)
        return self._estimate(Fraction(reports), Fraction(sources), mean, spread, squares, confidence)

    def states(self, counts: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate how many sources are truly in each state; return the estimates and their variances.

        ``counts`` has one entry per state, in order of rank (``StateSpace.rank``). For small spaces.
        """
        observed = np.asarray(counts, dtype=np.float64)
        if observed.shape != (self.space.count,) or not (observed >= 0).all():
            raise ParameterError(f"counts must have {self.space.count} entries, one per state, each 0 or more")
        sources, mean, rate = observed.sum(), 1 / self.space.count, self.rate
        # Multiplied by the number of states, the difference is one of integers and therefore exact.
        true = (observed * self.space.count - sources) * mean / self._truth + sources * mean
        spread = np.clip(true * (1 - 2 * mean) + sources * mean**2, 0, None)
        noise = sources * rate * mean * (1 - mean)
        return true, (noise + rate * self._truth * spread) / self._truth**2

    def _undone(self, observed: Fraction, random: Fraction) -> float:
        """Return an unbiased estimate of a sum over true states; ``random`` is its mean if every state were random."""
        return float(observed - random) / self._truth + float(random)

    def _estimate(
        self,
        observed: Fraction,
        sources: Fraction,
        mean: Fraction,
        spread: Fraction,
        squares: float,
        confidence: float,
    ) -> CorrectedCount:
        """Return the estimate; ``squares`` is Σ(xᵢ−μ)² over the true states, estimated or bounded."""
        if not 0 < confidence < 1:
            raise ParameterError(f"confidence must lie strictly between 0 and 1, got {confidence}")
        variance = self.rate * float(sources * spread) + self.rate * self._truth * max(squares, 0.0)
        return CorrectedCount(
            value=self._undone(observed, sources * mean),
            variance=variance / self._truth**2,
            confidence=confidence,
        )


def _moments(law: Sequence[Fraction]) -> tuple[Fraction, Fraction]:
    """Return the mean and the variance of a law of counts."""
    mean = sum((m * mass for m, mass in enumerate(law)), Fraction(0))
    return mean, sum((mass * (m - mean) ** 2 for m, mass in enumerate(law)), Fraction(0))
