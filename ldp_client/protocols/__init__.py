"""Protocols by name: one class each, and the table that maps their names to it.

A name that a class lists in its ``methods`` is offered by commands and pages over any number of values; the others are
second names (``L-SUE`` is RAPPOR over values), or protocols over strings or bits.
"""

from __future__ import annotations

from typing import Any

from aggservice.kinds import Kinds
from ldp_client.errors import LdpParameterError
from ldp_client.protocols.base import LocalProtocol, ProtocolRequest

#: The seven methods of the LOLOHA paper's evaluation come first, by its names and in its order (§5.1).
PROTOCOLS: Kinds[type[LocalProtocol]] = Kinds(
    "LDP protocol",
    plural="ldp_protocols",
    base=LocalProtocol,
    builtin={
        "RAPPOR": "ldp_client.protocols.rappor:Rappor",
        "L-OSUE": "ldp_client.protocols.unary:UnaryEncoding",
        "L-GRR": "ldp_client.protocols.direct:DirectEncoding",
        "1BitFlipPM": "ldp_client.protocols.bitflip:BitFlip",
        "bBitFlipPM": "ldp_client.protocols.bitflip:BitFlip",
        "BiLOLOHA": "ldp_client.protocols.hashed:LocalHashing",
        "OLOLOHA": "ldp_client.protocols.hashed:LocalHashing",
        "OLOLOHA-exact": "ldp_client.protocols.hashed:LocalHashing",
        "L-GRR-exact": "ldp_client.protocols.direct:DirectEncoding",
        "1BitFlipPM-bucket": "ldp_client.protocols.bitflip:BitFlip",
        "GRR": "ldp_client.protocols.direct:DirectEncoding",
        "SUE": "ldp_client.protocols.unary:UnaryEncoding",
        "OUE": "ldp_client.protocols.unary:UnaryEncoding",
        "BLH": "ldp_client.protocols.hashed:LocalHashing",
        "OLH": "ldp_client.protocols.hashed:LocalHashing",
        "SS": "ldp_client.protocols.subset:SubsetSelection",
        "L-SUE": "ldp_client.protocols.unary:UnaryEncoding",
        "LOLOHA": "ldp_client.protocols.hashed:LocalHashing",
        "dBitFlipPM": "ldp_client.protocols.bitflip:BitFlip",
        "BEP": "ldp_client.protocols.direct:BitwiseEverlasting",
        "RNIP": "ldp_client.protocols.inner_product:InnerProduct",
    },
)


def methods() -> dict[str, str]:
    """Return the names of protocols over any number of values, with words for each, in the table's order."""
    found = {name: PROTOCOLS[name].methods.get(name) for name in PROTOCOLS}
    return {name: words for name, words in found.items() if words is not None}


def build(
    name: str,
    *,
    k: int,
    epsilon_permanent_micro: int,
    epsilon_first_micro: int,
    buckets: int | None = None,
) -> Any:
    """Return the protocol ``name`` over k values. One-shot protocols use ε∞ for their only report."""
    if name not in PROTOCOLS:
        raise LdpParameterError(f"there is no method {name!r}: choose one of {', '.join(methods())}")
    request = ProtocolRequest(
        k=k,
        epsilon_permanent_micro=epsilon_permanent_micro,
        epsilon_first_micro=epsilon_first_micro,
        buckets=buckets,
    )
    return PROTOCOLS[name].for_values(name, request)
