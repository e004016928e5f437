"""Faults that we put into the code, to see that the invariants find them. Each patches the code for one history."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aggservice.service.jobs import folders
from aggservice.service.jobs.dispatch import Dispatcher
from aggservice.service.jobs.objects import ObjectPublisher, RemoteFolder
from aggservice.service.queue import queue as queue_module
from aggservice.service.queue.queue import JobQueue
from aggservice.service.queue.rows import JobState, NewJob, QueuedJob
from budget import Ledger
from budget.files import staging
from budget.files.staging import Attempt, Manifest

from ..service.non_interference.worlds import changed


@contextmanager
def charge_after_publish(history: Any) -> Iterator[None]:
    """Files are published first, and charged afterwards."""
    real = Ledger.commit

    def commit(self: Ledger, *, result: Any, **asked: Any) -> Any:
        if isinstance(result, Attempt) and result.manifest is not None:
            staged = result.folder / "files"
            if result.manifest.is_remote:
                ObjectPublisher(history.config.output_folder).publish(result.manifest, staged)
            else:
                for one in result.manifest.files:
                    os.link(staged / one.name, staged / f".{one.name}")
                    os.replace(staged / f".{one.name}", Path(result.manifest.destination) / one.name)
        return real(self, result=result, **asked)

    with changed(Ledger, "commit", commit):
        yield


@contextmanager
def lease_ignored(history: Any) -> Iterator[None]:
    """A service takes up jobs that another one holds."""
    with changed(queue_module, "_FREE", "(state <> 'finished' AND ? > 0)"):
        yield


@contextmanager
def manifest_first(history: Any) -> Iterator[None]:
    """The manifest is written before the files that it names."""

    def publish(self: ObjectPublisher, manifest: Manifest, folder: Path) -> None:
        remote: RemoteFolder = self._folder(manifest)
        remote.complete(manifest)
        remote.upload(folder)

    with changed(ObjectPublisher, "publish", publish):
        yield


@contextmanager
def job_row_lost(history: Any) -> Iterator[None]:
    """CreateJob answers before the job is stored, which happens half a second later if the service still runs."""
    real = JobQueue.add

    def add(self: JobQueue, job: NewJob, room: Any) -> tuple[QueuedJob, bool]:
        machine = next(one for one in history.machines if one.process is history.scheduler.process)

        def later() -> None:
            if machine.process.alive:
                machine.service.runner._executor.submit(real, self, job, room).add_done_callback(lambda _: None)

        history.scheduler.loop.call_later(0.5, later)
        row = QueuedJob(
            seq=0,
            caller=job.caller,
            job_id=job.job_id,
            request=job.request,
            output=job.output,
            state=JobState.WAITING,
            owner="",
            attempts=0,
            cancelled=False,
            reports_read=0,
            received_ms=job.received_ms,
            started_ms=None,
            updated_ms=job.received_ms,
            result=b"",
            status=b"",
        )
        return row, True

    with changed(JobQueue, "add", add):
        yield


@contextmanager
def rename_not_flushed(history: Any) -> Iterator[None]:
    """Files are renamed to their destination, and that folder is not flushed before the staged ones are forgotten."""
    with changed(staging, "sync_folder", lambda folder: None):
        yield


@contextmanager
def note_not_flushed(history: Any) -> Iterator[None]:
    """Whose attempt it is, is not flushed with the attempt's files (found by the simulation)."""
    real = staging.sync
    with changed(staging, "sync", lambda path: None if path.name == "job" else real(path)):
        yield


@contextmanager
def folder_not_flushed(history: Any) -> Iterator[None]:
    """The caller's new folder is not flushed before a summary goes there (found by the simulation)."""

    class Os:
        def __getattr__(self, name: str) -> Any:
            return (lambda descriptor: None) if name == "fsync" else getattr(os, name)

    with changed(folders, "os", Os()):
        yield


@contextmanager
def commit_unguarded(history: Any) -> Iterator[None]:
    """A commit does not check that its service still holds the job."""
    with changed(Dispatcher, "guard", lambda self, database: None):
        yield


SEEDED: dict[str, Callable[[Any], Any]] = {
    "charge after publish": charge_after_publish,
    "lease ignored": lease_ignored,
    "manifest first": manifest_first,
    "job row lost": job_row_lost,
    "rename not flushed": rename_not_flushed,
    "note not flushed": note_not_flushed,
    "folder not flushed": folder_not_flushed,
    "commit unguarded": commit_unguarded,
}
