"""Files that appear whole or not at all: what fails half-way leaves what was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

#: A name has at most 255 bytes; of a longer one's characters these fit beside 34 more, whatever they are.
_NAME_MOST: Final = 50


@contextmanager
def whole_file(path: Path, *, private: bool = False, replace: bool = True) -> Iterator[Path]:
    """Yield a place beside ``path`` to write to; it becomes ``path`` when the block ends without an error.

    Only the owner can read it where ``private``; else it keeps the permissions of the file it replaces, or has what the
    process's mask allows. Without ``replace`` a file that is there already, or appears meanwhile, raises
    ``FileExistsError``. What is no plain file (a pipe, a device) is written directly.
    """
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        yield path
        return
    target = path.resolve()  # a link goes on pointing where it points
    staged = target.with_name(f".{target.name[:_NAME_MOST]}.{uuid4().hex}")
    # The system takes the process's mask off these permissions; to ask for the mask is to change it for a while.
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        if not private and target.exists():
            os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
        os.close(handle)
        yield staged
        _sync(staged)
        if replace:
            os.replace(staged, target)
        else:
            os.link(staged, target)
        _sync(target.parent)
    finally:
        staged.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
