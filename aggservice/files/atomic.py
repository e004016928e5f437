"""Atomic file writing: a write that fails leaves the former file as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

#: A file name has at most 255 bytes: 50 characters of up to 4 bytes, and 34 of our own.
_NAME_MOST: Final = 50


@contextmanager
def whole_file(path: Path, *, private: bool = False, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it is renamed to ``path`` when the block ends without an error.

    With ``private`` only the owner can read the file; otherwise it keeps the permissions of the file it replaces, or
    gets those that the process's umask allows. Without ``replace`` an existing file raises ``FileExistsError``, also
    one that appears during the block. A pipe or a device is written directly.
    """
    device = path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")  # which holds files like any folder
    if device or (path.exists() and not path.is_file()):
        yield path
        return
    target = path.resolve()  # a symbolic link stays, and its target is replaced
    staged = target.with_name(f".{target.name[:_NAME_MOST]}.{uuid4().hex}")
    # The system applies the umask to these permissions; reading the umask would change it for a moment.
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        if not private and target.exists():
            os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
        os.close(handle)
        yield staged
        sync(staged)
        if replace:
            os.replace(staged, target)
        else:
            os.link(staged, target)
        sync(target.parent)
    finally:
        staged.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
