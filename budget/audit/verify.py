"""The audit: replay a log, compare it with the database and with kept evidence, and report the first difference.

In a database, receipts, jobs, results, head and balances must be exactly what the log implies, so that the audit sees a
change of any value in any column. Balances are compared a range of keys at a time, so that memory is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from budget.audit.replay import (
    EVERY_KEY,
    UNREADABLE,
    ChargedTally,
    Disagreement,
    DisagreementError,
    Evidence,
    LogReplay,
    charge_part,
    check_end,
    within,
)
from budget.files.staging import Manifest
from budget.log.entries import Entry, Genesis, ReleaseEntry, entry_from_bytes, last_path
from budget.log.export import ExportedLog
from budget.log.proofs import Checkpoint, Receipt
from budget.store import PART_UNITS, EntryRow, Store, Transaction
from budget.stores.balances import BLOCK_MAX, RECORD, parse_block, record_keys
from budget.units import UNIT_BYTES, UnitSet, ascending, contains, rows

_BLOCKS_AT_ONCE: Final = 4096
UNITS_AT_ONCE: Final = 30_000_000
"""About how many units are compared in one pass over the log: 50 to 100 bytes of memory each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the audit found. ``disagreement`` is None if everything agrees.

    ``evidence`` counts the checkpoints and receipts compared, with an exported log's own checkpoint.
    """

    disagreement: Disagreement | None
    entries: int
    releases: int
    recoveries: int
    units_charged: int
    units_known: int
    evidence: int
    ledger_id: bytes
    public_key: bytes
    head: bytes
    root: bytes

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return self.disagreement is None


class _Audit:
    """One run of an audit. A store that retries a transaction needs a new one."""

    def __init__(self, evidence: Evidence, progress: Callable[[int], None], span: tuple[int, int] = EVERY_KEY) -> None:
        self.log = LogReplay(span)
        self.known = 0
        self.compared = 0
        self.parts = 0
        self._evidence = evidence
        self._progress = progress

    def add(self, header: bytes, parts: Iterable[bytes]) -> Entry:
        """Replay an entry and compare the evidence about it."""
        before = self.log.units_charged
        entry = self.log.add(header, parts)
        self._progress(self.log.units_charged - before)
        self.compared += self._evidence.compare(self.log, entry)
        return entry

    def end(self) -> None:
        """Check that the log is not empty and not shorter than a checkpoint."""
        assert self.log.balances is not None
        self._evidence.compare_end(self.log)

    def report(self, found: Disagreement | None) -> AuditReport:
        """Return the report of this audit; ``found`` is the first difference, if any."""
        log = self.log
        return AuditReport(
            disagreement=found,
            entries=log.entries,
            releases=log.releases,
            recoveries=log.recoveries,
            units_charged=log.units_charged,
            units_known=self.known if self.known or log.genesis is None else log.balances.used,
            evidence=self.compared,
            ledger_id=log.ledger_id,
            public_key=b"" if log.genesis is None else log.genesis.public_key,
            head=log.head,
            root=log.root,
        )

    def stored_parts(self, transaction: Transaction, seq: int) -> Iterator[bytes]:
        """Yield the stored units of an entry, after checking each row's number, length, first and last key."""
        full = True
        for number, part in enumerate(transaction.parts(seq)):
            keys = part.keys
            whole = isinstance(keys, bytes) and 0 < len(keys) <= PART_UNITS * UNIT_BYTES and not len(keys) % UNIT_BYTES
            if not whole or not full or (part.seq, part.part) != (seq, number):
                raise DisagreementError(
                    seq, "units", f"part {part.part} of the stored units has a wrong number or length"
                )
            if part.first_key != keys[:UNIT_BYTES] or part.last_key != keys[-UNIT_BYTES:]:
                raise DisagreementError(
                    seq, "units", f"part {number} of the stored units has a wrong first or last key"
                )
            full = len(keys) == PART_UNITS * UNIT_BYTES
            self.parts += 1
            yield keys

    def check_tables(self, transaction: Transaction) -> None:
        """Check that the tables hold exactly what the log implies."""
        head = transaction.head()
        if head is None or (head.entries, head.frontier) != (self.log.entries, self.log.frontier):
            raise DisagreementError(self.log.entries - 1, "head", "the stored head differs from the end of the log")
        if transaction.count_parts() != self.parts:
            raise DisagreementError(None, "units", "some stored units belong to no entry")
        if transaction.count_jobs() != self.log.releases:
            raise DisagreementError(None, "job", "some stored jobs belong to no entry")
        version, present, expected = transaction.schema()
        if present != expected:
            raise DisagreementError(None, "schema", f"the tables and indexes differ from schema version {version}")

    def check_balances(self, transaction: Transaction, balances: ChargedTally) -> None:
        """Compare every stored balance in a range of keys; name the first entry that charged a unit that differs."""
        seen, last = 0, b""
        for records in _blocks_at_once(transaction):
            keys = record_keys(records)
            first = records[:1].tobytes()[:UNIT_BYTES]
            if not ascending(keys) or first <= last:
                raise DisagreementError(None, "balances", f"the units from {first.hex()} on are not in ascending order")
            last = records[-1:].tobytes()[:UNIT_BYTES]
            chosen = within(keys, balances.span)
            records = records[chosen]
            if not records.size:
                continue
            known, loss, delta, uses = balances.amounts((keys[0][chosen], keys[1][chosen], keys[2][chosen]))
            wrong = (
                ~known
                | (loss != records["loss"].astype(np.uint64))
                | (delta != records["delta"].astype(np.uint64))
                | (uses != records["uses"].astype(np.uint64))
            )
            if bool(wrong.any()):
                units = UnitSet(_keys(records[wrong]))
                text = f"{len(units)} balance(s) differ from the log, the first of unit {units[0].hex()}"
                raise DisagreementError(_first_charge(transaction, units), "balances", text)
            seen += records.size
            self._progress(records.size)
        self.known += balances.used
        if seen != balances.used:
            text = f"the log charged {balances.used} units, but there are {seen} balances"
            raise DisagreementError(_first_without_balance(transaction, self.log.entries), "balances", text)

    def check_range(self, transaction: Transaction, span: tuple[int, int]) -> None:
        """Add up and compare the balances of another range of keys; entries and units have been checked already."""
        assert self.log.genesis is not None
        balances = ChargedTally(self.log.genesis.filter.limit, span)
        for row in transaction.entries(1):
            entry = entry_from_bytes(bytes(row.header), self.log.genesis.filter.loss_name)
            assert not isinstance(entry, Genesis)
            for part in transaction.parts(row.seq):
                first, last = (int.from_bytes(key[:8], "big") for key in (part.first_key, part.last_key))
                if first < span[1] and span[0] <= last:
                    charge_part(balances, entry, part.keys)
        self.check_balances(transaction, balances)


def _spans(transaction: Transaction) -> list[tuple[int, int]]:
    """Divide all keys into ranges of about ``UNITS_AT_ONCE`` stored balances."""
    blocks = transaction.block_index(bytes(UNIT_BYTES), b"\xff" * UNIT_BYTES)
    every = max(1, UNITS_AT_ONCE // BLOCK_MAX)
    cuts = sorted({int.from_bytes(key[:8], "big") for key in blocks[every::every] if isinstance(key, bytes)} - {0})
    return list(pairwise([0, *cuts, 1 << 64]))


def _keys(records: NDArray[np.void]) -> NDArray[np.uint8]:
    flat = np.frombuffer(records.tobytes(), dtype=np.uint8).reshape(-1, RECORD.itemsize)
    return np.ascontiguousarray(flat[:, :UNIT_BYTES])


def _check_receipt(log: LogReplay, before: tuple[bytes, ...], row: EntryRow, entry: Entry) -> None:
    """Check that the stored receipt of an entry is signed and is exactly what the log implies."""
    assert log.genesis is not None
    try:
        receipt = Receipt.from_bytes(bytes(row.receipt))
    except UNREADABLE as problem:
        raise DisagreementError(entry.seq, "receipt", str(problem)) from problem
    expected = Checkpoint(
        ledger_id=log.ledger_id,
        entries=log.entries,
        head=log.head,
        root=log.root,
        time_ms=entry.time_ms,
        public_key=log.genesis.public_key,
        signature=receipt.checkpoint.signature,
    )
    if (receipt.entry, receipt.path, receipt.checkpoint) != (log.plain(entry), last_path(before), expected):
        raise DisagreementError(entry.seq, "receipt", "the stored receipt belongs to another log")


def _check_job(transaction: Transaction, entry: ReleaseEntry) -> None:
    """Check the job and result stored for a release."""
    job = transaction.job(entry.caller, entry.job_id)
    if job is None:
        raise DisagreementError(entry.seq, "job", f"job {entry.job_id!r} of {entry.caller!r} is missing")
    if job.seq != entry.seq or type(job.seq) is not int:
        raise DisagreementError(entry.seq, "job", f"job {entry.job_id!r} points at entry {job.seq}")
    result = job.result
    if not isinstance(result, bytes) or len(result) != entry.result.size:
        raise DisagreementError(entry.seq, "result", "the size of the stored result differs from the entry")
    if hashlib.sha256(result).digest() != entry.result.sha256:
        raise DisagreementError(entry.seq, "result", "the digest of the stored result differs from the entry")
    if entry.result.files and Manifest.from_bytes(result).files != entry.result.files:
        raise DisagreementError(entry.seq, "result", "the files of the stored manifest differ from the entry")


def _blocks_at_once(transaction: Transaction) -> Iterator[NDArray[np.void]]:
    """Yield the stored balances, many blocks at a time, after checking each block's first key and size."""
    batch: list[bytes] = []
    for first_key, block in transaction.blocks():
        size = len(block) if isinstance(block, bytes) else 0
        if not 0 < size <= BLOCK_MAX * RECORD.itemsize or size % RECORD.itemsize or block[:UNIT_BYTES] != first_key:
            where = first_key.hex() if isinstance(first_key, bytes) else repr(first_key)
            raise DisagreementError(None, "balances", f"the block at {where} has a wrong size or first key")
        batch.append(block)
        if len(batch) == _BLOCKS_AT_ONCE:
            yield parse_block(b"".join(batch))
            batch = []
    if batch:
        yield parse_block(b"".join(batch))


def _first_charge(transaction: Transaction, units: UnitSet) -> int | None:
    """Return the first entry that charged any of ``units``."""
    for part in transaction.parts_between(units[0], units[len(units) - 1]):
        if bool(contains(rows(part.keys), units.keys).any()):
            return part.seq
    return None


def _first_without_balance(transaction: Transaction, entries: int) -> int | None:
    """Return the first entry that charged a unit without a balance."""
    known = [_keys(records) for records in _blocks_at_once(transaction)]
    everything = np.concatenate(known) if known else np.zeros((0, UNIT_BYTES), np.uint8)
    for seq in range(1, entries):
        for part in transaction.parts(seq):
            if not bool(contains(everything, rows(part.keys)).all()):
                return seq
    return None


def _silent(_: int) -> None:
    """Ignore progress."""


def verify_store(
    store: Store,
    *,
    checkpoints: Iterable[Checkpoint] = (),
    receipts: Iterable[Receipt] = (),
    public_key: bytes | None = None,
    progress: Callable[[int], None] = _silent,
) -> AuditReport:
    """Audit a database, live or a copy, on one snapshot. ``progress`` gets counts of units replayed, then compared."""
    evidence = Evidence(checkpoints, receipts, public_key)
    audit = _Audit(evidence, progress)

    def work(transaction: Transaction) -> None:
        nonlocal audit
        first, *others = _spans(transaction)
        audit = _Audit(evidence, progress, first)
        for row in transaction.entries():
            if row.seq != audit.log.entries or type(row.seq) is not int:
                text = f"entry {row.seq} follows entry {audit.log.entries - 1}"
                raise DisagreementError(audit.log.entries, "missing", text)
            before = audit.log.frontier
            entry = audit.add(bytes(row.header), audit.stored_parts(transaction, row.seq))
            _check_receipt(audit.log, before, row, entry)
            if isinstance(entry, ReleaseEntry):
                _check_job(transaction, entry)
        audit.end()
        audit.check_tables(transaction)
        audit.check_balances(transaction, audit.log.balances)
        for span in others:
            audit.check_range(transaction, span)

    try:
        store.read("verify", work)
    except UNREADABLE as problem:
        return audit.report(_disagreement(problem, audit.log))
    return audit.report(None)


def verify_log(
    exported: ExportedLog,
    *,
    checkpoints: Iterable[Checkpoint] = (),
    receipts: Iterable[Receipt] = (),
    public_key: bytes | None = None,
    progress: Callable[[int], None] = _silent,
) -> AuditReport:
    """Audit an exported log: everything except the tables of a database."""
    audit = _Audit(Evidence(checkpoints, receipts, public_key), progress)
    try:
        for found in exported.entries():
            audit.add(found.header, found.parts)
        audit.end()
        assert exported.checkpoint is not None
        check_end(audit.log, exported.checkpoint)
        audit.compared += 1
    except UNREADABLE as problem:
        return audit.report(_disagreement(problem, audit.log))
    return audit.report(None)


def _disagreement(problem: BaseException, log: LogReplay) -> Disagreement:
    if isinstance(problem, DisagreementError):
        return problem.found
    return Disagreement(seq=log.entries, what="unreadable", text=str(problem))
