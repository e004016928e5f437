"""Questions to a ledger and its answers: jobs, dry runs, the remaining budget, and why a unit cannot pay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from budget.errors import BudgetError
from budget.files.staging import Manifest
from budget.filters import Filter, Spend, spend_to_plain
from budget.log.entries import ReleaseEntry, check_name, entry_from_bytes
from budget.store import Transaction
from budget.stores.balances import read_spent
from budget.units import UnitSet, contains, rows

FIRST_SHOWN: Final = 20
"""How many units an error explains; ``Ledger.explain`` returns pages with the rest."""
PAGE_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """A job that charged a unit: its id, entry, time and what it cost."""

    job_id: str
    seq: int
    time_ms: int
    cost: Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One unit and why it cannot pay. ``jobs`` lists only the jobs of the requesting caller."""

    unit: bytes
    spent: Spend
    limit: Spend
    asked: Spend
    jobs: tuple[JobUse, ...]

    def to_plain(self, loss_name: str) -> dict[str, Any]:
        """Return the plain values, amounts as decimal text, for JSON."""
        lacks = Spend(
            loss_micro=max(0, self.spent.loss_micro + self.asked.loss_micro - self.limit.loss_micro),
            delta_atto=max(0, self.spent.delta_atto + self.asked.delta_atto - self.limit.delta_atto),
            uses=max(0, self.spent.uses + self.asked.uses - self.limit.uses),
        )
        return {
            "unit": self.unit.hex(),
            "spent": spend_to_plain(self.spent, loss_name),
            "asked": spend_to_plain(self.asked, loss_name),
            "lacks": spend_to_plain(lacks, loss_name),
            "jobs": [
                {
                    "job_id": one.job_id,
                    "seq": one.seq,
                    "time_ms": one.time_ms,
                    "cost": spend_to_plain(one.cost, loss_name),
                }
                for one in self.jobs
            ],
        }


class BudgetExhaustedError(BudgetError):
    """Some units cannot pay; nothing was charged and nothing is released.

    ``count`` units of ``total`` lack budget; ``first`` explains the first 20 in key order; ``units`` holds the keys of
    all of them, sorted, one per row; ``Ledger.explain`` explains them page by page.
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


def uses_of(transaction: Transaction, units: UnitSet, caller: str, loss_name: str) -> list[list[JobUse]]:
    """Return, for each unit, the jobs of ``caller`` that charged it, in order of entry."""
    found: list[list[JobUse]] = [[] for _ in range(len(units))]
    if not len(units):
        return found
    known: JobUse | None = None
    for part in transaction.parts_between(units[0], units[len(units) - 1], caller):
        if known is None or known.seq != part.seq:
            row = transaction.entry(part.seq)
            entry = None if row is None else entry_from_bytes(row.header, loss_name)
            if not isinstance(entry, ReleaseEntry):
                continue
            known = JobUse(job_id=entry.job_id, seq=entry.seq, time_ms=entry.time_ms, cost=entry.cost)
        for index in np.flatnonzero(contains(rows(part.keys), units.keys)).tolist():
            found[index].append(known)
    return found


def explain_page(
    transaction: Transaction, units: UnitSet, asked: Spend, chosen: Filter, caller: str
) -> tuple[Shortfall, ...]:
    """Return what each of ``units`` (one page of those that could not pay) has spent, and on which jobs."""
    spent = read_spent(transaction, units, chosen.limit)
    jobs = uses_of(transaction, units, caller, chosen.loss_name)
    return tuple(
        Shortfall(unit=units[index], spent=spent.of(index), limit=chosen.limit, asked=asked, jobs=tuple(own))
        for index, own in enumerate(jobs)
    )


def refusal_text(count: int, total: int, first: Iterable[Shortfall], loss_name: str) -> str:
    """Return one sentence: how many units cannot pay, and what the first one lacks."""
    one = next(iter(first))
    plain = one.to_plain(loss_name)
    return (
        f"{count} of {total} units cannot pay, so nothing was charged; the first, {plain['unit']}, has spent"
        f" {loss_name} {plain['spent'][loss_name]}, delta {plain['spent']['delta']}, {plain['spent']['uses']} use(s)"
        f" and would have to pay {loss_name} {plain['asked'][loss_name]}, delta {plain['asked']['delta']}:"
        f" it lacks {loss_name} {plain['lacks'][loss_name]}, delta {plain['lacks']['delta']},"
        f" {plain['lacks']['uses']} use(s); leave those units out or request less"
    )


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
