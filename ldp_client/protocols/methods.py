"""The methods of the LOLOHA paper's evaluation by name (§5.1), and those that this package adds."""

from __future__ import annotations

from typing import TypedDict

from ldp_client.errors import ProtocolError
from ldp_client.protocols.bitflip import Memo, bit_flip
from ldp_client.protocols.direct import l_grr, randomized_response
from ldp_client.protocols.hashed import binary_hashing, loloha, optimal_hashing
from ldp_client.protocols.interface import FrequencyProtocol
from ldp_client.protocols.unary import l_osue, l_sue, optimized_unary, sue

#: The seven methods of Figures 3 and 4, by the paper's names.
PAPER_METHODS = ("RAPPOR", "L-OSUE", "L-GRR", "1BitFlipPM", "bBitFlipPM", "BiLOLOHA", "OLOLOHA")

#: The paper's methods with the calibration that meets ε₁ exactly.
EXACT_METHODS = ("OLOLOHA-exact", "L-GRR-exact")

#: 1BitFlipPM with an answer per bucket, as in the runs behind the paper's Table 2.
BUCKET_METHODS = ("1BitFlipPM-bucket",)

#: One report per value, no memory.
ONE_SHOT_METHODS = ("GRR", "SUE", "OUE", "BLH", "OLH")

METHODS = (*PAPER_METHODS, *EXACT_METHODS, *BUCKET_METHODS, *ONE_SHOT_METHODS)


class _Pair(TypedDict):
    epsilon_permanent_micro: int
    epsilon_first_micro: int


def has_second_step(name: str) -> bool:
    """Return whether a method's error depends on ε₁ as well as on ε∞."""
    return name in METHODS and name not in (*ONE_SHOT_METHODS, *BUCKET_METHODS, "1BitFlipPM", "bBitFlipPM")


def build(
    name: str, *, k: int, epsilon_permanent_micro: int, epsilon_first_micro: int, buckets: int | None = None
) -> FrequencyProtocol:
    """Return the method ``name`` over k values. One-shot methods use ε∞ for their only report."""
    pair = _Pair(epsilon_permanent_micro=epsilon_permanent_micro, epsilon_first_micro=epsilon_first_micro)
    b = k if buckets is None else buckets
    match name:
        case "RAPPOR":
            return l_sue(k=k, **pair)
        case "L-OSUE":
            return l_osue(k=k, **pair)
        case "L-GRR":
            return l_grr(k=k, **pair)
        case "L-GRR-exact":
            return l_grr(k=k, **pair, calibration="exact")
        case "1BitFlipPM" | "1BitFlipPM-bucket":
            memo: Memo = "bucket" if name in BUCKET_METHODS else "pattern"
            return bit_flip(k=k, buckets=b, sampled=1, epsilon_permanent_micro=epsilon_permanent_micro, memo=memo)
        case "bBitFlipPM":
            return bit_flip(k=k, buckets=b, sampled=b, epsilon_permanent_micro=epsilon_permanent_micro)
        case "BiLOLOHA":
            return loloha(k=k, **pair, g=2)
        case "OLOLOHA":
            return loloha(k=k, **pair)
        case "OLOLOHA-exact":
            return loloha(k=k, **pair, calibration="exact")
        case "GRR":
            return randomized_response(k=k, epsilon_micro=epsilon_permanent_micro)
        case "SUE":
            return sue(k=k, epsilon_micro=epsilon_permanent_micro)
        case "OUE":
            return optimized_unary(k=k, epsilon_micro=epsilon_permanent_micro)
        case "BLH":
            return binary_hashing(k=k, epsilon_micro=epsilon_permanent_micro)
        case "OLH":
            return optimal_hashing(k=k, epsilon_micro=epsilon_permanent_micro)
    raise ProtocolError(f"there is no method {name!r}: choose one of {', '.join(METHODS)}")
