"""Questions to a ledger and its answers: jobs, dry runs and the remaining budget."""

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
    """A job: its caller and its id. A caller can use an id for one request only."""

    caller: str
    job_id: str

    def __post_init__(self) -> None:
        check_name("the caller", self.caller)
        check_name("the job id", self.job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A job that was paid for: its entry, result and receipt. ``repeated`` if an earlier call committed it."""

    entry: ReleaseEntry
    result: bytes
    receipt: bytes
    repeated: bool

    @property
    def manifest(self) -> Manifest | None:
        """The manifest if the result is files, else None; ``result`` holds its bytes."""
        return Manifest.from_bytes(self.result) if self.entry.result.files else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Check:
    """The answer of a dry run: can all units pay, and which cannot. Nothing was charged."""

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
    """The least and the most budget that any unit of a set has left, for loss, δ and uses separately."""

    least: Spend
    most: Spend
