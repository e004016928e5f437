"""Files that appear whole or not at all: what fails half-way leaves what was there before."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    staged = Path(name)
    try:
        if not private:
            os.fchmod(handle, _mode(target))
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


def _mode(path: Path) -> int:
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
