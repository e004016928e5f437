"""The costs of a longitudinal protocol: bits to send, server steps, worst privacy loss (LOLOHA paper, Table 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ldp_client.errors import ProtocolError
from ldp_client.protocols.bitflip import BitFlip
from ldp_client.protocols.direct import DirectEncoding
from ldp_client.protocols.hashed import LocalHashing
from ldp_client.protocols.interface import check_users
from ldp_client.protocols.unary import UnaryEncoding
from ldp_client.wire.reports import report_bytes

LongitudinalProtocol = UnaryEncoding | DirectEncoding | LocalHashing | BitFlip

#: A hash function of ``ldp_client.sampling.hashing``: a multiplier and an addend of 64 bits.
_HASH_BITS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A row of Table 1 in numbers.

    ``report_bits`` are per user and time step. ``first_bits`` are sent once per user (the hash function, or the sampled
    buckets); the table leaves them out. ``sealed_bits`` is the length of this package's reports, each of which includes
    ``first_bits``. ``server_steps`` are those of one time step of all users as in the paper; for dBitFlipPM that is
    n·b, but this package's server takes n·d. ``worst_case`` is the ε over all of a user's values.
    """

    report_bits: int
    first_bits: int
    sealed_bits: int
    server_steps: int
    worst_case: float


def costs(protocol: LongitudinalProtocol, users: int) -> Costs:
    """Return the row of Table 1 for a longitudinal protocol and n users; ProtocolError for a one-shot one."""
    check_users(users)
    match protocol:
        case UnaryEncoding():
            report, first, steps = protocol.k, 0, users * protocol.k
        case DirectEncoding():
            report, first, steps = _bits(protocol.k), 0, users
        case LocalHashing():
            report, first, steps = _bits(protocol.g), _HASH_BITS, users * protocol.k
        case BitFlip():
            sampled = 0 if protocol.sampled == protocol.buckets else protocol.sampled * _bits(protocol.buckets)
            report, first, steps = protocol.sampled, sampled, users * protocol.buckets
        case _:
            raise ProtocolError(f"Table 1 has no row for {type(protocol).__name__}: give a longitudinal protocol")
    if math.isinf(protocol.privacy.worst_case):
        raise ProtocolError(f"Table 1 has no row for {protocol.kind}, which is one-shot: give a longitudinal protocol")
    return Costs(
        report_bits=report,
        first_bits=first,
        sealed_bits=8 * report_bytes(protocol),
        server_steps=steps,
        worst_case=protocol.privacy.worst_case,
    )


def _bits(size: int) -> int:
    """Return ⌈log₂ size⌉."""
    return (size - 1).bit_length()
