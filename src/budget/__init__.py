"""Privacy budgets: amounts, filters, the ledger and its audit.

Budgets that cannot be overspent, survive a crash, and can be checked by someone who trusts nobody. Start at ``Ledger``.
"""

from budget.amounts import Delta, Epsilon, Rho, decimal_text, zcdp_of_pure
from budget.audit import AuditReport, Disagreement, verify_log, verify_store
from budget.balances import Spent
from budget.entries import Entry, FileDigest, Genesis, RecoveryEntry, ReleaseEntry
from budget.errors import (
    AmountError,
    AmountTooLargeError,
    AmountTooLongError,
    BudgetError,
    BudgetExhaustedError,
    FormatError,
    InfiniteAmountError,
    JobConflictError,
    JobNameError,
    LedgerMismatchError,
    MechanismNotAllowedError,
    NegativeAmountError,
    NotANumberError,
    OffGridError,
    RecoveryForbiddenError,
    StagingError,
    StoreError,
    UnitKeyError,
    ZeroAmountError,
)
from budget.explain import JobUse, Shortfall
from budget.export import ExportedLog, is_log, write_log
from budget.filters import EpsilonDeltaFilter, Filter, Spend, ZcdpFilter, spend_to_plain
from budget.jobs import Check, Committed, JobKey, Remaining
from budget.ledger import Ledger
from budget.memory import MemoryStore
from budget.postgres import PostgresStore
from budget.proofs import Checkpoint, Receipt, Signer
from budget.release import GaussianNoise, LaplaceDiscovery, LaplaceNoise, Mechanism, Release
from budget.sqlite import SqliteStore
from budget.staging import Attempt, Manifest, Staging
from budget.store import Store
from budget.units import UNIT_BYTES, UnitSet

__all__ = [
    "UNIT_BYTES",
    "AmountError",
    "AmountTooLargeError",
    "AmountTooLongError",
    "Attempt",
    "AuditReport",
    "BudgetError",
    "BudgetExhaustedError",
    "Check",
    "Checkpoint",
    "Committed",
    "Delta",
    "Disagreement",
    "Entry",
    "Epsilon",
    "EpsilonDeltaFilter",
    "ExportedLog",
    "FileDigest",
    "Filter",
    "FormatError",
    "GaussianNoise",
    "Genesis",
    "InfiniteAmountError",
    "JobConflictError",
    "JobKey",
    "JobNameError",
    "JobUse",
    "LaplaceDiscovery",
    "LaplaceNoise",
    "Ledger",
    "LedgerMismatchError",
    "Manifest",
    "Mechanism",
    "MechanismNotAllowedError",
    "MemoryStore",
    "NegativeAmountError",
    "NotANumberError",
    "OffGridError",
    "PostgresStore",
    "Receipt",
    "RecoveryEntry",
    "RecoveryForbiddenError",
    "Release",
    "ReleaseEntry",
    "Remaining",
    "Rho",
    "Shortfall",
    "Signer",
    "Spend",
    "Spent",
    "SqliteStore",
    "Staging",
    "StagingError",
    "Store",
    "StoreError",
    "UnitKeyError",
    "UnitSet",
    "ZcdpFilter",
    "ZeroAmountError",
    "decimal_text",
    "is_log",
    "spend_to_plain",
    "verify_log",
    "verify_store",
    "write_log",
    "zcdp_of_pure",
]
