"""Result files that nobody can read before they are paid for.

An attempt at a job writes its files into its own folder under the staging folder, which only the service can read. The
ledger commits their digests; then they are renamed to the caller's folder. A running attempt holds its lock file. After
a crash, ``recover`` publishes the files of each attempt that the ledger committed and removes the others.

Other callers can measure what an attempt takes of the disk before it is paid for. So an attempt takes its room at the
start, by public numbers, and holds it until it is published: files are written into space that is already allocated,
and get their true length afterwards. Each caller has a quota, which is counted from what attempts noted, never from
the disk.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Protocol

from aggservice.files.atomic import sync
from aggservice.files.below import Below
from aggservice.mechanisms import Bits
from budget.errors import FormatError, StagingError, StagingRoomError
from budget.log.entries import FileDigest, check_name, decode, encode

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


_FORMAT: Final = "aggservice-files-1"
_LOCK: Final = "lock"
_JOB: Final = "job"
_FILES: Final = "files"
_ROOM: Final = "room"
_CHUNK: Final = 1 << 20
CALLER_BYTES: Final = 64 << 30
"""The bytes that a caller's attempts may hold, unless the operator chooses another number."""
CALLER_ATTEMPTS: Final = 1_000
"""The attempts that a caller may have, running or waiting to be published: each takes inodes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A job's result files: the attempt that wrote them, their digests and their destination. The ledger keeps it."""

    attempt: str
    destination: str
    files: tuple[FileDigest, ...]

    @property
    def is_remote(self) -> bool:
        """Whether the destination is a URL and not a folder of this machine."""
        return "://" in self.destination

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        files = [one.to_plain() for one in self.files]
        return encode({"format": _FORMAT, "attempt": self.attempt, "destination": self.destination, "files": files})

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Read a manifest from its canonical bytes; FormatError for any other bytes."""
        plain: dict[str, Any] = decode(raw)
        try:
            if plain["format"] != _FORMAT:
                raise FormatError("these bytes are not a manifest of result files")
            found = cls(
                attempt=plain["attempt"],
                destination=plain["destination"],
                files=tuple(map(FileDigest.from_plain, plain["files"])),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise FormatError(f"these bytes are not a manifest of result files: {problem!r}") from problem
        if found.to_bytes() != raw:
            raise FormatError("these bytes are not a manifest of result files")
        return found


def read_published(manifest: Manifest, name: str) -> bytes:
    """Return a published file of this machine; OSError if it is behind a link or longer than when it was published.

    Its folder belongs to the caller, who may have put anything in its place.
    """
    (size,) = [one.size for one in manifest.files if one.name == name]
    destination = Path(manifest.destination)
    return Below(folder=Path(destination.anchor)).read(destination / name, size)


class Publisher(Protocol):
    """Publishes to destinations that are not folders of this machine; RemoteError if that fails."""

    def publish(self, manifest: Manifest, folder: Path) -> None:
        """Copy the staged files to their destination, so that either all or none count. May be called again."""

    def read(self, manifest: Manifest, name: str) -> bytes:
        """Return a published file."""


def file_digest(path: Path, size: int | None = None) -> FileDigest:
    """Return name, size and SHA-256 of a file, or of its first ``size`` bytes."""
    left = path.stat().st_size if size is None else size
    digest, length = hashlib.sha256(), left
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, _CHUNK))):
            digest.update(piece)
            left -= len(piece)
    if left:
        raise StagingError("a staged file is shorter than what was written to it: run the job again")
    return FileDigest(name=path.name, size=length, sha256=digest.digest())


def _remove_remains(folder: Path) -> None:
    """Remove what a crash left of an attempt that ended: an empty folder, or one whose lock is gone already.

    A running attempt makes its lock first and removes it last.
    """
    with suppress(OSError):
        if _LOCK not in os.listdir(folder):
            for below in (_FILES, _ROOM):
                shutil.rmtree(folder / below, ignore_errors=True)
            (folder / _JOB).unlink(missing_ok=True)
            folder.rmdir()


class Attempt:
    """One attempt at one job; it holds a lock while it runs.

    ``allocate`` room, write files with ``create`` (or at ``path(name)``, outside that room), then call ``seal``.
    """

    def __init__(self, folder: Path, lock: IO[bytes], remote: Publisher | None = None) -> None:
        self.folder = folder
        self.manifest: Manifest | None = None
        self._lock = lock
        self._remote = remote
        self._room: list[Path] = []
        self._lengths: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The attempt's name, unique in its staging folder."""
        return self.folder.name

    def path(self, name: str) -> Path:
        """Return the path at which to write the result file ``name``."""
        return self.folder / _FILES / FileDigest(name=name, size=0, sha256=bytes(32)).name

    def allocate(self, sizes: Iterable[int]) -> None:
        """Take room on the disk for files of these sizes; OSError if there is none.

        ``create`` uses it in this order. What it writes then changes neither the free room nor the number of files.
        """
        room = self.folder / _ROOM
        room.mkdir(mode=0o700)
        for number, size in enumerate(sizes):
            self._room.append(room / str(number))
            with self._room[-1].open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, size))

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Open the result file ``name`` for writing, in allocated room while there is some."""
        path = self.path(name)
        with self._room.pop(0).rename(path).open("r+b") if self._room else path.open("xb") as file:
            yield file
            self._lengths[name] = file.tell()

    def seal(self, destination: Path | str) -> Manifest:
        """Flush every file to disk and return their digests; they will be published in the folder ``destination``.

        A ``destination`` that is text is the URL of a folder that is not on this machine.
        """
        files = sorted((self.folder / _FILES).iterdir())
        for file in (*files, self.folder / _JOB):
            sync(file)  # the last one tells ``recover`` whose attempt this is
        for folder in (self.folder / _FILES, self.folder / _ROOM, self.folder, self.folder.parent):
            if folder.exists():
                sync(folder)  # the last one holds the attempt's name, which the manifest states
        if not files:
            raise StagingError("there is no result file to seal: write one at path(name) first")
        self.manifest = Manifest(
            attempt=self.name,
            destination=destination if isinstance(destination, str) else str(destination.absolute()),
            files=tuple(file_digest(file, self._lengths.get(file.name)) for file in files),
        )
        return self.manifest

    def release_lock(self) -> None:
        """Release the lock and leave the files, so that a later ``recover`` asks the ledger what to do with them."""
        self._lock.close()

    def discard(self) -> None:
        """Remove everything the attempt wrote, its lock last. May be called again."""
        for below in (_FILES, _ROOM):
            shutil.rmtree(self.folder / below, ignore_errors=True)
        for name in (_JOB, _LOCK):
            (self.folder / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.folder.rmdir()
        self._lock.close()

    def publish(self, manifest: Manifest) -> None:
        """Move the files to their destination, one by one, and remove the attempt. May be called again.

        StagingError if the destination contains a symbolic link, because the caller may not be allowed to write to its
        target, or another file of the same name: nothing is replaced. A remote destination gets copies.
        """
        for one in manifest.files:
            with suppress(FileNotFoundError):  # published before
                os.truncate(self.folder / _FILES / one.name, one.size)
        if manifest.is_remote:
            self._publish_remote(manifest)
            return
        destination = Path(manifest.destination)
        try:
            with opened_folder(destination) as folder:
                for one in manifest.files:
                    self._publish(self.folder / _FILES / one.name, folder, one)
                sync_folder(folder)
        except OSError as problem:
            self.release_lock()  # the next request for the job publishes it
            raise StagingError(
                f"the result is paid for but could not be written to {destination.name!r}: {problem.strerror};"
                " make the folder writable and ask again with the same job id"
            ) from problem
        self.discard()

    def _publish_remote(self, manifest: Manifest) -> None:
        try:
            if self._remote is None:
                raise StagingError("the result is paid for, but not published: open this ledger with object storage")
            self._remote.publish(manifest, self.folder / _FILES)
        except StagingError:
            self.release_lock()  # the next request for the job publishes it
            raise
        self.discard()

    def _publish(self, staged: Path, folder: int, file: FileDigest) -> None:
        if not staged.exists():
            return  # published before: nothing else removes a staged file of a committed job
        try:
            move_new(staged, file.name, folder)
        except FileExistsError:
            _check_published(folder, file)
            staged.unlink()
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            # Another file system: copy to a temporary name there, then rename.
            temporary = f".{file.name}.{self.name}"
            with staged.open("rb") as source, new_file(folder, temporary) as target:
                shutil.copyfileobj(source, target, _CHUNK)
                target.flush()
                os.fsync(target.fileno())
            try:
                move_new(temporary, file.name, folder, source_folder=folder)
            except FileExistsError:
                os.unlink(temporary, dir_fd=folder)
                _check_published(folder, file)
            staged.unlink()


def _check_published(folder: int, file: FileDigest) -> None:
    """Refuse to publish over a file that is not this one. It is this one if a crash interrupted publishing."""
    found = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(found, "rb") as there:
        same = stat.S_ISREG(os.fstat(found).st_mode)
        if not same or hashlib.file_digest(there, "sha256").digest() != file.sha256:
            raise FileExistsError(errno.EEXIST, f"another file is called {file.name!r}")


class Staging:
    """The staging folder, created for its owner only; StagingError if others can read it."""

    def __init__(
        self, folder: Path, bits: Bits, remote: Publisher | None = None, *, caller_bytes: int = CALLER_BYTES
    ) -> None:
        """``remote`` publishes to destinations that are not on this machine; ``caller_bytes`` is a caller's quota."""
        self.folder = folder
        self._caller_bytes = caller_bytes
        self._bits = bits
        self._remote = remote
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise StagingError(f"others can read the staging folder {folder} (mode {mode:o}): run chmod 700 on it")

    def begin(self, caller: str, job_id: str, *, room: int = 0) -> Attempt:
        """Begin an attempt at a job that will hold ``room`` bytes at most.

        StagingRoomError if the caller's attempts, of all services that share the folder, would hold more than the
        quota. Only what they noted decides this, so it depends on nobody else and on nothing that reports contain.
        """
        check_name("the caller", caller)
        check_name("the job id", job_id)
        with self._counting():
            self._check_quota(caller, room)
            return self._begin(caller, job_id, room)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Let one attempt at a time count and begin."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _check_quota(self, caller: str, room: int) -> None:
        held, attempts = room, 1
        for folder in self.folder.iterdir():
            with suppress(OSError, FormatError):  # an attempt that ends, or is being made, at this moment
                note = decode((folder / _JOB).read_bytes())
                if note.get("caller") == caller:
                    held += int(note.get("room", 0))
                    attempts += 1
        if held > self._caller_bytes or attempts > CALLER_ATTEMPTS:
            raise StagingRoomError(
                f"with this job, {attempts} results of yours that are not published yet could take {held:,} bytes, "
                "which is above your quota; wait until they are published, and check that your output folders can be "
                "written to"
            )

    def _begin(self, caller: str, job_id: str, room: int) -> Attempt:
        folder = self.folder / self._bits.read(16).hex()
        fresh = folder.with_suffix(".new")
        while True:
            # Until the lock is held, another service that recovers may remove the folder.
            fresh.mkdir(mode=0o700)
            with suppress(FileNotFoundError):
                lock = (fresh / _LOCK).open("wb")
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.fstat(lock.fileno()).st_nlink:
                    break
                lock.close()
        try:
            (fresh / _FILES).mkdir(mode=0o700)
            (fresh / _JOB).write_bytes(encode({"caller": caller, "job_id": job_id, "room": room}))
            fresh.rename(folder)  # a manifest states this name
        except OSError:
            Attempt(fresh, lock).discard()
            raise
        return Attempt(folder, lock, self._remote)

    def _adopt(self, folder: Path, wait: bool) -> Attempt | None:
        """Take over an attempt whose process has ended; None if it still runs (unless ``wait``) or is gone."""
        try:
            lock = (folder / _LOCK).open("rb")
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            lock.close()
            return None
        if not (folder / _LOCK).exists():
            lock.close()
            return None
        return Attempt(folder, lock, self._remote)

    def publish(self, manifest: Manifest) -> None:
        """Publish a committed job's files if they are not published yet; wait if another process is publishing them."""
        attempt = self._adopt(self.folder / manifest.attempt, wait=True)
        if attempt is not None:
            attempt.publish(manifest)

    def read(self, manifest: Manifest, name: str) -> bytes:
        """Return a published file; OSError or StagingError if it cannot be read."""
        if not manifest.is_remote:
            return read_published(manifest, name)
        if self._remote is None:
            raise StagingError("the file is in object storage: open this ledger with object storage")
        return self._remote.read(manifest, name)

    def recover(self, committed: Callable[[str, str], Manifest | None]) -> Iterator[tuple[str, bool]]:
        """Publish or remove every attempt whose process has ended; yield its name and whether it was published.

        ``committed`` returns the manifest in the ledger for a (caller, job id), or None. Files that cannot be published
        now stay staged and are not yielded: the next request for their job publishes them.
        """
        for folder in sorted(self.folder.iterdir()):
            attempt = self._adopt(folder, wait=False)
            if attempt is None:
                _remove_remains(folder)
                continue
            try:
                job = decode((folder / _JOB).read_bytes())
                manifest = committed(job["caller"], job["job_id"])
            except (FormatError, FileNotFoundError, KeyError):
                manifest = None
            if manifest is not None and manifest.attempt == attempt.name:
                try:
                    attempt.publish(manifest)
                except StagingError:
                    continue  # one folder without write access must not prevent a service from starting
                yield attempt.name, True
            else:
                attempt.discard()
                yield attempt.name, False
