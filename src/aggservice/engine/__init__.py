"""The aggregation engine: from sealed reports to noisy summaries that somebody paid for."""

from aggservice.engine.charging import Charge, Receipted, find_result
from aggservice.engine.columns import JudgedBatch
from aggservice.engine.counts import (
    DESCRIPTIONS,
    NO_DEVICE_TOKEN,
    NUM_REPORTS_WITH_ERRORS,
    OTHER_RANDOMIZER,
    REPEATED_REPORT_ID,
    ReportCounts,
)
from aggservice.engine.coverage import PROTECTED, Coverage, PrivacyUnit, Protected, ledger_terms
from aggservice.engine.debug import debug_avro_rows, debug_rows, regular_rows
from aggservice.engine.errors import (
    CancelledError,
    DomainError,
    EngineError,
    InputReadError,
    InvalidJobError,
    JobIdTakenError,
    PaidFailureError,
    ReportVersionError,
    ResultWriteError,
    ReturnCode,
    TooManyBadReportsError,
    UnpaidError,
    WorkerLostError,
)
from aggservice.engine.local import EngineSettings, LocalEngine, Outcome, Scope, Session
from aggservice.engine.opening import Opener, OpeningSpec
from aggservice.engine.output import AvroShards, Destination, InLedger, summary_rows
from aggservice.engine.pool import BatchOpener, InlineOpener, WorkerPool
from aggservice.engine.release import (
    ExactNoise,
    Noise,
    NoiseSource,
    ReleasePlan,
    Summary,
    release,
)
from aggservice.engine.request import (
    Discovery,
    JobRequest,
    check_job_id,
    parse_discovery,
    parse_epsilon,
    parse_filtering_ids,
    parse_noise,
    parse_percentage,
)
from aggservice.engine.result import ResultHeader, Rows, decode_result, encode_result, result_head
from aggservice.engine.shuffle import ShuffleSession
from aggservice.engine.shuffle_plan import ShufflePlan, ShuffleRequest, ShuffleSettings
from aggservice.engine.shuffle_rows import ShuffledRows, random_order
from aggservice.engine.shuffle_statement import ShuffleStatement
from aggservice.engine.sites import site_of
from aggservice.engine.statement import Statement, state
from aggservice.engine.sums import KeyMask, KeySums

__all__ = [
    "DESCRIPTIONS",
    "NO_DEVICE_TOKEN",
    "NUM_REPORTS_WITH_ERRORS",
    "OTHER_RANDOMIZER",
    "PROTECTED",
    "REPEATED_REPORT_ID",
    "AvroShards",
    "BatchOpener",
    "CancelledError",
    "Charge",
    "Coverage",
    "Destination",
    "Discovery",
    "DomainError",
    "EngineError",
    "EngineSettings",
    "ExactNoise",
    "InLedger",
    "InlineOpener",
    "InputReadError",
    "InvalidJobError",
    "JobIdTakenError",
    "JobRequest",
    "JudgedBatch",
    "KeyMask",
    "KeySums",
    "LocalEngine",
    "Noise",
    "NoiseSource",
    "Opener",
    "OpeningSpec",
    "Outcome",
    "PaidFailureError",
    "PrivacyUnit",
    "Protected",
    "Receipted",
    "ReleasePlan",
    "ReportCounts",
    "ReportVersionError",
    "ResultHeader",
    "ResultWriteError",
    "ReturnCode",
    "Rows",
    "Scope",
    "Session",
    "ShufflePlan",
    "ShuffleRequest",
    "ShuffleSession",
    "ShuffleSettings",
    "ShuffleStatement",
    "ShuffledRows",
    "Statement",
    "Summary",
    "TooManyBadReportsError",
    "UnpaidError",
    "WorkerLostError",
    "WorkerPool",
    "check_job_id",
    "debug_avro_rows",
    "debug_rows",
    "decode_result",
    "encode_result",
    "find_result",
    "ledger_terms",
    "parse_discovery",
    "parse_epsilon",
    "parse_filtering_ids",
    "parse_noise",
    "parse_percentage",
    "random_order",
    "regular_rows",
    "release",
    "result_head",
    "site_of",
    "state",
    "summary_rows",
]
