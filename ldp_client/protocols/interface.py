"""The interface of every frequency protocol: clients, fleets, an estimator and its privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import check_numbers, short_text
from ldp_client.errors import ReportError
from ldp_client.estimation.steps import Chain
from ldp_client.estimation.support import Estimate, Support


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """The privacy loss of a protocol, in ε.

    ``asked`` is the requested ε₁ of a first report and ``first`` its exact value; ``permanent`` is ε∞, the limit of all
    reports of one value; ``worst_case`` is the total over the user's values when every possible answer is
    memoized (LOLOHA paper, Definition 3.2 and Theorem 3.5). A one-shot protocol memoizes nothing: each report costs
    ``first`` again, and the worst case is infinite.
    """

    asked: float
    first: float
    permanent: float
    worst_case: float

    @staticmethod
    def of(*, first: float, permanent: float, asked: float | None, answers: int) -> Privacy:
        """Return the privacy of a protocol that memoizes up to ``answers`` answers; one-shot if ``asked`` is None."""
        if asked is None:
            return Privacy(asked=permanent, first=first, permanent=permanent, worst_case=math.inf)
        return Privacy(asked=asked, first=first, permanent=permanent, worst_case=answers * permanent)

    @staticmethod
    def of_grr(chain: Chain, asked: float | None, *, answers: int) -> Privacy:
        """Return the privacy of a chain of GRR steps."""
        permanent = Chain(permanent=chain.permanent).first_grr()
        return Privacy.of(first=chain.first_grr(), permanent=permanent, asked=asked, answers=answers)


class FrequencyProtocol(Protocol):
    """A protocol with which a server estimates from n users' reports how often each value occurs."""

    @property
    def k(self) -> int:
        """The number of values, which are 0, 1, …, k − 1."""

    @property
    def cells(self) -> int:
        """The number of estimated frequencies: k, or b for a protocol over buckets."""

    @property
    def support(self) -> Support:
        """The estimator's probabilities."""

    @property
    def privacy(self) -> Privacy:
        """The privacy loss of the protocol."""

    @property
    def shares(self) -> str:
        """What a device's reports have in common besides its values, in words; empty if they are independent.

        A later report shows it, and with it which earlier report was the device's: shuffling amplifies only reports
        that share nothing (docs/shuffling.md).
        """

    @property
    def epsilon_permanent_micro(self) -> int:
        """The ε of one memoized answer, in millionths."""

    def describe(self) -> dict[str, Any]:
        """Return the kind and the parameters, as a saved state holds them."""

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell in which each value is counted."""

    def client(self, bits: Bits) -> Any:
        """Return a new device."""

    def fleet(self, users: int, bits: Bits) -> Any:
        """Return ``users`` new devices in columns."""

    def columns(self, reports: Sequence[Any]) -> Any:
        """Return the reports of single clients as columns for ``estimate``."""

    def estimate(self, columns: Any) -> Estimate:
        """Return the frequencies behind one collection's columns."""


def check_value(value: int | np.integer[Any], k: int) -> int:
    """Return ``value`` as an int; ReportError if it is not an integer in [0, k)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < k:
        raise ReportError(f"a value must be an integer in [0, {k})")
    return int(value)


def check_values(values: ArrayLike, k: int, users: int) -> NDArray[np.int64]:
    """Return ``values`` as an array with one integer in [0, k) per user."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):  # lists of different lengths
        array = np.empty(0, dtype=np.object_)
    if array.shape != (users,) or array.dtype.kind not in "iu":
        raise ReportError(f"values must be {users} integers, one per user, not {array.dtype}{array.shape}")
    return check_numbers(array, k, "values")


def check_users(users: int) -> int:
    """Return the size of a fleet; ReportError if it is not an integer of at least one."""
    if isinstance(users, bool) or not isinstance(users, int) or not 0 < users < 1 << 31:
        raise ReportError(f"users must be an integer from 1 to 2^31 - 1, not {short_text(users)}")
    return users
