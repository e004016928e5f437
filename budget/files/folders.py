"""Folders opened step by step without following symbolic links, so that no link can redirect a result."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Yield a descriptor of an absolute folder, created if missing; OSError if any step is a symbolic link."""
    folder = os.open(path.anchor, _FOLDER)
    try:
        for step in path.parts[1:]:
            below = open_below(folder, step)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def open_below(folder: int, name: str) -> int:
    """Return a descriptor of a subfolder, created if missing; OSError if it is a symbolic link."""
    with suppress(FileNotFoundError):
        return os.open(name, _FOLDER, dir_fd=folder)
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    sync_folder(folder)  # what is written below must not be lost with its folder
    return os.open(name, _FOLDER, dir_fd=folder)


def new_file(folder: int, name: str) -> BinaryIO:
    """Remove any file or link of this name, and open a new file for writing."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb")


def move_new(source: Path | str, name: str, folder: int, *, source_folder: int | None = None) -> None:
    """Move a file to ``name`` in a folder; FileExistsError if the name is taken, and nothing is ever replaced.

    A crash may leave the file under both names. Where there are no hard links, an empty file takes the name first.
    """
    try:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        os.close(os.open(name, _NEW_FILE, 0o666, dir_fd=folder))
        os.replace(source, name, src_dir_fd=source_folder, dst_dir_fd=folder)
        return
    os.unlink(source, dir_fd=source_folder)


def sync_folder(folder: int) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
