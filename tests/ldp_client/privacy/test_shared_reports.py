"""What a device's reports share, as each protocol declares it, against what they do share."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest

from aggservice.mechanisms import SecureBits
from aggservice.wire import Randomizer
from aggservice.wire.errors import EncodingError
from ldp_client import PROTOCOLS as TABLE
from ldp_client import (
    BitwiseEverlasting,
    InnerProduct,
    LocalProtocol,
    Rappor,
    bit_flip,
    build,
    loloha,
    optimal_hashing,
    randomizer_of,
)
from ldp_client.enumeration import distribution
from ldp_client.protocols import methods

METHODS = tuple(methods())

HALF = Fraction(1, 2)
RAPPOR = {
    "RAPPOR, one cohort, no permanent response": Rappor(size=2, hashes=1, cohorts=1, f=Fraction(0)),
    "RAPPOR, two cohorts, no permanent response": Rappor(size=2, hashes=1, cohorts=2, f=Fraction(0)),
    "RAPPOR, one cohort": Rappor(size=2, hashes=1, cohorts=1),
    "RAPPOR, permanent response alone": Rappor(size=2, hashes=1, cohorts=1, f=HALF, p=Fraction(0), q=Fraction(1)),
}
PROTOCOLS: dict[str, Any] = {
    **{
        name: build(name, k=3, epsilon_permanent_micro=1_000_000, epsilon_first_micro=500_000, buckets=3)
        for name in METHODS
    },
    **RAPPOR,
    "RAPPOR as deployed": Rappor(),
    "BEP": BitwiseEverlasting(epsilon_permanent_micro=1_000_000, epsilon_report_micro=1_000_000),
    "RNIP": InnerProduct(bits=2, stored=2, epsilon_pair_micro=1_000_000),
    "d = 2 of b = 3": bit_flip(k=3, buckets=3, sampled=2, epsilon_permanent_micro=1_000_000),
}
INDEPENDENT = {"GRR", "SUE", "OUE", "SS", "RAPPOR, one cohort, no permanent response"}


def values_of(protocol: LocalProtocol) -> tuple[Any, ...]:
    return ("a", "b") if isinstance(protocol, Rappor) else (0, 1)


def sequence(protocol: Any, client: Any, values: tuple[Any, ...]) -> tuple[bytes, ...]:
    """Return one device's reports of these values, as they are sent."""
    return tuple(protocol.encode(client.report(value)) for value in values)


def test_every_kind_of_protocol_is_here() -> None:
    assert {type(one) for one in PROTOCOLS.values()} == {TABLE[name] for name in TABLE}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_declares_what_its_reports_share(name: str) -> None:
    """Exactly: two reports of a device are independent, for all pairs of values, if and only if it shares nothing.

    A hash function has too many values to try; both reports hold it, so one device has one and two devices have two
    (with probability 1 - 2⁻¹²⁷).
    """
    protocol = PROTOCOLS[name]
    assert (not protocol.shares) == (name in INDEPENDENT)
    assert randomizer_of(protocol).independent == (name in INDEPENDENT)
    if "hash function" in protocol.shares:
        first, second = (protocol.client(SecureBits()) for _ in range(2))
        assert first.report(0).function == first.report(1).function != second.report(0).function
        return
    if protocol == Rappor():
        assert protocol.shares == "the cohort and memoized answers"  # too many bits to try
        return
    independent = True
    for pair in itertools.product(values_of(protocol), repeat=2):
        joint = distribution(lambda draws, pair=pair: sequence(protocol, protocol.client(draws), pair))
        alone = [
            distribution(lambda draws, value=value: sequence(protocol, protocol.client(draws), (value,)))
            for value in pair
        ]
        for one, other in itertools.product(*alone):
            independent &= joint.get((*one, *other), Fraction(0)) == alone[0][one] * alone[1][other]
    assert independent == (not protocol.shares)


@pytest.mark.parametrize("name", sorted(INDEPENDENT))
def test_a_name_says_that_reports_share_nothing(name: str) -> None:
    found = randomizer_of(PROTOCOLS[name])
    assert Randomizer.from_hex(found.hex) == found and found.hex[32] == "8"
    former = Randomizer.from_hex(found.hex[:32] + "0" + found.hex[33:])
    assert not former.independent and former.report_bytes == found.report_bytes
    with pytest.raises(EncodingError, match="share nothing"):
        Randomizer.from_hex(found.hex[:-8] + "7fffffff")


@pytest.mark.parametrize(
    "protocol",
    [
        loloha(k=4, epsilon_permanent_micro=2_000_000, epsilon_first_micro=1_000_000),
        optimal_hashing(k=4, epsilon_micro=1_000_000),
    ],
)
def test_a_device_that_is_restored_shares_the_same(protocol: Any) -> None:
    client = protocol.client(SecureBits())
    again = protocol.restore(client.save(), SecureBits())
    assert client.report(1).function == again.report(1).function
