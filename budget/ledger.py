"""The ledger: budgets that cannot be overspent, jobs that run once, a log that anyone can replay.

Each change is one named transaction of the store, always in this order: look up the job, check that every unit can
pay, then write balances, entry, units, job and head together (docs/design.md, semantics 2 and 3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NotRequired, TypedDict, Unpack

from aggservice.mechanisms import Bits, Clock
from budget.answers import (
    FIRST_SHOWN,
    PAGE_MAX,
    BudgetExhaustedError,
    Check,
    Committed,
    JobKey,
    Remaining,
    Shortfall,
    explain_page,
    refusal_text,
)
from budget.errors import BudgetError, JobConflictError, LedgerMismatchError, RecoveryForbiddenError, StoreError
from budget.files.staging import Attempt, Manifest, Staging, read_published
from budget.filters import Filter, Spend
from budget.log.entries import (
    Entry,
    Genesis,
    RecoveryEntry,
    ReleaseEntry,
    ResultDigest,
    UnitsDigest,
    check_name,
    entry_from_bytes,
    entry_hash,
    entry_to_bytes,
    entry_to_plain,
    extend,
)
from budget.log.proofs import Checkpoint, Receipt, Signer, issue
from budget.release import Release
from budget.store import PART_UNITS, EntryRow, Head, JobRow, PartRow, Store, Transaction
from budget.stores.balances import SpentColumns, charge, extremes, read_spent, refund, units_that_cannot_pay
from budget.terms import Terms
from budget.units import Units, UnitSet
from budget.witness import SeenLog, Witness, check_same, check_seen, seen_in

RESULT_MAX_BYTES: Final = 256 << 20
"""The largest result that the ledger keeps in its database; larger ones are files."""
_NO_KEY: Final = "this ledger is open for reading only: open it with its signing key"
_CUT_OFF: Final = "the log is shorter than its head says: run 'aggservice ledger verify'"


def _parts(seq: int, units: UnitSet) -> Iterator[PartRow]:
    for part, start in enumerate(range(0, len(units), PART_UNITS)):
        keys = units.keys[start : start + PART_UNITS]
        yield PartRow(seq=seq, part=part, first_key=keys[0].tobytes(), last_key=keys[-1].tobytes(), keys=keys.tobytes())


def _head(transaction: Transaction) -> Head:
    head = transaction.head()
    if head is None:
        raise LedgerMismatchError("this database holds no ledger yet: create one first")
    return head


class CreateOptions(TypedDict):
    """The options of ``Ledger.create`` and ``Ledger.open_or_create``."""

    filter: Filter
    signer: Signer
    clock: Clock
    bits: Bits
    terms: NotRequired[Terms | None]
    staging: NotRequired[Staging | None]
    witness: NotRequired[Witness | None]
    recovery: NotRequired[bool]


class Ledger:
    """A ledger over a store. Thread-safe; several processes may open the same SQLite file or PostgreSQL database.

    ``create`` makes a new ledger; ``open`` opens an existing one. Without a ``signer`` it can be read but not charged.
    With a ``staging`` folder, results may be files. With a ``witness``, it is refused if it is another ledger than
    the one its keys belong to, or an older copy.
    """

    def __init__(
        self,
        store: Store,
        genesis: Genesis,
        *,
        clock: Clock,
        signer: Signer | None,
        staging: Staging | None,
        witness: Witness | None = None,
    ) -> None:
        self.store = store
        self.genesis = genesis
        self.ledger_id = entry_hash(entry_to_bytes(genesis, genesis.filter.loss_name))
        self._clock = clock
        self._signer = signer
        self._staging = staging
        self._witness = witness

    @property
    def filter(self) -> Filter:
        """The filter fixed when the ledger was created."""
        return self.genesis.filter

    @property
    def terms(self) -> Terms:
        """The privacy unit and the bounds fixed when the ledger was created."""
        return self.genesis.terms

    @classmethod
    def create(cls, store: Store, **options: Unpack[CreateOptions]) -> Ledger:
        """Create a ledger in an empty store. ``recovery`` allows ``recover_budget``, which the log records."""
        clock, signer, witness = options["clock"], options["signer"], options.get("witness")
        if witness is not None and witness.seen is not None:
            check_same(None, witness.seen)
        genesis = Genesis(
            time_ms=clock.now_ms(),
            filter=options["filter"],
            terms=options.get("terms") or Terms(),
            recovery=options.get("recovery", False),
            public_key=signer.public_key,
            nonce=options["bits"].read(16),
        )
        ledger = cls(store, genesis, clock=clock, signer=signer, staging=options.get("staging"), witness=witness)

        def work(transaction: Transaction) -> None:
            if transaction.head() is not None:
                raise LedgerMismatchError("this database already holds a ledger: open it instead")
            ledger._append(transaction, Head(entries=0, frontier=()), genesis, None)

        store.write("create", work)
        ledger._witnessed(0, ledger.ledger_id)
        return ledger

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        clock: Clock,
        signer: Signer | None = None,
        filter: Filter | None = None,
        terms: Terms | None = None,
        staging: Staging | None = None,
        witness: Witness | None = None,
    ) -> Ledger:
        """Open an existing ledger; LedgerMismatchError if its filter, terms or signing key differ from those given.

        Also if the ``witness`` belongs to another ledger; LedgerRewoundError if it has seen entries that are not there.
        """

        def work(transaction: Transaction) -> bytes:
            _head(transaction)
            row = transaction.entry(0)
            if row is None:
                raise StoreError("the ledger has lost its first entry: run 'aggservice ledger verify'")
            return bytes(row.header)

        raw = store.read("open", work)
        genesis = entry_from_bytes(raw, None)
        assert isinstance(genesis, Genesis)
        if filter is not None and filter != genesis.filter:
            raise LedgerMismatchError(
                f"the ledger was created with {genesis.filter}, which cannot change: open it with that, not {filter}"
            )
        if terms is not None and terms.unit != genesis.terms.unit:
            raise LedgerMismatchError(
                f"this ledger charges each {genesis.terms.unit}; charging each {terms.unit} would give every report a "
                f"second budget: set privacy_unit = {genesis.terms.unit!r}, or use another ledger for other reports"
            )
        if terms is not None and terms != genesis.terms:
            found, asked = (dict(one.bounds) for one in (genesis.terms, terms))
            raise LedgerMismatchError(
                f"the ledger was created with the bounds {found}, which cannot change: open it with those, not {asked}"
            )
        if signer is not None and signer.public_key != genesis.public_key:
            raise LedgerMismatchError("the signing key is not this ledger's: open it with the key it was created with")
        ledger = cls(store, genesis, clock=clock, signer=signer, staging=staging, witness=witness)
        store.read("check_seen", ledger._check_seen)
        if witness is not None:
            newest = seen_in(store)
            ledger._witnessed(newest.entries - 1, newest.last)
        return ledger

    @classmethod
    def open_or_create(cls, store: Store, **options: Unpack[CreateOptions]) -> Ledger:
        """Open the ledger, or create it if the store is empty. Two services that start at once agree on one ledger."""
        witness = options.get("witness")
        if store.read("look", lambda transaction: transaction.head()) is None:
            if witness is not None and witness.seen is not None:
                check_same(None, witness.seen)
            with suppress(LedgerMismatchError):  # another service may create it in between
                return cls.create(store, **options)
        return cls.open(
            store,
            clock=options["clock"],
            signer=options["signer"],
            filter=options["filter"],
            terms=options.get("terms") or Terms(),
            staging=options.get("staging"),
            witness=options.get("witness"),
        )

    def _check_seen(self, transaction: Transaction) -> None:
        """Refuse to go on if the ledger is not the one that the witness has seen, or lacks what it has seen."""
        if self._witness is not None:
            check_seen(transaction, self.ledger_id, self._witness.seen)

    def _witnessed(self, seq: int, digest: bytes) -> None:
        """Let the witness remember an entry before anything that it paid for leaves."""
        if self._witness is None:
            return
        seen = self._witness.seen
        if seen is None or seen.entries <= seq:
            try:
                self._witness.advance(SeenLog(ledger_id=self.ledger_id, entries=seq + 1, last=digest))
            except OSError as problem:
                raise StoreError(
                    f"the keys could not remember entry {seq}, so its result stays here: {problem.strerror}; make "
                    "their file writable, then ask again with the same job id"
                ) from problem

    def _append(self, transaction: Transaction, head: Head, entry: Entry, units: UnitSet | None) -> bytes:
        """Write the entry that follows ``head``, its units, its receipt and the new head; return the receipt."""
        if self._signer is None:
            raise LedgerMismatchError(_NO_KEY)
        raw = entry_to_bytes(entry, self.filter.loss_name)
        entry_from_bytes(raw, None if entry.seq == 0 else self.filter.loss_name)  # nobody could read the log after it
        frontier = extend(head.frontier, head.entries, entry_hash(raw))
        receipt = issue(
            signer=self._signer,
            entry=entry_to_plain(entry, self.filter.loss_name),
            raw=raw,
            frontier_before=head.frontier,
            frontier=frontier,
            ledger_id=self.ledger_id,
        ).to_bytes()
        transaction.append(
            EntryRow(seq=entry.seq, header=raw, receipt=receipt), () if units is None else _parts(entry.seq, units)
        )
        transaction.set_head(Head(entries=head.entries + 1, frontier=frontier))
        return receipt

    def _next(self, transaction: Transaction) -> tuple[Head, bytes, int]:
        """Return the head, the hash of the last entry and the time of the next one, which is never earlier.

        LedgerRewoundError if the ledger has become an older copy of itself.
        """
        head = _head(transaction)
        self._check_seen(transaction)
        row = transaction.entry(head.entries - 1)
        if row is None:
            raise StoreError(_CUT_OFF)
        last = entry_from_bytes(row.header, None if row.seq == 0 else self.filter.loss_name)
        return head, entry_hash(row.header), max(self._clock.now_ms(), last.time_ms)

    def _known(self, transaction: Transaction, job: JobKey) -> Committed | None:
        row = transaction.job(job.caller, job.job_id)
        if row is None:
            return None
        entry = transaction.entry(row.seq)
        parsed = None if entry is None else entry_from_bytes(entry.header, self.filter.loss_name)
        if entry is None or not isinstance(parsed, ReleaseEntry):
            raise StoreError(f"job {job.job_id!r} has no entry in the log: run 'aggservice ledger verify'")
        return Committed(entry=parsed, result=bytes(row.result), receipt=bytes(entry.receipt), repeated=True)

    def _charge(self, transaction: Transaction, units: UnitSet, cost: Spend, caller: str) -> None:
        """Charge every unit, or raise BudgetExhaustedError, which aborts the transaction."""
        lacking = charge(transaction, units, cost, self.filter.limit)
        if len(lacking):
            first = explain_page(transaction, UnitSet(lacking[:FIRST_SHOWN]), cost, self.filter, caller)
            raise self._refusal(Check(total=len(units), asked=cost, lacking=lacking, first=first))

    def _refusal(self, check: Check) -> BudgetExhaustedError:
        return BudgetExhaustedError(
            count=len(check.lacking),
            total=check.total,
            asked=check.asked,
            first=check.first,
            units=check.lacking,
            text=refusal_text(len(check.lacking), check.total, check.first, self.filter.loss_name),
        )

    def commit(
        self,
        *,
        job: JobKey,
        request_digest: bytes,
        release: Release,
        units: Units | UnitSet,
        result: bytes | Attempt,
    ) -> Committed:
        """Charge every unit, log the release and keep the result in one transaction; then publish staged files.

        If the same job with the same request was committed before, return that result and drop the one given here
        (``repeated``). JobConflictError if the job id was used for another request, BudgetExhaustedError if a unit
        cannot pay: then nothing is charged, kept or readable. ``result`` is bytes or a sealed attempt.
        """
        attempt = result if isinstance(result, Attempt) else None
        try:
            committed = self._record(job, request_digest, release, units, result)
        except BaseException as problem:
            if attempt is not None:
                if self._is_uncommitted(job, problem):
                    attempt.discard()
                else:
                    attempt.release_lock()  # it may have been committed: ``recover_staged`` asks the ledger
            raise
        manifest = committed.manifest
        if attempt is not None and (manifest is None or manifest.attempt != attempt.name):
            attempt.discard()
            attempt = None
        if manifest is not None:
            if attempt is not None:
                attempt.publish(manifest)
            elif self._staging is not None:
                self._staging.publish(manifest)
        return committed

    def _is_uncommitted(self, job: JobKey, problem: BaseException) -> bool:
        """Return whether a commit that failed with ``problem`` certainly left nothing in the ledger."""
        if not isinstance(problem, BudgetError):
            return False
        if not isinstance(problem, StoreError):
            return True
        try:
            return self.store.definite and self.store.read("job", lambda t: self._known(t, job)) is None
        except BudgetError:
            return False

    def _record(
        self, job: JobKey, request_digest: bytes, release: Release, units: Units | UnitSet, result: bytes | Attempt
    ) -> Committed:
        if self._signer is None:
            raise LedgerMismatchError(_NO_KEY)
        paying = UnitSet.of(units)
        self.terms.check(release, len(paying))
        cost = self.filter.cost(release)
        if isinstance(result, Attempt):
            if result.manifest is None:
                raise BudgetError("the attempt is not sealed: call seal before commit")
            kept, files = result.manifest.to_bytes(), result.manifest.files
        else:
            kept, files = bytes(result), ()
        if not len(kept) <= RESULT_MAX_BYTES:
            raise BudgetError(f"a result of {len(kept)} bytes is above {RESULT_MAX_BYTES}: stage it as files")
        if not isinstance(request_digest, bytes) or len(request_digest) != 32:
            raise BudgetError("the request digest must be the 32 bytes of a SHA-256 digest")
        units_digest = UnitsDigest(count=len(paying), sha256=paying.digest())
        result_digest = ResultDigest(sha256=hashlib.sha256(kept).digest(), size=len(kept), files=files)

        def work(transaction: Transaction) -> Committed:
            known = self._known(transaction, job)
            if known is not None:
                if known.entry.request_digest != request_digest:
                    raise JobConflictError(
                        f"job id {job.job_id!r} was used for another request: choose a new job id, or repeat that one"
                    )
                return known
            transaction.admit(job.caller, job.job_id)
            head, previous, time_ms = self._next(transaction)
            self._charge(transaction, paying, cost, job.caller)
            entry = ReleaseEntry(
                seq=head.entries,
                previous=previous,
                time_ms=time_ms,
                caller=job.caller,
                job_id=job.job_id,
                request_digest=request_digest,
                release=release,
                cost=cost,
                units=units_digest,
                result=result_digest,
            )
            receipt = self._append(transaction, head, entry, paying)
            transaction.add_job(JobRow(caller=job.caller, job_id=job.job_id, seq=entry.seq, result=kept))
            return Committed(entry=entry, result=kept, receipt=receipt, repeated=False)

        committed = self.store.write("commit", work)
        self._witness_release(committed)
        return committed

    def _witness_release(self, committed: Committed) -> None:
        entry = committed.entry
        self._witnessed(entry.seq, entry_hash(entry_to_bytes(entry, self.filter.loss_name)))

    def job(self, caller: str, job_id: str) -> Committed | None:
        """Return what was committed for a job of this caller, or None.

        If a crash or a full disk prevented publishing its files, publish them first; StagingError if that fails again.
        """
        job = JobKey(caller=caller, job_id=job_id)
        committed = self.store.read("job", lambda transaction: self._known(transaction, job))
        if committed is not None:
            self._witness_release(committed)
        manifest = None if committed is None else committed.manifest
        if manifest is not None and self._staging is not None:
            self._staging.publish(manifest)
        return committed

    def published(self, manifest: Manifest, name: str) -> bytes:
        """Return a published result file; OSError or StagingError if it cannot be read."""
        if self._staging is None:
            return read_published(manifest, name)
        return self._staging.read(manifest, name)

    def check(self, *, caller: str, release: Release, units: Units | UnitSet) -> Check:
        """Return whether all units can pay for a release now, and which cannot. Charges nothing."""
        cost = self.filter.cost(release)
        asked = UnitSet.of(units)

        def work(transaction: Transaction) -> Check:
            keys = units_that_cannot_pay(transaction, asked, cost, self.filter.limit)
            first = explain_page(transaction, UnitSet(keys[:FIRST_SHOWN]), cost, self.filter, caller)
            return Check(total=len(asked), asked=cost, lacking=keys, first=first)

        return self.store.read("check", work)

    def require(self, *, caller: str, release: Release, units: Units | UnitSet) -> None:
        """Raise BudgetExhaustedError if a unit cannot pay for a release now. Charges nothing.

        Ask this before noise is drawn. The commit asks again: another job may spend the same units in between.
        """
        found = self.check(caller=caller, release=release, units=units)
        if not found.payable:
            raise self._refusal(found)

    def explain(
        self, *, caller: str, release: Release, units: Units | UnitSet, offset: int = 0, limit: int = FIRST_SHOWN
    ) -> tuple[Shortfall, ...]:
        """Return one page of shortfalls of ``units``, which come from BudgetExhaustedError.units or Check.lacking."""
        if not (offset >= 0 and 0 < limit <= PAGE_MAX):
            raise BudgetError(f"a page of {limit} units from {offset} is invalid: use 1 to {PAGE_MAX} units, from 0 on")
        page = UnitSet(UnitSet.of(units).keys[offset : offset + limit])
        cost = self.filter.cost(release)
        return self.store.read("explain", lambda t: explain_page(t, page, cost, self.filter, caller))

    def balances(self, units: Units | UnitSet) -> SpentColumns:
        """Return what each unit has spent, in key order; a unit that was never charged has spent 0."""
        asked = UnitSet.of(units)
        return self.store.read("balances", lambda t: read_spent(t, asked, self.filter.limit))

    def remaining(self, units: Units | UnitSet) -> Remaining:
        """Return the least and the most that any unit has left, for loss, δ and uses separately."""
        asked = UnitSet.of(units)
        return self._remaining(lambda transaction: (asked,))

    def remaining_of(self, seq: int) -> Remaining:
        """Return what ``remaining`` returns for the units of release ``seq``; they are read a part at a time."""
        return self._remaining(lambda transaction: (UnitSet.packed(part.keys) for part in transaction.parts(seq)))

    def _remaining(self, sets: Callable[[Transaction], Iterable[UnitSet]]) -> Remaining:
        limit = self.filter.limit
        low, high = self.store.read("remaining", lambda transaction: extremes(transaction, sets(transaction), limit))
        return Remaining(least=high.left_of(limit), most=low.left_of(limit))

    def recover_budget(self, *, operator: str, reason: str, seq: int) -> bytes:
        """Refund, once and in full, what the units of release ``seq`` paid; return the receipt of the new entry.

        This is an operator's decision. Only a ledger created with ``recovery`` allows it, and the log records it. The
        release itself stays: its job id remains used and its result unchanged.
        """
        check_name("the operator", operator)
        check_name("the reason", reason)
        if not self.genesis.recovery:
            raise RecoveryForbiddenError("budget recovery is off in this ledger: only a new ledger can allow it")

        def work(transaction: Transaction) -> bytes:
            row = transaction.entry(seq)
            entry = None if row is None or seq == 0 else entry_from_bytes(row.header, self.filter.loss_name)
            if not isinstance(entry, ReleaseEntry):
                raise RecoveryForbiddenError(f"entry {seq} is not a release: give the number of a release entry")
            if entry.release.final:
                raise RecoveryForbiddenError(
                    f"entry {seq} is final: it released reports themselves, or reports that can be used once; a second "
                    "release of all but one would reveal the missing one"
                )
            for later in transaction.entries(seq + 1):
                other = entry_from_bytes(later.header, self.filter.loss_name)
                if isinstance(other, RecoveryEntry) and other.recovers == seq:
                    raise RecoveryForbiddenError(f"entry {seq} was already recovered, by entry {other.seq}")
            units = UnitSet.packed(b"".join(part.keys for part in transaction.parts(seq)))
            head, previous, time_ms = self._next(transaction)
            refund(transaction, units, entry.cost, self.filter.limit)
            recovery = RecoveryEntry(
                seq=head.entries,
                previous=previous,
                time_ms=time_ms,
                operator=operator,
                reason=reason,
                recovers=seq,
                cost=entry.cost,
                units=entry.units,
            )
            return self._append(transaction, head, recovery, units)

        return self.store.write("recover_budget", work)

    def recover_staged(self) -> tuple[tuple[str, bool], ...]:
        """Publish or remove the files that crashed attempts left staged. Call it when a service starts.

        The ledger decides: it is read in a write transaction, because a database server may still be finishing the
        last commit of a crashed process.
        """
        if self._staging is None:
            return ()

        def committed(caller: str, job_id: str) -> Manifest | None:
            job = JobKey(caller=caller, job_id=job_id)
            found = self.store.write("recover_staged", lambda transaction: self._known(transaction, job))
            return None if found is None else found.manifest

        return tuple(self._staging.recover(committed))

    def stage(self, job: JobKey, *, room: int = 0) -> Attempt:
        """Begin an attempt at a job whose result is files of ``room`` bytes at most."""
        if self._staging is None:
            raise BudgetError("this ledger was opened without a staging folder: open it with one, or use bytes")
        return self._staging.begin(job.caller, job.job_id, room=room)

    def checkpoint(self) -> Checkpoint:
        """Return the signed checkpoint over the whole log, made with its last entry."""

        def work(transaction: Transaction) -> bytes:
            row = transaction.entry(_head(transaction).entries - 1)
            if row is None:
                raise StoreError(_CUT_OFF)
            return bytes(row.receipt)

        return Receipt.from_bytes(self.store.read("checkpoint", work)).checkpoint
