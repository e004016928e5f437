"""The errors of ``budget``: one small hierarchy, each with the return code a job reports.

Whoever maps errors to a status looks at ``code``; whoever explains one to a person prints the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from budget.explain import Shortfall
    from budget.filters import Spend


class BudgetError(Exception):
    """The base of every error this package raises."""

    code = "PRIVACY_BUDGET_ERROR"


class AmountError(BudgetError, ValueError):
    """An amount (ε, δ or ρ) that no job may ask for. Subclasses name what is wrong with it."""

    code = "INVALID_JOB"


class NotANumberError(AmountError):
    """The text is not a decimal number (NaN included)."""


class InfiniteAmountError(AmountError):
    """The text says infinity."""


class NegativeAmountError(AmountError):
    """The amount is below zero."""


class ZeroAmountError(AmountError):
    """The amount is zero where it must be positive."""


class OffGridError(AmountError):
    """The amount is not a whole number of the smallest unit (10⁻⁶ of ε and ρ, 10⁻¹⁸ of δ)."""


class AmountTooLargeError(AmountError):
    """The amount is above what any job may ask for."""


class AmountTooLongError(AmountError):
    """The text has more characters than any amount needs."""


class MechanismNotAllowedError(BudgetError):
    """The ledger's filter has no price for this mechanism (Gaussian noise on an (ε, δ) ledger)."""

    code = "INVALID_JOB"


class UnitKeyError(BudgetError, ValueError):
    """Unit keys of the wrong shape or length."""

    code = "INVALID_JOB"


class JobNameError(BudgetError, ValueError):
    """A caller or job id that is empty, too long or not printable ASCII."""

    code = "INVALID_JOB"


class JobConflictError(BudgetError):
    """The caller already used this job id for another request."""

    code = "INVALID_JOB"


class BudgetExhaustedError(BudgetError):
    """Some units cannot pay; nothing was charged and nothing is released.

    ``count`` units of ``total`` lack budget; ``first`` explains the first 20 in key order; ``units`` holds the keys of
    all of them, sorted, one row each, for ``Ledger.explain`` to go through by page.
    """

    code = "PRIVACY_BUDGET_EXHAUSTED"

    def __init__(
        self, *, count: int, total: int, asked: Spend, first: tuple[Shortfall, ...], units: NDArray[np.uint8], text: str
    ) -> None:
        super().__init__(text)
        self.count = count
        self.total = total
        self.asked = asked
        self.first = first
        self.units = units


class LedgerMismatchError(BudgetError):
    """The ledger is not the one expected: another filter, another signing key, a newer schema, or no ledger at all."""


class TermsError(BudgetError):
    """A release or a service that does not fit the unit and the bounds in the ledger's first entry."""

    code = "INVALID_JOB"


class StoreError(BudgetError):
    """The database could not do what was asked; the message says what to do about it."""


class StagingError(BudgetError):
    """A result file could not be staged or published."""

    code = "RESULT_WRITE_ERROR"


class RecoveryForbiddenError(BudgetError):
    """Budget recovery is off in this ledger, or the entry cannot be recovered."""


class FormatError(BudgetError, ValueError):
    """Bytes that are not the canonical encoding of what they claim to be, or whose signature or proof fails."""
