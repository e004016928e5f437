"""RAPPOR's server: from counts by cohort and bit, which candidate strings occur in the population, and how often.

Erlingsson, Pihur and Korolova (CCS 2014): the bits' unbiased estimates are regressed on the candidates' Bloom filters,
each coefficient is tested against zero, and Bonferroni's correction keeps the probability of any false detection below
5 %. If there are too many candidates for one regression, half of the cohorts select those that the other half tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from ldp_client.checks import as_list, is_chance, is_count, short_text
from ldp_client.errors import LdpParameterError, ReportError
from ldp_client.protocols.rappor import Rappor, RapporCounts

Floats = NDArray[np.float64]

SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A tested string: its estimated share of the population, the standard deviation, and the one-sided p-value."""

    string: str
    frequency: float
    deviation: float
    p_value: float
    detected: bool

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a normal interval of the frequency."""
        if not is_chance(confidence):
            raise LdpParameterError(f"the confidence must lie in (0, 1), not {short_text(confidence)}")
        half = float(norm.isf((1 - confidence) / 2)) * self.deviation
        return self.frequency - half, self.frequency + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The tested candidates, most significant first.

    ``tests`` is M of Bonferroni's correction; ``screened`` is how many candidates were dropped before testing;
    ``others`` is the estimated share of the population that holds no candidate; ``dispersion`` is the ratio of the
    residuals to their expectation (1 if the candidates explain the reports; a larger ratio widens the deviations).
    """

    candidates: tuple[Candidate, ...]
    reports: int
    tests: int
    screened: int
    significance: float
    others: float
    dispersion: float

    def detected(self) -> list[str]:
        """Return the strings that were detected."""
        return [candidate.string for candidate in self.candidates if candidate.detected]


def decode(
    protocol: Rappor, counts: RapporCounts, candidates: Sequence[str], significance: float = SIGNIFICANCE
) -> Decoded:
    """Return the candidates' frequencies, tested so that any false detection has probability below ``significance``.

    Give one report per client: further reports of a client share its permanent response, and so its noise.
    """
    names = as_list(candidates, "candidates")
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ReportError("candidates must be at least one string, and no string twice")
    if not is_chance(significance):
        raise ReportError(f"significance must lie in (0, 1), not {short_text(significance)}")
    _check_counts(protocol, counts)
    used = np.flatnonzero(counts.reports > 0)
    if not used.size:
        raise ReportError("there are no reports to decode")
    screened = 0
    if len(names) > used.size * protocol.size // 4:
        if used.size < 2:
            raise ReportError(
                f"{len(names)} candidates are too many for one cohort of {protocol.size} bits: use more cohorts"
            )
        choosing, used = used[::2], used[1::2]
        kept = _screen(protocol, counts, names, choosing, used.size * protocol.size // 16)
        screened = len(names) - len(kept)
        names = kept
    fit = _Regression(protocol, counts, names, used)
    p_values = norm.sf(fit.frequencies / fit.deviations)
    limit = significance / len(names)
    found = [
        Candidate(
            string=name,
            frequency=float(fit.frequencies[index]),
            deviation=float(fit.deviations[index]),
            p_value=float(p_values[index]),
            detected=bool(p_values[index] < limit),
        )
        for index, name in enumerate(names)
    ]
    return Decoded(
        candidates=tuple(sorted(found, key=lambda candidate: candidate.p_value)),
        reports=int(counts.reports.sum()),
        tests=len(names),
        screened=screened,
        significance=significance,
        others=fit.others,
        dispersion=fit.dispersion,
    )


def _check_counts(protocol: Rappor, counts: RapporCounts) -> None:
    shapes = ((counts.reports, (protocol.cohorts,)), (counts.set_bits, (protocol.cohorts, protocol.size)))
    for array, shape in shapes:
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.shape != shape:
            raise ReportError(f"counts must be integers for {protocol.cohorts} cohorts and {protocol.size} bits")
    if not (counts.set_bits >= 0).all() or not (counts.set_bits <= counts.reports[:, None]).all():
        raise ReportError("the count of a bit must lie between 0 and the number of reports of its cohort")


class _Regression:
    """Weighted least squares of the bits' estimates on the candidates' filters and on a share that holds none.

    E[y_ij] = Σ_s π_s X_ijs for bit i of cohort j. The variance of y_ij is known: it comes from randomized response, and
    from the random assignment to cohorts, which correlates the bits of a cohort.
    """

    def __init__(self, protocol: Rappor, counts: RapporCounts, names: list[str], cohorts: NDArray[np.int64]) -> None:
        self._high, self._low = float(protocol.set_chance), float(protocol.clear_chance)
        sizes = counts.reports[cohorts].astype(np.float64)
        share = counts.set_bits[cohorts] / sizes[:, None]
        target = ((share - self._low) / (self._high - self._low)).reshape(-1)
        design = _design(protocol, names, cohorts)
        # An unknown string sets each bit with the same probability in every cohort.
        anyone = 1 - (1 - 1 / protocol.size) ** protocol.hashes
        design = np.hstack([design, np.full((design.shape[0], 1), anyone)])
        per_row = np.repeat(sizes, protocol.size)
        weights = per_row
        for _ in range(2):
            solver = _solver(design, weights)
            solution = solver @ target
            fitted = np.clip(design @ solution, 0, 1)
            variance = self._noise(fitted) / per_row
            weights = 1 / variance
        residual = target - design @ solution
        freedom = target.size - design.shape[1]
        self.dispersion = max(1.0, float((residual**2 / variance).sum()) / freedom)
        spread = (solver**2) @ variance * self.dispersion
        spread += self._membership(solver, design, solution, sizes, protocol.size)
        self.frequencies = solution[:-1]
        self.deviations = np.sqrt(spread[:-1])
        self.others = float(solution[-1])

    def _noise(self, fitted: Floats) -> Floats:
        """Return the variance of one report's bit, given the share of reports whose string sets it."""
        spread = fitted * self._high * (1 - self._high) + (1 - fitted) * self._low * (1 - self._low)
        return np.asarray(spread / (self._high - self._low) ** 2)

    @staticmethod
    def _membership(solver: Floats, design: Floats, solution: Floats, sizes: Floats, bits: int) -> Floats:
        """Return what the random assignment to cohorts adds to each variance."""
        shares = np.clip(solution, 0, None)
        shares = shares / max(1.0, float(shares.sum()))
        total = np.zeros(solver.shape[0])
        for number, size in enumerate(sizes):
            rows = slice(number * bits, (number + 1) * bits)
            reach = solver[:, rows] @ design[rows]
            total += ((reach**2) @ shares - (reach @ shares) ** 2) / size
        return total


def _design(protocol: Rappor, names: list[str], cohorts: NDArray[np.int64]) -> Floats:
    """Return 1 where a candidate sets a bit of a cohort, with one row per bit and one column per candidate."""
    design = np.zeros((cohorts.size, protocol.size, len(names)))
    for number, cohort in enumerate(cohorts):
        for column, name in enumerate(names):
            design[number, protocol.positions(name, int(cohort)), column] = 1
    flat = design.reshape(-1, len(names))
    patterns = {flat[:, column].tobytes(): column for column in range(len(names))}
    if len(patterns) < len(names):
        kept = set(patterns.values())
        twins = [names[column] for column in range(len(names)) if column not in kept]
        raise ReportError(
            f"the filters of {', '.join(twins[:5])} equal those of other candidates in every cohort: "
            "use more cohorts, or leave them out"
        )
    return flat


def _solver(design: Floats, weights: Floats) -> Floats:
    """Return the matrix that maps estimates of bits to coefficients."""
    weighted = design.T * weights
    try:
        return np.asarray(np.linalg.solve(weighted @ design, weighted))
    except np.linalg.LinAlgError as error:
        raise ReportError("the candidates' filters depend on each other: use more cohorts") from error


def _screen(
    protocol: Rappor, counts: RapporCounts, names: list[str], cohorts: NDArray[np.int64], keep: int
) -> list[str]:
    """Return the ``keep`` candidates whose bits are most frequent in ``cohorts``, which are not used again."""
    sizes = counts.reports[cohorts].astype(np.float64)
    share = counts.set_bits[cohorts] / sizes[:, None]
    excess = share - share.mean(axis=1, keepdims=True)
    scores = [
        sum(
            float(excess[number, protocol.positions(name, int(cohort))].mean()) * sizes[number]
            for number, cohort in enumerate(cohorts)
        )
        for name in names
    ]
    best = np.argsort(scores)[::-1][: max(1, keep)]
    return [names[index] for index in sorted(best)]


def learning_limit(
    *, reports: int, tests: int, p: Fraction | float, q: Fraction | float, significance: float = SIGNIFICANCE
) -> float:
    """Return the largest number of strings that can be detected: x ≤ (q − p)√N/(Q√(p(1 − p))), Q = Φ⁻¹(1 − 0.05/M).

    For p = ½ it is the paper's (2q − 1)√N/Q. (The paper prints the standard deviation as √(N/(2q − 1)); correct is
    √N/(2q − 1).) The limit is attained if x strings have equal shares and Basic RAPPOR reports once; it holds for
    every variant.
    """
    low, high = float(p), float(q)
    if not is_count(reports, 1) or not is_count(tests, 1) or not 0 < low < high <= 1 or not is_chance(significance):
        raise ReportError("the limit needs reports ≥ 1, tests ≥ 1, 0 < p < q ≤ 1 and a significance in (0, 1)")
    critical = float(norm.isf(significance / tests))
    if critical <= 0:
        return math.inf
    return (high - low) * math.sqrt(reports) / (critical * math.sqrt(low * (1 - low)))
