"""Reports as bytes, and an identifier of the randomizer that made them: the content of an encrypted report.

All reports of a protocol have the same length, so that the length reveals nothing. Amplification by shuffling counts
only reports of the same randomizer, which ``randomizer_id`` identifies.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np

from ldp_client.errors import ReportError
from ldp_client.protocols.bitflip import BitFlip, BitFlipReport
from ldp_client.protocols.direct import DirectEncoding
from ldp_client.protocols.everlasting import BitwiseEverlasting
from ldp_client.protocols.hashed import HashedReport, LocalHashing
from ldp_client.protocols.interface import check_value
from ldp_client.protocols.rappor import Rappor, RapporReport
from ldp_client.protocols.unary import UnaryEncoding
from ldp_client.sampling.hashing import UniversalHash
from ldp_client.sampling.packed import unpack

AnyProtocol = UnaryEncoding | DirectEncoding | LocalHashing | BitFlip | BitwiseEverlasting | Rappor


def randomizer_id(protocol: AnyProtocol) -> str:
    """Return 32 hexadecimal digits that identify the protocol and its parameters."""
    text = json.dumps(protocol.describe(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"aggservice ldp randomizer\0" + text.encode()).hexdigest()[:32]


def report_bytes(protocol: AnyProtocol) -> int:
    """Return the length of every report of ``protocol``."""
    match protocol:
        case UnaryEncoding():
            return -(-protocol.k // 8)
        case DirectEncoding():
            return 4
        case LocalHashing():
            return 20
        case BitFlip():
            return 4 * protocol.sampled + -(-protocol.sampled // 8)
        case BitwiseEverlasting():
            return 1
        case Rappor():
            return 4 + -(-protocol.size // 8)


def encode_report(protocol: AnyProtocol, report: Any) -> bytes:
    """Return a client's report as bytes: big-endian numbers, and packed bits with the first bit lowest."""
    match protocol, report:
        case UnaryEncoding(), bytes():
            unpack(report, protocol.k)
            return report
        case DirectEncoding(), int() | np.integer():
            return struct.pack(">I", check_value(report, protocol.k))
        case LocalHashing(), HashedReport(function=UniversalHash() as function, value=value) if (
            function.g == protocol.g
        ):
            return struct.pack(">QQI", function.multiplier, function.addend, check_value(value, protocol.g))
        case BitFlip(), BitFlipReport(sampled=sampled, bits=bits):
            unpack(bits, protocol.sampled)
            checked = protocol.check_sampled(sampled)
            return struct.pack(f">{len(checked)}I", *checked) + bits
        case BitwiseEverlasting(), int() | np.integer():
            return bytes([check_value(report, 2)])
        case Rappor(), RapporReport(cohort=cohort, row=row):
            unpack(row, protocol.size)
            return struct.pack(">I", check_value(cohort, protocol.cohorts)) + row
    raise ReportError(f"this is not a report of {protocol.kind}: give what its client's `report` returned")


def decode_report(protocol: AnyProtocol, data: bytes) -> Any:
    """Return the report in ``data``; ReportError if no client of ``protocol`` can have made it."""
    if not isinstance(data, bytes):
        raise ReportError(f"a report of {protocol.kind} must be bytes, not a {type(data).__name__}")
    if len(data) != report_bytes(protocol):
        raise ReportError(f"a report of this {protocol.kind} must have {report_bytes(protocol)} bytes, not {len(data)}")
    match protocol:
        case UnaryEncoding():
            unpack(data, protocol.k)
            return data
        case DirectEncoding():
            return check_value(struct.unpack(">I", data)[0], protocol.k)
        case LocalHashing():
            multiplier, addend, value = struct.unpack(">QQI", data)
            function = UniversalHash(multiplier=multiplier, addend=addend, g=protocol.g)
            return HashedReport(function=function, value=check_value(value, protocol.g))
        case BitFlip():
            split = 4 * protocol.sampled
            sampled = protocol.check_sampled(struct.unpack(f">{protocol.sampled}I", data[:split]))
            unpack(data[split:], protocol.sampled)
            return BitFlipReport(sampled=sampled, bits=data[split:])
        case BitwiseEverlasting():
            return check_value(data[0], 2)
        case Rappor():
            unpack(data[4:], protocol.size)
            return RapporReport(cohort=check_value(struct.unpack(">I", data[:4])[0], protocol.cohorts), row=data[4:])
