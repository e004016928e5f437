"""Where jobs over files read and write: two roots and named buckets, on disk or in object storage.

Each has a folder per caller. A caller names a file by its path below their folder, by its whole URL, or as
``bucket://NAME/path`` below their folder in a bucket. Nothing else can be read, written or listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from aggservice.engine import AvroShards
from aggservice.service.config.callers import Caller
from aggservice.service.errors import NoFoldersError, PathRefusedError
from aggservice.service.jobs.folders import Folder
from aggservice.service.jobs.objects import ObjectFolder

BUCKET: Final = "bucket://"
"""The beginning of a path in a configured bucket."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file in a caller's folder. It pickles: another process opens it as carefully as this one."""

    folder: Folder | ObjectFolder
    name: str

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self.folder.size(self.name)

    def open(self) -> BinaryIO:
        """Open the file for reading."""
        return self.folder.open(self.name)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of the names of a caller's files."""

    folder: Folder | ObjectFolder
    path: str

    def files(self) -> list[PlacedFile]:
        """Return the files that begin with it, in order; InputReadError if there are none."""
        return [PlacedFile(self.folder, name) for name in self.folder.files(self.path)]

    def write_below(self, name: str, raw: bytes) -> None:
        """Write a file into the folder that is named like this prefix, without a final ``.avro``."""
        self.folder.write(f"{self.path.removesuffix('.avro')}/{name}", raw)

    def prepare(self) -> AvroShards:
        """Return where a summary of this prefix goes; refused if a file of this prefix exists."""
        return self.folder.prepare(self.path)


class Root:
    """A configured root: a folder, or the URL of a prefix in object storage."""

    def __init__(self, location: Path | str) -> None:
        self._folder: Folder | ObjectFolder
        if isinstance(location, str) and "://" in location:
            self._url = location.rstrip("/")
            self._folder = ObjectFolder(self._url)
        else:
            self._url = f"file://{Path(location).absolute()}".rstrip("/")
            self._folder = Folder(Path(location))

    def find(self, caller: Caller, name: str) -> Prefix:
        """Return the prefix that a caller names, by path or by URL; PathRefusedError if it is not in their folder."""
        folder = self._folder.below(caller.folder)
        if "://" not in name:
            return Prefix(folder, name)
        own = f"{self._url}/{caller.folder}/" if caller.folder else f"{self._url}/"
        if not name.startswith(own):
            raise PathRefusedError(f"{name[:200]!r} is not below your folder on this service")
        return Prefix(folder, name.removeprefix(own))


class Places:
    """The roots for inputs and for outputs, and the roots of buckets; a service without any has no jobs over files."""

    def __init__(
        self, *, inputs: Path | str | None, outputs: Path | str | None, buckets: Mapping[str, Path | str] | None = None
    ) -> None:
        self._inputs = None if inputs is None else Root(inputs)
        self._outputs = None if outputs is None else Root(outputs)
        self._buckets = {name: Root(location) for name, location in (buckets or {}).items()}

    def input(self, caller: Caller, name: str) -> Prefix:
        """Return the prefix of input files that a caller names."""
        return self._find(self._inputs, caller, name)

    def output(self, caller: Caller, name: str) -> Prefix:
        """Return the prefix of output files that a caller names."""
        return self._find(self._outputs, caller, name)

    def check(self) -> None:
        """Refuse jobs over files on a service that has neither folders nor buckets."""
        if not self._buckets:
            for root in (self._inputs, self._outputs):
                self._given(root)

    def _find(self, root: Root | None, caller: Caller, name: str) -> Prefix:
        if not name.startswith(BUCKET):
            return self._given(root).find(caller, name)
        bucket, _, path = name.removeprefix(BUCKET).partition("/")
        if bucket not in self._buckets:
            raise PathRefusedError(f"this service has no bucket {bucket[:100]!r}: ask its operator for a name")
        return self._buckets[bucket].find(caller, path)

    def _given(self, root: Root | None) -> Root:
        if root is None:
            raise NoFoldersError("this service has no folders for jobs over files")
        return root
