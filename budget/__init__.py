"""Privacy budgets: amounts, filters, the ledger and its audit.

A budget cannot be overspent and survives a crash, and anyone can audit it from the log. Start at ``Ledger``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggservice.exports import exports_of
from budget.amounts import Delta, Epsilon, Rho
from budget.errors import AmountError, BudgetError
from budget.explain import BudgetExhaustedError
from budget.files.staging import Staging
from budget.filters import EpsilonDeltaFilter, Filter, Spend, ZcdpFilter
from budget.jobs import Check, Committed, JobKey
from budget.ledger import Ledger
from budget.log.export import ExportedLog, write_log
from budget.log.proofs import Receipt, Signer
from budget.release import GaussianNoise, LaplaceDiscovery, LaplaceNoise, LocalReports, Release, ShuffledReports
from budget.store import Store
from budget.stores.locations import open_store
from budget.stores.memory import MemoryStore
from budget.stores.postgres import PostgresStore
from budget.stores.sqlite import SqliteStore
from budget.terms import Sensitivity, Terms
from budget.units import UnitSet

if TYPE_CHECKING:
    from budget.audit.verify import verify_log, verify_store
else:
    __getattr__ = exports_of(__name__, {"audit.verify": ("verify_log", "verify_store")})

__all__ = [
    "AmountError",
    "BudgetError",
    "BudgetExhaustedError",
    "Check",
    "Committed",
    "Delta",
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
    "MemoryStore",
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
