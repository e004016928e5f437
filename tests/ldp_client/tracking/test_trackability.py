"""The trackability variable: laws of streams against enumeration, intervals, and the tracking paper's Figure 1."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client import (
    BitwiseEverlasting,
    InnerProduct,
    Rappor,
    binary_hashing,
    bit_flip,
    l_grr,
    l_osue,
    l_sue,
    loloha,
    sue,
    trackability,
)
from ldp_client.enumeration import distribution
from ldp_client.errors import LdpParameterError, ReportError
from ldp_client.protocols.hashed import UniversalHash
from ldp_client.sampling import unpack
from ldp_client.tracking import BitsLaw, SymbolLaw, Trackability, gap


def test_figure_1_at_seven_reports() -> None:
    """The 90th percentile lies between 4.7 and 5.5.

    The estimate from 4,000 draws has a standard deviation of about 0.045 around 5.16: the alarm is far below 10⁻⁹.
    """
    found = trackability(Rappor().stream_law("http://example.com"), 7, 4000, SecureBits())
    ninth = found.percentile(0.9)
    assert 4.7 <= ninth.value <= 5.5
    assert ninth.low < ninth.value < ninth.high
    median = found.percentile(0.5)
    assert median.high < ninth.low


def test_tracking_grows_with_the_reports_and_stays_below_theorem_13() -> None:
    """BEP's τ never exceeds its exact worst case, and the worst case is met by rare streams only."""
    protocol = BitwiseEverlasting(epsilon_permanent_micro=500_000, epsilon_report_micro=1_500_000)
    law = protocol.stream_law(1)
    exact = protocol.finite_state()
    for reports in (2, 5, 8):
        found = trackability(law, reports, 3000, SecureBits())
        assert found.draws[-1] <= exact.untrackable(reports) + 1e-9
        assert found.draws[0] >= 0


def test_the_law_of_bits_is_the_clients() -> None:
    protocol = l_osue(k=2, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    law = protocol.stream_law(1)

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        return tuple(client.report(1)[0] for _ in range(3))

    for stream, chance in distribution(program).items():
        counts = np.array([[sum(row >> bit & 1 for row in stream) for bit in (0, 1)]])
        assert math.exp(law.log_probability((counts, 3))[0]) == pytest.approx(float(chance), rel=1e-10)
        first = np.array([[row >> bit & 1 for bit in (0, 1)] for row in stream[:1]])
        joined = law.log_probability((first, 1), (counts - first, 2))
        assert joined[0] == law.log_probability((counts, 3))[0]


def test_the_law_of_cohorts_is_the_clients() -> None:
    """Cohort and bits together, on every branch; and parts of two cohorts cannot come from one user."""
    protocol = Rappor(size=2, hashes=1, cohorts=3)
    law = protocol.stream_law("word", cohort="sent")

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        sent = [client.report("word") for _ in range(2)]
        return sent[0].cohort, tuple(report.row[0] for report in sent)

    total = 0.0
    for (cohort, stream), chance in distribution(program).items():
        counts = np.array([[sum(row >> bit & 1 for row in stream) for bit in (0, 1)]])
        found = law.log_probability((np.array([cohort]), (counts, 2)))[0]
        assert math.exp(found) == pytest.approx(float(chance), rel=1e-10)
        total += math.exp(found)
    assert total == pytest.approx(1)
    empty = np.zeros((1, 2), dtype=np.int64)
    assert law.log_probability((np.array([0]), (empty, 1)), (np.array([1]), (empty, 1)))[0] == -math.inf


def test_a_cohort_in_the_clear_tells_63_of_64_pairs_apart() -> None:
    """4,000 draws of τ for two reports: infinite for a pair of cohorts that differ, 63 of 64; alarm 10⁻⁹.

    The others, and one user's streams, have ln 64 more than bits alone tell.
    """
    law = Rappor().stream_law("http://example.com", cohort="sent")
    assert law.told_apart == Fraction(63, 64)  # type: ignore[attr-defined]
    draws = 4000
    found = trackability(law, 2, draws, SecureBits()).draws
    told = int(np.isinf(found).sum())
    assert binom.ppf(1e-10, draws, 63 / 64) <= told <= binom.isf(1e-10, draws, 63 / 64)
    assert found[: draws - told].min() > math.log(64) - 3
    assert law.report_epsilon() == math.inf
    with pytest.raises(LdpParameterError, match='an integer or "sent"'):
        Rappor().stream_law("word", cohort="known")  # type: ignore[arg-type]
    without = trackability(Rappor().stream_law("http://example.com"), 2, 500, SecureBits()).draws
    assert np.isfinite(without).all()


def test_the_law_of_symbols_is_the_clients() -> None:
    protocol = l_grr(k=3, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    law = protocol.stream_law(2)

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        return tuple(client.report(2) for _ in range(3))

    for stream, chance in distribution(program).items():
        counts = np.bincount(stream, minlength=3)[None, :]
        assert math.exp(law.log_probability(counts)[0]) == pytest.approx(float(chance), rel=1e-10)


@pytest.mark.parametrize("same", [True, False])
def test_parts_have_the_law_they_are_drawn_from(same: bool) -> None:
    """Of 20,000 pairs of parts of 2 and 1 reports, each outcome occurs as often as it should: alarm 10⁻⁹ in all."""
    protocol = BitwiseEverlasting(epsilon_permanent_micro=700_000, epsilon_report_micro=900_000)
    exact = protocol.finite_state()
    users = 20_000
    (first, _), (second, _) = protocol.stream_law(0).parts(SecureBits(), 2, 1, users, same=same)
    seen = np.bincount(first[:, 0].astype(int) * 2 + second[:, 0].astype(int), minlength=6)
    for ones in range(3):
        for last in range(2):
            ways = math.comb(2, ones)
            if same:
                chance = ways * math.exp(exact.log_probability(0, (3 - ones - last, ones + last)))
            else:
                chance = ways * math.exp(
                    exact.log_probability(0, (2 - ones, ones)) + exact.log_probability(0, (1 - last, last))
                )
            count = seen[ones * 2 + last]
            assert binom.ppf(1e-10, users, chance) <= count <= binom.isf(1e-10, users, chance)


@pytest.mark.parametrize(
    "protocol, value",
    [
        (l_sue(k=5, epsilon_permanent_micro=2_000_000), 3),
        (l_osue(k=5, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000), 0),
        (l_grr(k=4, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000), 3),
        (Rappor(size=16, hashes=2, cohorts=4), "word"),
        (InnerProduct(bits=5, stored=8, epsilon_pair_micro=500_000), 21),
    ],
)
def test_every_kind_of_client_has_a_variable(protocol: object, value: object) -> None:
    found = trackability(protocol.stream_law(value), 5, 300, SeededBits("any"))
    assert np.isfinite(found.draws).all()
    assert (np.diff(found.draws) >= 0).all()
    assert found.draws[-1] > 0
    ninth = found.percentile(0.9)
    assert ninth.low <= ninth.value <= ninth.high


def test_one_user_shows_as_one_and_two_as_two() -> None:
    """Kullback and Leibler: on average the evidence points the right way, for RAPPOR by many standard deviations."""
    law = Rappor().stream_law("word")
    users = 2000
    for same in (True, False):
        one, two = law.parts(SecureBits(), 5, 5, users, same=same)
        evidence = law.log_probability(one, two) - law.log_probability(one) - law.log_probability(two)
        score = evidence.mean() / (evidence.std() / math.sqrt(users))
        assert score > 8 if same else score < -8
    assert gap(law, SeededBits("x"), 1, 1, 3, same=True).shape == (3,)


def test_intervals_cover_the_quantile() -> None:
    """Of uniform draws the level itself is the quantile; an interval of 1 − 10⁻⁹ must hold it."""
    draws = np.sort((SecureBits().words(5000) >> np.uint64(11)) * 2.0**-53)
    found = Trackability(reports=2, draws=draws)
    for level in (0.1, 0.5, 0.9):
        interval = found.percentile(level, confidence=1 - 1e-9)
        assert interval.low <= level <= interval.high
        narrow = found.percentile(level, confidence=0.5)
        assert interval.low < narrow.low <= narrow.high < interval.high
    few = Trackability(reports=2, draws=draws[:5]).percentile(0.9)
    assert few.high == math.inf


def test_the_law_of_hashed_reports_is_the_clients() -> None:
    """Given its function, which is one of 2^128, a client's symbols have the law of its own code."""
    protocol = loloha(k=7, g=3, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    law = protocol.stream_law(4)
    function = UniversalHash(multiplier=0x9E3779B97F4A7C15, addend=12345, g=3)
    words = np.array([[function.multiplier], [function.addend]], dtype=np.uint64)

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws, function)
        return tuple(client.report(4).value for _ in range(3))

    for stream, chance in distribution(program).items():
        counts = np.bincount(stream, minlength=3)[None, :]
        found = law.log_probability((words, counts))[0] + 128 * math.log(2)
        assert math.exp(found) == pytest.approx(float(chance), rel=1e-10)
    first, second = law.parts(SecureBits(), 2, 1, 5, same=True)
    assert np.isfinite(law.log_probability(first, second)).all()
    first, second = law.parts(SecureBits(), 2, 1, 5, same=False)
    assert np.isneginf(law.log_probability(first, second)).all()
    assert np.isfinite(law.log_probability(first)).all()


def test_the_law_of_repeated_reports_is_the_clients() -> None:
    protocol = bit_flip(k=8, buckets=4, sampled=2, epsilon_permanent_micro=2_000_000)
    law = protocol.stream_law(5)

    def program(draws):  # type: ignore[no-untyped-def]
        client = protocol.client(draws)
        assert client.report(5) == client.report(4)  # the same bucket
        return client.report(5).sampled, client.report(5).bits

    total = 0.0
    for (sampled, row), chance in distribution(program).items():
        part = np.array([sampled], dtype=np.int32), unpack(row, 2)[None, :]
        found = math.exp(law.log_probability(part, part)[0])
        assert found == pytest.approx(float(chance), rel=1e-10)
        total += found
    assert total == pytest.approx(1, rel=1e-10)


def test_reports_that_identify_their_sender_are_infinitely_trackable() -> None:
    """Two devices share a function with probability 2^-128, and a sample with its bits with one in thousands here."""
    hashing = loloha(k=9, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    flipping = bit_flip(k=64, buckets=64, sampled=8, epsilon_permanent_micro=1_000_000)
    for protocol in (hashing, flipping):
        found = trackability(protocol.stream_law(3), 4, 50, SeededBits("sender"))
        median = found.percentile(0.5)
        assert (median.low, median.value, median.high) == (math.inf, math.inf, math.inf)
        one = gap(protocol.stream_law(3), SeededBits("sender"), 2, 2, 50, same=True)
        assert np.isfinite(one).all() and one.min() > 20
    # Few buckets are shared by many: then the worst of a few comparisons is finite at times.
    coarse = trackability(
        bit_flip(k=2, buckets=2, sampled=1, epsilon_permanent_micro=1_000_000).stream_law(1), 2, 200, SeededBits("x")
    )
    assert np.isfinite(coarse.draws[0]) and np.isinf(coarse.draws[-1])


def test_what_keeps_no_state_or_value_is_refused() -> None:
    with pytest.raises(LdpParameterError, match="second step"):
        binary_hashing(k=5, epsilon_micro=1_000_000).stream_law(1)
    with pytest.raises(ReportError):
        bit_flip(k=5, buckets=5, sampled=1, epsilon_permanent_micro=1_000_000).stream_law(5)
    with pytest.raises(ReportError):
        l_grr(k=4, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000).stream_law(-1)
    with pytest.raises(LdpParameterError, match="second step"):
        sue(k=5, epsilon_micro=1_000_000).stream_law(1)
    law = Rappor().stream_law("word")
    assert isinstance(law, BitsLaw)
    assert isinstance(l_grr(k=3, epsilon_permanent_micro=2, epsilon_first_micro=1).stream_law(0), SymbolLaw)
    with pytest.raises(LdpParameterError):
        trackability(law, 1, 10, SeededBits("x"))
    with pytest.raises(LdpParameterError):
        trackability(law, 2, 0, SeededBits("x"))
    with pytest.raises(LdpParameterError):
        Trackability(reports=2, draws=np.ones(3)).percentile(1.0)
