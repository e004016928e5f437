"""Privacy amplification by shuffling, in closed form.

Erlingsson, Feldman, Mironov, Raghunathan, Talwar and Thakurta, "Amplification by Shuffling" (SODA 2019): n reports
of one ε₀-LDP randomizer, released in random order, protect each of n honest users with far less than ε₀. The
numerical bounds, which are much tighter, are in ``aggservice.mechanisms.clones``.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from operator import index

from aggservice.mechanisms.errors import ParameterError

SMALL_CASE_REPORTS = 1000
"""How many reports Theorem 7's last special case, and Corollary 9, need."""
SMALL_CASE_EPSILON = 0.5
SMALL_CASE_DELTA = 0.01
MOST_REPORTS = 10**300
"""More than this leaves the range of floats."""


def check_whole(count: int, name: str) -> None:
    """Raise ``ParameterError`` if ``count`` is not an integer by its type; the float 1000.0 is refused too."""
    try:
        index(count)
    except TypeError:
        raise ParameterError(f"{name} must be a whole number, not {count!r}") from None


def check_shuffle(epsilon0: float, reports: int, delta: float | None = None) -> None:
    """Raise ``ParameterError`` unless ε₀ > 0, 1 ≤ ``reports`` ≤ 10³⁰⁰ and 0 < δ < 1: every bound here needs that."""
    if not 0 < epsilon0 < math.inf:
        raise ParameterError(f"the local epsilon must be a positive number, not {epsilon0!r}")
    check_whole(reports, "the number of reports")
    if not 1 <= reports <= MOST_REPORTS:
        raise ParameterError(f"a shuffle must have from 1 to 10**300 reports, not {reports!r}")
    if delta is not None and not 0 < delta < 1:
        raise ParameterError(f"delta must lie strictly between 0 and 1, not {delta!r}")


def subsampled(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """Return (ln(1 + q(e^ε − 1)), qδ): how far (1 − q)μ₀ + qμ₁ is from μ₀ if μ₁ is (ε, δ)-close to it (Lemma 4).

    q is ``share``. The paper assumes q < ½, but the proof holds for all q from 0 to 1; q = 1 gives (ε, δ). The bound is
    attained if some outcome is e^ε times as likely under μ₁ as under μ₀. The returned ε is at most q(e^ε − 1).

    >>> subsampled(1.0, 1e-6, 0.01)
    (0.01703686323617655, 1e-08)
    """
    if not 0 <= epsilon < math.inf or not 0 <= delta <= 1 or not 0 <= share <= 1:
        raise ParameterError(
            f"sampling needs a finite epsilon of at least 0, and a delta and a share in [0, 1], not "
            f"{epsilon!r}, {delta!r} and {share!r}"
        )
    if epsilon > 700 and 0 < share < 1:  # e^ε leaves the range of floats
        without, of = math.log1p(-share), epsilon + math.log(share)
        return max(without, of) + math.log1p(math.exp(-abs(without - of))), share * delta
    if epsilon > 700:
        return epsilon * share, share * delta
    return math.log1p(share * math.expm1(epsilon)), share * delta


def step_epsilon(epsilon0: float, reports: int) -> float:
    """Return Theorem 7's ε₁ = 2e^(2ε₀)(e^ε₀ − 1)/n, the ε of one position of the shuffled list.

    It is infinite where the exponential leaves the range of floats.
    """
    check_shuffle(epsilon0, reports)
    try:
        return 2 * math.exp(2 * epsilon0) * math.expm1(epsilon0) / reports
    except OverflowError:
        return math.inf


def closed_epsilon(epsilon0: float, reports: int, delta: float) -> float:
    """Return Theorem 7's central ε at δ: ε₁√(2n ln(1/δ)) + nε₁(e^ε₁ − 1), for any integer n > 1 and any ε₀.

    If ε₀ > ln(n/2)/3 the bound exceeds ε₀: it is true but useless, and is returned all the same.
    ``aggservice.mechanisms.clones.shuffled_epsilon`` exceeds neither this bound nor ε₀.
    """
    check_shuffle(epsilon0, reports, delta)
    if reports < 2:
        raise ParameterError(f"Theorem 7 needs at least two reports, not {reports}")
    step = step_epsilon(epsilon0, reports)
    if step > 700:
        return math.inf
    return step * math.sqrt(-2.0 * reports * math.log(delta)) + reports * step * math.expm1(step)


def moderate_epsilon(epsilon0: float, reports: int, delta: float) -> float:
    """Return Theorem 7's first special case, for ε₀ ≤ ln(n/4)/3.

    It is e^(2ε₀)(e^ε₀ − 1)√(8 ln(1/δ)/n) + 6e^(4ε₀)(e^ε₀ − 1)²/n.
    """
    check_shuffle(epsilon0, reports, delta)
    if not epsilon0 <= math.log(reports / 4) / 3:
        raise ParameterError(
            f"this case of Theorem 7 needs a local epsilon of at most ln(n/4)/3, "
            f"{math.log(reports / 4) / 3:.6g} for {reports} reports, not {epsilon0:.6g}"
        )
    growth = math.exp(2 * epsilon0) * math.expm1(epsilon0)
    return growth * math.sqrt(-8 * math.log(delta) / reports) + 6 * growth**2 / reports


def small_case_refusal(epsilon0: float, reports: int, delta: float) -> str | None:
    """Return why Theorem 7's last special case does not apply, or None if it applies."""
    check_shuffle(epsilon0, reports, delta)
    if reports < SMALL_CASE_REPORTS:
        return f"the bound needs at least {SMALL_CASE_REPORTS} reports of the same randomizer and there are {reports}"
    if not epsilon0 < SMALL_CASE_EPSILON:
        return f"the bound needs a local epsilon below {SMALL_CASE_EPSILON} and the randomizer has {epsilon0:.6g}"
    if not delta < SMALL_CASE_DELTA:
        return f"the bound needs delta below {SMALL_CASE_DELTA} and {delta:.6g} was asked for"
    return None


def small_epsilon(epsilon0: float, reports: int, delta: float) -> float:
    """Return 12ε₀√(ln(1/δ)/n): Theorem 7's last special case and Corollary 9.

    It needs n ≥ 1000 reports of the same randomizer, ε₀ < ½ and δ < 1/100; otherwise ``ParameterError`` says why.
    """
    refusal = small_case_refusal(epsilon0, reports, delta)
    if refusal is not None:
        raise ParameterError(refusal)
    return 12 * epsilon0 * math.sqrt(-math.log(delta) / reports)


def rdp_epsilon(epsilon0: float, reports: int, alpha: float) -> float:
    """Return the Rényi parameter of order α of a shuffle, 2αe^(4ε₀)(e^ε₀ − 1)²/n (Remark 1).

    For several shuffles of the same people, add the parameters of the same order.
    """
    check_shuffle(epsilon0, reports)
    if not 1 <= alpha < math.inf:
        raise ParameterError(f"a Rényi order must be a number of at least 1, not {alpha!r}")
    step = step_epsilon(epsilon0, reports)
    return alpha * reports * step**2 / 2 if step < 1e150 else math.inf


def epsilon_of_shuffles(epsilon0: float, reports: int, shuffles: int, delta: float) -> float:
    """Return the ε at δ of several shuffles of the same n people, by the Rényi form of Remark 1.

    The Rényi parameter of order α is ρα for a constant ρ, so the best order is 1 + √(ln(1/δ)/ρ). It gives
    ε = ρ + 2√(ρ ln(1/δ)).
    """
    check_shuffle(epsilon0, reports, delta)
    check_whole(shuffles, "the number of shuffles")
    if not 1 <= shuffles <= MOST_REPORTS:
        raise ParameterError(f"the number of shuffles must be from 1 to 10**300, not {shuffles!r}")
    rho = shuffles * rdp_epsilon(epsilon0, reports, 1)
    return rho + 2 * math.sqrt(-rho * math.log(delta))


_MICRO = 10**6
_ATTO = 10**18


class AmplificationBound(StrEnum):
    """The bound used for the central ε of a shuffle; each one holds for every ε₀-LDP randomizer.

    ``numerical`` is the tightest. ``closed`` is Theorem 7 of "Amplification by Shuffling" (2019). ``small`` is its
    special case for at least 1,000 reports, ε₀ < ½ and δ < 1/100, which is also Corollary 9.
    """

    NUMERICAL = "numerical"
    CLOSED = "closed"
    SMALL = "small"

    def epsilon(self, local: float, reports: int, delta: float) -> float:
        """Return the central ε at δ; raise ``ParameterError`` with the reason if the bound does not apply."""
        match self:
            case AmplificationBound.NUMERICAL:
                from aggservice.mechanisms.clones import shuffled_epsilon  # most processes never shuffle

                return shuffled_epsilon(local, reports, delta)
            case AmplificationBound.CLOSED:
                return closed_epsilon(local, reports, delta)
            case AmplificationBound.SMALL:
                return small_epsilon(local, reports, delta)


@lru_cache(maxsize=4096, typed=True)
def amplified_micro(bound: AmplificationBound, *, local_micro: int, reports: int, delta_atto: int) -> int:
    """Return the central ε of one of ``reports`` shuffled reports, in millionths; never above ``local_micro``.

    Raises ``ParameterError`` with the reason if the bound does not apply.

    >>> amplified_micro(AmplificationBound.NUMERICAL, local_micro=300_000, reports=10_000, delta_atto=10**12)
    9878
    """
    check_whole(local_micro, "a local epsilon in millionths")
    check_whole(reports, "the number of reports")
    check_whole(delta_atto, "delta in units of 10⁻¹⁸")
    if not reports >= 2:
        raise ParameterError(f"a shuffle of {reports} reports hides nothing: use at least two reports")
    local, delta = local_micro / _MICRO, delta_atto / _ATTO
    # A float may be off by a unit in the last place, so round the local epsilon up and delta down.
    central = bound.epsilon(math.nextafter(local, math.inf), reports, math.nextafter(delta, 0))
    if not central < local:
        return local_micro
    return min(local_micro, max(1, math.ceil(central * _MICRO * (1 + 1e-12))))
