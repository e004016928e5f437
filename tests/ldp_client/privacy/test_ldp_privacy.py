"""The exact output distribution of each client, by running its own code along every branch of its draws."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from aggservice.mechanisms import Real, SecureBits
from ldp_client import (
    LdpError,
    binary_hashing,
    bit_flip,
    build,
    l_grr,
    l_osue,
    l_sue,
    loloha,
    optimal_hashing,
    optimized_unary,
    randomized_response,
    sue,
)
from ldp_client.enumeration import distribution
from ldp_client.protocols.hashed import UniversalHash
from ldp_client.sampling import ExactDraws
from twins.ldp_kernels import privacy_loss

MICRO = 1_000_000
PAIRS = [(500_000, 200_000), (1_000_000, 500_000), (3_000_000, 1_800_000), (5_000_000, 500_000)]


def function_with(hashes: list[int], g: int) -> UniversalHash:
    """Return a function of the family that hashes 0, 1, … to these values, found by trying."""
    bits = SecureBits()
    while True:
        function = UniversalHash(multiplier=bits.word(), addend=bits.word(), g=g)
        if [function(v) for v in range(len(hashes))] == hashes:
            return function


def worst(distributions: list[dict[Any, Fraction]]) -> float:
    return max(privacy_loss(one, other) for one, other in itertools.permutations(distributions, 2))


def flattened(report: Any) -> Any:
    return getattr(report, "value", getattr(report, "bits", report))


def reports(protocol: Any, given: Any, value: int, times: int = 1) -> dict[Any, Fraction]:
    """Return the distribution of ``times`` reports of one value."""

    def program(draws: ExactDraws) -> tuple[Any, ...]:
        client = protocol.client(draws, *given)
        return tuple(flattened(client.report(value)) for _ in range(times))

    found = distribution(program)
    assert sum(found.values()) == 1
    return found


def answers(protocol: Any, given: Any, value: int) -> dict[Any, Fraction]:
    """Return the distribution of the memoized answer to one value: what unlimited reports would show."""

    def program(draws: ExactDraws) -> Any:
        client = protocol.client(draws, *given)
        client.report(value)
        (answer,) = client._memo.values()
        return answer

    return distribution(program)


@pytest.mark.parametrize(("permanent", "first"), PAIRS)
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("make", [l_sue, l_osue])
def test_unary_clients_have_exactly_their_epsilons(make: Any, k: int, permanent: int, first: int) -> None:
    protocol = make(k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first)
    once = worst([reports(protocol, (), v) for v in range(k)])
    assert once == pytest.approx(first / MICRO, abs=1e-12)
    assert protocol.privacy.first == pytest.approx(once, abs=1e-12)
    assert worst([answers(protocol, (), v) for v in range(k)]) == pytest.approx(permanent / MICRO, abs=1e-12)
    assert protocol.privacy.permanent == pytest.approx(permanent / MICRO, abs=1e-12)
    assert protocol.privacy.worst_case == pytest.approx(k * permanent / MICRO, abs=1e-11)


def test_rappor_as_deployed_states_the_epsilon_it_has() -> None:
    protocol = l_sue(k=3, epsilon_permanent_micro=2_000_000)
    once = worst([reports(protocol, (), v) for v in range(3)])
    assert protocol.privacy.first == pytest.approx(once, abs=1e-12)
    assert 0 < once < 2


@pytest.mark.parametrize(("permanent", "first"), PAIRS)
@pytest.mark.parametrize("k", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("calibration", ["paper", "exact"])
def test_l_grr_clients_keep_their_epsilons(k: int, permanent: int, first: int, calibration: Any) -> None:
    protocol = l_grr(k=k, epsilon_permanent_micro=permanent, epsilon_first_micro=first, calibration=calibration)
    _check_grr(protocol, (), range(k), k, (permanent, first))


@pytest.mark.parametrize(("permanent", "first"), PAIRS)
@pytest.mark.parametrize("g", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("calibration", ["paper", "exact"])
def test_loloha_clients_keep_their_epsilons(g: int, permanent: int, first: int, calibration: Any) -> None:
    protocol = loloha(k=9, g=g, epsilon_permanent_micro=permanent, epsilon_first_micro=first, calibration=calibration)
    function = function_with([0, g - 1, g - 1], g)
    _check_grr(protocol, (function,), range(2), g, (permanent, first))
    # Two values of one hash value cannot be told apart at all.
    assert reports(protocol, (function,), 1) == reports(protocol, (function,), 2)


def _check_grr(protocol: Any, given: Any, values: range, size: int, asked: tuple[int, int]) -> None:
    permanent, first = (micro / MICRO for micro in asked)
    once = worst([reports(protocol, given, v) for v in values])
    assert protocol.privacy.first == pytest.approx(once, abs=1e-12)
    if protocol.calibration == "exact" or size == 2:
        assert once == pytest.approx(first, abs=1e-12)
    else:
        assert once < first
    assert worst([answers(protocol, given, v) for v in values]) == pytest.approx(permanent, abs=1e-12)
    assert protocol.privacy.worst_case == pytest.approx(size * permanent, abs=1e-11)
    losses = [worst([reports(protocol, given, v, times) for v in values]) for times in (1, 2, 3)] if size < 4 else []
    assert losses == sorted(losses)
    assert all(loss <= permanent + 1e-12 for loss in losses)


def test_the_papers_l_grr_is_far_below_the_epsilon_asked_for() -> None:
    protocol = l_grr(k=360, epsilon_permanent_micro=1_000_000, epsilon_first_micro=500_000)
    assert protocol.privacy.first == pytest.approx(0.0106, abs=5e-5)
    assert build(
        "L-GRR-exact", k=360, epsilon_permanent_micro=1_000_000, epsilon_first_micro=500_000
    ).privacy.first == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("micro", [500_000, 2_000_000])
@pytest.mark.parametrize(("buckets", "d"), [(b, d) for b in (2, 3, 4) for d in range(1, b + 1)])
@pytest.mark.parametrize("memo", ["pattern", "bucket"])
def test_bit_flip_clients_keep_their_epsilon(buckets: int, d: int, micro: int, memo: Any) -> None:
    protocol = bit_flip(k=2 * buckets, buckets=buckets, sampled=d, epsilon_permanent_micro=micro, memo=memo)
    answers = buckets if memo == "bucket" else min(d + 1, buckets)
    losses = []
    for sampled in itertools.combinations(range(buckets), d):
        found = [reports(protocol, (sampled,), v, 2) for v in range(2 * buckets)]
        assert found[0] == found[1]  # one bucket
        losses.append(worst(found))
        client = protocol.client(SecureBits(), sampled)
        for v in range(2 * buckets):
            client.report(v)
        assert client.memoized == answers
    assert protocol.privacy.permanent == pytest.approx(max(losses), abs=1e-12)
    assert protocol.privacy.first == protocol.privacy.permanent <= micro / MICRO + 1e-12
    assert (d == 1) == (max(losses) < micro / MICRO - 1e-9)
    assert protocol.privacy.worst_case == pytest.approx(answers * micro / MICRO)


@pytest.mark.parametrize("micro", [500_000, 2_000_000])
def test_one_shot_oracles_have_exactly_their_epsilon(micro: int) -> None:
    for k in (2, 3, 4, 5):
        for make in (sue, optimized_unary, randomized_response):
            protocol: Any = make(k=k, epsilon_micro=micro)
            once = worst([reports(protocol, (), v) for v in range(k)])
            assert once == pytest.approx(micro / MICRO, abs=1e-12) == protocol.privacy.first
            twice = worst([reports(protocol, (), v, 2) for v in range(2)])
            assert twice == pytest.approx(2 * micro / MICRO, abs=1e-12)  # nothing is memoized
            assert protocol.privacy.worst_case == math.inf
    for hashing in (binary_hashing, optimal_hashing):
        protocol = hashing(k=4, epsilon_micro=micro)
        given = (function_with([0, 1], protocol.g),)
        once = worst([reports(protocol, given, v) for v in range(2)])
        assert once == pytest.approx(micro / MICRO, abs=1e-12) == protocol.privacy.first


@pytest.mark.parametrize(
    ("protocol", "multiple"),
    [
        (l_sue(k=6, epsilon_permanent_micro=2, epsilon_first_micro=1), 6),
        (l_osue(k=6, epsilon_permanent_micro=2, epsilon_first_micro=1), 6),
        (l_grr(k=6, epsilon_permanent_micro=2, epsilon_first_micro=1), 6),
        (loloha(k=300, g=3, epsilon_permanent_micro=2, epsilon_first_micro=1), 3),
    ],
)
def test_the_worst_case_is_what_a_user_of_every_value_memoizes(protocol: Any, multiple: int) -> None:
    client = protocol.client(SecureBits())
    for v in list(range(protocol.k)) * 2:
        client.report(v)
    assert client.memoized == multiple
    assert protocol.privacy.worst_case == pytest.approx(multiple * 2e-6)


def test_all_memoized_answers_together_leak_their_number_times_the_limit() -> None:
    """Definition 3.2 on the table of answers: compare users whose values are permuted, all tables enumerated."""
    protocol = l_grr(k=3, epsilon_permanent_micro=700_000, epsilon_first_micro=300_000)
    chance = [answers(protocol, (), v) for v in range(3)]
    most = max(
        sum(math.log(chance[v][y] / chance[w][y]) for v, w, y in zip(one, other, table, strict=True))
        for one in itertools.permutations(range(3))
        for other in itertools.permutations(range(3))
        for table in itertools.product(range(3), repeat=3)
    )
    assert most == pytest.approx(protocol.privacy.worst_case, abs=1e-12)


def two_reports(protocol: Any, given: Any, values: tuple[int, int]) -> dict[Any, Fraction]:
    def program(draws: ExactDraws) -> tuple[Any, Any]:
        client = protocol.client(draws, *given)
        return flattened(client.report(values[0])), flattened(client.report(values[1]))

    return distribution(program)


def agrees(seen: dict[Any, int], expected: dict[Any, Fraction]) -> bool:
    """Chi-square at 1e-8."""
    assert set(seen) <= set(expected)
    total = sum(seen.values())
    statistic = sum((seen.get(key, 0) - total * float(p)) ** 2 / (total * float(p)) for key, p in expected.items() if p)
    return bool(chi2.sf(statistic, len(expected) - 1) > 1e-8)


@pytest.mark.parametrize("values", [(0, 0), (0, 1)])
@pytest.mark.parametrize("name", ["RAPPOR", "L-OSUE", "L-GRR", "bBitFlipPM", "GRR", "SUE", "OUE"])
def test_a_fleet_reports_as_its_clients_do(name: str, values: tuple[int, int]) -> None:
    """Both reports of 60,000 users against the enumerated client: 14 tests at 1e-8, with the next test's 2."""
    protocol: Any = build(name, k=3, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    given = (range(3),) if name == "bBitFlipPM" else ()
    fleet = protocol.fleet(60_000, SecureBits())
    columns = [fleet.report(np.full(60_000, v)) for v in values]
    rows = [getattr(each, "rows", each).reshape(-1).tolist() for each in columns]
    seen: dict[Any, int] = {}
    for pair in zip(*rows, strict=True):
        seen[pair] = seen.get(pair, 0) + 1
    expected = {
        tuple(int.from_bytes(part, "little") if isinstance(part, bytes) else part for part in outcome): chance
        for outcome, chance in two_reports(protocol, given, values).items()
    }
    assert agrees(seen, expected)


@pytest.mark.parametrize("values", [(0, 0), (0, 1)])
def test_a_loloha_fleet_reports_as_its_clients_do(values: tuple[int, int]) -> None:
    protocol = loloha(k=5, g=3, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    fleet = protocol.fleet(200_000, SecureBits())
    first, second = (fleet.report(np.full(200_000, v)) for v in values)
    groups: dict[tuple[int, int], dict[Any, int]] = {}
    for a, b, x, y in zip(
        first.multipliers.tolist(), first.addends.tolist(), first.values.tolist(), second.values.tolist(), strict=True
    ):
        function = UniversalHash(multiplier=a, addend=b, g=3)
        group = groups.setdefault((function(0), function(1)), {})
        group[x, y] = group.get((x, y), 0) + 1
    assert len(groups) == 9
    for hashes, seen in groups.items():
        given = (function_with(list(hashes), 3),)
        assert agrees(seen, two_reports(protocol, given, values))


def test_enumeration_needs_a_function_and_weighs_branches() -> None:
    with pytest.raises(LdpError, match="give the client its hash function"):
        distribution(lambda draws: loloha(k=3, epsilon_permanent_micro=2, epsilon_first_micro=1).client(draws).memoized)
    third = Real.of(Fraction(1, 4))
    assert distribution(lambda draws: draws.below(3) if draws.coin(third) else -1) == {
        -1: Fraction(3, 4),
        **{n: Fraction(1, 12) for n in range(3)},
    }
    assert privacy_loss({1: Fraction(1)}, {2: Fraction(1)}) == math.inf
