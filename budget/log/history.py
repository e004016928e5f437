"""Search a log, in a database or exported: the entries of a job, a caller, a unit or a range of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from budget.errors import FormatError, UnitKeyError
from budget.log.entries import Entry, Genesis, ReleaseEntry, entry_from_bytes, entry_hash, entry_to_plain
from budget.log.export import ExportedLog
from budget.store import Store, Transaction
from budget.units import UNIT_BYTES, contains, rows

_READ_PER_PAGE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryQuery:
    """Conditions on entries; all that are given must hold. ``since_ms`` is inclusive, ``until_ms`` exclusive."""

    job_id: str | None = None
    caller: str | None = None
    unit: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and len(self.unit) != UNIT_BYTES:
            raise UnitKeyError(f"a unit key has {UNIT_BYTES} bytes ({2 * UNIT_BYTES} hex digits), not {len(self.unit)}")

    def _meets(self, entry: Entry) -> bool:
        """Return whether an entry meets every condition except the one on the unit."""
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
class ListedEntry:
    """An entry, its hash, and its plain values for display."""

    entry: Entry
    entry_hash: bytes
    plain: dict[str, Any]


def _loss_name(genesis: bytes) -> str:
    """Return the name of the loss that every other entry counts, from the first entry."""
    entry = entry_from_bytes(genesis, None)
    if not isinstance(entry, Genesis):
        raise FormatError("the first entry of a log must be a genesis entry")
    return entry.filter.loss_name


def _listed(entry: Entry, header: bytes, loss_name: str) -> ListedEntry:
    return ListedEntry(entry=entry, entry_hash=entry_hash(header), plain=entry_to_plain(entry, loss_name))


def _in_database(
    transaction: Transaction, query: EntryQuery, start: int = 0
) -> Iterator[tuple[int, ListedEntry | None]]:
    """Yield the index of every entry from ``start`` on, with the entry itself if it meets ``query``."""
    charged: set[int] | None = None
    if query.unit is not None:
        key = rows(query.unit)
        charged = {
            part.seq
            for part in transaction.parts_between(query.unit, query.unit)
            if bool(contains(rows(part.keys), key)[0])
        }
    first = transaction.entry(0)
    loss_name = "" if first is None else _loss_name(bytes(first.header))
    for row in transaction.entries(start):
        header = bytes(row.header)
        entry = entry_from_bytes(header, loss_name if row.seq else None)
        wanted = query._meets(entry) and (charged is None or row.seq in charged)
        yield row.seq, _listed(entry, header, loss_name) if wanted else None


def _in_export(log: ExportedLog, query: EntryQuery) -> Iterator[ListedEntry]:
    loss_name: str | None = None
    for one in log.entries():
        entry = entry_from_bytes(one.header, loss_name)
        loss_name = loss_name or _loss_name(one.header)
        held = query.unit is None or any(bool(contains(rows(part), rows(query.unit))[0]) for part in one.parts)
        if held and query._meets(entry):
            yield _listed(entry, one.header, loss_name)


def find_entries(source: Store | ExportedLog, query: EntryQuery) -> list[ListedEntry]:
    """Return the entries that meet ``query``, in order. The log is not verified here: audit it first."""
    if isinstance(source, ExportedLog):
        return list(_in_export(source, query))
    return source.read("log", lambda transaction: [found for _, found in _in_database(transaction, query) if found])


def find_page(store: Store, query: EntryQuery, *, start: int, size: int) -> tuple[list[ListedEntry], int | None]:
    """Return up to ``size`` entries from index ``start`` on, and where the next page begins (None at the end).

    One page reads at most 100,000 entries, so it can be short, or even empty, before the end of the log.
    """

    def read(transaction: Transaction) -> tuple[list[ListedEntry], int | None]:
        page: list[ListedEntry] = []
        for count, (index, found) in enumerate(_in_database(transaction, query, start)):
            if len(page) == size or count == _READ_PER_PAGE:
                return page, index
            if found is not None:
                page.append(found)
        return page, None

    return store.read("log", read)
