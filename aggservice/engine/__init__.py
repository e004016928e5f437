"""The aggregation engine: from sealed reports to noisy summaries that privacy units pay for."""

from aggservice.engine.errors import (
    CancelledError,
    EngineError,
    InvalidJobError,
    JobIdTakenError,
    PaidFailureError,
    ResultWriteError,
    ReturnCode,
    UnpaidError,
)
from aggservice.engine.jobs.session import EngineSettings, Outcome, Scope, Session
from aggservice.engine.local import Engine, LocalEngine
from aggservice.engine.opening.coverage import PrivacyUnit, ledger_terms
from aggservice.engine.opening.pool import InlineOpener, WorkerPool
from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.release.output import AvroShards, InLedger
from aggservice.engine.release.result import Rows
from aggservice.engine.request import JobRequest
from aggservice.engine.shuffle import ShuffleRequest, ShuffleSettings

__all__ = [
    "AvroShards",
    "CancelledError",
    "Engine",
    "EngineError",
    "EngineSettings",
    "InLedger",
    "InlineOpener",
    "InvalidJobError",
    "JobIdTakenError",
    "JobRequest",
    "LocalEngine",
    "Outcome",
    "PaidFailureError",
    "PrivacyUnit",
    "ReleasePlan",
    "ResultWriteError",
    "ReturnCode",
    "Rows",
    "Scope",
    "Session",
    "ShuffleRequest",
    "ShuffleSettings",
    "UnpaidError",
    "WorkerPool",
    "ledger_terms",
]
