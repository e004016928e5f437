"""Longitudinal local differential privacy: clients, estimators and tracking."""

from ldp_client.bitflip import BitFlip, BitFlipColumns, BitFlipReport, bit_flip
from ldp_client.direct import Direct, l_grr, randomized_response
from ldp_client.draws import Draws
from ldp_client.enumeration import distribution, privacy_loss
from ldp_client.errors import DataError, FigureError, LdpError, ProtocolError, ReportError, StateError
from ldp_client.hash_range import best_range, printed_range
from ldp_client.hashed import Hashed, HashedColumns, HashedReport, binary_hashing, loloha, optimal_hashing
from ldp_client.hashing import UniversalHash, collision_bound, collision_probability
from ldp_client.methods import METHODS, build
from ldp_client.protocol import FrequencyProtocol, Privacy
from ldp_client.reports import decode_report, encode_report, randomizer_id, report_bytes
from ldp_client.steps import Calibration
from ldp_client.support import Estimate, Support
from ldp_client.unary import Unary, l_osue, l_sue, optimized_unary, sue

__all__ = [
    "METHODS",
    "BitFlip",
    "BitFlipColumns",
    "BitFlipReport",
    "Calibration",
    "DataError",
    "Direct",
    "Draws",
    "Estimate",
    "FigureError",
    "FrequencyProtocol",
    "Hashed",
    "HashedColumns",
    "HashedReport",
    "LdpError",
    "Privacy",
    "ProtocolError",
    "ReportError",
    "StateError",
    "Support",
    "Unary",
    "UniversalHash",
    "best_range",
    "binary_hashing",
    "bit_flip",
    "build",
    "collision_bound",
    "collision_probability",
    "decode_report",
    "distribution",
    "encode_report",
    "l_grr",
    "l_osue",
    "l_sue",
    "loloha",
    "optimal_hashing",
    "optimized_unary",
    "printed_range",
    "privacy_loss",
    "randomized_response",
    "randomizer_id",
    "report_bytes",
    "sue",
]
