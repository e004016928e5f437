"""Replay a log from its first entry: each entry must be canonical, follow the one before, and be paid for.

Nothing is trusted: an entry must state the cost that the filter gives its mechanisms, hold the units it names, and
leave every unit within its limit. Checkpoints and receipts from elsewhere are compared when the replay reaches them.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from budget.errors import BudgetError
from budget.filters import Spend
from budget.log.entries import (
    NO_ENTRY,
    Entry,
    Genesis,
    RecoveryEntry,
    ReleaseEntry,
    entry_from_bytes,
    entry_hash,
    entry_to_plain,
    extend,
    root,
)
from budget.log.proofs import Checkpoint, Receipt
from budget.units import UNIT_BYTES, Columns, Indexes, Words, ascending, columns, rows

_START: Final = 1 << 12
_MIX_A: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_B: Final = np.uint64(0xD6E8FEB86659FD93)
_AHEAD: Final = 128
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
Rows = NDArray[np.uint64]
"""One row per unit: high, middle, low ‖ uses (32 bits each), loss, delta."""
Slots = NDArray[np.int32]
Amounts = NDArray[np.int64]


@njit(cache=True)
def _slot_of(hi: np.uint64, mid: np.uint64, lo: np.uint64, mask: np.uint64) -> np.uint64:
    mixed = (hi ^ (mid * _MIX_A) ^ (lo * _MIX_B)) * _MIX_A
    return (mixed ^ (mixed >> _HALF)) & mask


@njit(cache=True)
def _find(slots: Slots, rows: Rows, hi: np.uint64, mid: np.uint64, lo: np.uint64) -> np.uint64:
    """Return the slot that holds the key, or the empty slot for it. The table is never full."""
    mask = np.uint64(slots.size - 1)
    slot = _slot_of(hi, mid, lo, mask)
    while slots[slot] >= 0:
        row = slots[slot]
        if rows[row, 0] == hi and rows[row, 1] == mid and (rows[row, 2] >> _HALF) == lo:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True)
def _touch(slots: Slots, hi: Words, mid: Words, lo: Words) -> np.int64:
    """Load the slots of several keys together, so that the waits for memory overlap."""
    mask = np.uint64(slots.size - 1)
    seen = np.int64(0)
    for i in range(hi.size):
        seen += slots[_slot_of(hi[i], mid[i], np.uint64(lo[i]), mask)]
    return seen


@njit(cache=True)
def rehash(slots: Slots, rows: Rows, used: int) -> np.int64:
    """Put the first ``used`` rows, all of different keys, into an empty table of slots."""
    mask = np.uint64(slots.size - 1)
    seen = np.int64(0)
    for start in range(0, used, _AHEAD):
        stop = min(start + _AHEAD, used)
        seen += _touch(slots, rows[start:stop, 0], rows[start:stop, 1], rows[start:stop, 2] >> _HALF)
        for row in range(start, stop):
            slot = _slot_of(rows[row, 0], rows[row, 1], rows[row, 2] >> _HALF, mask)
            while slots[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            slots[slot] = row
    return seen


@njit(cache=True)
def apply(slots: Slots, rows: Rows, used: int, keys: Columns, cost: Amounts, limit: Amounts) -> tuple[int, int, int]:
    """Add ``cost`` (loss, delta, uses; each may be negative) to every key.

    Return the rows used, the first key that would go below 0 or above ``limit`` (−1 if none), and the sum of
    ``_touch``, so that the compiler keeps it. Sums stay below 2⁶² because amounts and limits do.
    """
    hi, mid, lo = keys
    seen = np.int64(0)
    for i in range(hi.size):
        if i % _AHEAD == 0:
            seen += _touch(slots, hi[i : i + _AHEAD], mid[i : i + _AHEAD], lo[i : i + _AHEAD])
        low = np.uint64(lo[i])
        slot = _find(slots, rows, hi[i], mid[i], low)
        row = slots[slot]
        if row < 0:
            row = used
            used += 1
            slots[slot] = row
            rows[row, 0] = hi[i]
            rows[row, 1] = mid[i]
            rows[row, 2] = low << _HALF
        uses = np.int64(rows[row, 2] & _LOW) + cost[2]
        loss = np.int64(rows[row, 3]) + cost[0]
        delta = np.int64(rows[row, 4]) + cost[1]
        if loss < 0 or delta < 0 or uses < 0 or loss > limit[0] or delta > limit[1] or uses > limit[2]:
            return used, i, int(seen)
        rows[row, 2] = (low << _HALF) | np.uint64(uses)
        rows[row, 3] = np.uint64(loss)
        rows[row, 4] = np.uint64(delta)
    return used, -1, int(seen)


@njit(cache=True)
def look_up(slots: Slots, rows: Rows, keys: Columns, found: Indexes) -> np.int64:
    """Write the row of each key into ``found``, −1 for an unknown key."""
    hi, mid, lo = keys
    seen = np.int64(0)
    for i in range(hi.size):
        if i % _AHEAD == 0:
            seen += _touch(slots, hi[i : i + _AHEAD], mid[i : i + _AHEAD], lo[i : i + _AHEAD])
        found[i] = slots[_find(slots, rows, hi[i], mid[i], np.uint64(lo[i]))]
    return seen


EVERY_KEY: Final = (0, 1 << 64)
"""The range of all keys, by their first eight bytes as a number: the first bound is included, the second is not."""


def within(keys: Columns, span: tuple[int, int]) -> slice:
    """Return the slice of ``keys``, which are ascending, that lies in the range ``span``."""
    high = keys[0]
    begin = 0 if span[0] == 0 else int(np.searchsorted(high, np.uint64(span[0])))
    return slice(begin, high.size if span[1] >= 1 << 64 else int(np.searchsorted(high, np.uint64(span[1]))))


class ChargedTally:
    """The balances that a log implies, for the units of one range of keys.

    Call ``charge`` for each entry in the order of the log, then ``amounts`` to compare the balances.
    """

    def __init__(self, limit: Spend, span: tuple[int, int] = EVERY_KEY) -> None:
        self.span = span
        self._limit = np.array([limit.loss_micro, limit.delta_atto, limit.uses], dtype=np.int64)
        self._rows: Rows = np.zeros((_START, 5), dtype=np.uint64)
        self._slots: Slots = np.full(2 * _START, -1, dtype=np.int32)
        self.used = 0

    def _reserve(self, more: int) -> None:
        """Make room for ``more`` new keys."""
        needed = self.used + more
        if needed > self._rows.shape[0]:
            size = max(needed, self._rows.shape[0] + self._rows.shape[0] // 2)
            # In place, so that the system remaps a large array instead of copying it.
            self._rows.resize((size, 5), refcheck=False)
        if 2 * needed > self._slots.size:
            size = self._slots.size
            while 2 * needed > size:
                size *= 4
            self._slots = np.full(size, -1, dtype=np.int32)
            rehash(self._slots, self._rows, self.used)

    def charge(self, keys: Columns, cost: Spend, sign: int = 1) -> int:
        """Charge every key of the range (sign 1) or refund it (sign −1).

        Keys are ascending. Returns the first key that leaves [0, limit], or −1.
        """
        chosen = within(keys, self.span)
        mine = (keys[0][chosen], keys[1][chosen], keys[2][chosen])
        self._reserve(mine[0].size)
        step = sign * np.array([cost.loss_micro, cost.delta_atto, cost.uses], dtype=np.int64)
        self.used, bad, _ = apply(self._slots, self._rows, self.used, mine, step, self._limit)
        return bad + chosen.start if bad >= 0 else bad

    def amounts(self, keys: Columns) -> tuple[NDArray[np.bool_], Words, Words, Words]:
        """Return for each key whether the log charged it, and its loss, delta and uses (0 if not)."""
        found = np.empty(keys[0].size, dtype=np.int64)
        look_up(self._slots, self._rows, keys, found)
        known = found >= 0
        rows = self._rows[np.maximum(found, 0)]
        rows[~known] = 0
        return known, rows[:, 3], rows[:, 4], rows[:, 2] & _LOW

    def totals(self) -> tuple[Words, Words, Words]:
        """Return loss, delta and uses of every unit, in the order in which the log first charged them."""
        rows = self._rows[: self.used]
        return rows[:, 3], rows[:, 4], rows[:, 2] & _LOW


UNREADABLE: Final = (BudgetError, ValueError, TypeError, OverflowError, sqlite3.Error)
"""What reading bytes that were changed may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """The first difference. ``seq`` is the entry (None: no single one), ``what`` the part, ``text`` the explanation."""

    seq: int | None
    what: str
    text: str

    def __str__(self) -> str:
        return ("" if self.seq is None else f"entry {self.seq}: ") + f"{self.what}: {self.text}"


class DisagreementError(BudgetError):
    """Two values that must agree differ: ``found`` says which, with the arguments of ``Disagreement``."""

    def __init__(self, seq: int | None, what: str, text: str) -> None:
        self.found = Disagreement(seq=seq, what=what, text=text)
        super().__init__(str(self.found))


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
        self._balances: ChargedTally | None = None
        self._paid: dict[int, ReleaseEntry] = {}
        self._recovered: set[int] = set()
        self._jobs: set[tuple[str, str]] = set()

    @property
    def balances(self) -> ChargedTally:
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
            self.genesis, self.ledger_id, self._balances = entry, leaf, ChargedTally(entry.filter.limit, self._span)
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


def charge_part(balances: ChargedTally, entry: ReleaseEntry | RecoveryEntry, raw: bytes) -> None:
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
