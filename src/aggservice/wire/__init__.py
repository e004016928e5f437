"""Reports as Chrome makes them: ``shared_info``, CBOR payloads, HPKE, key sets, JSON bodies, Avro, unit keys."""

from aggservice.wire.buckets import (
    bucket_from_base64,
    bucket_from_bytes,
    bucket_from_hex,
    bucket_from_int,
    bucket_to_base64,
    bucket_to_bytes,
    bucket_to_hex,
    bucket_to_short_bytes,
)
from aggservice.wire.errors import (
    AvroError,
    DecryptionError,
    EncodingError,
    KeyNotFoundError,
    KeySetError,
    PayloadError,
    PayloadFlaw,
    ReportBodyError,
    SharedInfoError,
    UnsupportedOperationError,
    WireError,
)
from aggservice.wire.key_files import read_key_set, write_key_set
from aggservice.wire.keys import KeyPair, KeySet, PublicKey, PublicKeySet
from aggservice.wire.payload import (
    HISTOGRAM,
    MAX_CONTRIBUTIONS,
    Contribution,
    Payload,
    decode_payload,
    encode_payload,
)
from aggservice.wire.report import AggregatableReport, SealedPayload, make_report, open_report, seal_payload
from aggservice.wire.sealing import open_sealed, seal
from aggservice.wire.shared_info import LATEST_VERSION, UNVERSIONED, Api, SharedInfo
from aggservice.wire.status import ReportStatus
from aggservice.wire.units import UNIT_BYTES, report_unit, shared_id, shared_id_text, shared_id_unit

__all__ = [
    "HISTOGRAM",
    "LATEST_VERSION",
    "MAX_CONTRIBUTIONS",
    "UNIT_BYTES",
    "UNVERSIONED",
    "AggregatableReport",
    "Api",
    "AvroError",
    "Contribution",
    "DecryptionError",
    "EncodingError",
    "KeyNotFoundError",
    "KeyPair",
    "KeySet",
    "KeySetError",
    "Payload",
    "PayloadError",
    "PayloadFlaw",
    "PublicKey",
    "PublicKeySet",
    "ReportBodyError",
    "ReportStatus",
    "SealedPayload",
    "SharedInfo",
    "SharedInfoError",
    "UnsupportedOperationError",
    "WireError",
    "bucket_from_base64",
    "bucket_from_bytes",
    "bucket_from_hex",
    "bucket_from_int",
    "bucket_to_base64",
    "bucket_to_bytes",
    "bucket_to_hex",
    "bucket_to_short_bytes",
    "decode_payload",
    "encode_payload",
    "make_report",
    "open_report",
    "open_sealed",
    "read_key_set",
    "report_unit",
    "seal",
    "seal_payload",
    "shared_id",
    "shared_id_text",
    "shared_id_unit",
    "write_key_set",
]
