"""Replay a log from its first entry: each entry must be canonical, follow the one before, and be paid for.

Nothing is trusted: an entry must state the cost that the filter gives its mechanisms, hold the units it names, and
leave every unit within its limit. Checkpoints and receipts from elsewhere are compared when the replay reaches them.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from typing import Final

from budget.audit.tally import EVERY_KEY, Tally
from budget.errors import BudgetError
from budget.log.entries import (
    NO_ENTRY,
    Entry,
    Genesis,
    RecoveryEntry,
    ReleaseEntry,
    entry_from_bytes,
    entry_hash,
    entry_to_plain,
)
from budget.log.merkle import extend, root
from budget.log.proofs import Checkpoint, Receipt
from budget.units import UNIT_BYTES, ascending, columns, rows

UNREADABLE: Final = (BudgetError, ValueError, TypeError, OverflowError, sqlite3.Error)
"""What reading bytes that were changed may raise."""


class DisagreementError(BudgetError):
    """Two values that must agree differ. ``seq`` is the entry (None: no single one), ``what`` the part."""

    def __init__(self, seq: int | None, what: str, text: str) -> None:
        super().__init__(("" if seq is None else f"entry {seq}: ") + f"{what}: {text}")
        self.seq = seq
        self.what = what
        self.text = text


class LogReplay:
    """The state of a replay: the end of the log after the entries added so far, and the balances they imply.

    Everything is checked, but only units in the range of keys ``span`` are added up.
    """

    def __init__(self, span: tuple[int, int] = EVERY_KEY) -> None:
        self._span = span
        self.genesis: Genesis | None = None
        self.ledger_id = NO_ENTRY
        self.entries = 0
        self.releases = 0
        self.recoveries = 0
        self.units_charged = 0
        self.head = NO_ENTRY
        self.frontier: tuple[bytes, ...] = ()
        self._time_ms = 0
        self._balances: Tally | None = None
        self._paid: dict[int, ReleaseEntry] = {}
        self._recovered: set[int] = set()
        self._jobs: set[tuple[str, str]] = set()

    @property
    def balances(self) -> Tally:
        """The balances so far."""
        if self._balances is None:
            raise DisagreementError(0, "missing", "the log has no entry, so there is no ledger")
        return self._balances

    @property
    def root(self) -> bytes:
        """The Merkle root over the entries so far."""
        return root(self.frontier)

    def plain(self, entry: Entry) -> dict[str, object]:
        """Return the plain values of an entry of this log."""
        assert self.genesis is not None
        return entry_to_plain(entry, self.genesis.filter.loss_name)

    def add(self, raw: bytes, parts: Iterable[bytes]) -> Entry:
        """Replay the next entry with its packed units; DisagreementError if it is not a valid next entry."""
        entry = self._check_chain(raw)
        leaf = entry_hash(raw)
        if isinstance(entry, Genesis):
            self.genesis, self.ledger_id, self._balances = entry, leaf, Tally(entry.filter.limit, self._span)
            if any(True for _ in parts):
                raise DisagreementError(entry.seq, "units", "a genesis entry must not charge units")
        else:
            self._check_cost(entry)
            self._charge(entry, parts)
            if isinstance(entry, RecoveryEntry):
                self._recovered.add(entry.recovers)
                self.recoveries += 1
            else:
                self._paid[entry.seq] = entry
                self.releases += 1
        self.frontier = extend(self.frontier, self.entries, leaf)
        self.head, self._time_ms = leaf, entry.time_ms
        self.entries += 1
        return entry

    def _check_chain(self, raw: bytes) -> Entry:
        seq = self.entries
        try:
            entry = entry_from_bytes(raw, None if self.genesis is None else self.genesis.filter.loss_name)
        except UNREADABLE as problem:
            raise DisagreementError(seq, "the entry cannot be read", str(problem)) from problem
        if entry.seq != seq or type(entry.seq) is not int:
            raise DisagreementError(seq, "order", f"this entry says that it is number {entry.seq}")
        if entry.previous != self.head:
            raise DisagreementError(seq, "chain", "its previous hash is not the hash of the entry before it")
        if type(entry.time_ms) is not int or not entry.time_ms >= self._time_ms:
            raise DisagreementError(seq, "time", f"its time, {entry.time_ms} ms, is before that of the last entry")
        if isinstance(entry, Genesis) != (seq == 0):
            raise DisagreementError(seq, "order", "the genesis must be the first entry, and only the first")
        return entry

    def _check_cost(self, entry: ReleaseEntry | RecoveryEntry) -> None:
        assert self.genesis is not None
        if isinstance(entry, RecoveryEntry):
            self._check_recovery(entry)
            return
        job = (entry.caller, entry.job_id)
        if job in self._jobs:
            raise DisagreementError(entry.seq, "job", f"job {entry.job_id!r} of {entry.caller!r} was committed before")
        self._jobs.add(job)
        try:
            self.genesis.terms.check(entry.release, entry.units.count)
        except BudgetError as problem:
            raise DisagreementError(entry.seq, "terms", str(problem)) from problem
        try:
            cost = self.genesis.filter.cost(entry.release)
        except BudgetError as problem:
            raise DisagreementError(entry.seq, "cost", str(problem)) from problem
        if cost != entry.cost:
            raise DisagreementError(entry.seq, "cost", "its cost is not what the filter charges for its mechanisms")

    def _check_recovery(self, entry: RecoveryEntry) -> None:
        assert self.genesis is not None
        paid = self._paid.get(entry.recovers)
        if not self.genesis.recovery:
            raise DisagreementError(entry.seq, "recovery", "budget recovery is off in this ledger")
        if paid is None or entry.recovers in self._recovered:
            raise DisagreementError(
                entry.seq, "recovery", f"entry {entry.recovers} is not a release, or was recovered before"
            )
        if paid.release.final:
            raise DisagreementError(entry.seq, "recovery", f"entry {entry.recovers} is a final release")
        if (paid.cost, paid.units) != (entry.cost, entry.units):
            raise DisagreementError(
                entry.seq, "recovery", f"it refunds another amount, or other units, than entry {entry.recovers} charged"
            )

    def _charge(self, entry: ReleaseEntry | RecoveryEntry, parts: Iterable[bytes]) -> None:
        """Replay an entry's units part by part; check their order, count and digest, and every unit's limit."""
        digest, seen, last = hashlib.sha256(), 0, b""
        for raw in parts:
            keys = columns(rows(raw))
            if not ascending(keys) or raw[:UNIT_BYTES] <= last:
                raise DisagreementError(entry.seq, "units", "the unit keys are not in strictly ascending order")
            last = raw[-UNIT_BYTES:]
            digest.update(raw)
            seen += keys[0].size
            charge_part(self.balances, entry, raw)
        if seen != entry.units.count or digest.digest() != entry.units.sha256:
            raise DisagreementError(entry.seq, "units", "the count or digest of the unit keys differs from the entry")
        self.units_charged += seen


def charge_part(balances: Tally, entry: ReleaseEntry | RecoveryEntry, raw: bytes) -> None:
    """Charge or refund some of an entry's units; DisagreementError if a unit goes above its limit or below 0."""
    bad = balances.charge(columns(rows(raw)), entry.cost, -1 if isinstance(entry, RecoveryEntry) else 1)
    if bad >= 0:
        unit = raw[bad * UNIT_BYTES : (bad + 1) * UNIT_BYTES].hex()
        raise DisagreementError(entry.seq, "budget", f"unit {unit} is charged beyond its limit")


class Evidence:
    """Checkpoints and receipts kept outside the ledger, each compared when the replay reaches it."""

    def __init__(
        self, checkpoints: Iterable[Checkpoint], receipts: Iterable[Receipt], public_key: bytes | None
    ) -> None:
        self._receipts = list(receipts)
        self._checkpoints = [*checkpoints, *(receipt.checkpoint for receipt in self._receipts)]
        self._public_key = public_key

    def compare(self, log: LogReplay, entry: Entry) -> int:
        """Compare the receipts and checkpoints of the entry just replayed; return how many there were."""
        assert log.genesis is not None
        if self._public_key is not None and log.genesis.public_key != self._public_key:
            raise DisagreementError(0, "key", "the ledger's signing key differs from the expected one")
        compared = 0
        for receipt in self._receipts:
            if receipt.seq == entry.seq:
                if log.plain(entry) != receipt.entry:
                    raise DisagreementError(entry.seq, "receipt", "the log holds another entry than the receipt")
                compared += 1
        for one in self._checkpoints:
            if one.entries == log.entries:
                check_end(log, one)
                compared += 1
        return compared

    def compare_end(self, log: LogReplay) -> None:
        """Check that no checkpoint is longer than the log."""
        longest = max((one.entries for one in self._checkpoints), default=0)
        if longest > log.entries:
            text = f"the log ends after {log.entries} entries, but a checkpoint covers {longest}"
            raise DisagreementError(log.entries, "missing", text)


def check_end(log: LogReplay, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint was signed for exactly the log replayed so far."""
    assert log.genesis is not None
    expected = (log.ledger_id, log.entries, log.head, log.root, log.genesis.public_key)
    signed = (checkpoint.ledger_id, checkpoint.entries, checkpoint.head, checkpoint.root, checkpoint.public_key)
    if signed != expected:
        text = f"the log up to here differs from the signed checkpoint of {checkpoint.entries} entries"
        raise DisagreementError(log.entries - 1, "checkpoint", text)
