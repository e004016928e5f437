"""A disk that forgets: a real folder in memory whose names and bytes survive a power cut only once they were flushed.

``os`` and ``open`` are watched while a history runs. A change of names (create, rename, remove, make a folder) is
durable after its folder was flushed; bytes of a file, after the file was. A power cut undoes any changes that are not,
in any combination that keeps each after those that it depends on (POSIX promises no more).
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scheduler import Killed, Process, Scheduler

_WATCHED = ("mkdir", "rename", "replace", "link", "unlink", "rmdir", "open", "fsync")


@dataclass(slots=True)
class Change:
    """One change of names: what it touched (as these are called now), whether it is flushed, and how to undo it."""

    kind: str
    paths: tuple[str, ...]
    undo: Callable[..., None]
    durable: bool = False

    def depends_on(self, other: Change) -> bool:
        """Return whether this change could not be there without the earlier one."""
        for mine in self.paths:
            for theirs in other.paths:
                if mine == theirs or mine.startswith(f"{theirs}/"):
                    return True
                if self.kind == "rmdir" and theirs.startswith(f"{mine}/"):
                    return True
        return False

    def moved(self, old: str, new: str) -> None:
        """Follow a folder that was renamed."""
        self.paths = tuple(
            new + one.removeprefix(old) if one == old or one.startswith(f"{old}/") else one for one in self.paths
        )


class Disk:
    """The folder of one history, shared by its services."""

    def __init__(self, scheduler: Scheduler, appeared: Callable[[str], None]) -> None:
        """``appeared`` is called with every path that a rename or a creation gives a file."""
        self._scheduler = scheduler
        self._appeared = appeared
        shared = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(prefix="simulated-", dir=shared if shared.is_dir() else None)).resolve()
        self._limbo = self.root.with_name(self.root.name + "-limbo")
        self._limbo.mkdir()
        self._removed = 0
        self._changes: list[Change] = []
        self._dirty: set[int] = set()
        self._locks: list[tuple[Process, Any]] = []
        self._real = {name: getattr(os, name) for name in _WATCHED}
        self._real_open, self._real_flock = io.open, fcntl.flock

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root)
        shutil.rmtree(self._limbo)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch ``os``, ``open`` and ``flock`` while the block runs."""
        for name in _WATCHED:
            setattr(os, name, getattr(self, name))
        io.open = builtins.open = self.open_file  # type: ignore[assignment]
        fcntl.flock = self.flock  # type: ignore[assignment]
        try:
            yield
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)
            io.open = builtins.open = self._real_open
            fcntl.flock = self._real_flock

    def _path(self, path: Any, folder: int | None) -> str | None:
        """Return the absolute path if it lies on this disk and a fiber asks, else None."""
        if self._scheduler.current is None or isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else os.getcwd(), text)
        text = os.path.normpath(text)
        return text if text.startswith(f"{self.root}/") else None

    def _point(self, what: str, path: str, *, room: bool = False) -> None:
        self._scheduler.point(f"{what} {path.removeprefix(str(self.root))}")
        if room and self._scheduler.fault():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _kept(self, path: str) -> str:
        """Keep a file that is about to lose its name."""
        self._removed += 1
        kept = str(self._limbo / str(self._removed))
        self._real["link"](path, kept)
        return kept

    def _changed(self, kind: str, *paths: str, undo: Callable[..., None]) -> None:
        self._changes.append(Change(kind, paths, undo))

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        full = self._path(path, dir_fd)
        if full is None:
            return self._real["mkdir"](path, mode, dir_fd=dir_fd)
        self._point("mkdir", full, room=True)
        self._real["mkdir"](full, mode)
        self._changed("mkdir", full, undo=self._real["rmdir"])

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        full = self._path(path, dir_fd)
        if full is None:
            return self._real["rmdir"](path, dir_fd=dir_fd)
        self._point("rmdir", full)
        self._real["rmdir"](full)
        self._changed("rmdir", full, undo=lambda path: self._real["mkdir"](path, 0o700))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        full = self._path(path, dir_fd)
        if full is None or not os.path.lexists(full):
            return self._real["unlink"](path, dir_fd=dir_fd)
        self._point("unlink", full)
        if not os.path.lexists(full):
            return self._real["unlink"](path, dir_fd=dir_fd)
        kept = self._kept(full)
        self._real["unlink"](full)
        self._changed("unlink", full, undo=lambda path: self._real["link"](kept, path))

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        new = self._path(dst, dst_dir_fd)
        if new is not None:
            self._point("link", new, room=True)
        self._real["link"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        if new is not None:
            self._changed("link", new, undo=self._real["unlink"])
            self._appeared(new)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        old, new = self._path(src, src_dir_fd), self._path(dst, dst_dir_fd)
        if old is None or new is None:
            return self._real["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._point(f"rename to {new.removeprefix(str(self.root))} from", old)
        kept = self._kept(new) if os.path.isfile(new) else None
        self._real["rename"](old, new)
        folder = os.path.isdir(new)

        def undo(before: str, after: str) -> None:
            self._real["rename"](after, before)
            if kept is not None:
                self._real["link"](kept, after)
            if folder:
                for change in self._changes[: self._changes.index(renamed)]:
                    change.moved(after, before)

        if folder:
            for change in self._changes:
                change.moved(old, new)
        renamed = Change("rename", (old, new), undo)
        self._changes.append(renamed)
        if os.path.isfile(new):
            self._appeared(new)

    replace = rename

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full = self._path(path, dir_fd)
        if full is None or not flags & os.O_CREAT:
            return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        self._point("create", full, room=True)
        new = not os.path.lexists(full)
        found = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        self._created(full, new)
        return found

    def open_file(self, file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        full = self._path(file, None)
        if full is None or not set(mode) & set("wxa+"):
            return self._real_open(file, mode, *rest, **more)
        self._point("create", full, room=True)
        new = not os.path.lexists(full)
        found = self._real_open(file, mode, *rest, **more)
        self._created(full, new)
        return found

    def _created(self, full: str, new: bool) -> None:
        self._dirty.add(os.stat(full).st_ino)
        if new:
            self._changed("create", full, undo=self._real["unlink"])
            self._appeared(full)

    def fsync(self, descriptor: int) -> None:
        path = self._path(os.readlink(f"/proc/self/fd/{descriptor}"), None)
        if path is None:
            return self._real["fsync"](descriptor)
        self._point("flush", path, room=True)
        if os.path.isdir(path):
            for change in self._changes:
                change.durable |= any(os.path.dirname(one) == path for one in change.paths)
        else:
            self._dirty.discard(os.fstat(descriptor).st_ino)

    def flock(self, file: Any, operation: int) -> None:
        process = self._scheduler.process
        if process is None or operation & fcntl.LOCK_UN:
            self._locks = [(owner, held) for owner, held in self._locks if held is not file]
            return self._real_flock(file, operation)
        while True:
            self._scheduler.point("lock")
            try:
                self._real_flock(file, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
                continue
            self._locks.append((process, file))
            return None

    def unlock(self, process: Process) -> None:
        """Let go of the locks of a process that has ended."""
        for owner, file in self._locks:
            if owner is process and not getattr(file, "closed", False):
                self._real_flock(file, fcntl.LOCK_UN)
        self._locks = [(owner, file) for owner, file in self._locks if owner is not process]

    def cut_power(self) -> None:
        """Forget changes that were not flushed, in any combination that keeps each after what it depends on."""
        rng, lost = self._scheduler.random, []
        for change in self._changes:
            if any(change.depends_on(other) for other in lost) or (not change.durable and rng.random() < 0.5):
                lost.append(change)
        for change in reversed(lost):
            change.undo(*change.paths)
        for above, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(above, name)
                if os.stat(path).st_ino in self._dirty and rng.random() < 0.5:
                    os.truncate(path, rng.randrange(os.stat(path).st_size + 1))
        self._scheduler.note(f"POWER CUT: {len(lost)} of {len(self._changes)} changes lost")
        self._changes.clear()
        self._dirty.clear()


__all__ = ["Disk", "Killed"]
