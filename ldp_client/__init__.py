"""Longitudinal local differential privacy: clients, estimators and tracking."""

from ldp_client.errors import LdpError
from ldp_client.estimation.support import Estimate
from ldp_client.privacy.tracking_bounds import permanent_untrackable
from ldp_client.protocols.bitflip import bit_flip
from ldp_client.protocols.direct import l_grr, randomized_response
from ldp_client.protocols.dyadic import DyadicTree
from ldp_client.protocols.everlasting import BitwiseEverlasting
from ldp_client.protocols.hashed import binary_hashing, loloha, optimal_hashing
from ldp_client.protocols.inner_product import InnerProduct
from ldp_client.protocols.interface import FrequencyProtocol
from ldp_client.protocols.methods import build
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.unary import l_osue, l_sue, optimized_unary, sue
from ldp_client.tracking.stream_laws import stream_law
from ldp_client.tracking.trackability import trackability
from ldp_client.wire.registry import Registry
from ldp_client.wire.sealed import columns_of, randomizer_of, seal_report

__all__ = [
    "BitwiseEverlasting",
    "DyadicTree",
    "Estimate",
    "FrequencyProtocol",
    "InnerProduct",
    "LdpError",
    "Rappor",
    "Registry",
    "binary_hashing",
    "bit_flip",
    "build",
    "columns_of",
    "l_grr",
    "l_osue",
    "l_sue",
    "loloha",
    "optimal_hashing",
    "optimized_unary",
    "permanent_untrackable",
    "randomized_response",
    "randomizer_of",
    "seal_report",
    "stream_law",
    "sue",
    "trackability",
]
