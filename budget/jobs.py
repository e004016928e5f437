"""What is asked of a ledger and what it answers: jobs, dry runs and what remains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budget.explain import Shortfall
from budget.files.staging import Manifest
from budget.filters import Spend
from budget.log.entries import ReleaseEntry, check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """Whose job, and which: taken once, for one request."""

    caller: str
    job_id: str

    def __post_init__(self) -> None:
        check_name("the caller", self.caller)
        check_name("the job id", self.job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A job that was paid for: its entry, its result and the receipt. ``repeated`` when it had been before."""

    entry: ReleaseEntry
    result: bytes
    receipt: bytes
    repeated: bool

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, when the result is files; ``result`` is then its bytes."""
        return Manifest.from_bytes(self.result) if self.entry.result.files else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Check:
    """The answer of a dry run: would the units pay, and if not, which lack how much. Nothing was charged."""

    total: int
    asked: Spend
    lacking: NDArray[np.uint8]
    first: tuple[Shortfall, ...]

    @property
    def payable(self) -> bool:
        """Whether every unit can pay."""
        return self.count == 0

    @property
    def count(self) -> int:
        """How many units cannot pay; ``lacking`` holds their keys, sorted."""
        return int(self.lacking.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left for a set of units: of the unit that has spent most, and of the one that has spent least."""

    least: Spend
    most: Spend
