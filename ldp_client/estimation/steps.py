"""The probabilities of each randomization step, as exact real numbers, and how two steps chain.

Sections and equations are those of the LOLOHA paper (Arcolezi, Palamidessi, Pinzón and Gambs, EDBT 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from aggservice.mechanisms import Real, exp
from ldp_client.checks import short_text
from ldp_client.errors import ProtocolError

#: ``paper`` follows the printed formulas; ``exact`` has exactly the requested ε of a first report.
Calibration = Literal["paper", "exact"]

MICRO = 1_000_000
_LARGEST_MICRO = 64 * MICRO


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of randomization: ``p`` is the probability to keep the true value, ``q`` to report a given other one."""

    p: Real
    q: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A permanent step and, in a protocol with two steps, the instantaneous step of each report."""

    permanent: Step
    instant: Step | None = None

    def keep(self) -> Real:
        """Return the probability that a report supports the value it was made from."""
        return _through(self.permanent.p, self.instant)

    def mistake(self) -> Real:
        """Return the probability that a report supports one given other value (or that such a bit is set)."""
        return _through(self.permanent.q, self.instant)

    def first_grr(self) -> float:
        """Return the ε of one report of a GRR chain: ln of ``keep`` over ``mistake``."""
        keep, mistake = self.keep(), self.mistake()
        return _log_one_plus((keep - mistake) / mistake)

    def first_unary(self) -> float:
        """Return the ε of one report of a unary chain: two bits differ between two values (§2.3.3)."""
        keep, mistake = self.keep(), self.mistake()
        return _log_one_plus((keep - mistake) / (mistake * (1 - keep)))


def _log_one_plus(excess: Real) -> float:
    """Return ln(1 + excess) to a few units in the last place, also for an excess close to 0."""
    above = float(excess)
    return math.log1p(above) if above < 0.25 else math.log(float(excess + 1))


def _through(reach: Real, instant: Step | None) -> Real:
    return reach if instant is None else reach * instant.p + (1 - reach) * instant.q


def epsilon(micro: int) -> Fraction:
    """Return ε from a number of millionths; ProtocolError if it is not in (0, 64]."""
    if isinstance(micro, bool) or not isinstance(micro, int) or not 0 < micro <= _LARGEST_MICRO:
        raise ProtocolError(
            f"ε must be above 0 and at most {_LARGEST_MICRO // MICRO} in whole millionths, not {short_text(micro)}"
        )
    return Fraction(micro, MICRO)


def epsilon_pair(permanent_micro: int, first_micro: int) -> tuple[Fraction, Fraction]:
    """Return (ε∞, ε₁); ProtocolError unless 0 < ε₁ < ε∞ (Algorithm 1)."""
    permanent, first = epsilon(permanent_micro), epsilon(first_micro)
    if not first < permanent:
        raise ProtocolError(
            f"the first report's ε₁ = {float(first)} must be below the limit ε∞ = {float(permanent)}: "
            "a second step can only add privacy"
        )
    return permanent, first


def check_pair(permanent: Fraction, first: Fraction) -> None:
    """Raise ``ProtocolError`` unless 0 < ε₁ < ε∞ ≤ 64, with at least a millionth between: the limit of the numerics."""
    step, most = Fraction(1, MICRO), _LARGEST_MICRO // MICRO
    if not (step <= first and first + step <= permanent <= most):
        raise ProtocolError(
            f"ε₁ and ε∞ must satisfy 0.000001 ≤ ε₁ ≤ ε∞ − 0.000001 and ε∞ ≤ {most}, not "
            f"ε₁ = {short_text(first)} and ε∞ = {short_text(permanent)}"
        )


def check_size(size: int, what: str, least: int = 2, most: int = (1 << 32) - 1) -> None:
    """Raise ``ProtocolError`` unless ``size``, a number of values or buckets, is an integer in [least, most]."""
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= most:
        raise ProtocolError(f"{what} must be an integer from {least} to {most}, not {short_text(size)}")


def grr(size: int, ratio: Real) -> Step:
    """Return the GRR step over ``size`` values with p/q = ``ratio`` (§2.3.1)."""
    total = ratio + (size - 1)
    return Step(p=ratio / total, q=1 / total)


def symmetric(ratio: Real) -> Step:
    """Return the bit-flipping step with p + q = 1 and p/q = ``ratio`` (SUE with ratio e^{ε/2}, §2.3.3)."""
    total = ratio + 1
    return Step(p=ratio / total, q=1 / total)


def oue(limit: Fraction) -> Step:
    """Return the optimized unary step: p = ½, q = 1/(e^ε + 1) (§2.3.3)."""
    return Step(p=Real.of(Fraction(1, 2)), q=1 / (exp(limit) + 1))


def chained_ratio(permanent: Real, first: Real) -> Real:
    """Return r with (permanent·r + 1)/(permanent + r) = ``first``: two binary symmetric steps in a row.

    This is e^{ε_IRR} of Algorithm 1, step 3; with square roots of e^ε, the odds of L-SUE's second step.
    """
    return (permanent * first - 1) / (permanent - first)


def instant_grr(size: int, permanent: Fraction, first: Fraction, calibration: Calibration) -> Step:
    """Return the second GRR step over ``size`` values for a first report of ε₁.

    ``paper`` (Theorem 3.4, §2.4.3) ignores the (size − 2)·q₁q₂ paths through a third value, so for size > 2 the first
    report is more private than requested. ``exact`` counts them:
    e^{ε_IRR} = (e^{ε₁}(e^{ε∞} + size − 2) − (size − 1)) / (e^{ε∞} − e^{ε₁}).
    """
    limit, once = exp(permanent), exp(first)
    if calibration == "paper":
        return grr(size, chained_ratio(limit, once))
    if calibration == "exact":
        return grr(size, (once * (limit + (size - 2)) - (size - 1)) / (limit - once))
    raise ProtocolError(f"calibration must be 'paper' or 'exact', not {short_text(calibration)}")


def grr_chain(size: int, permanent_micro: int, first_micro: int | None, calibration: Calibration) -> Chain:
    """Return GRR over ``size`` values, with a second step if the ε₁ of a first report is given."""
    permanent = grr(size, exp(epsilon(permanent_micro)))
    if first_micro is None:
        return Chain(permanent=permanent)
    pair = epsilon_pair(permanent_micro, first_micro)
    return Chain(permanent=permanent, instant=instant_grr(size, *pair, calibration))


def asked_epsilon(first_micro: int | None) -> float | None:
    """Return the requested ε₁, or None."""
    return None if first_micro is None else float(epsilon(first_micro))
