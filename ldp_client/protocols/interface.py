"""What every frequency protocol offers: clients, fleets, an estimator and its privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggservice.mechanisms import Bits
from ldp_client.checks import check_numbers, shown
from ldp_client.errors import ReportError
from ldp_client.estimation.support import Estimate, Support


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What a protocol leaks, in ε.

    ``asked`` is the first-report ε₁ the protocol was set up for and ``first`` the one it has, exactly; ``permanent``
    is ε∞, which reports of one value never exceed however many there are; ``worst_case`` is the total on the
    user's values once every answer that can be memoized has been (Definition 3.2; Theorem 3.5 for LOLOHA).
    A one-shot oracle memoizes nothing: each report costs ``first`` anew and the worst case is infinite.
    """

    asked: float
    first: float
    permanent: float
    worst_case: float

    @staticmethod
    def of(*, first: float, permanent: float, asked: float | None, answers: int) -> Privacy:
        """Return that of a protocol that memoizes up to ``answers`` answers, or of one-shot where no ε₁ was asked."""
        if asked is None:
            return Privacy(asked=permanent, first=first, permanent=permanent, worst_case=math.inf)
        return Privacy(asked=asked, first=first, permanent=permanent, worst_case=answers * permanent)


class Client(Protocol):
    """One device: it remembers its answers, and can be saved and taken up again."""

    @property
    def memoized(self) -> int:
        """How many answers are memoized; each has cost ε∞ on the user's values."""

    def report(self, value: int) -> Any:
        """Return this collection's report of ``value``."""

    def save(self) -> bytes:
        """Return the state, from which the protocol's ``restore`` goes on."""


class Fleet(Protocol):
    """Many devices in columns."""

    def report(self, values: ArrayLike) -> Any:
        """Return the columns of one collection: a report of each user's value."""

    def memoized(self) -> NDArray[np.int64]:
        """Return how many answers each user has memoized."""


class FrequencyProtocol(Protocol):
    """A protocol by which n users let a server estimate how often each value occurs."""

    @property
    def k(self) -> int:
        """How many values there are; they are 0, 1, …, k − 1."""

    @property
    def cells(self) -> int:
        """How many frequencies are estimated: k, or b for a protocol over buckets."""

    @property
    def support(self) -> Support:
        """The estimator's probabilities."""

    @property
    def privacy(self) -> Privacy:
        """What the protocol leaks."""

    @property
    def epsilon_permanent_micro(self) -> int:
        """What one memoized answer costs, in millionths."""

    def describe(self) -> dict[str, Any]:
        """Return the name and parameters, as they stand in a saved state."""

    def cell(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cell in which each value is counted."""

    def client(self, bits: Bits) -> Any:
        """Return a new device."""

    def fleet(self, users: int, bits: Bits) -> Any:
        """Return ``users`` new devices in columns."""

    def columns(self, reports: Sequence[Any]) -> Any:
        """Return reports of single clients as columns that ``estimate`` takes."""

    def estimate(self, columns: Any) -> Estimate:
        """Return the frequencies behind one collection's columns."""


def check_value(value: int | np.integer[Any], k: int) -> int:
    """Return ``value`` as an int, refusing one outside [0, k)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < k:
        raise ReportError(f"a value must be a whole number in [0, {k})")
    return int(value)


def check_values(values: ArrayLike, k: int, users: int) -> NDArray[np.int64]:
    """Return ``values`` as an array with one whole number in [0, k) a user."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):  # lists of different lengths
        array = np.empty(0, dtype=np.object_)
    if array.shape != (users,) or array.dtype.kind not in "iu":
        raise ReportError(f"a fleet of {users} users reports {users} whole numbers, not {array.dtype}{array.shape}")
    return check_numbers(array, k, "values")


def check_users(users: int) -> int:
    """Return the size of a fleet, refusing one that is not a whole number of at least one."""
    if isinstance(users, bool) or not isinstance(users, int) or not 0 < users < 1 << 31:
        raise ReportError(f"a fleet has between 1 and 2^31 - 1 users, not {shown(users)}")
    return users
