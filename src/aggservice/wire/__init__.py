"""Reports as Chrome makes them: ``shared_info``, CBOR payloads, HPKE, key sets, JSON bodies, Avro, unit keys."""

from aggservice.wire.avro_buckets import (
    BucketRows,
    BucketWriter,
    read_debug_summary,
    read_domain,
    read_summary,
    write_buckets,
)
from aggservice.wire.avro_reports import ReportWriter, read_reports, write_reports
from aggservice.wire.avro_schemas import IN_DOMAIN, IN_REPORTS
from aggservice.wire.avro_shuffled import read_shuffled, write_shuffled
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
from aggservice.wire.device_tokens import TOKEN_BYTES, TokenCheck, check_collection, sign_token, token_message
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
from aggservice.wire.ldp_payload import LDP, LdpColumns, LdpPayload, Randomizer, decode_ldp_batch, decode_ldp_payload
from aggservice.wire.open_batch import OpenedBatch, ReportBatch, open_batch
from aggservice.wire.origins import Origin, is_reporting_origin, parse_origin
from aggservice.wire.payload import (
    HISTOGRAM,
    MAX_CONTRIBUTIONS,
    Contribution,
    Payload,
    decode_payload,
    encode_payload,
)
from aggservice.wire.payload_batch import SMALLEST_CONTRIBUTION_BYTES, ContributionColumns, decode_batch
from aggservice.wire.registry_keys import RegistryKey, RegistryKeyPair
from aggservice.wire.report import AggregatableReport, SealedPayload, make_report, open_report, seal_payload
from aggservice.wire.sealing import open_sealed, seal
from aggservice.wire.shards import find_shards, shard_name
from aggservice.wire.shared_info import LATEST_VERSION, UNVERSIONED, Api, SharedInfo
from aggservice.wire.shared_info_batch import SharedInfoColumns, parse_shared_info_batch
from aggservice.wire.spans import Spans
from aggservice.wire.status import ReportStatus
from aggservice.wire.units import UNIT_BYTES, report_unit, shared_id, shared_id_text, shared_id_unit
from aggservice.wire.units_batch import report_units, shared_id_units

__all__ = [
    "HISTOGRAM",
    "IN_DOMAIN",
    "IN_REPORTS",
    "LATEST_VERSION",
    "LDP",
    "MAX_CONTRIBUTIONS",
    "SMALLEST_CONTRIBUTION_BYTES",
    "TOKEN_BYTES",
    "UNIT_BYTES",
    "UNVERSIONED",
    "AggregatableReport",
    "Api",
    "AvroError",
    "BucketRows",
    "BucketWriter",
    "Contribution",
    "ContributionColumns",
    "DecryptionError",
    "EncodingError",
    "KeyNotFoundError",
    "KeyPair",
    "KeySet",
    "KeySetError",
    "LdpColumns",
    "LdpPayload",
    "OpenedBatch",
    "Origin",
    "Payload",
    "PayloadError",
    "PayloadFlaw",
    "PublicKey",
    "PublicKeySet",
    "Randomizer",
    "RegistryKey",
    "RegistryKeyPair",
    "ReportBatch",
    "ReportBodyError",
    "ReportStatus",
    "ReportWriter",
    "SealedPayload",
    "SharedInfo",
    "SharedInfoColumns",
    "SharedInfoError",
    "Spans",
    "TokenCheck",
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
    "check_collection",
    "decode_batch",
    "decode_ldp_batch",
    "decode_ldp_payload",
    "decode_payload",
    "encode_payload",
    "find_shards",
    "is_reporting_origin",
    "make_report",
    "open_batch",
    "open_report",
    "open_sealed",
    "parse_origin",
    "parse_shared_info_batch",
    "read_debug_summary",
    "read_domain",
    "read_key_set",
    "read_reports",
    "read_shuffled",
    "read_summary",
    "report_unit",
    "report_units",
    "seal",
    "seal_payload",
    "shard_name",
    "shared_id",
    "shared_id_text",
    "shared_id_unit",
    "shared_id_units",
    "sign_token",
    "token_message",
    "write_buckets",
    "write_key_set",
    "write_reports",
    "write_shuffled",
]
