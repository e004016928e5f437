"""Folders in which a caller may name files. Nothing outside them can be read, written or listed.

A path is relative and without ``..``. Each step is opened from the folder above it without following links, so that
neither a link nor a race between check and opening leads outside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from aggservice.engine import AvroShards
from aggservice.files.below import Below
from aggservice.job.errors import InputReadError, ResultWriteError
from aggservice.service.errors import PathRefusedError

_MAX_PATH_CHARACTERS = 1024
_MAX_DEPTH = 32
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> tuple[str, ...]:
    """Return the steps of a relative path; refuse any other path."""
    if not 0 < len(path) <= _MAX_PATH_CHARACTERS:
        raise PathRefusedError(f"the path has {len(path)} characters: give 1 to {_MAX_PATH_CHARACTERS}")
    if path.startswith(("/", "~")) or "\\" in path or ":" in path.split("/", maxsplit=1)[0]:
        raise PathRefusedError(f"the path {path!r} is not relative to your folder")
    if not path.isprintable():
        raise PathRefusedError("the path holds characters that cannot be printed")
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") for part in parts[:-1]) or parts[-1] in (".", ".."):
        raise PathRefusedError(f"the path {path!r} has an empty, '.' or '..' step")
    if len(parts) > _MAX_DEPTH:
        raise PathRefusedError(f"the path has more than {_MAX_DEPTH} steps")
    return parts


class Folder:
    """A folder that one caller may use. The operator chooses ``root``, which may itself be a link."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def below(self, name: str) -> Folder:
        """Return the folder of one caller below this one; this folder itself if ``name`` is empty."""
        if not name:
            return self
        if len(parts_of(name)) != 1:
            raise PathRefusedError(f"the caller's folder {name!r} is not a single folder name")
        return Folder(self.root / name)

    @contextmanager
    def _enter(self, steps: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder below ``root``; each step is opened without following links."""
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as problem:
            raise InputReadError("you have no folder on this service: ask its operator to create one") from problem
        try:
            for step in steps:
                if create:
                    try:
                        with suppress(FileExistsError):
                            os.mkdir(step, 0o755, dir_fd=descriptor)
                        os.fsync(descriptor)  # a paid summary must not lose its folder in a power cut
                    except OSError as problem:
                        text = f"the folder {'/'.join(steps)!r} cannot be created: {problem.strerror}"
                        raise ResultWriteError(text) from problem
                try:
                    below = os.open(step, _DIRECTORY, dir_fd=descriptor)
                except OSError as problem:
                    _refuse_link(descriptor, step)
                    raise InputReadError(f"there is no folder {'/'.join(steps)!r}") from problem
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def files(self, prefix: str) -> list[str]:
        """Return, in order, the paths of all files that begin with ``prefix``, in folders below it too.

        ``folder/shard`` finds ``folder/shard-1``, ``folder/shard.avro`` and ``folder/shard/more/x.avro``, as the
        deployed service's prefixes do. A link among them is refused, not skipped.
        """
        parts = parts_of(prefix)
        found: list[str] = []
        with self._enter(parts[:-1]) as descriptor:
            for name in sorted(os.listdir(descriptor)):
                if name.startswith(parts[-1]) and not name.startswith("."):
                    self._gather(descriptor, name, (*parts[:-1], name), found)
        if not found:
            raise InputReadError(f"no file begins with {prefix!r}")
        return found

    def _gather(self, above: int, name: str, path: tuple[str, ...], found: list[str]) -> None:
        if len(path) > _MAX_DEPTH:
            raise PathRefusedError(f"the path has more than {_MAX_DEPTH} steps")
        _refuse_link(above, name)
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            found.append("/".join(path))
        elif stat.S_ISDIR(mode):
            descriptor = os.open(name, _DIRECTORY, dir_fd=above)
            try:
                for below in sorted(os.listdir(descriptor)):
                    if not below.startswith("."):
                        self._gather(descriptor, below, (*path, below), found)
            finally:
                os.close(descriptor)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        parts = parts_of(path)
        with self._enter(parts[:-1]) as descriptor:
            _refuse_link(descriptor, parts[-1])
        try:
            return Below(folder=self.root).open(path)
        except OSError as problem:
            raise InputReadError(f"{path!r} cannot be opened: {problem.strerror or problem}") from problem

    def size(self, path: str) -> int:
        """Return how many bytes a file has."""
        with self.open(path) as file:
            return os.fstat(file.fileno()).st_size

    def write(self, path: str, raw: bytes) -> None:
        """Write a file, and the folders above it, without following links; a file of this name is replaced."""
        parts = parts_of(path)
        with self._enter(parts[:-1], create=True) as descriptor:
            _refuse_link(descriptor, parts[-1])
            try:
                with open(os.open(parts[-1], _NEW_FILE, 0o644, dir_fd=descriptor), "wb") as file:
                    file.write(raw)
            except OSError as problem:
                raise ResultWriteError(f"{path!r} cannot be written: {problem.strerror}") from problem

    def prepare(self, prefix: str) -> AvroShards:
        """Create the folders of ``prefix`` and return where its files go, without links.

        Refused if a file of this prefix exists: a summary never replaces another.
        """
        parts = parts_of(prefix)
        if not parts[-1]:
            raise PathRefusedError("the output prefix ends with '/': add the beginning of a file name")
        with self._enter(parts[:-1], create=True) as descriptor:
            stem = parts[-1].removesuffix(".avro")
            taken = [
                name
                for name in os.listdir(descriptor)
                if name.startswith(f"{stem}-") or (name == parts[-1] and not _is_folder(descriptor, name))
            ]
            if taken:
                raise ResultWriteError(f"{prefix!r} is taken: {taken[0]!r} exists; choose another prefix")
        return AvroShards(prefix=Path(os.path.realpath(self.root)).joinpath(*parts))


def _is_folder(above: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _refuse_link(above: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise PathRefusedError(f"{name!r} is a symbolic link, which the service does not follow")
