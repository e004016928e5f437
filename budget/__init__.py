"""Privacy budgets: amounts, filters, the ledger and its audit.

A budget cannot be overspent and survives a crash, and anyone can audit it from the log. Start at ``Ledger``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of
from budget.amounts import Delta, Epsilon, Rho
from budget.answers import BudgetExhaustedError, Check, Committed, JobKey
from budget.errors import AmountError, BudgetError
from budget.files.staging import Staging
from budget.filters import FILTERS, EpsilonDeltaFilter, Filter, Spend, ZcdpFilter
from budget.ledger import Ledger
from budget.log.export import ExportedLog, write_log
from budget.log.proofs import Receipt, Signer
from budget.mechanisms import (
    DISCOVERY_RULES,
    MECHANISMS,
    DiscoveryRule,
    GaussianNoise,
    LaplaceDiscovery,
    LaplaceNoise,
    LocalReports,
    Mechanism,
    OneUseNoise,
    Sensitivity,
    ShuffledReports,
)
from budget.release import Release
from budget.store import Store
from budget.stores.locations import open_store
from budget.stores.postgres import PostgresStore
from budget.stores.sqlite import MemoryStore, SqliteStore
from budget.terms import Terms
from budget.units import UnitSet

if TYPE_CHECKING:
    from budget.audit.verify import verify_log, verify_store
else:
    __getattr__ = exports_of(__name__, __file__)

__all__ = [
    "DISCOVERY_RULES",
    "FILTERS",
    "MECHANISMS",
    "AmountError",
    "BudgetError",
    "BudgetExhaustedError",
    "Check",
    "Committed",
    "Delta",
    "DiscoveryRule",
    "Epsilon",
    "EpsilonDeltaFilter",
    "ExportedLog",
    "Filter",
    "GaussianNoise",
    "JobKey",
    "LaplaceDiscovery",
    "LaplaceNoise",
    "Ledger",
    "LocalReports",
    "Mechanism",
    "MemoryStore",
    "OneUseNoise",
    "PostgresStore",
    "Receipt",
    "Release",
    "Rho",
    "Sensitivity",
    "ShuffledReports",
    "Signer",
    "Spend",
    "SqliteStore",
    "Staging",
    "Store",
    "Terms",
    "UnitSet",
    "ZcdpFilter",
    "open_store",
    "verify_log",
    "verify_store",
    "write_log",
]
