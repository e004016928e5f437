"""What keys remember of the one ledger that they may be used with: which one it is, and its newest entry.

A budget belongs to the reports that keys can open. With another ledger, or an older copy of their own, the same keys
would open the same reports a second time, and each report would have a second budget. So whoever holds the keys keeps
a ``SeenLog`` outside the ledger, and a ledger that is opened with their ``Witness`` refuses to be another one, or to be
behind. No result leaves before the witness has seen the entry that paid for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from budget.errors import LedgerMismatchError, LedgerRewoundError, StoreError
from budget.log.entries import entry_hash
from budget.store import Store, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLog:
    """A ledger's log up to some entry: how many ``entries`` it had, and the hash of the ``last`` of them."""

    ledger_id: bytes
    entries: int
    last: bytes


class Witness(Protocol):
    """Remembers the newest entry of one ledger, outside of it. Safe for several threads."""

    @property
    def seen(self) -> SeenLog | None:
        """What has been seen so far; None if the keys belong to no ledger yet."""

    def advance(self, seen: SeenLog) -> None:
        """Remember a newer entry durably. The first one binds the keys to its ledger; OSError if that fails."""


def newest(transaction: Transaction) -> SeenLog:
    """Return the newest entry of a ledger; LedgerMismatchError if there is no ledger."""
    head, first = transaction.head(), transaction.entry(0)
    if head is None or first is None:
        raise LedgerMismatchError("this database holds no ledger: check the path")
    last = transaction.entry(head.entries - 1)
    if last is None:
        raise StoreError("the log is shorter than its head says: run 'aggservice ledger verify'")
    return SeenLog(ledger_id=entry_hash(first.header), entries=head.entries, last=entry_hash(last.header))


def seen_in(store: Store) -> SeenLog:
    """Return the newest entry of a store's ledger."""
    return store.read("newest_entry", newest)


def check_seen(transaction: Transaction, ledger_id: bytes, seen: SeenLog | None) -> None:
    """Refuse another ledger than the one that was ``seen``, and one that lacks what was seen."""
    if seen is None:
        return
    check_same(ledger_id, seen)
    row = transaction.entry(seen.entries - 1)
    if row is None or entry_hash(row.header) != seen.last:
        head = transaction.head()
        raise LedgerRewoundError(
            f"this ledger is an older copy: it has {0 if head is None else head.entries} entries, and its keys have "
            f"seen entry {seen.entries - 1}, which is missing or differs. What was spent since would be spent again: "
            "put the newest ledger back, or run 'aggservice ledger restore', which retires keys that have seen more"
        )


def check_same(ledger_id: bytes | None, seen: SeenLog) -> None:
    """Refuse another ledger than the one that was ``seen``; None is a ledger that does not exist yet."""
    if ledger_id != seen.ledger_id:
        found = "there is no ledger here" if ledger_id is None else f"this is ledger {ledger_id.hex()[:16]}"
        raise LedgerMismatchError(
            f"the keys belong to ledger {seen.ledger_id.hex()[:16]}, and {found}: with another ledger every report "
            "would have a second budget. Use that ledger, or make new keys with 'aggservice keys new'"
        )
