"""Files that others name: below one folder, and through no symbolic link.

A name from a request or from a text that somebody posted may lead anywhere. ``Below`` compares it with its folder after
resolving ``..``, and then opens step by step relative to the step before (openat with O_NOFOLLOW), so that a link in
the folder leads nowhere, whenever it was put there. ``budget.files.staging`` does the same for files that are written.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, Final

Opener = Callable[[Path], BinaryIO]
"""Opens a file for reading, or raises OSError."""

_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe must not wait for its writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutsideError(OSError):
    """A path leads out of its folder, passes a symbolic link, or is no regular file."""


def open_any(path: Path) -> BinaryIO:
    """Open any file for reading: the opener for paths of one's own."""
    return path.open("rb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The files below ``folder``. Paths are relative to it, or absolute; the folder itself may be behind a link."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.resolve())

    def open(self, path: str | PurePath) -> BinaryIO:
        """Open a regular file for reading; OSError if it is missing, outside, behind a link, or no such file."""
        steps = self._steps(path)
        with self._parent(steps) as parent:
            handle = os.open(steps[-1], _FILE, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OutsideError(f"{steps[-1]} is not a regular file")
        os.set_blocking(handle, True)
        raw = io.FileIO(handle)
        raw.name = os.fspath(path)  # errors then name the path, not the number of a descriptor
        return io.BufferedReader(raw)

    def read(self, path: str | PurePath, most: int) -> bytes:
        """Return a file of at most ``most`` bytes; OSError as ``open``, or if it is larger."""
        with self.open(path) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise OSError(f"{PurePath(path).name} has more than {most:,} bytes")
        return content

    def path(self, path: str | PurePath) -> Path:
        """Return the absolute path of a file, folder or free name, for a program that needs one (SQLite).

        OutsideError if it is outside, or if a step of it, itself included, is a link now. ``open`` is safer: nobody can
        put a link there afterwards.
        """
        steps = self._steps(path)
        try:
            with self._parent(steps) as parent:
                if stat.S_ISLNK(os.stat(steps[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                    raise OutsideError(f"{steps[-1]} is a link")
        except FileNotFoundError:
            pass  # a name that is still free
        return self.folder.joinpath(*steps)

    def is_file(self, path: str | PurePath) -> bool:
        """Whether ``open`` would open it."""
        try:
            self.open(path).close()
        except OSError:
            return False
        return True

    def _steps(self, path: str | PurePath) -> tuple[str, ...]:
        text = os.fspath(path)
        whole = Path(os.path.normpath(self.folder / text))
        if "\0" in text or whole == self.folder or not whole.is_relative_to(self.folder):
            raise OutsideError(f"{text[:200]!r} is not below the folder {self.folder.name!r}")
        return whole.relative_to(self.folder).parts

    @contextmanager
    def _parent(self, steps: tuple[str, ...]) -> Iterator[int]:
        """Yield a descriptor of the folder that holds the last step."""
        here = os.open(self.folder, _STEP)
        try:
            for step in steps[:-1]:
                below = os.open(step, _STEP, dir_fd=here)
                os.close(here)
                here = below
            yield here
        except NotADirectoryError:
            raise OutsideError(f"a step on the way to {steps[-1]} is a link or no folder") from None
        finally:
            os.close(here)
