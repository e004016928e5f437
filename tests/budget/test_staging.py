"""Result files: unreadable before they are paid for, published after, settled by the ledger after a crash."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggservice.mechanisms import ManualClock, SecureBits, SeededBits
from budget import (
    BudgetError,
    BudgetExhaustedError,
    Committed,
    EpsilonDeltaFilter,
    JobKey,
    LaplaceNoise,
    Ledger,
    MemoryStore,
    PostgresStore,
    Release,
    Signer,
    Staging,
    Store,
    verify_store,
)
from budget.errors import FormatError, JobConflictError, StagingError, StoreError
from budget.files.staging import Attempt, Manifest

from .releases import TERMS, release_of

KEY = JobKey(caller="adtech", job_id="job")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    bits = SeededBits("staging")
    return Ledger.create(
        MemoryStore(),
        terms=TERMS,
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=ManualClock(),
        bits=bits,
        staging=Staging(tmp_path / "staging", SecureBits()),
    )


def stage(ledger: Ledger, out: Path, noise: bytes = b"noise", key: JobKey = KEY) -> Attempt:
    attempt = ledger.stage(key)
    for shard in (1, 2):
        attempt.path(f"summary-{shard}-of-2").write_bytes(noise + b"%d" % shard)
    attempt.seal(out)
    return attempt


def commit(ledger: Ledger, result: Any, epsilon: str = "1", request: str = "r", key: JobKey = KEY) -> Committed:
    return ledger.commit(
        job=key,
        request_digest=hashlib.sha256(request.encode()).digest(),
        release=release_of(LaplaceNoise.parse(epsilon=epsilon)),
        units=bytes(20),
        result=result,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def staged(ledger: Ledger, tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "staging").iterdir()]


def test_files_appear_only_after_the_commit(ledger: Ledger, tmp_path: Path) -> None:
    attempt = stage(ledger, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "staging").stat().st_mode & 0o777 == 0o700
    done = commit(ledger, attempt)
    assert contents(tmp_path / "out") == {"summary-1-of-2": b"noise1", "summary-2-of-2": b"noise2"}
    assert staged(ledger, tmp_path) == []
    assert [one.sha256 for one in done.entry.result.files] == [hashlib.sha256(b"noise%d" % i).digest() for i in (1, 2)]
    assert done.manifest is not None and Manifest.from_bytes(done.manifest.to_bytes()) == done.manifest
    assert verify_store(ledger.store).ok


def test_a_repeated_job_keeps_the_first_noise(ledger: Ledger, tmp_path: Path) -> None:
    first = commit(ledger, stage(ledger, tmp_path / "out"))
    again = commit(ledger, stage(ledger, tmp_path / "out", b"fresh noise"))
    assert again.repeated and again.result == first.result
    assert contents(tmp_path / "out")["summary-1-of-2"] == b"noise1" and staged(ledger, tmp_path) == []


@pytest.mark.parametrize("error", [JobConflictError, BudgetExhaustedError])
def test_a_refused_job_leaves_no_file(ledger: Ledger, tmp_path: Path, error: type[BudgetError]) -> None:
    commit(ledger, b"", epsilon="64")
    key = KEY if error is JobConflictError else JobKey(caller="adtech", job_id="other")
    attempt = stage(ledger, tmp_path / "out", key=key)
    with pytest.raises(error):
        commit(ledger, attempt, request="another", key=key)
    assert contents(tmp_path / "out") == {} and staged(ledger, tmp_path) == []


def abandon(attempt: Attempt) -> None:
    """What the death of its process does to an attempt: the lock goes, the files stay."""
    attempt.release_lock()


def test_settling_removes_what_was_not_paid_for(ledger: Ledger, tmp_path: Path) -> None:
    abandon(stage(ledger, tmp_path / "out"))
    abandon(ledger.stage(KEY))
    (tmp_path / "staging" / "half-made.new").mkdir()
    results = ledger.recover_staged()
    assert [published for _, published in results] == [False, False]
    assert contents(tmp_path / "out") == {} and staged(ledger, tmp_path) == []


def test_settling_publishes_what_was_paid_for_and_only_that(ledger: Ledger, tmp_path: Path) -> None:
    attempt, loser = stage(ledger, tmp_path / "out"), stage(ledger, tmp_path / "out", b"other")
    assert attempt.manifest is not None
    ledger._record(KEY, hashlib.sha256(b"r").digest(), release(), bytes(20), attempt)  # and here it dies
    abandon(attempt)
    abandon(loser)
    os.replace(attempt.path("summary-1-of-2"), tmp_path / "published")  # or even here, half way through
    (tmp_path / "out").mkdir()
    os.replace(tmp_path / "published", tmp_path / "out" / "summary-1-of-2")
    assert dict(ledger.recover_staged()) == {attempt.name: True, loser.name: False}
    assert contents(tmp_path / "out") == {"summary-1-of-2": b"noise1", "summary-2-of-2": b"noise2"}
    assert staged(ledger, tmp_path) == [] and ledger.recover_staged() == ()


@pytest.mark.parametrize("gone", [["job"], ["job", "files"], ["files"], ["job", "files", "lock"]])
def test_settling_finishes_a_removal_that_was_cut_short(ledger: Ledger, tmp_path: Path, gone: list[str]) -> None:
    attempt = ledger.stage(KEY)
    abandon(attempt)
    for name in gone:
        path = attempt.folder / name
        path.rmdir() if path.is_dir() else path.unlink()
    ledger.recover_staged()
    assert staged(ledger, tmp_path) == []


def release() -> Release:
    return release_of(LaplaceNoise.parse(epsilon="1"))


def test_settling_leaves_the_living_alone(ledger: Ledger, tmp_path: Path) -> None:
    attempt = stage(ledger, tmp_path / "out")
    assert ledger.recover_staged() == () and staged(ledger, tmp_path) == [attempt.name]
    commit(ledger, attempt)
    assert len(contents(tmp_path / "out")) == 2


@pytest.mark.parametrize("problem", [StoreError("the connection was lost while committing"), KeyboardInterrupt()])
def test_a_commit_of_unknown_outcome_is_settled_by_the_ledger(
    ledger: Ledger, tmp_path: Path, problem: BaseException
) -> None:
    class Broken(MemoryStore):
        def write(self, name: str, work: Callable[[Any], Any]) -> Any:
            super().write(name, work)
            raise problem

    store = ledger.store
    assert isinstance(store, MemoryStore)
    broken = Broken()
    broken._db = store._db
    other = Ledger.open(broken, clock=ManualClock(), signer=ledger._signer, staging=ledger._staging)
    with pytest.raises(type(problem)):
        commit(other, stage(other, tmp_path / "out"))
    assert contents(tmp_path / "out") == {}
    assert [published for _, published in ledger.recover_staged()] == [True]
    assert len(contents(tmp_path / "out")) == 2


def test_asking_again_publishes_what_could_not_be_written_the_first_time(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(StagingError, match="paid for"):
        commit(ledger, stage(ledger, tmp_path / "out"))
    (tmp_path / "out").unlink()
    assert commit(ledger, b"").repeated
    assert len(contents(tmp_path / "out")) == 2 and staged(ledger, tmp_path) == []


def test_publishing_waits_for_whoever_is_at_it(ledger: Ledger, tmp_path: Path) -> None:
    attempt = stage(ledger, tmp_path / "out")
    ledger._record(KEY, hashlib.sha256(b"r").digest(), release(), bytes(20), attempt)
    asked = threading.Thread(target=commit, args=(ledger, b""))
    asked.start()
    assert attempt.manifest is not None
    attempt.publish(attempt.manifest)
    asked.join(timeout=30)
    assert not asked.is_alive() and len(contents(tmp_path / "out")) == 2


def test_another_file_system_is_reached_by_a_copy(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def across(source: Path | str, target: Path | str, **folders: int) -> None:
        if (tmp_path / "staging") in Path(source).parents:
            raise OSError(18, "Invalid cross-device link")
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", across)
    commit(ledger, stage(ledger, tmp_path / "out"))
    assert contents(tmp_path / "out") == {"summary-1-of-2": b"noise1", "summary-2-of-2": b"noise2"}


@pytest.mark.parametrize("mode", [0o755, 0o740, 0o720, 0o710, 0o704, 0o702, 0o701, 0o750, 0o705, 0o770])
def test_a_staging_folder_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StagingError, match="chmod 700"):
        Staging(folder, SecureBits())
    folder.chmod(0o700)
    Staging(folder, SecureBits())


def test_nothing_that_is_staged_can_be_read_by_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        attempt = Staging(tmp_path / "staging", SecureBits()).begin("adtech", "job")
        folders = (tmp_path / "staging", attempt.folder, attempt.path("summary").parent)
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 3
        attempt.discard()
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\\b", "a\0b"])
def test_a_result_file_has_a_plain_name(ledger: Ledger, name: str) -> None:
    with pytest.raises(BudgetError):
        ledger.stage(KEY).path(name)


def test_an_attempt_must_be_sealed_and_hold_something(ledger: Ledger, tmp_path: Path) -> None:
    attempt = ledger.stage(KEY)
    with pytest.raises(StagingError, match="no result file"):
        attempt.seal(tmp_path / "out")
    with pytest.raises(BudgetError, match="seal"):
        commit(ledger, attempt)


def test_a_manifest_has_one_encoding(ledger: Ledger, tmp_path: Path) -> None:
    raw = commit(ledger, stage(ledger, tmp_path / "out")).result
    for bad in (raw[:-1], raw.replace(b"summary", b"summarx", 1) + b" ", b"{}", raw.replace(b'"size"', b'"sizf"')):
        with pytest.raises(FormatError):
            Manifest.from_bytes(bad)


def test_without_a_staging_folder_results_are_bytes(make_store: Callable[[str], Store]) -> None:
    bits = SeededBits("none")
    ledger = Ledger.create(
        make_store("memory"),
        terms=TERMS,
        filter=EpsilonDeltaFilter(),
        signer=Signer.generate(bits),
        clock=ManualClock(),
        bits=bits,
    )
    with pytest.raises(BudgetError, match="staging folder"):
        ledger.stage(KEY)
    assert ledger.recover_staged() == ()


def test_settling_waits_for_a_commit_that_the_server_is_still_finishing(postgres_dsn: str, tmp_path: Path) -> None:
    """A process dies after it sent COMMIT: the server goes on, so that its staged files must not be removed."""
    store = PostgresStore(postgres_dsn, schema="settling")
    bits, staging = SeededBits("settling"), Staging(tmp_path / "staging", SecureBits())
    signer = Signer.generate(bits)
    ledger = Ledger.create(
        store, terms=TERMS, filter=EpsilonDeltaFilter(), signer=signer, clock=ManualClock(), bits=bits, staging=staging
    )
    attempt = stage(ledger, tmp_path / "out")
    inside, go_on = threading.Event(), threading.Event()

    class Slow(PostgresStore):
        def write(self, name: str, work: Callable[[Any], Any]) -> Any:
            def slowly(transaction: Any) -> Any:
                result = work(transaction)
                inside.set()
                go_on.wait(30)
                return result

            return super().write(name, slowly)

    dying = Ledger.open(Slow(postgres_dsn, schema="settling"), clock=ManualClock(), signer=signer, staging=staging)
    server = threading.Thread(
        target=dying._record, args=(KEY, hashlib.sha256(b"r").digest(), release(), bytes(20), attempt)
    )
    server.start()
    assert inside.wait(30)
    abandon(attempt)
    settled: list[tuple[str, bool]] = []
    settling = threading.Thread(target=lambda: settled.extend(ledger.recover_staged()))
    settling.start()
    settling.join(timeout=0.3)
    assert settling.is_alive(), "settling must wait"
    go_on.set()
    settling.join(timeout=30)
    server.join(timeout=30)
    assert settled == [(attempt.name, True)] and len(contents(tmp_path / "out")) == 2
    dying.store.close()
    store.close()


def test_what_could_not_be_published_is_published_when_asked_again(ledger: Ledger, tmp_path: Path) -> None:
    """By the same request, or by looking the job up; the error that is kept meanwhile keeps no lock."""
    for name, ask in (("commit", None), ("job", ledger.job)):
        key, out = JobKey(caller="adtech", job_id=name), tmp_path / name
        out.write_text("in the way")
        with pytest.raises(StagingError, match="ask again") as kept:
            commit(ledger, stage(ledger, out, key=key), key=key)
        if ask is not None:
            with pytest.raises(StagingError):
                ask("adtech", name)
        out.unlink()
        done: list[Committed | None] = []
        again = {
            "job": lambda name, key, out, done: done.append(ledger.job("adtech", name)),
            "commit": lambda name, key, out, done: done.append(
                commit(ledger, stage(ledger, out, b"other", key), key=key)
            ),
        }[name]
        thread = threading.Thread(target=again, args=(name, key, out, done), daemon=True)
        thread.start()
        thread.join(20)
        assert len(done) == 1 and done[0] is not None and kept.value is not None
        assert contents(out) == {"summary-1-of-2": b"noise1", "summary-2-of-2": b"noise2"}
    assert staged(ledger, tmp_path) == []


def test_one_folder_that_cannot_be_written_does_not_keep_others_from_being_settled(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Attempt, manifest: Manifest) -> None:
        self.release_lock()
        raise KeyboardInterrupt

    names = ["a", "b", "c"]
    with monkeypatch.context() as dying:
        dying.setattr(Attempt, "publish", crash)
        for name in names:
            key = JobKey(caller="adtech", job_id=name)
            with pytest.raises(KeyboardInterrupt):
                commit(ledger, stage(ledger, tmp_path / name, key=key), key=key)
    (tmp_path / "b").write_text("in the way")
    assert [published for _, published in ledger.recover_staged()] == [True, True]
    assert len(contents(tmp_path / "a")) == len(contents(tmp_path / "c")) == 2
    (tmp_path / "b").unlink()
    assert ledger.job("adtech", "b") is not None and len(contents(tmp_path / "b")) == 2


def test_a_sealed_attempt_is_durable_under_the_name_that_its_manifest_carries(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    attempt = stage(ledger, tmp_path / "out")
    folder = tmp_path / "staging" / attempt.name
    needed = {folder.parent, folder, folder / "files", folder / "files" / "summary-1-of-2"}
    assert {str(one.resolve()) for one in needed} <= set(flushed)


def test_settling_while_another_service_begins_an_attempt_leaves_it_its_folder(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    other = Staging(tmp_path / "staging", SecureBits())
    real, settled = fcntl.flock, []

    def flock(file: Any, how: int) -> None:
        if not settled and not how & fcntl.LOCK_NB and not isinstance(file, int):  # the folder itself is counted in
            settled.append(True)
            settled.extend(other.recover(lambda caller, job_id: None))  # between the lock file and its lock
        real(file, how)

    monkeypatch.setattr("budget.files.staging.fcntl.flock", flock)
    attempt = stage(ledger, tmp_path / "out")
    assert len(settled) == 2
    assert commit(ledger, attempt).manifest is not None
    assert len(contents(tmp_path / "out")) == 2


def test_a_destination_that_became_a_link_gets_nothing(ledger: Ledger, tmp_path: Path) -> None:
    """Neither the folder nor one above it; what was paid for is published once the link is gone."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    out = tmp_path / "out" / "below"
    attempt = stage(ledger, out)
    (tmp_path / "out").symlink_to(elsewhere)
    with pytest.raises(StagingError, match="ask again"):
        commit(ledger, attempt)
    (tmp_path / "out").unlink()
    out.parent.mkdir()
    out.symlink_to(elsewhere / "below")
    with pytest.raises(StagingError):
        ledger.job("adtech", "job")
    assert list((elsewhere / "below").iterdir()) == []
    out.unlink()
    assert ledger.job("adtech", "job") is not None and len(contents(out)) == 2


def test_a_link_in_the_place_of_a_file_is_neither_replaced_nor_followed(ledger: Ledger, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    for name in ("summary-1-of-2", "summary-2-of-2"):
        (tmp_path / "out" / name).symlink_to(victim)
    with pytest.raises(StagingError, match="ask again"):
        commit(ledger, stage(ledger, tmp_path / "out"))
    assert victim.read_bytes() == b"mine" and contents(tmp_path / "out") == dict.fromkeys(
        ("summary-1-of-2", "summary-2-of-2"), b"mine"
    )
    for name in ("summary-1-of-2", "summary-2-of-2"):
        (tmp_path / "out" / name).unlink()
    assert ledger.job("adtech", "job") is not None
    assert contents(tmp_path / "out") == {"summary-1-of-2": b"noise1", "summary-2-of-2": b"noise2"}


def test_a_published_file_is_read_through_no_link_and_no_longer_than_it_was(ledger: Ledger, tmp_path: Path) -> None:
    """Its folder is the caller's: a link to a device, or to a private file, must not be read in its place."""
    done = commit(ledger, stage(ledger, tmp_path / "out"))
    assert done.manifest is not None
    assert ledger.published(done.manifest, "summary-1-of-2") == b"noise1"
    (tmp_path / "out" / "summary-1-of-2").write_bytes(b"noise1 and more")
    with pytest.raises(OSError, match="more than 6 bytes"):
        ledger.published(done.manifest, "summary-1-of-2")
    (tmp_path / "out" / "summary-1-of-2").unlink()
    (tmp_path / "out" / "summary-1-of-2").symlink_to("/dev/zero")
    with pytest.raises(OSError):
        ledger.published(done.manifest, "summary-1-of-2")
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):
        ledger.published(done.manifest, "summary-2-of-2")
