"""Looking through a log: the entries of a job, a caller, a unit or a time, from a database or an exported log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from budget.errors import FormatError, UnitKeyError
from budget.log.entries import Entry, Genesis, ReleaseEntry, entry_from_bytes, entry_to_plain
from budget.log.export import ExportedLog
from budget.store import Store, Transaction
from budget.units import UNIT_BYTES, contains, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which entries to show: all that meet every condition given. ``since_ms`` is inclusive, ``until_ms`` is not."""

    job_id: str | None = None
    caller: str | None = None
    unit: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and len(self.unit) != UNIT_BYTES:
            raise UnitKeyError(f"a unit key has {UNIT_BYTES} bytes ({2 * UNIT_BYTES} hex digits)")

    def _meets(self, entry: Entry) -> bool:
        """Return whether an entry meets every condition but the unit's."""
        if self.since_ms is not None and entry.time_ms < self.since_ms:
            return False
        if self.until_ms is not None and entry.time_ms >= self.until_ms:
            return False
        if self.job_id is None and self.caller is None:
            return True
        if not isinstance(entry, ReleaseEntry):
            return False
        return self.job_id in (None, entry.job_id) and self.caller in (None, entry.caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An entry, and the plain values to show of it."""

    entry: Entry
    plain: dict[str, Any]


def _listed(raw: bytes, genesis: Genesis | None) -> tuple[Listed, Genesis]:
    entry = entry_from_bytes(raw, None if genesis is None else genesis.filter.loss_name)
    if genesis is None:
        if not isinstance(entry, Genesis):
            raise FormatError("the first entry of a log must be its genesis")
        genesis = entry
    return Listed(entry=entry, plain=entry_to_plain(entry, genesis.filter.loss_name)), genesis


def _in_database(transaction: Transaction, query: Query) -> Iterator[Listed]:
    charged: set[int] | None = None
    if query.unit is not None:
        key = rows(query.unit)
        charged = {
            part.seq
            for part in transaction.parts_between(query.unit, query.unit)
            if bool(contains(rows(part.keys), key)[0])
        }
    genesis: Genesis | None = None
    for row in transaction.entries():
        found, genesis = _listed(bytes(row.header), genesis)
        if query._meets(found.entry) and (charged is None or found.entry.seq in charged):
            yield found


def _in_export(log: ExportedLog, query: Query) -> Iterator[Listed]:
    genesis: Genesis | None = None
    for one in log.entries():
        found, genesis = _listed(one.header, genesis)
        held = query.unit is None
        for part in one.parts:
            if query.unit is not None and not held:
                held = bool(contains(rows(part), rows(query.unit))[0])
        if held and query._meets(found.entry):
            yield found


def find_entries(place: Store | ExportedLog, query: Query) -> list[Listed]:
    """Return the entries that meet ``query``, in order. Reads what an audit has not checked: ``verify`` first."""
    if isinstance(place, ExportedLog):
        return list(_in_export(place, query))
    return place.read("log", lambda transaction: list(_in_database(transaction, query)))
