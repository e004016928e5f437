"""Every probability solves the equation that defines it; g is what the paper says and what is best."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from aggservice.mechanisms import Real, exp
from ldp_client import (
    binary_hashing,
    bit_flip,
    l_grr,
    l_osue,
    l_sue,
    loloha,
    optimal_hashing,
    optimized_unary,
    randomized_response,
    sue,
)
from ldp_client.errors import LdpParameterError
from ldp_client.estimation import MICRO, ResponseChain
from ldp_client.experiments.loloha import ALPHAS, EPSILONS_MICRO, first_micro, hash_ranges, variances
from ldp_client.protocols.hashed import LocalHashing, best_range, printed_range, variance_over_reports
from twins.ldp_kernels import printed_variance

GRID = [(micro, first_micro(micro, alpha)) for micro in EPSILONS_MICRO for alpha in ALPHAS]
SIZES = [2, 3, 5, 17, 360, 1412]


def exact(real: Real) -> Fraction:
    return Fraction(real.floor(200), 1 << 200)


def off(left: Fraction, right: Fraction) -> float:
    """How far two positive numbers are apart, relative to the second."""
    return abs(float((left - right) / right))


def e(micro: int) -> Fraction:
    return exact(exp(Fraction(micro, MICRO)))


def unpacked(chain: ResponseChain) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    assert chain.instant is not None
    return exact(chain.permanent.p), exact(chain.permanent.q), exact(chain.instant.p), exact(chain.instant.q)


@pytest.mark.parametrize(("permanent", "first"), GRID)
def test_unary_chains_solve_their_equations(permanent: int, first: int) -> None:
    for make in (l_sue, l_osue):
        p1, q1, p2, q2 = unpacked(make(k=9, epsilon_permanent_micro=permanent, epsilon_first_micro=first).chain)
        assert off(p1 * (1 - q1) / ((1 - p1) * q1), e(permanent)) < 1e-12
        assert off(p2 + q2, Fraction(1)) < 1e-12
        ps, qs = p1 * p2 + (1 - p1) * q2, q1 * p2 + (1 - q1) * q2
        assert off(ps * (1 - qs) / ((1 - ps) * qs), e(first)) < 1e-12
    a, b = e(permanent), e(first)
    assert off(p1, Fraction(1, 2)) < 1e-12
    assert off(q1, 1 / (a + 1)) < 1e-12
    assert off(p2, (a * b - 1) / (a - b + a * b - 1)) < 1e-12  # the closed form of §2.4.2


@pytest.mark.parametrize(("permanent", "first"), GRID)
def test_grr_chains_solve_their_equations(permanent: int, first: int) -> None:
    a, b = e(permanent), e(first)
    for k in SIZES:
        for calibration in ("paper", "exact"):
            direct = l_grr(k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first, calibration=calibration)
            hashed = loloha(
                k=9, g=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first, calibration=calibration
            )
            p1, q1, p2, q2 = unpacked(direct.chain)
            assert (p1, q1, p2, q2) == unpacked(hashed.chain)
            assert off(p1 / q1, a) < 1e-12
            assert off(p1 + (k - 1) * q1, Fraction(1)) < 1e-12
            assert off(p2 + (k - 1) * q2, Fraction(1)) < 1e-12
            third = (k - 2) * q1 * q2 if calibration == "exact" else Fraction(0)
            kept = p1 * p2 + (k - 1 if calibration == "exact" else 1) * q1 * q2
            assert off(kept / (p1 * q2 + q1 * p2 + third), b) < 1e-12
            if calibration == "paper":  # the closed form of §2.4.3, with its slip mended
                assert off(p2, (a * b - 1) / (-k * b + (k - 1) * a + b + a * b - 1)) < 1e-12


@pytest.mark.parametrize("micro", EPSILONS_MICRO)
def test_one_shot_steps_solve_their_equations(micro: int) -> None:
    for protocol in (sue(k=5, epsilon_micro=micro), optimized_unary(k=5, epsilon_micro=micro)):
        p, q = exact(protocol.chain.permanent.p), exact(protocol.chain.permanent.q)
        assert off(p * (1 - q) / ((1 - p) * q), e(micro)) < 1e-12
    for size, chain in [
        (7, randomized_response(k=7, epsilon_micro=micro).chain),
        (2, binary_hashing(k=7, epsilon_micro=micro).chain),
    ]:
        p, q = exact(chain.permanent.p), exact(chain.permanent.q)
        assert off(p / q, e(micro)) < 1e-12
        assert off(p + (size - 1) * q, Fraction(1)) < 1e-12
    assert optimal_hashing(k=7, epsilon_micro=micro).g == round(math.exp(micro / MICRO) + 1)


def test_eq_6_gives_the_papers_g_on_all_of_figure_1() -> None:
    """The row for α = 0.6 is the one printed in the algorithms' short form; the rest is the formula itself."""
    rows = hash_ranges()
    assert len(rows) == 60
    by_key = {(micro, alpha): (printed, best) for micro, alpha, printed, best, _ in rows}
    assert [by_key[micro, Fraction(6, 10)][0] for micro in EPSILONS_MICRO] == [2, 2, 3, 3, 4, 5, 7, 9, 12, 17]
    missed = {(micro / MICRO, float(alpha)) for (micro, alpha), (printed, best) in by_key.items() if printed != best}
    assert missed == {(4.5, 0.1), (3.0, 0.2), (2.0, 0.4), (3.0, 0.4)}
    for (micro, alpha), (printed, _) in by_key.items():
        # Eq. 6 is the optimum of V* over real g, found here by minimizing, and then rounded.
        pair = Fraction(micro, MICRO), Fraction(first_micro(micro, alpha), MICRO)
        optimum = minimize_scalar(
            lambda g, pair=pair: variance_over_reports(g, *pair, "paper"), bounds=(1 + 1e-9, 100), method="bounded"
        )
        assert printed == 1 + max(1, round(optimum.x - 1))


@pytest.mark.parametrize("calibration", ["paper", "exact"])
def test_the_searched_g_is_the_best_of_all(calibration: str) -> None:
    for micro, once in GRID:
        pair = Fraction(micro, MICRO), Fraction(once, MICRO)
        every = {g: variance_over_reports(g, *pair, calibration) for g in range(2, 400)}  # type: ignore[arg-type]
        assert best_range(*pair, calibration) == min(every, key=every.__getitem__)  # type: ignore[arg-type]


@given(st.integers(2, 64 * MICRO), st.integers(1, 999_999), st.sampled_from(["paper", "exact"]))
def test_g_is_defined_for_every_pair_of_epsilons(micro: int, share: int, calibration: str) -> None:
    once = max(1, min(micro - 1, micro * share // MICRO))
    pair = Fraction(micro, MICRO), Fraction(once, MICRO)
    assert printed_range(*pair) >= 2
    try:
        g = best_range(*pair, calibration)  # type: ignore[arg-type]
    except LdpParameterError as error:
        assert "2^32" in str(error)
        return
    here = variance_over_reports(g, *pair, calibration)  # type: ignore[arg-type]
    assert here <= variance_over_reports(g + 1, *pair, calibration)  # type: ignore[arg-type]
    if g > 2:
        assert here <= variance_over_reports(g - 1, *pair, calibration) * (1 + 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("permanent", "first", "g"), [("40", "1", 4), ("38", "1", 4), ("64", "1", 4), ("50", "0.5", 3)]
)
def test_eq_6_holds_where_floats_cancel(permanent: str, first: str, g: int) -> None:
    """The root all but equals e^(2ε∞): of (40, 1) 64-bit floats leave 2. Against 200 digits of mpmath."""
    with mpmath.workdps(200):
        a, b = mpmath.exp(mpmath.mpf(permanent)), mpmath.exp(mpmath.mpf(first))
        root = mpmath.sqrt(a**4 - 14 * a**2 + 12 * a * b * (1 - a * b) + 12 * a**3 * b + 1)
        expected = 1 + max(1, int(mpmath.nint((1 - a**2 + root) / (6 * (a - b)))))
    assert printed_range(Fraction(permanent), Fraction(first)) == expected == g


@pytest.mark.parametrize("pair", [("1e9", "1"), ("65", "1"), ("2", "2"), ("1", "2"), ("1", "0"), ("1e-9", "1e-10")])
def test_a_g_that_cannot_be_computed_is_refused(pair: tuple[str, str]) -> None:
    permanent, first = map(Fraction, pair)
    for search in (printed_range, lambda *given: best_range(*given, "exact")):
        with pytest.raises(LdpParameterError, match="ε∞ ≤ 64"):
            search(permanent, first)


def test_small_epsilons_are_stated_to_all_their_digits() -> None:
    """A ratio of 1 + 2·10⁻¹⁵ has one digit left in a float. Against 100 digits of mpmath, to 10⁻¹²."""
    for k, permanent, first in (
        (2**31, 2, 1),
        (360, 20, 3),
        (2, 5, 4),
        (1412, 5_000_000, 1),
        (9, 3_000_000, 2_000_000),
    ):
        grr = l_grr(k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first).privacy
        unary = l_osue(k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first).privacy
        with mpmath.workdps(100):
            a, b = (mpmath.exp(mpmath.mpf(micro) / MICRO) for micro in (permanent, first))
            ratio = (a * b - 1) / (a - b)
            p1, p2 = a / (a + k - 1), ratio / (ratio + k - 1)
            q1, q2 = 1 / (a + k - 1), 1 / (ratio + k - 1)
            loss = mpmath.log((p1 * p2 + (1 - p1) * q2) / (q1 * p2 + (1 - q1) * q2))
            assert abs(grr.first / loss - 1) < 1e-12
        assert grr.permanent == pytest.approx(permanent / MICRO, rel=1e-12)
        assert unary.first == pytest.approx(first / MICRO, rel=1e-12)
    assert l_grr(k=2**31, epsilon_permanent_micro=2, epsilon_first_micro=1).privacy.first > 1.86e-15


def solved_steps(name: str, limit: float, once: float, g: int) -> tuple[float, float, float, float]:
    """Return (p₁, q₁, p₂, q₂) of Eq. 3: the permanent step as defined, the second one solved for the ε₁ asked for.

    q₁ of LOLOHA is the estimator's 1/g; a liar's chance of one given answer is (1 − p₁)/(g − 1).
    """
    if name in ("RAPPOR", "L-OSUE"):
        p1, q1 = {
            "RAPPOR": (1 / (1 + math.exp(-limit / 2)), 1 / (1 + math.exp(limit / 2))),
            "L-OSUE": (0.5, 1 / (math.exp(limit) + 1)),
        }[name]

        def excess(p2: float) -> float:
            high, low = p1 * p2 + (1 - p1) * (1 - p2), q1 * p2 + (1 - q1) * (1 - p2)
            return math.log(high * (1 - low) / ((1 - high) * low)) - once

        p2 = brentq(excess, 0.5, 1.0, xtol=1e-16, rtol=1e-15)
        return p1, q1, p2, 1 - p2
    p1 = math.exp(limit) / (math.exp(limit) + g - 1)
    lie = (1 - p1) / (g - 1)

    def grr_excess(p2: float) -> float:
        q2 = (1 - p2) / (g - 1)
        third = (g - 2) * lie * q2 if name == "OLOLOHA-exact" else 0.0  # the paths that Theorem 3.4 leaves out
        return math.log((p1 * p2 + lie * q2 + third) / (p1 * q2 + lie * p2 + third)) - once

    p2 = brentq(grr_excess, 1 / g, 1 - 1e-16, xtol=1e-16, rtol=1e-15)
    return p1, 1 / g, p2, (1 - p2) / (g - 1)


def test_every_v_star_of_figure_2_is_eq_5() -> None:
    """All five curves from the paper's Eq. 5, with probabilities that solve their equations here."""
    checked = 0
    for micro, alpha, name, value in variances():
        limit, once = Fraction(micro, MICRO), Fraction(first_micro(micro, alpha), MICRO)
        g = {
            "BiLOLOHA": lambda pair: 2,
            "OLOLOHA": lambda pair: printed_range(*pair),
            "OLOLOHA-exact": lambda pair: best_range(*pair, "exact"),
        }.get(name, lambda pair: 0)((limit, once))
        p1, q1, p2, q2 = solved_steps(name, float(limit), float(once), g)
        supports = p2 * q1 - q2 * (q1 - 1)
        assert value == pytest.approx(
            supports * (1 - supports) / (10_000 * (p1 - q1) ** 2 * (p2 - q2) ** 2), rel=1e-9
        ), (micro, alpha, name)
        checked += 1
    assert checked == 300


def test_v_star_on_the_grid_of_figure_2() -> None:
    found = {(micro, float(alpha), name): value for micro, alpha, name, value in variances()}
    assert len(found) == 300
    for (micro, alpha, name), value in found.items():
        once = math.exp(alpha * micro / MICRO)
        if name == "L-OSUE":  # §4's closed form
            assert value == pytest.approx(4 * once / (10_000 * (once - 1) ** 2), rel=1e-12)
        if name.startswith("OLOLOHA"):
            pair = Fraction(micro, MICRO), Fraction(first_micro(micro, Fraction(str(alpha))), MICRO)
            if name == "OLOLOHA":
                g, calibration = printed_range(*pair), "paper"
            else:
                g, calibration = best_range(*pair, "exact"), "exact"
            expected = variance_over_reports(g, *pair, calibration) / 10_000  # type: ignore[arg-type]
            assert value == pytest.approx(expected, rel=1e-12)
    assert found[3_000_000, 0.6, "OLOLOHA"] == pytest.approx(1.096e-4, rel=5e-4)
    assert found[3_000_000, 0.6, "OLOLOHA-exact"] == pytest.approx(9.490e-5, rel=5e-4)
    for micro, alpha in itertools.product(EPSILONS_MICRO, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)):
        four = {name: found[micro, alpha, name] for name in ("RAPPOR", "L-OSUE", "BiLOLOHA", "OLOLOHA")}
        # §4: similar for α ≤ 0.3 but at the highest ε∞; BiLOLOHA worst and RAPPOR next where both are high.
        if alpha <= 0.3 and micro <= 2_500_000:
            assert max(four.values()) < 1.15 * min(four.values())
        if alpha >= 0.5 and micro >= 3_000_000:
            assert four["BiLOLOHA"] > four["RAPPOR"] > four["OLOLOHA"] > four["L-OSUE"]
            assert four["OLOLOHA"] < 1.25 * four["L-OSUE"]
        assert found[micro, alpha, "OLOLOHA-exact"] <= four["OLOLOHA"] * (1 + 1e-12)
        assert found[micro, alpha, "L-OSUE"] <= found[micro, alpha, "OLOLOHA-exact"] * (1 + 1e-9)


def test_bit_flips_variance_needs_cosh() -> None:
    for micro, d in itertools.product(EPSILONS_MICRO, (1, 5, 40)):
        protocol = bit_flip(k=160, buckets=40, sampled=d, epsilon_permanent_micro=micro)
        half = micro / MICRO / 2
        assert protocol.support.approximate_variance(1000) == pytest.approx(
            40 / (2 * d * 1000 * (math.cosh(half) - 1)), rel=1e-12
        )
        printed = printed_variance(buckets=40, sampled=d, epsilon_permanent_micro=micro, reports=1000)
        assert printed != pytest.approx(protocol.support.approximate_variance(1000), rel=0.01)


@pytest.mark.parametrize("bad", [0, -1, 65 * MICRO, 1.5, True, float("nan")])
def test_epsilons_that_mean_nothing_are_refused(bad: int) -> None:
    with pytest.raises(LdpParameterError, match="millionths"):
        sue(k=3, epsilon_micro=bad)
    with pytest.raises(LdpParameterError, match="millionths"):
        l_grr(k=3, epsilon_permanent_micro=1_000_000, epsilon_first_micro=bad)


def test_parameters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LdpParameterError, match="below the limit"):
        l_osue(k=3, epsilon_permanent_micro=1_000_000, epsilon_first_micro=1_000_000)
    with pytest.raises(LdpParameterError, match="number of values k"):
        l_osue(k=1, epsilon_permanent_micro=2, epsilon_first_micro=1)
    with pytest.raises(LdpParameterError, match="hash values g"):
        LocalHashing(k=4, g=1, epsilon_permanent_micro=2)
    with pytest.raises(LdpParameterError, match="d ≤ b ≤ k"):
        bit_flip(k=4, buckets=2, sampled=3, epsilon_permanent_micro=1)
    with pytest.raises(LdpParameterError, match="'paper' or 'exact'"):
        l_grr(k=3, epsilon_permanent_micro=2, epsilon_first_micro=1, calibration="other")  # type: ignore[arg-type]
