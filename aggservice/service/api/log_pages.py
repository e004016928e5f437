"""The ledger's log by page, filtered by job, caller, unit and time."""

from __future__ import annotations

from dataclasses import dataclass

from budget import Ledger, Spend
from budget.log.entries import Genesis, ReleaseEntry, entry_from_bytes, entry_hash
from budget.store import Transaction

_LOOKED_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One entry, as a page shows it."""

    seq: int
    kind: str
    caller: str
    job_id: str
    time_ms: int
    cost: Spend | None
    unit_count: int
    result_digest: bytes
    entry_hash: bytes
    previous: bytes


class LogPages:
    """A filtered view of the log. ``None`` filters nothing."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        caller: str | None,
        job_id: str | None,
        unit: bytes | None,
        not_before_ms: int | None,
        before_ms: int | None,
    ) -> None:
        self._ledger = ledger
        self._caller = caller
        self._job_id = job_id
        self._unit = unit
        self._not_before_ms = not_before_ms
        self._before_ms = before_ms

    def page(self, start: int, size: int) -> tuple[list[LogLine], int | None]:
        """Return up to ``size`` lines from entry ``start`` on, and where the next page begins (None: nowhere)."""
        return self._ledger.store.read("list", lambda transaction: self._page(transaction, start, size))

    def _page(self, transaction: Transaction, start: int, size: int) -> tuple[list[LogLine], int | None]:
        holding = None if self._unit is None else self._holding(transaction, self._unit)
        found: list[LogLine] = []
        for looked, row in enumerate(transaction.entries(start)):
            if len(found) == size or looked == _LOOKED_AT_ONCE:
                return found, row.seq
            line = self._line(row.seq, bytes(row.header))
            if self._wanted(line) and (holding is None or line.seq in holding):
                found.append(line)
        return found, None

    def _holding(self, transaction: Transaction, unit: bytes) -> set[int]:
        """Return the entries that charged a unit."""
        width = len(unit)
        return {
            part.seq
            for part in transaction.parts_between(unit, unit)
            if any(part.keys[at : at + width] == unit for at in range(0, len(part.keys), width))
        }

    def _line(self, seq: int, header: bytes) -> LogLine:
        entry = entry_from_bytes(header, None if seq == 0 else self._ledger.filter.loss_name)
        cost = None if isinstance(entry, Genesis) else entry.cost
        return LogLine(
            seq=seq,
            kind=entry.type,
            caller=entry.caller if isinstance(entry, ReleaseEntry) else getattr(entry, "operator", ""),
            job_id=entry.job_id if isinstance(entry, ReleaseEntry) else "",
            time_ms=entry.time_ms,
            cost=cost,
            unit_count=0 if isinstance(entry, Genesis) else entry.units.count,
            result_digest=entry.result.sha256 if isinstance(entry, ReleaseEntry) else b"",
            entry_hash=entry_hash(header),
            previous=entry.previous,
        )

    def _wanted(self, line: LogLine) -> bool:
        if self._caller is not None and (line.kind != ReleaseEntry.type or line.caller != self._caller):
            return False
        if self._job_id is not None and line.job_id != self._job_id:
            return False
        if self._not_before_ms is not None and line.time_ms < self._not_before_ms:
            return False
        return self._before_ms is None or line.time_ms < self._before_ms
