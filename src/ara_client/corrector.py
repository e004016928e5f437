"""Undoing randomized response in counts of event-level reports: unbiased, with variance and interval.

A source with |O| states reports truthfully with probability 1 − p and otherwise a uniformly drawn state (Algorithm 8).
So if x of its reports are truly of some kind, x is observed with probability 1 − p and otherwise a draw X from a known
law with mean μ and variance σ². Over n sources with true total T the observed total C has

    E[C] = (1−p)·T + n·p·μ,    Var[C] = n·p·σ² + p(1−p)·Σ(xᵢ−μ)²,

hence T̂ = (C − n·p·μ)/(1−p) is unbiased. Its variance is over the noise alone: the sources are what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ara_client.randomized import exact_rate
from ara_client.states import StateSpace
from mechanisms.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated count. It is unbiased, so it may be negative; the interval is the normal approximation."""

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

    >>> from ara_client.states import TriggerDataSpec
    >>> space = StateSpace([TriggerDataSpec(trigger_data=data, windows=3) for data in range(8)], 3)
    >>> corrector = Corrector(space, epsilon=Fraction(14))
    >>> seen = corrector.reports([990_500, 9_400, 90, 10], trigger_data=0)
    >>> round(seen.value, 1), round(seen.standard_error, 1)
    (8757.8, 34.0)
    """

    def __init__(self, space: StateSpace, *, epsilon: Fraction) -> None:
        self.space = space
        self.rate = float(exact_rate(space.count, epsilon))
        if not self.rate < 1:
            raise ParameterError("at this epsilon every report is random: there is nothing to correct")

    def reports(
        self,
        histogram: Sequence[int],
        *,
        trigger_data: int,
        window: int | None = None,
        bucket: int | None = None,
        confidence: float = 0.95,
    ) -> Estimate:
        """Estimate how many reports of a kind the sources would have sent without noise.

        ``histogram[m]`` is the number of sources that sent exactly m reports with this trigger data (window, bucket),
        m = 0, 1, …; all sources are counted, those without reports too. The variance is estimated without bias.
        """
        law = self._law(trigger_data, window, bucket)
        counts = np.zeros(law.size)
        if not 0 < len(histogram) <= law.size:
            raise ParameterError(f"a source sends 0 to {law.size - 1} such reports, so the histogram has that many + 1")
        counts[: len(histogram)] = histogram
        if not (counts >= 0).all():
            raise ParameterError("a histogram counts sources; it is never negative")
        numbers = np.arange(law.size)
        sources, mean = counts.sum(), float(law @ numbers)
        true = (counts - sources * self.rate * law) / (1 - self.rate)
        return self._estimate(
            float(counts @ numbers), float(sources), law, float(true @ (numbers - mean) ** 2), confidence
        )

    def total(
        self,
        reports: int,
        sources: int,
        *,
        trigger_data: int,
        window: int | None = None,
        bucket: int | None = None,
        confidence: float = 0.95,
    ) -> Estimate:
        """Estimate as ``reports`` does when only the total is known. The variance is then an upper bound."""
        law = self._law(trigger_data, window, bucket)
        most, mean = law.size - 1, float(law @ np.arange(law.size))
        if not (sources >= 0 and 0 <= reports <= sources * most):
            raise ParameterError(f"{sources} sources send 0 to {sources * most} such reports, not {reports}")
        true = min(max((reports - sources * self.rate * mean) / (1 - self.rate), 0.0), float(sources * most))
        # For a given total, squares are largest when each source sends all it can or nothing.
        spread = (most - 2 * mean) * true + sources * mean**2
        return self._estimate(float(reports), float(sources), law, spread, confidence)

    def states(self, counts: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimate how many sources are truly in each state; return the estimates and their variances.

        ``counts`` has one entry a state, in order of rank (``StateSpace.rank``). For spaces small enough to list.
        """
        observed = np.asarray(counts, dtype=np.float64)
        if observed.shape != (self.space.count,) or not (observed >= 0).all():
            raise ParameterError(f"counts must have one entry, 0 or more, for each of {self.space.count} states")
        sources, mean, rate = observed.sum(), 1 / self.space.count, self.rate
        true = (observed - sources * rate * mean) / (1 - rate)
        spread = np.clip(true * (1 - 2 * mean) + sources * mean**2, 0, None)
        noise = sources * rate * mean * (1 - mean)
        return true, (noise + rate * (1 - rate) * spread) / (1 - rate) ** 2

    def _law(self, trigger_data: int, window: int | None, bucket: int | None) -> NDArray[np.float64]:
        law = self.space.report_counts(trigger_data, window=window, bucket=bucket)
        return np.array([float(mass) for mass in law])

    def _estimate(
        self, observed: float, sources: float, law: NDArray[np.float64], spread: float, confidence: float
    ) -> Estimate:
        if not 0 < confidence < 1:
            raise ParameterError(f"confidence lies strictly between 0 and 1, got {confidence}")
        numbers = np.arange(law.size)
        mean = float(law @ numbers)
        noise = sources * self.rate * float(law @ (numbers - mean) ** 2)
        variance = noise + self.rate * (1 - self.rate) * max(spread, 0.0)
        return Estimate(
            value=(observed - sources * self.rate * mean) / (1 - self.rate),
            variance=variance / (1 - self.rate) ** 2,
            confidence=confidence,
        )
