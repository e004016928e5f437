"""Reports as Chrome writes them: ``shared_info``, CBOR payloads, HPKE, key sets, JSON bodies, Avro, unit keys."""

from aggservice.wire.avro.buckets import BucketRows, read_domain, read_summary, write_buckets
from aggservice.wire.avro.reports import ReportWriter, read_reports, write_reports
from aggservice.wire.batch.opening import OpenedBatch, ReportBatch, open_batch
from aggservice.wire.batch.payloads import decode_batch
from aggservice.wire.batch.shared_infos import parse_shared_info_batch
from aggservice.wire.batch.spans import Spans
from aggservice.wire.batch.units import report_units, shared_id_units
from aggservice.wire.errors import ReportStatus, WireError
from aggservice.wire.hpke.key_sets import KeySet, PublicKeySet, read_key_set, write_key_set
from aggservice.wire.hpke.sealing import seal
from aggservice.wire.limits import UNIT_BYTES
from aggservice.wire.origins import Origin, is_reporting_origin, parse_origin
from aggservice.wire.report.body import AggregatableReport, make_report, open_report
from aggservice.wire.report.ldp_payload import Randomizer
from aggservice.wire.report.payload import Contribution, decode_payload, encode_payload
from aggservice.wire.report.shared_info import Api, SharedInfo

__all__ = [
    "UNIT_BYTES",
    "AggregatableReport",
    "Api",
    "BucketRows",
    "Contribution",
    "KeySet",
    "OpenedBatch",
    "Origin",
    "PublicKeySet",
    "Randomizer",
    "ReportBatch",
    "ReportStatus",
    "ReportWriter",
    "SharedInfo",
    "Spans",
    "WireError",
    "decode_batch",
    "decode_payload",
    "encode_payload",
    "is_reporting_origin",
    "make_report",
    "open_batch",
    "open_report",
    "parse_origin",
    "parse_shared_info_batch",
    "read_domain",
    "read_key_set",
    "read_reports",
    "read_summary",
    "report_units",
    "seal",
    "shared_id_units",
    "write_buckets",
    "write_key_set",
    "write_reports",
]
