"""Subset selection: exact ε by enumeration, error and estimates against others, a fleet that reports as clients do."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from aggservice.mechanisms import SecureBits, SeededBits
from ldp_client import build, randomizer_of
from ldp_client.enumeration import distribution, widest
from ldp_client.errors import LdpParameterError, ReportError
from ldp_client.protocols.subset import SubsetSelection
from ldp_client.sampling import bits_of, pack, rows_from_bytes
from stated import assert_frequencies

SIZES = [(k, d) for k in (2, 3, 4, 5) for d in range(1, k)]


@pytest.mark.parametrize(("k", "d"), SIZES)
@pytest.mark.parametrize("micro", [1, 700_000, 3_000_000])
def test_a_report_has_exactly_its_epsilon(k: int, d: int, micro: int) -> None:
    protocol = SubsetSelection(k=k, chosen=d, epsilon_micro=micro)
    laws = [distribution(lambda draws, value=value: protocol.client(draws).report(value)) for value in range(k)]
    assert all(len(law) == math.comb(k, d) and sum(law.values()) == 1 for law in laws)
    assert widest(laws) == pytest.approx(micro / 1e6, rel=1e-12)
    assert protocol.privacy.first == micro / 1e6
    named = randomizer_of(protocol)
    assert named.independent and (named.epsilon_micro, named.epsilon_permanent_micro) == (micro, None)


@pytest.mark.parametrize(("k", "d"), SIZES)
def test_a_set_with_the_value_is_e_to_the_epsilon_times_as_likely(k: int, d: int) -> None:
    """The law written out: e^ε/(C(k−1, d−1)e^ε + C(k−1, d)) with the value, or 1 over the same without it."""
    protocol = SubsetSelection(k=k, chosen=d, epsilon_micro=1_000_000)
    law = distribution(lambda draws: protocol.client(draws).report(1))
    below = math.comb(k - 1, d - 1) * math.e + math.comb(k - 1, d)
    for chosen in itertools.combinations(range(k), d):
        row = pack(np.isin(np.arange(k), chosen))
        assert float(law[row]) == pytest.approx((math.e if 1 in chosen else 1) / below, rel=1e-12)


@pytest.mark.parametrize(("k", "d"), [(k, d) for k in (4, 7, 20, 100) for d in (1, 2, 3, k // 3 + 1, k - 1)])
def test_the_error_has_its_closed_form(k: int, d: int) -> None:
    """The expected squared error of all frequencies together, as a fraction in e^ε for users drawn at random."""
    for micro in (200_000, 1_000_000, 4_000_000):
        protocol = SubsetSelection(k=k, chosen=d, epsilon_micro=micro)
        shares = np.arange(1, k + 1) / (k * (k + 1) / 2)
        e = math.exp(micro / 1e6)
        closed = (
            (d * (k - 2) + 1) * e**2 / ((k - d) * (e - 1) ** 2)
            + 2 * (k - 2) * e / (e - 1) ** 2
            + ((k - 2) * (k - d) + 1) / (d * (e - 1) ** 2)
            - float((shares**2).sum())
        ) / 1000
        # Users drawn at random add the variance f(1 - f)/n of their true frequencies.
        drawn = (shares * (1 - shares)).sum() / 1000
        assert protocol.support.variance(1000, shares).sum() + drawn == pytest.approx(closed, rel=1e-9)


def test_the_number_of_values_is_the_best_or_next_to_it() -> None:
    for k in (2, 3, 16, 360):
        for micro in (100_000, 1_000_000, 2_000_000, 6_000_000):
            chosen = build("SS", k=k, epsilon_permanent_micro=micro, epsilon_first_micro=1).chosen
            assert chosen == max(1, math.floor(k / (math.exp(micro / 1e6) + 1) + 0.5))
            errors = {
                d: SubsetSelection(k=k, chosen=d, epsilon_micro=micro).support.approximate_variance(1)
                for d in range(1, min(k, chosen + 5))
            }
            assert abs(min(errors, key=errors.__getitem__) - chosen) <= 1


@pytest.mark.parametrize(("k", "micro"), [(4, 1_000_000), (20, 500_000), (20, 2_000_000), (100, 1_000_000)])
def test_multi_freq_ldpy_agrees(k: int, micro: int) -> None:
    """The same sets give the same frequencies in the library of LOLOHA's authors, which chooses d, p and q itself."""
    from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Aggregator_MI

    protocol = build("SS", k=k, epsilon_permanent_micro=micro, epsilon_first_micro=1)
    rows = protocol.fleet(500, SeededBits("sets")).report(np.arange(500) % k)
    sets = [np.flatnonzero(row) for row in bits_of(rows, k)]
    assert {len(one) for one in sets} == {protocol.chosen}
    theirs = SS_Aggregator_MI(sets, k, micro / 1e6)
    np.testing.assert_allclose(protocol.estimate(rows).normalised(), theirs, atol=1e-12)


def test_a_fleet_sends_every_set_as_often_as_clients_would() -> None:
    """Chi-square over the ten sets of two of five values, 20,000 users: false alarms 1e-8."""
    protocol = SubsetSelection(k=5, chosen=2, epsilon_micro=1_000_000)
    law = distribution(lambda draws: protocol.client(draws).report(3))
    rows = protocol.fleet(20_000, SecureBits()).report(np.full(20_000, 3))
    sets = {int(rows_from_bytes([row], 5)[0, 0]): chance for row, chance in law.items()}
    counts = Counter(rows[:, 0].tolist())
    assert set(counts) == set(sets)
    assert_frequencies(np.array([counts[one] for one in sets]), np.array([20_000 * float(sets[one]) for one in sets]))


def test_wrong_parameters_and_reports_are_refused() -> None:
    for k, d in ((3, 0), (3, 3), (1, 1), (3, True)):
        with pytest.raises(LdpParameterError):
            SubsetSelection(k=k, chosen=d, epsilon_micro=1_000_000)
    protocol = SubsetSelection(k=5, chosen=2, epsilon_micro=1_000_000)
    for bad in (b"\x07", b"\x00", b"\x60"):
        with pytest.raises(ReportError):
            protocol.decode(bad)
    with pytest.raises(ReportError, match="2 of 5 values"):
        protocol.estimate(protocol.columns([b"\x07"]))
    with pytest.raises(LdpParameterError, match="no permanent state"):
        protocol.stream_law(1)
    saved = protocol.client(SeededBits("x")).save()
    assert protocol.restore(saved, SeededBits("y")).report(2) == protocol.client(SeededBits("y")).report(2)
