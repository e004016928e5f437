"""Output domains and summaries in Avro, as arrays: one kernel call per block.

Buckets are two columns of 64 bits. Domains are written with 16-byte buckets, summaries without leading zeros, and
both are read in either form, as the deployed service does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.wire.avro.container import Block, Codec, ContainerWriter, read_blocks
from aggservice.wire.avro.schemas import BUCKET, DEBUG_FACT, FACT, LONG_BYTES, RecordSchema, read_long, write_long
from aggservice.wire.errors import EncodingError

BLOCK_ROWS = 1 << 16
MOST_ROWS = 1 << 20
"""The most rows held at once, however many a block has."""

_BUCKET_BYTES = 17
_ANNOTATION_BYTES = 4
_ALL_TAGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRows:
    """Rows of an Avro file of buckets. A row of a domain has no number, of a summary one, of a debug summary two.

    ``numbers`` has one row per bucket: the metric, or in a debug summary the unnoised metric and the noise. ``tags``
    are the bits ``IN_DOMAIN`` and ``IN_REPORTS`` of a debug summary.
    """

    key_high: NDArray[np.uint64]
    key_low: NDArray[np.uint64]
    numbers: NDArray[np.int64]
    tags: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        rows = self.key_high.size
        if self.key_low.shape != (rows,) or self.numbers.shape[:1] != (rows,) or self.numbers.ndim != 2:
            raise EncodingError("the columns of bucket rows differ in length")
        if (self.tags is not None) != (self.numbers.shape[1] == 2) or self.numbers.shape[1] > 2:
            raise EncodingError(
                "a debug summary needs two numbers and tags per row; other files have at most one number and no tags"
            )
        if self.tags is not None and (self.tags.shape != (rows,) or (self.tags > _ALL_TAGS).any()):
            raise EncodingError("the tags of a row are invalid: use IN_DOMAIN, IN_REPORTS, both or none")

    @classmethod
    def domain(cls, key_high: NDArray[np.uint64], key_low: NDArray[np.uint64]) -> BucketRows:
        """Return the rows of an output domain."""
        return cls(key_high=key_high, key_low=key_low, numbers=np.empty((key_high.size, 0), dtype=np.int64))

    @classmethod
    def summary(
        cls, key_high: NDArray[np.uint64], key_low: NDArray[np.uint64], metric: NDArray[np.int64]
    ) -> BucketRows:
        """Return the rows of a summary."""
        return cls(key_high=key_high, key_low=key_low, numbers=metric.reshape(-1, 1))

    @property
    def schema(self) -> RecordSchema:
        """The schema of a file of such rows."""
        return (BUCKET, FACT, DEBUG_FACT)[self.numbers.shape[1]]

    @property
    def metric(self) -> NDArray[np.int64]:
        """The first number of each row."""
        return self.numbers[:, 0]

    def __len__(self) -> int:
        return self.key_high.size


def read_domain(path: Path | BinaryIO) -> Iterator[BucketRows]:
    """Yield the buckets of an output domain, block by block; a block of more than ``MOST_ROWS`` comes in parts."""
    return (rows for block in read_blocks(path, BUCKET) for rows in _decode(block, 0))


def read_summary(path: Path | BinaryIO) -> Iterator[BucketRows]:
    """Yield the rows of a summary, as ``read_domain`` does."""
    return (rows for block in read_blocks(path, FACT) for rows in _decode(block, 1))


def read_debug_summary(path: Path | BinaryIO) -> Iterator[BucketRows]:
    """Yield the rows of a debug summary, as ``read_domain`` does."""
    return (rows for block in read_blocks(path, DEBUG_FACT) for rows in _decode(block, 2))


def _decode(block: Block, columns: int) -> Iterator[BucketRows]:
    # A row has at least one byte per field, which bounds the count; one byte can become 16, so parts are bounded too.
    if block.count * (1 + columns + (columns == 2)) > len(block.data):
        raise block.error(0, f"the block states {block.count} records, which its {len(block.data)} bytes cannot hold")
    data = np.frombuffer(block.data, dtype=np.uint8)
    at, left = 0, block.count
    while True:
        rows = min(left, MOST_ROWS)
        left -= rows
        high, low = np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.uint64)
        numbers = np.empty((rows, columns), dtype=np.int64)
        tags = np.zeros(rows if columns == 2 else 0, dtype=np.uint8)
        at, good = decode_rows(data, at, high, low, numbers, tags)
        if not good or (not left and at != data.size):
            raise block.error(at, "a record is malformed (buckets have at most 16 bytes)")
        yield BucketRows(key_high=high, key_low=low, numbers=numbers, tags=tags if columns == 2 else None)
        if not left:
            return


class BucketWriter(ContainerWriter):
    """Writes bucket rows of one schema into an Avro file, in blocks of ``BLOCK_ROWS``."""

    def __init__(self, target: Path | BinaryIO, schema: RecordSchema, *, codec: Codec = "null") -> None:
        super().__init__(target, schema, codec=codec)
        self._scratch = np.empty(0, dtype=np.uint8)

    def write(self, rows: BucketRows) -> None:
        """Append rows."""
        if rows.schema != self._schema:
            raise EncodingError(f"the rows have the schema {rows.schema.name}, but the file has {self._schema.name}")
        columns = rows.numbers.shape[1]
        room = min(len(rows), BLOCK_ROWS) * (_BUCKET_BYTES + columns * LONG_BYTES + _ANNOTATION_BYTES)
        if self._scratch.size < room:
            self._scratch = np.empty(room, dtype=np.uint8)
        tags = np.empty(0, dtype=np.uint8) if rows.tags is None else rows.tags
        for start in range(0, len(rows), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(rows))
            size = encode_rows(
                rows.key_high, rows.key_low, rows.numbers, tags, columns == 0, start, stop, self._scratch
            )
            self.write_block(stop - start, self._scratch.data[:size])


def write_buckets(target: Path | BinaryIO, rows: BucketRows, *, codec: Codec = "null") -> None:
    """Write a whole domain, summary or debug summary as one file."""
    with BucketWriter(target, rows.schema, codec=codec) as writer:
        writer.write(rows)


@njit(cache=True)
def decode_rows(data, start, key_high, key_low, numbers, tags):  # type: ignore[no-untyped-def]
    """Fill the columns with records of a block, from byte ``start`` on.

    Return (position after the records, True), or (position of the first malformed record, False).
    """
    at = np.int64(start)
    for row in range(key_high.size):
        begun = at
        size, at = read_long(data, at, data.size)
        if at < 0 or size < 0 or size > 16 or at + size > data.size:
            return begun, False
        high, low = np.uint64(0), np.uint64(0)
        if size == 16:
            # The usual case, written so that the compiler makes two loads of it.
            for index in range(8):
                high = (high << np.uint64(8)) | np.uint64(data[at + index])
                low = (low << np.uint64(8)) | np.uint64(data[at + 8 + index])
        else:
            for index in range(size):
                high = (high << np.uint64(8)) | (low >> np.uint64(56))
                low = (low << np.uint64(8)) | np.uint64(data[at + index])
        key_high[row], key_low[row] = high, low
        at += size
        for column in range(numbers.shape[1]):
            number, at = read_long(data, at, data.size)
            if at < 0:
                return begun, False
            numbers[row, column] = number
        if tags.size > 0:
            at = _read_tags(data, at, tags, row)
            if at < 0:
                return begun, False
    return at, True


@njit(cache=True)
def _read_tags(data, at, tags, row):  # type: ignore[no-untyped-def]
    """Read an array of enum symbols into bits; return the position after it, or -1 if it is malformed."""
    while True:
        count, at = read_long(data, at, data.size)
        if at < 0 or count == 0:
            return at
        if count < 0:
            count = -count
            _, at = read_long(data, at, data.size)
            if at < 0:
                return at
        if count < 0 or count > data.size - at:
            return np.int64(-1)
        for _ in range(count):
            symbol, at = read_long(data, at, data.size)
            if at < 0 or symbol < 0 or symbol > 1:
                return np.int64(-1)
            tags[row] |= np.uint8(1 << symbol)


@njit(cache=True)
def encode_rows(key_high, key_low, numbers, tags, padded, start, stop, out):  # type: ignore[no-untyped-def]
    """Write rows ``start`` to ``stop`` into ``out`` and return how many bytes they took.

    ``out`` must have room for 21 bytes per row and ten per number. Buckets have 16 bytes if ``padded``.
    """
    at = np.int64(0)
    for row in range(start, stop):
        high, low = key_high[row], key_low[row]
        size = 16
        if not padded:
            while size > 0:
                shift = np.uint64(8 * ((size - 1) % 8))
                word = high if size > 8 else low
                if (word >> shift) & np.uint64(0xFF):
                    break
                size -= 1
        out[at] = 2 * size
        at += 1
        if size == 16:
            for index in range(8):
                out[at + index] = np.uint8(high >> np.uint64(56 - 8 * index))
                out[at + 8 + index] = np.uint8(low >> np.uint64(56 - 8 * index))
            at += 16
        else:
            for left in range(size, 0, -1):
                word = high if left > 8 else low
                out[at] = np.uint8((word >> np.uint64(8 * ((left - 1) % 8))) & np.uint64(0xFF))
                at += 1
        for column in range(numbers.shape[1]):
            at = write_long(numbers[row, column], out, at)
        if numbers.shape[1] == 2:
            tag = tags[row]
            count = (tag & 1) + (tag >> 1)
            if count > 0:
                out[at] = 2 * count
                at += 1
                if tag & 1:
                    out[at] = 0
                    at += 1
                if tag & 2:
                    out[at] = 2
                    at += 1
            out[at] = 0
            at += 1
    return at
