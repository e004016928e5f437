"""Longitudinal local differential privacy: clients, estimators and tracking."""

from ldp_client.bitflip import BitFlip, BitFlipColumns, BitFlipReport, bit_flip
from ldp_client.direct import Direct, l_grr, randomized_response
from ldp_client.draws import Draws
from ldp_client.dyadic import DyadicServer, DyadicTree, NodeReport
from ldp_client.enumeration import distribution, privacy_loss
from ldp_client.errors import DataError, FigureError, LdpError, ProtocolError, RegistryError, ReportError, StateError
from ldp_client.everlasting import BitwiseEverlasting
from ldp_client.finite_state import FiniteState
from ldp_client.hash_range import best_range, printed_range
from ldp_client.hashed import Hashed, HashedColumns, HashedReport, binary_hashing, loloha, optimal_hashing
from ldp_client.hashing import UniversalHash, collision_bound, collision_probability
from ldp_client.inner_product import InnerProduct, PairColumns, PairEstimate, for_accuracy, for_everlasting
from ldp_client.methods import METHODS, build
from ldp_client.protocol import FrequencyProtocol, Privacy
from ldp_client.rappor import Rappor, RapporColumns, RapporCounts, RapporReport
from ldp_client.rappor_decoding import Decoded, decode, learning_limit
from ldp_client.rappor_recovery import Recovery, recover
from ldp_client.registry import Registry
from ldp_client.reports import decode_report, encode_report, randomizer_id, report_bytes
from ldp_client.sealed import columns_of, randomizer_of, seal_report
from ldp_client.steps import Calibration
from ldp_client.stream_laws import StreamLaw, stream_law
from ldp_client.support import Estimate, Support
from ldp_client.trackability import Percentile, Trackability, trackability
from ldp_client.tracking import (
    Bound,
    composed_untrackable,
    permanent_untrackable,
    several_permanent_untrackable,
    several_untrackable,
    undetectable,
)
from ldp_client.unary import Unary, l_osue, l_sue, optimized_unary, sue

__all__ = [
    "METHODS",
    "BitFlip",
    "BitFlipColumns",
    "BitFlipReport",
    "BitwiseEverlasting",
    "Bound",
    "Calibration",
    "DataError",
    "Decoded",
    "Direct",
    "Draws",
    "DyadicServer",
    "DyadicTree",
    "Estimate",
    "FigureError",
    "FiniteState",
    "FrequencyProtocol",
    "Hashed",
    "HashedColumns",
    "HashedReport",
    "InnerProduct",
    "LdpError",
    "NodeReport",
    "PairColumns",
    "PairEstimate",
    "Percentile",
    "Privacy",
    "ProtocolError",
    "Rappor",
    "RapporColumns",
    "RapporCounts",
    "RapporReport",
    "Recovery",
    "Registry",
    "RegistryError",
    "ReportError",
    "StateError",
    "StreamLaw",
    "Support",
    "Trackability",
    "Unary",
    "UniversalHash",
    "best_range",
    "binary_hashing",
    "bit_flip",
    "build",
    "collision_bound",
    "collision_probability",
    "columns_of",
    "composed_untrackable",
    "decode",
    "decode_report",
    "distribution",
    "encode_report",
    "for_accuracy",
    "for_everlasting",
    "l_grr",
    "l_osue",
    "l_sue",
    "learning_limit",
    "loloha",
    "optimal_hashing",
    "optimized_unary",
    "permanent_untrackable",
    "printed_range",
    "privacy_loss",
    "randomized_response",
    "randomizer_id",
    "randomizer_of",
    "recover",
    "report_bytes",
    "seal_report",
    "several_permanent_untrackable",
    "several_untrackable",
    "stream_law",
    "sue",
    "trackability",
    "undetectable",
]
