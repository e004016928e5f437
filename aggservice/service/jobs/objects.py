"""Object storage: callers' prefixes in buckets, read like files, and summaries that a manifest completes.

``s3://``, ``gs://`` and ``az://`` go through obstore, which finds credentials in the usual places and repeats requests
that fail. A store has no rename: a summary's files are uploaded one by one, and the manifest, which names each with its
digest, is written last and never replaced.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from aggservice.engine import AvroShards
from aggservice.job.errors import InputReadError, ResultWriteError
from aggservice.service.errors import ConfigError, PathRefusedError
from aggservice.service.jobs.folders import parts_of
from budget.errors import RemoteError, StagingError
from budget.files.staging import Manifest

MANIFEST_FORMAT: Final = "aggservice-summary-1"
_READ_BYTES: Final = 8 << 20
_RETRIES: Final = {"max_retries": 5}
T = TypeVar("T")


def _library() -> Any:
    try:
        import obstore
    except ImportError as problem:
        raise ConfigError("object storage needs obstore: pip install 'aggservice[objects]'") from problem
    return obstore


@cache
def open_bucket(url: str) -> Any:
    """Return the store of a configured root, whose path becomes the beginning of every key; one per process."""
    from obstore.store import from_url

    try:
        return from_url(url, retry_config=_RETRIES)
    except Exception as problem:  # obstore has no common base for mistakes in a URL or in the environment
        raise ConfigError(f"{url} cannot be used as object storage: {problem}") from problem


def manifest_name(header_name: str) -> str:
    """Return the name of the manifest beside a summary's ``-statement.json``."""
    return f"{header_name.removesuffix('-statement.json')}-manifest.json"


class ObjectFolder:
    """A prefix in object storage that one caller may use: what ``Folder`` is on a disk. It pickles."""

    def __init__(self, root: str, own: str = "") -> None:
        """``own`` is the caller's folder of keys below the configured ``root``."""
        self._bucket = root
        self._own = f"{own}/" if own else ""
        self.root = f"{root}/{own}".rstrip("/")

    def below(self, name: str) -> ObjectFolder:
        """Return the prefix of one caller below this one; this one itself if ``name`` is empty."""
        if not name:
            return self
        if len(parts_of(name)) != 1:
            raise PathRefusedError(f"the caller's folder {name!r} is not a single folder name")
        return ObjectFolder(self._bucket, name)

    def _run(self, call: Callable[[Any, Any], T], what: str) -> T:
        library = _library()
        try:
            return call(library, open_bucket(self._bucket))
        except library.exceptions.NotFoundError as problem:
            raise InputReadError(f"{what} does not exist") from problem
        except library.exceptions.BaseError as problem:
            raise InputReadError(f"{what} cannot be read from object storage: {type(problem).__name__}") from problem

    def _names(self, folder: str) -> list[str]:
        """Return every key below a folder of keys, without the caller's own beginning, in order."""
        below = (self._own + folder).rstrip("/")

        def work(library: Any, store: Any) -> list[str]:
            pages = library.list(store, below or None, chunk_size=1000)
            return sorted(one["path"].removeprefix(self._own) for page in pages for one in page)

        return self._run(work, f"the folder {folder!r}")

    def files(self, prefix: str) -> list[str]:
        """Return, in order, the keys that begin with ``prefix``, as ``Folder.files`` does."""
        parts = parts_of(prefix)
        found = []
        for path in self._names("/".join(parts[:-1])):
            steps = tuple(path.split("/"))[len(parts) - 1 :]
            if path.startswith(prefix) and not any(step.startswith(".") for step in steps):
                found.append(path)
        if not found:
            raise InputReadError(f"no file begins with {prefix!r}")
        return found

    def size(self, path: str) -> int:
        """Return how many bytes an object has."""
        parts_of(path)
        return int(self._run(lambda library, store: library.head(store, self._own + path)["size"], repr(path)))

    def open(self, path: str) -> BinaryIO:
        """Open an object for reading."""
        parts_of(path)
        reader = self._run(
            lambda library, store: library.open_reader(store, self._own + path, buffer_size=_READ_BYTES), repr(path)
        )
        return io.BufferedReader(_Reader(self, reader, path), _READ_BYTES)

    def write(self, path: str, raw: bytes) -> None:
        """Write an object whole; one of this name is replaced."""
        parts_of(path)
        try:
            self._run(lambda library, store: library.put(store, self._own + path, raw), repr(path))
        except InputReadError as problem:
            raise ResultWriteError(f"{path!r} cannot be written to object storage") from problem

    def prepare(self, prefix: str) -> AvroShards:
        """Return where the files of ``prefix`` go; refused if one exists: a summary never replaces another."""
        parts = parts_of(prefix)
        if not parts[-1]:
            raise PathRefusedError("the output prefix ends with '/': add the beginning of a file name")
        folder, stem = "/".join(parts[:-1]), parts[-1].removesuffix(".avro")
        beginning = f"{folder}/" if folder else ""
        try:
            names = self._names(folder)
        except InputReadError as problem:
            raise ResultWriteError(f"the output {prefix!r} cannot be used: {problem}") from problem
        taken = [name for name in names if name.startswith(f"{beginning}{stem}-") or name == prefix]
        if taken:
            raise ResultWriteError(f"{prefix!r} is taken: {taken[0]!r} exists; choose another prefix")
        return AvroShards(prefix=Path(parts[-1]), remote=RemoteFolder(self._bucket, (self._own + folder).rstrip("/")))


class _Reader(io.RawIOBase):
    """Reads an object by ranges; an error of the store becomes an error of the job."""

    def __init__(self, folder: ObjectFolder, reader: Any, name: str) -> None:
        self._folder = folder
        self._reader = reader
        self.name = name

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes."""
        raw = self._folder._run(lambda library, store: bytes(self._reader.read(len(buffer))), repr(self.name))
        buffer[: len(raw)] = raw
        return len(raw)


class RemoteFolder:
    """A folder of keys below a root that summaries are published to. Its ``url`` is what a ledger's manifest holds."""

    def __init__(self, root: str, path: str) -> None:
        self.url = f"{root}/{path}".rstrip("/")
        self._root = root
        self._path = f"{path}/" if path else ""

    def _run(self, call: Callable[[Any, Any], T]) -> T:
        library = _library()
        try:
            return call(library, open_bucket(self._root))
        except library.exceptions.BaseError as problem:
            raise RemoteError(
                f"object storage failed to write or read the result: {type(problem).__name__}; if the job is paid for, "
                "it is published when the storage answers again"
            ) from problem

    def upload(self, folder: Path) -> None:
        """Upload every file below a folder, each whole or not at all."""
        for file in sorted(one for one in folder.rglob("*") if one.is_file()):
            key = self._path + file.relative_to(folder).as_posix()

            def put(library: Any, store: Any, key: str = key, file: Path = file) -> None:
                library.put(store, key, file)

            self._run(put)

    def complete(self, manifest: Manifest) -> None:
        """Write the manifest, which says that all its files are there. It is never replaced."""
        (statement,) = [one.name for one in manifest.files if one.name.endswith("-statement.json")]
        files = [{"name": one.name, "size": one.size, "sha256": one.sha256.hex()} for one in manifest.files]
        raw = json.dumps({"format": MANIFEST_FORMAT, "files": files}, indent=1).encode()
        key = self._path + manifest_name(statement)

        def work(library: Any, store: Any) -> None:
            try:
                library.put(store, key, raw, mode="create", use_multipart=False)
            except library.exceptions.AlreadyExistsError:
                if bytes(library.get(store, key).bytes()) != raw:
                    raise StagingError(
                        f"the result is paid for, but {manifest_name(statement)!r} exists and belongs to another"
                        " summary: remove it and ask again with the same job id"
                    ) from None

        self._run(work)

    def read(self, name: str) -> bytes:
        """Return a published file."""
        return self._run(lambda library, store: bytes(library.get(store, self._path + name).bytes()))


class ObjectPublisher:
    """Publishes staged files below roots in object storage, for ``budget``'s staging."""

    def __init__(self, *roots: Path | str | None) -> None:
        """``roots`` are the configured output and buckets, which may be folders."""
        self._roots = [root for root in roots if isinstance(root, str)]

    def _folder(self, manifest: Manifest) -> RemoteFolder:
        for root in self._roots:
            if f"{manifest.destination}/".startswith(f"{root}/"):
                return RemoteFolder(root, f"{manifest.destination}/".removeprefix(f"{root}/").rstrip("/"))
        raise RemoteError(
            "the result is paid for, but its object storage is no longer configured: ask the operator to configure it"
        )

    def publish(self, manifest: Manifest, folder: Path) -> None:
        """Upload the files, then the manifest. May be called again."""
        remote = self._folder(manifest)
        remote.upload(folder)
        remote.complete(manifest)

    def read(self, manifest: Manifest, name: str) -> bytes:
        """Return a published file."""
        return self._folder(manifest).read(name)
