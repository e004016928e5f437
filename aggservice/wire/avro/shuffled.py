"""Shuffled local reports in Avro: ``ShuffledReport{report: bytes}``, in the order in which they were shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from aggservice.wire.avro.container import ContainerWriter, encode_long, read_blocks
from aggservice.wire.avro.schemas import RecordSchema, read_long

SHUFFLED = RecordSchema("ShuffledReport", (("report", "bytes"),))
_BLOCK_BYTES = 1 << 16


def write_shuffled(target: Path | BinaryIO, reports: Iterable[bytes]) -> None:
    """Write reports, one per record; the same reports give the same file."""
    with ContainerWriter(target, SHUFFLED) as writer:
        held, count = bytearray(), 0
        for report in reports:
            held += encode_long(len(report)) + report
            count += 1
            if len(held) >= _BLOCK_BYTES:
                writer.write_block(count, bytes(held))
                held, count = bytearray(), 0
        if count:
            writer.write_block(count, bytes(held))


def read_shuffled(file: Path | BinaryIO) -> Iterator[bytes]:
    """Yield the reports of a file; raise ``AvroError`` if it does not hold shuffled reports."""
    for block in read_blocks(file, SHUFFLED):
        at = 0
        for _ in range(block.count):
            size, start = read_long(block.data, at, len(block.data))
            if start < 0 or not 0 <= size <= len(block.data) - start:
                raise block.error(at, "a record is malformed")
            at = start + size
            yield block.data[start:at]
        if at != len(block.data):
            raise block.error(at, f"bytes are left after {block.count} records")
