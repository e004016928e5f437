"""Privacy budgets: amounts, filters, the ledger and its audit.

Budgets that cannot be overspent, survive a crash, and can be checked by someone who trusts nobody. Start at ``Ledger``.
"""

from budget.amounts import Delta, Epsilon, Rho, decimal_text, zcdp_of_pure
from budget.audit import AuditReport, Disagreement, verify_log, verify_store
from budget.balances import BalanceTotals, Spent, balance_totals
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
    TermsError,
    UnitKeyError,
    ZeroAmountError,
)
from budget.explain import JobUse, Shortfall
from budget.export import ExportedLog, is_log, write_log
from budget.filters import EpsilonDeltaFilter, Filter, Spend, ZcdpFilter, filter_to_plain, spend_to_plain
from budget.folders import new_file, open_below, opened_folder
from budget.history import Listed, Query, find_entries
from budget.jobs import Check, Committed, JobKey, Remaining
from budget.ledger import RESULT_MAX_BYTES, Ledger
from budget.memory import MemoryStore
from budget.places import open_place, open_store
from budget.postgres import PostgresStore
from budget.proofs import Checkpoint, Receipt, Signer, read_checkpoint, read_receipt
from budget.release import (
    REPORT_UNIT,
    GaussianNoise,
    LaplaceDiscovery,
    LaplaceNoise,
    LocalReports,
    Mechanism,
    Release,
    ShuffledReports,
)
from budget.replay import LogReplay
from budget.sqlite import SqliteStore
from budget.staging import Attempt, Manifest, Staging, file_digest
from budget.store import Store
from budget.terms import Sensitivity, Terms
from budget.units import UNIT_BYTES, UnitSet

__all__ = [
    "REPORT_UNIT",
    "RESULT_MAX_BYTES",
    "UNIT_BYTES",
    "AmountError",
    "AmountTooLargeError",
    "AmountTooLongError",
    "Attempt",
    "AuditReport",
    "BalanceTotals",
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
    "Listed",
    "LocalReports",
    "LogReplay",
    "Manifest",
    "Mechanism",
    "MechanismNotAllowedError",
    "MemoryStore",
    "NegativeAmountError",
    "NotANumberError",
    "OffGridError",
    "PostgresStore",
    "Query",
    "Receipt",
    "RecoveryEntry",
    "RecoveryForbiddenError",
    "Release",
    "ReleaseEntry",
    "Remaining",
    "Rho",
    "Sensitivity",
    "Shortfall",
    "ShuffledReports",
    "Signer",
    "Spend",
    "Spent",
    "SqliteStore",
    "Staging",
    "StagingError",
    "Store",
    "StoreError",
    "Terms",
    "TermsError",
    "UnitKeyError",
    "UnitSet",
    "ZcdpFilter",
    "ZeroAmountError",
    "balance_totals",
    "decimal_text",
    "file_digest",
    "filter_to_plain",
    "find_entries",
    "is_log",
    "new_file",
    "open_below",
    "open_place",
    "open_store",
    "opened_folder",
    "read_checkpoint",
    "read_receipt",
    "spend_to_plain",
    "verify_log",
    "verify_store",
    "write_log",
    "zcdp_of_pure",
]
