"""Copies of whole ledgers, through the stores' own transactions: a backup under load, a restore, a move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from aggservice.files.atomic import sync
from budget.errors import LedgerMismatchError, StoreError
from budget.files.staging import move_new, opened_folder, sync_folder
from budget.log.entries import Genesis, ReleaseEntry, entry_from_bytes
from budget.store import Store, Transaction
from budget.stores.sqlite import SqliteStore
from budget.witness import SeenLog, newest

_TAKEN = "there is a ledger already: move it away, or name another place"


def copy_ledger(source: Store, target: Store, progress: Callable[[int], None] = lambda entries: None) -> SeenLog:
    """Copy a ledger into a store that holds none, in one transaction of each; return what was copied.

    The copy is the ledger as it was at one moment: later commits to the source are not in it. ``progress`` is called
    with the number of entries copied so far.
    """
    return source.read(
        "copy_from", lambda reading: target.write("copy_to", lambda writing: _copy(reading, writing, progress))
    )


def check_free(place: Store | Path) -> None:
    """Refuse a place that holds a ledger already, or a path where there is any file."""
    taken = place.exists() if isinstance(place, Path) else place.read("look", lambda t: t.head()) is not None
    if taken:
        raise LedgerMismatchError(_TAKEN)


def copy_to_file(source: Store, path: Path, progress: Callable[[int], None] = lambda entries: None) -> SeenLog:
    """Copy a ledger into a new SQLite file, which appears when it is whole; LedgerMismatchError if there is a file."""
    check_free(path)
    whole = path.resolve()
    staged = whole.with_name(f".{whole.name}.{uuid4().hex}")
    store = SqliteStore(staged)
    try:
        try:
            seen = copy_ledger(source, store, progress)
        finally:
            store.close()  # the last connection moves the write-ahead log into the file
        sync(staged)
        with opened_folder(whole.parent) as folder:
            try:
                move_new(staged, whole.name, folder)
            except FileExistsError:
                raise LedgerMismatchError(_TAKEN) from None
            sync_folder(folder)
    finally:
        for name in ("", "-wal", "-shm"):
            Path(f"{staged}{name}").unlink(missing_ok=True)
    return seen


def _copy(reading: Transaction, writing: Transaction, progress: Callable[[int], None]) -> SeenLog:
    if writing.head() is not None:
        raise LedgerMismatchError(_TAKEN)
    seen = newest(reading)
    head = reading.head()
    assert head is not None
    loss_name: str | None = None
    for row in reading.entries():
        entry = entry_from_bytes(row.header, loss_name)
        writing.append(row, reading.parts(row.seq))
        if isinstance(entry, Genesis):
            loss_name = entry.filter.loss_name
        elif isinstance(entry, ReleaseEntry):
            job = reading.job(entry.caller, entry.job_id)
            if job is None:
                raise StoreError(f"entry {row.seq} has lost its job: run 'aggservice ledger verify'")
            writing.add_job(job)
        progress(row.seq + 1)
    writing.replace_blocks([], reading.blocks())
    writing.set_head(head)
    return seen
