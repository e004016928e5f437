"""The log as one self-contained file: every entry with its units, then a signed checkpoint over all of it.

Layout: the line ``aggservice-log-1``; for each entry its length (4 bytes, big-endian), its canonical bytes and its
packed units (20 bytes times the count the entry states); then the length 0, the length of the checkpoint and its
canonical bytes; nothing follows. A hash or a signature covers every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from aggservice.files.atomic import whole_file
from budget.errors import FormatError, StoreError
from budget.log.entries import decode
from budget.log.proofs import Checkpoint, Receipt
from budget.store import PART_UNITS, Store, Transaction
from budget.units import UNIT_BYTES

MAGIC: Final = b"aggservice-log-1\n"
_LENGTH_BYTES: Final = 4
_ENTRY_MAX: Final = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One entry of a log: its canonical bytes, and its units part by part, which can be read once, in order."""

    header: bytes
    parts: Iterator[bytes]


def is_log(path: Path) -> bool:
    """Return whether the file starts with the first line of an exported log."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def write_log(store: Store, path: Path, progress: Callable[[int], None] | None = None) -> Checkpoint:
    """Export the whole log of ``store`` to a new file, readable by its owner only, in one consistent snapshot.

    The file gets its name only when it is complete. ``progress`` is called with each number of units written.
    """

    def work(transaction: Transaction) -> Checkpoint:
        with staged.open("wb") as file:
            file.write(MAGIC)
            receipt = b""
            for row in transaction.entries():
                file.write(len(row.header).to_bytes(_LENGTH_BYTES, "big") + row.header)
                for part in transaction.parts(row.seq):
                    file.write(part.keys)
                    if progress is not None:
                        progress(len(part.keys) // UNIT_BYTES)
                receipt = row.receipt
            if not receipt:
                raise StoreError("this database holds no ledger to export: create one first")
            checkpoint = Receipt.from_bytes(receipt).checkpoint
            raw = checkpoint.to_bytes()
            file.write(bytes(_LENGTH_BYTES) + len(raw).to_bytes(_LENGTH_BYTES, "big") + raw)
        return checkpoint

    with whole_file(path, private=True) as staged:
        return store.read("export", work)


def _exactly(file: BinaryIO, count: int) -> bytes:
    raw = file.read(count)
    if len(raw) != count:
        raise FormatError("the exported log ends too early: export it again")
    return raw


def _units(file: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0:
        some = min(count, PART_UNITS)
        yield _exactly(file, some * UNIT_BYTES)
        count -= some


class ExportedLog:
    """An exported log open for reading from its first entry; ``checkpoint`` is set after ``entries`` yielded all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint: Checkpoint | None = None

    def entries(self) -> Iterator[LogEntry]:
        """Yield each entry; its parts can be read until the next one. FormatError at the first wrong byte."""
        self.checkpoint = None
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise FormatError(f"{self.path} is not an exported log: make one with 'aggservice ledger export'")
            while length := int.from_bytes(_exactly(file, _LENGTH_BYTES), "big"):
                if length > _ENTRY_MAX:
                    raise FormatError(f"an entry of the exported log is too long ({length} bytes): export it again")
                header = _exactly(file, length)
                parts = _units(file, _unit_count(header))
                yield LogEntry(header=header, parts=parts)
                for _ in parts:  # what the caller left, even half of it
                    pass
            raw = _exactly(file, min(int.from_bytes(_exactly(file, _LENGTH_BYTES), "big"), _ENTRY_MAX))
            if file.read(1):
                raise FormatError("the exported log has bytes after its checkpoint: export it again")
            self.checkpoint = Checkpoint.from_bytes(raw)


def _unit_count(header: bytes) -> int:
    units = decode(header).get("units", {"count": 0})
    count = units.get("count") if isinstance(units, dict) else None
    if type(count) is not int or not count >= 0:
        raise FormatError("an entry of the exported log does not state its number of units: export it again")
    return count
