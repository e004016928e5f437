"""The aggregation engine: from sealed reports to noisy summaries that privacy units pay for."""

from aggservice.engine.jobs.session import EngineSettings, Scope, Session
from aggservice.engine.local import Engine, LocalEngine
from aggservice.engine.opening.coverage import PrivacyUnit, ledger_terms
from aggservice.engine.opening.pool import InlineOpener, WorkerPool
from aggservice.engine.release.noise import ReleasePlan
from aggservice.engine.release.output import AvroShards, InLedger
from aggservice.engine.shuffle import ShuffleSettings

__all__ = [
    "AvroShards",
    "Engine",
    "EngineSettings",
    "InLedger",
    "InlineOpener",
    "LocalEngine",
    "PrivacyUnit",
    "ReleasePlan",
    "Scope",
    "Session",
    "ShuffleSettings",
    "WorkerPool",
    "ledger_terms",
]
