"""Longitudinal local differential privacy: clients, estimators and tracking."""

from ldp_client.errors import LdpError
from ldp_client.estimation import FrequencyEstimate
from ldp_client.protocols import PROTOCOLS, build
from ldp_client.protocols.base import LocalProtocol
from ldp_client.protocols.bitflip import bit_flip
from ldp_client.protocols.direct import BitwiseEverlasting, l_grr, randomized_response
from ldp_client.protocols.dyadic import DyadicTree
from ldp_client.protocols.hashed import binary_hashing, loloha, optimal_hashing
from ldp_client.protocols.inner_product import InnerProduct
from ldp_client.protocols.rappor import Rappor
from ldp_client.protocols.unary import l_osue, l_sue, optimized_unary, sue
from ldp_client.tracking import permanent_untrackable, trackability
from ldp_client.wire import Registry, columns_of, randomizer_of, seal_report

__all__ = [
    "PROTOCOLS",
    "BitwiseEverlasting",
    "DyadicTree",
    "FrequencyEstimate",
    "InnerProduct",
    "LdpError",
    "LocalProtocol",
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
    "sue",
    "trackability",
]
