"""The errors of ``budget``: one small hierarchy.

Each class has the return code that a job reports (``code``); the message is for people.
"""

from __future__ import annotations


class BudgetError(Exception):
    """The base of every error this package raises."""

    code = "PRIVACY_BUDGET_ERROR"


class RefusedJobError(BudgetError):
    """The base of errors about what a job asks for."""

    code = "INVALID_JOB"


class AmountError(RefusedJobError, ValueError):
    """An amount (ε, δ or ρ) that no job may request. The subclass says what is wrong with it."""


class NotANumberError(AmountError):
    """The text is not a decimal number (NaN included)."""


class InfiniteAmountError(AmountError):
    """The amount is infinite."""


class NegativeAmountError(AmountError):
    """The amount is below zero."""


class ZeroAmountError(AmountError):
    """The amount is zero where it must be positive."""


class OffGridError(AmountError):
    """The amount is not a multiple of the smallest step (10⁻⁶ of ε and ρ, 10⁻¹⁸ of δ)."""


class AmountTooLargeError(AmountError):
    """The amount is above what any job may request."""


class AmountTooLongError(AmountError):
    """The text has more characters than any amount needs."""


class MechanismNotAllowedError(RefusedJobError):
    """The ledger's filter has no price for this mechanism (Gaussian noise on an (ε, δ) ledger)."""


class UnsupportedMechanismError(RefusedJobError, TypeError):
    """A release has a mechanism that no log entry can hold, so it would make the log unreadable: it is not charged."""


class UnitKeyError(RefusedJobError, ValueError):
    """Unit keys have the wrong shape, length or order."""


class JobNameError(RefusedJobError, ValueError):
    """A caller name or job id is empty, too long or not printable ASCII."""


class JobConflictError(RefusedJobError):
    """The caller already used this job id for another request."""


class LedgerMismatchError(BudgetError):
    """The ledger differs from the expected one: filter, terms, signing key or schema version; or there is no ledger."""


class LedgerRewoundError(LedgerMismatchError):
    """The ledger lacks entries that its keys have seen: it is an older copy, or its log was cut."""


class TermsError(RefusedJobError):
    """A release or a service does not fit the privacy unit and the bounds in the ledger's first entry."""


class StoreError(BudgetError):
    """The database could not run a transaction; the message says what to do."""


class StagingError(BudgetError):
    """A result file could not be staged or published."""

    code = "RESULT_WRITE_ERROR"


class StagingRoomError(StagingError):
    """A caller's results that are not published yet would take more room than the operator grants."""


class RemoteError(StagingError):
    """Object storage did not answer, or refused. A result that is paid for stays staged and is published later."""


class LeaseLostError(BudgetError):
    """Another service has taken over the job that was to be committed: this one must drop its result."""


class RecoveryForbiddenError(BudgetError):
    """Budget recovery is off in this ledger, or the entry cannot be recovered."""


class FormatError(BudgetError, ValueError):
    """Bytes are not the canonical encoding of the expected value, or their signature or proof does not verify."""
