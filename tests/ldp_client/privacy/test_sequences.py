"""Theorem 3.1 of the LOLOHA paper: whole sequences of reports, enumerated; where it holds, and where it does not."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ldp_client import bit_flip, l_grr, loloha, randomized_response
from ldp_client.enumeration import compensating, sequence_loss, step_loss, stream_loss
from ldp_client.errors import LdpParameterError
from ldp_client.protocols.hashed import UniversalHash

LENGTHS = [3, pytest.param(6, marks=pytest.mark.soak)]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=7, max_size=7), st.integers(1, 3))
def test_the_theorem_holds_where_steps_look_at_reports_only(table: list[tuple[int, int]], length: int) -> None:
    """Any binary steps that depend on the value and on earlier reports: the whole loses at least length times α."""

    def step(held: tuple[int, ...], sent: tuple[int, ...], value: int) -> tuple[Fraction, Fraction]:
        chance = Fraction(table[2 ** len(sent) - 1 + int("0" + "".join(map(str, sent)), 2)][value], 10)
        return 1 - chance, chance

    alpha = step_loss(step, 2, length)
    assert sequence_loss(step, 2, length) >= length * alpha - 1e-12


@pytest.mark.parametrize("length", LENGTHS)
def test_the_printed_theorem_is_refuted(length: int) -> None:
    """No step is α-LDP below ln 3, so ``length`` reports should not be length·ln 3-LDP; they are 1.107-LDP."""
    step = compensating(Fraction(3), Fraction(1, 1000))
    for count in range(1, length + 1):
        assert step_loss(step, 2, count) == pytest.approx(math.log(3), abs=1e-12)
        assert math.log(3) - 1e-12 <= sequence_loss(step, 2, count) < 1.107
    assert sequence_loss(step, 2, 2) < 2 * math.log(3) / 1.9


@pytest.mark.parametrize("length", LENGTHS)
def test_a_memoizing_client_loses_more_with_every_report(length: int) -> None:
    """L-GRR over two values, ε∞ = 2, ε₁ = 1: what the paper means. The worst case on values, 4, is soon passed."""
    protocol = l_grr(k=2, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    losses = [stream_loss(lambda draws: protocol.client(draws).report, 2, count) for count in range(1, length + 1)]
    assert losses[:2] == pytest.approx([1.0, 2.0], abs=1e-12)
    assert all(after - before > 0.6 for before, after in itertools.pairwise(losses))
    if length >= 5:
        assert losses[4] == pytest.approx(4.018667, abs=1e-6)
        assert losses[4] > protocol.privacy.worst_case
    # Constant sequences alone, the paper's other reading, stay within ε∞.
    steady = stream_loss(lambda draws: _constant(protocol.client(draws)), 2, length)
    assert losses[0] < steady <= 2 + 1e-12 or length == 1


def _constant(client: Any) -> Any:
    """Return a report of the first value, whatever the later ones are."""
    first: list[int] = []

    def send(value: int) -> Any:
        first.append(value)
        return client.report(first[0])

    return send


def test_other_clients() -> None:
    """LOLOHA given its function is L-GRR on hash values; no second step tells a change at once; GRR adds up."""
    hashing = loloha(k=2, g=2, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000)
    function = UniversalHash(multiplier=1 << 63, addend=0, g=2)
    assert [function(v) for v in range(2)] == [0, 1]
    assert stream_loss(lambda draws: _values(hashing.client(draws, function)), 2, 3) == pytest.approx(
        2.641664, abs=1e-6
    )
    flips = bit_flip(k=2, buckets=2, sampled=1, epsilon_permanent_micro=1_000_000)
    assert stream_loss(lambda draws: flips.client(draws, [0]).report, 2, 2) == math.inf
    once = randomized_response(k=3, epsilon_micro=500_000)
    assert stream_loss(lambda draws: once.client(draws).report, 3, 3) == pytest.approx(1.5, abs=1e-12)


def _values(client: Any) -> Any:
    return lambda value: client.report(value).value


def test_what_cannot_be_listed_is_refused() -> None:
    for values, length in ((1, 2), (2, 0), (2, 17), (2.0, 2), (10**9, 10**9)):
        with pytest.raises(LdpParameterError, match="cannot list"):
            sequence_loss(compensating(Fraction(2), Fraction(1, 100)), values, length)  # type: ignore[arg-type]
    for odds, rare in ((1, Fraction(1, 100)), (2, Fraction(0)), (2, Fraction(1, 15))):
        with pytest.raises(LdpParameterError, match="odds"):
            compensating(Fraction(odds), rare)
