"""Files of private keys: only their owner can read them, and a failed write leaves the former file unchanged."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aggservice.files.atomic import whole_file
from aggservice.wire.errors import KeySetError
from aggservice.wire.hpke.key_sets import KeySet


def write_key_set(path: Path, keys: KeySet, *, replace: bool = False) -> None:
    """Write ``keys`` to ``path`` with permissions 0600; KeySetError if the file exists, unless ``replace``."""
    try:
        with whole_file(path, private=True, replace=replace) as staged:
            staged.write_text(keys.serialise(), encoding="utf-8")
    except FileExistsError:
        raise KeySetError(
            f"{path} exists already: rotate it with `aggservice keys rotate`, or name another file"
        ) from None


def read_private_file(path: Path, *, holds: str, remedy: str) -> bytes:
    """Return the bytes of ``path``; KeySetError if others can read it, or if it cannot be read."""
    try:
        mode = path.stat().st_mode
        document = path.read_bytes()
    except OSError as error:
        raise KeySetError(f"cannot read {path}: {error.strerror}; {remedy}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise KeySetError(f"{path} holds {holds} and others can read it: run `chmod 600 {path}`")
    return document


def read_key_set(path: Path) -> KeySet:
    """Return the key set in ``path``; KeySetError if it is invalid or if others can read the file."""
    document = read_private_file(path, holds="private keys", remedy="make one with `aggservice keys new`")
    try:
        return KeySet.parse(document)
    except KeySetError as error:
        raise KeySetError(f"{path}: {error}") from None


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Wait until no other process rewrites ``path``, and keep others from it: two at once would lose keys."""
    while True:
        try:
            file = path.open("rb")
        except OSError as error:
            raise KeySetError(f"cannot read {path}: {error.strerror}; make one with `aggservice keys new`") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                continue  # another process has replaced it while this one waited
            yield
            return
