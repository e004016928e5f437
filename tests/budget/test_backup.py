"""Keys belong to one ledger; another one, or an older copy, is refused. Backups and restores lose nothing."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggservice.commands import app
from aggservice.mechanisms import ManualClock, SecureBits, SeededBits, SystemClock
from aggservice.service.config.keyring import KeyRing
from aggservice.wire import KeySet, read_key_set, write_key_set
from budget import (
    BudgetExhaustedError,
    Committed,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    Signer,
    SqliteStore,
    Staging,
    Store,
    verify_store,
)
from budget.backup import copy_ledger, copy_to_file
from budget.errors import LedgerMismatchError, LedgerRewoundError, StoreError
from budget.witness import SeenLog, seen_in

from .releases import TERMS, release_of

sys.path.insert(0, str(Path(__file__).parent))
import race_worker

SIGNER = Signer(bytes(range(32)))


class Memory:
    """A witness without a file."""

    seen: SeenLog | None = None

    def advance(self, seen: SeenLog) -> None:
        self.seen = seen


def create(store: Store, witness: Any, **options: Any) -> Ledger:
    return Ledger.create(
        store,
        filter=EpsilonDeltaFilter(),
        terms=TERMS,
        signer=SIGNER,
        clock=ManualClock(),
        bits=SecureBits(),
        witness=witness,
        **options,
    )


def reopen(store: Store, witness: Any) -> Ledger:
    return Ledger.open(store, clock=ManualClock(), signer=SIGNER, witness=witness)


def spend(ledger: Ledger, job: str, epsilon: str = "1", unit: int = 0) -> Committed:
    return ledger.commit(
        job=JobKey(caller="adtech", job_id=job),
        request_digest=hashlib.sha256(job.encode()).digest(),
        release=release_of(LaplaceNoise.parse(epsilon=epsilon)),
        units=unit.to_bytes(20, "big"),
        result=b"result of " + job.encode(),
    )


def empty(store: Store) -> None:
    """Forget everything that a store holds, behind the back of whoever has it open."""
    tables = ("head", "entries", "units", "jobs", "balances")
    store.write("empty", lambda t: [t._run(f"DELETE FROM {table}", ()) for table in tables])  # type: ignore[attr-defined]


def test_keys_open_no_ledger_but_their_own(make_store: Callable[[str], Store], store: Store) -> None:
    witness, other = Memory(), make_store("memory")
    ledger = create(store, witness)
    spend(ledger, "a", "64")
    create(other, Memory())
    with pytest.raises(LedgerMismatchError, match="the keys belong to ledger"):
        reopen(other, witness)
    with pytest.raises(LedgerMismatchError, match="there is no ledger here"):
        create(make_store("memory"), witness)
    assert reopen(store, witness).ledger_id == ledger.ledger_id


def test_an_older_copy_is_refused_at_the_start_and_while_it_runs(
    make_store: Callable[[str], Store], store: Store
) -> None:
    """The ledger is put back to what a backup holds, under an open ledger. Nothing is spent twice."""
    witness, kept = Memory(), make_store("memory")
    ledger = create(store, witness)
    spend(ledger, "a", "40")
    copy_ledger(store, kept)
    spend(ledger, "b", "24")
    assert witness.seen is not None and witness.seen.entries == 3
    empty(store)
    copy_ledger(kept, store)
    for name in ("b", "c"):
        with pytest.raises(LedgerRewoundError, match="older copy"):
            spend(ledger, name, "24")
    with pytest.raises(LedgerRewoundError, match="ledger restore"):
        reopen(store, witness)
    assert seen_in(store).entries == 2, "nothing was charged"
    # Another history of the same length is not the ledger that the keys have seen either.
    spend(reopen(store, Memory()), "d", "1")
    with pytest.raises(LedgerRewoundError):
        reopen(store, witness)


def test_a_truncated_log_is_refused(tmp_path: Path) -> None:
    witness, path = Memory(), tmp_path / "ledger.db"
    ledger = create(SqliteStore(path), witness)
    for name in "abc":
        spend(ledger, name)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries WHERE seq = 3")
        connection.execute("UPDATE head SET entries = 3")
    with pytest.raises(LedgerRewoundError):
        spend(ledger, "d")
    with pytest.raises(LedgerRewoundError):
        reopen(SqliteStore(path), witness)


def test_no_result_leaves_before_the_keys_have_seen_its_entry(tmp_path: Path) -> None:
    """Otherwise a restore could take a ledger without it for the newest one."""

    class Full(Memory):
        full = False

        def advance(self, seen: SeenLog) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().advance(seen)

    witness = Full()
    ledger = create(MemoryStore(), witness, staging=Staging(tmp_path / "staging", SecureBits()))
    witness.full = True
    attempt = ledger.stage(JobKey(caller="adtech", job_id="a"))
    attempt.path("summary").write_bytes(b"noise")
    attempt.seal(tmp_path / "out")
    arguments: dict[str, Any] = {
        "job": JobKey(caller="adtech", job_id="a"),
        "request_digest": bytes(32),
        "release": release_of(LaplaceNoise.parse(epsilon="1")),
        "units": bytes(20),
    }
    with pytest.raises(StoreError, match="ask again"):
        ledger.commit(**arguments, result=attempt)
    with pytest.raises(StoreError, match="could not remember entry 1"):
        ledger.job("adtech", "a")
    assert not (tmp_path / "out").exists()
    witness.full = False
    assert ledger.job("adtech", "a") is not None
    assert (tmp_path / "out" / "summary").read_bytes() == b"noise"
    assert witness.seen is not None and witness.seen.entries == 2


def test_a_copy_holds_everything_and_verifies(make_store: Callable[[str], Store], store: Store, tmp_path: Path) -> None:
    ledger = create(store, Memory())
    for number in range(5):
        spend(ledger, str(number), unit=number % 3)
    seen = copy_to_file(store, tmp_path / "backup.db")
    assert seen == seen_in(store) and (tmp_path / "backup.db").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["backup.db"]
    copied = make_store("postgres")
    copy_ledger(SqliteStore(tmp_path / "backup.db", read_only=True), copied)
    report = verify_store(copied)
    assert report.ok and report.releases == 5
    found = reopen(copied, Memory()).job("adtech", "3")
    assert found is not None and found.result == b"result of 3"
    for place in (lambda: copy_to_file(store, tmp_path / "backup.db"), lambda: copy_ledger(store, copied)):
        with pytest.raises(LedgerMismatchError, match="there is a ledger already"):
            place()


def test_a_backup_under_load_has_all_that_was_committed_before_it(
    make_store: Callable[[str], Store], store: Store, tmp_path: Path
) -> None:
    ledger = create(store, Memory())
    stop, done = threading.Event(), 0

    def load() -> None:
        nonlocal done
        while not stop.is_set():
            spend(ledger, str(done), "0.000001", unit=done)
            done += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(5):
            before = done
            seen = copy_to_file(store, tmp_path / f"{number}.db")
            copied = SqliteStore(tmp_path / f"{number}.db", read_only=True)
            assert seen.entries > before and verify_store(copied).ok
            copied.close()
            while done <= before:
                assert thread.is_alive()
                time.sleep(0)
    finally:
        stop.set()
        thread.join()


def service_files(folder: Path) -> tuple[Path, Path, KeyRing, Ledger]:
    """Return the ledger and key file of a service that has spent something, and both opened."""
    keys, place = folder / "keys.json", folder / "ledger.db"
    write_key_set(keys, KeySet.create(SeededBits("keys"), SystemClock()))
    ring = KeyRing.load_or_create(keys, SecureBits(), SystemClock())
    return place, keys, ring, create(SqliteStore(place), ring)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_restore_of_the_newest_backup_keeps_the_keys(tmp_path: Path) -> None:
    place, keys, ring, ledger = service_files(tmp_path)
    spend(ledger, "a", "64")
    assert "2 entries" in run("ledger", "backup", place, tmp_path / "backup.db")
    ledger.store.close()
    place.unlink()
    said = run("ledger", "restore", tmp_path / "backup.db", place, "--keys", keys)
    assert "stays as it is" in said and read_key_set(keys).pairs[0].id == ring.keys.pairs[0].id
    restored = reopen(SqliteStore(place), KeyRing.load_or_create(keys, SecureBits(), SystemClock()))
    with pytest.raises(BudgetExhaustedError):
        spend(restored, "b")
    assert restored.job("adtech", "a") is not None


def test_a_restore_of_an_older_backup_retires_the_keys(tmp_path: Path) -> None:
    """Which reports paid since is lost: none of those that the old keys open may be opened again."""
    place, keys, ring, ledger = service_files(tmp_path)
    spend(ledger, "a", "40")
    run("ledger", "backup", place, tmp_path / "backup.db")
    spend(ledger, "b", "24")
    ledger.store.close()
    shutil.copy(keys, tmp_path / "saved.json")
    place.unlink()
    said = run("ledger", "restore", tmp_path / "backup.db", place, "--keys", keys)
    assert "can no longer be opened" in said
    fresh = KeyRing.load_or_create(keys, SecureBits(), SystemClock())
    assert {pair.id for pair in fresh.keys.pairs}.isdisjoint(pair.id for pair in ring.keys.pairs)
    restored = reopen(SqliteStore(place), fresh)
    for _ in range(3):
        for old in [tmp_path / "saved.json", *tmp_path.glob("keys-retired-*.json")]:
            with pytest.raises(LedgerRewoundError):
                reopen(SqliteStore(place), KeyRing.load_or_create(old, SecureBits(), SystemClock()))
        spend(restored, f"later {restored.checkpoint().entries}")
    assert len(list(tmp_path.glob("keys-retired-*.json"))) == 1
    assert SqliteStore(place).path.stat().st_mode & 0o077 == 0


def test_restore_refuses_what_is_not_whole_or_not_free(tmp_path: Path) -> None:
    place, _, _, ledger = service_files(tmp_path)
    spend(ledger, "a")
    run("ledger", "backup", place, tmp_path / "backup.db")
    for arguments, words in (
        (("backup", place, tmp_path / "backup.db"), "there is a ledger already"),
        (("restore", tmp_path / "backup.db", place), "there is a ledger already"),
    ):
        done = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
        assert done.exit_code != 0 and words in (done.output + str(done.exception))
    with sqlite3.connect(tmp_path / "backup.db") as connection:
        connection.execute("UPDATE balances SET records = zeroblob(length(records))")
    done = CliRunner().invoke(app, ["ledger", "restore", str(tmp_path / "backup.db"), str(tmp_path / "new.db")])
    assert done.exit_code != 0 and "not a whole ledger" in (done.output + str(done.exception))
    assert not (tmp_path / "new.db").exists()


def test_keys_of_one_file_that_two_services_share_remember_the_newest_entry(tmp_path: Path) -> None:
    place, keys, ring, ledger = service_files(tmp_path)
    second = KeyRing.load_or_create(keys, SecureBits(), SystemClock())
    other = reopen(SqliteStore(place), second)
    for number in range(6):
        spend(ledger if number % 2 else other, str(number))
    account = read_key_set(keys).account
    assert account is not None and account.entries == 7 == seen_in(ledger.store).entries
    assert ring.seen is not None and ring.seen.entries == 7, "the last entry was its own"
    assert not second.refresh(), "the keys are the same"
    assert ring.seen == second.seen


def kills_of_backup_and_restore(folder: Path, kills: int) -> None:
    """Whatever is left after a kill is a whole ledger or none, and no keys open a ledger that is behind them."""
    moments = random.Random()
    _, keys, _, ledger = service_files(folder)
    context = race_worker.warm_context()
    whole = cut = 0
    for number in range(kills):
        shutil.copy(keys, folder / "copy.json")
        spend(ledger, str(number), "0.000001", unit=number)  # later than what the copied keys have seen
        if number % 2:
            shutil.copy(keys, folder / "copy.json")  # or not
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=race_worker.backup_and_restore, args=(folder, sending))
        process.start()
        sending.close()
        assert receiving.poll(120) and receiving.recv()
        time.sleep(moments.uniform(0, 0.25))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        receiving.close()
        copied = KeyRing.load_or_create(folder / "copy.json", SecureBits(), SystemClock())
        for path in folder.glob("[br]*.db"):
            store = SqliteStore(path, read_only=True)
            assert verify_store(store).ok
            seen = seen_in(store)
            assert seen.entries <= number + 2
            if copied.seen is not None and copied.seen.entries > seen.entries:
                with pytest.raises(LedgerRewoundError):
                    Ledger.open(store, clock=ManualClock(), signer=SIGNER, witness=copied)
            store.close()
            path.unlink()
            whole += 1
        left = list(folder.glob(".*.db*"))
        cut += bool(left)
        for path in left:
            path.unlink()  # what a killed copy leaves has another name, and nobody reads it
    report = verify_store(ledger.store)
    assert report.ok and report.releases == kills
    assert whole >= 2 * kills, "each process had copied and restored once before it was killed"
    print(f"{kills} kills, {whole} whole ledgers found, {cut} kills in the middle of a copy")


def test_a_killed_backup_or_restore_leaves_a_whole_ledger_or_none(tmp_path: Path) -> None:
    kills_of_backup_and_restore(tmp_path, kills=6)


@pytest.mark.soak
def test_two_hundred_kills_of_backup_and_restore(tmp_path: Path) -> None:
    kills_of_backup_and_restore(tmp_path, kills=200)
