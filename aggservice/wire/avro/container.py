"""Avro's object container files, block by block; callers decode the records.

Apache Avro 1.11 specification, "Object Container Files", codecs ``null`` and ``deflate``. ``fastavro`` reads and
writes records one by one; here whole blocks become arrays, so that tens of millions of rows pass without objects.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal, Self

from aggservice.wire.avro.schemas import RecordSchema
from aggservice.wire.errors import AvroError, EncodingError, WireError

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
MAX_BLOCK_BYTES = 1 << 27
MAX_HEADER_BYTES = 1 << 16
Codec = Literal["null", "deflate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The records of one block: how many there are, their bytes, and where in which file the block's data begins."""

    count: int
    data: bytes
    file: str
    position: int

    def error(self, at: int, message: str) -> AvroError:
        """Return the error of the record that begins ``at`` bytes into the block."""
        return AvroError(self.file, self.position + at, message)


def encode_long(number: int) -> bytes:
    """Return an integer of 64 bits as Avro writes it: zigzag, then seven bits per byte, lowest first."""
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


class _Source:
    """A stream that knows its name and how far it was read."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self.name = name
        self.position = 0

    def error(self, message: str) -> AvroError:
        return AvroError(self.name, self.position, message)

    def at_end(self) -> bool:
        # Only asked between blocks, so the byte that was read begins a number.
        self._ahead = self.stream.read(1)
        return not self._ahead

    _ahead = b""

    def read(self, count: int) -> bytes:
        data = self._ahead + self.stream.read(count - len(self._ahead))
        self._ahead = b""
        if len(data) != count:
            raise self.error(f"the file ends in the middle of {count} bytes: it is probably truncated")
        self.position += count
        return data

    def read_long(self) -> int:
        zigzag = 0
        for shift in range(0, 70, 7):
            byte = self.read(1)[0]
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                if zigzag >> 64:
                    break
                return (zigzag >> 1) ^ -(zigzag & 1)
        raise self.error("a number has more than 64 bits: the file is damaged")

    def read_sized(self, limit: int) -> bytes:
        size = self.read_long()
        if not 0 <= size <= limit:
            raise self.error(f"a stated size of {size} bytes is not between 0 and {limit}: the file is damaged")
        return self.read(size)


def read_blocks(file: Path | BinaryIO, schema: RecordSchema) -> Iterator[Block]:
    """Yield the blocks of a file that must have ``schema``; raise ``AvroError`` if it is malformed.

    It holds one block in memory at a time. A stream is not closed.
    """
    if isinstance(file, Path):
        with file.open("rb") as stream:
            yield from read_blocks(stream, schema)
        return
    source = _Source(file, str(getattr(file, "name", "stream")))
    codec, sync = _read_header(source, schema)
    while not source.at_end():
        count = source.read_long()
        if count < 0:
            raise source.error(f"a block states that it has {count} records: it is damaged")
        size_at = source.position
        data = source.read_sized(MAX_BLOCK_BYTES)
        position = source.position - len(data)
        if codec == "deflate":
            data = _inflate(source, data)
        if source.read(SYNC_BYTES) != sync:
            raise AvroError(source.name, size_at, "the block does not end in the file's sync marker: it is damaged")
        yield Block(count=count, data=data, file=source.name, position=position)


def whole_bytes(stream: BinaryIO, name: str, schema: RecordSchema) -> int:
    """Return the size of a file's header and complete blocks, in bytes; 0 if the header is incomplete.

    After a crash, that much of the file can be read.
    """
    source = _Source(stream, name)
    whole = 0
    try:
        _, sync = _read_header(source, schema)
        whole = source.position
        while not source.at_end():
            source.read_long()
            source.read_sized(MAX_BLOCK_BYTES)
            if source.read(SYNC_BYTES) != sync:
                break
            whole = source.position
    except AvroError:
        pass  # the rest is incomplete
    return whole


def _read_header(source: _Source, schema: RecordSchema) -> tuple[str, bytes]:
    if source.read(len(MAGIC)) != MAGIC:
        raise AvroError(source.name, 0, "this is not an Avro file (it does not begin with `Obj` and the byte 1)")
    metadata: dict[bytes, bytes] = {}
    while entries := source.read_long():
        if entries < 0:
            entries = -entries
            source.read_long()
        for _ in range(entries):
            name = source.read_sized(MAX_HEADER_BYTES)
            metadata[name] = source.read_sized(MAX_HEADER_BYTES)
            if source.position > MAX_HEADER_BYTES:
                raise source.error(f"the header is longer than {MAX_HEADER_BYTES} bytes")
    try:
        schema.check(metadata.get(b"avro.schema", b""))
    except WireError as error:
        raise AvroError(source.name, len(MAGIC), str(error)) from None
    codec = metadata.get(b"avro.codec", b"null").decode("ascii", "replace")
    if codec not in ("null", "deflate"):
        raise source.error(f"the codec {codec} is not supported: write the file with null or deflate")
    return codec, source.read(SYNC_BYTES)


def _inflate(source: _Source, data: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(data, MAX_BLOCK_BYTES)
    except zlib.error:
        raise source.error("a deflated block is damaged") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise source.error(f"a deflated block is damaged, or has more than {MAX_BLOCK_BYTES} bytes when inflated")
    return inflated


class ContainerWriter:
    """Writes blocks into a container file; a subclass per kind of record encodes them.

    The sync marker is a hash of the first block, so that the same data gives the same file.
    """

    def __init__(self, target: Path | BinaryIO, schema: RecordSchema, *, codec: Codec = "null") -> None:
        self._stream: BinaryIO = target.open("wb") if isinstance(target, Path) else target
        self._owned = isinstance(target, Path)
        self._schema = schema
        self._codec = codec
        self._sync = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_block(self, count: int, data: bytes | memoryview) -> None:
        """Append a block of ``count`` records."""
        if len(data) > MAX_BLOCK_BYTES:
            raise EncodingError(f"the block has {len(data)} bytes: write at most {MAX_BLOCK_BYTES} per block")
        self._begin(data)
        if self._codec == "deflate":
            deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            data = deflater.compress(data) + deflater.flush()
        for part in (encode_long(count), encode_long(len(data)), data, self._sync):
            self._stream.write(part)

    def close(self) -> None:
        """Write the header if nothing was written, and close the file if this opened it."""
        if self._stream.closed:
            return
        self._begin(b"")
        if self._owned:
            self._stream.close()

    def _begin(self, first: bytes | memoryview) -> None:
        if self._sync:
            return
        schema = self._schema.to_json().encode()
        self._sync = sha256(schema + first).digest()[:SYNC_BYTES]
        metadata = {b"avro.schema": schema, b"avro.codec": self._codec.encode()}
        header = MAGIC + encode_long(len(metadata))
        for name, value in metadata.items():
            header += encode_long(len(name)) + name + encode_long(len(value)) + value
        self._stream.write(header + encode_long(0) + self._sync)
