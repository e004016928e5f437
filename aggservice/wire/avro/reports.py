"""Reports in Avro: batches of columns in and out, with memory bounded by a batch and a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from aggservice.wire.avro.container import Block, Codec, ContainerWriter, read_blocks
from aggservice.wire.avro.schemas import LONG_BYTES, REPORT, read_long, write_long
from aggservice.wire.batch.opening import ReportBatch
from aggservice.wire.batch.spans import Spans

BATCH_ROWS = 4096
BLOCK_BYTES = 1 << 20
MOST_ROWS = 1 << 16
MOST_BYTES = 1 << 25
"""A batch has at most ``MOST_ROWS`` rows, and no block is added to a batch that has ``MOST_BYTES`` bytes."""

_FIELDS = 3


def read_reports(path: Path | BinaryIO, *, rows: int = BATCH_ROWS) -> Iterator[ReportBatch]:
    """Yield the reports of an Avro file in batches: each has as many whole blocks as give at least ``rows`` reports.

    A batch has fewer reports if they have ``MOST_BYTES``. A block of more than ``MOST_ROWS`` is divided into batches.
    A malformed record raises ``AvroError`` after the batches before it were yielded.
    """
    held: list[Block] = []
    count, size = 0, 0
    for block in read_blocks(path, REPORT):
        if block.count * _FIELDS > len(block.data) or (block.data and not block.count):
            raise block.error(0, f"a block of {block.count} reports cannot have {len(block.data)} bytes: it is damaged")
        if held and count + block.count > MOST_ROWS:
            yield from _parts(held)
            held, count, size = [], 0, 0
        if block.count:
            held.append(block)
        count, size = count + block.count, size + len(block.data)
        if count >= rows or size >= MOST_BYTES:
            yield from _parts(held)
            held, count, size = [], 0, 0
    if held:
        yield from _parts(held)


def _parts(blocks: list[Block]) -> Iterator[ReportBatch]:
    """Yield the reports of some blocks: one batch, or several if there are more than ``MOST_ROWS``."""
    data = np.frombuffer(blocks[0].data if len(blocks) == 1 else b"".join(block.data for block in blocks), np.uint8)
    left = sum(block.count for block in blocks)
    bounds = np.empty((min(left, MOST_ROWS), _FIELDS, 2), dtype=np.int64)
    begun, row = 0, 0
    for block in blocks:
        end, at, unread = begun + len(block.data), begun, block.count
        while unread:
            taken = min(unread, len(bounds) - row)
            at, good = locate_reports(data, at, end, bounds[row : row + taken])
            row, unread = row + taken, unread - taken
            if not good or (not unread and at != end):
                raise block.error(at - begun, "a report is malformed")
            if row == len(bounds):
                yield _batch(data, bounds)
                left -= row
                bounds, row = np.empty((min(left, MOST_ROWS), _FIELDS, 2), dtype=np.int64), 0
        begun = end


def _batch(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> ReportBatch:
    columns = [
        Spans(buffer=data, starts=bounds[:, field, 0].copy(), stops=bounds[:, field, 1].copy())
        for field in range(_FIELDS)
    ]
    return ReportBatch(payloads=columns[0], key_ids=columns[1], shared_infos=columns[2])


class ReportWriter(ContainerWriter):
    """Writes batches of reports into one Avro file, in blocks of about a megabyte."""

    def __init__(self, target: Path | BinaryIO, *, codec: Codec = "null") -> None:
        super().__init__(target, REPORT, codec=codec)

    def write(self, batch: ReportBatch) -> None:
        """Append the reports of ``batch``."""
        fields = (batch.payloads, batch.key_ids, batch.shared_infos)
        sizes = np.full(len(batch), _FIELDS * LONG_BYTES, dtype=np.int64)
        for field in fields:
            sizes += field.stops - field.starts
        ends = np.cumsum(sizes)
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, side="right")))
            out = np.empty(int(ends[stop - 1]) - before, dtype=np.uint8)
            size = encode_reports(
                *(part for field in fields for part in (field.buffer, field.starts, field.stops)), start, stop, out
            )
            self.write_block(stop - start, out.data[:size])
            start = stop


def write_reports(target: Path | BinaryIO, batches: Iterable[ReportBatch], *, codec: Codec = "null") -> int:
    """Write all ``batches`` as one file and return how many reports that was."""
    count = 0
    with ReportWriter(target, codec=codec) as writer:
        for batch in batches:
            writer.write(batch)
            count += len(batch)
    return count


@njit(cache=True)
def locate_reports(data, begun, end, bounds):  # type: ignore[no-untyped-def]
    """Write the start and stop of the three fields of each record into ``bounds``.

    Return (position after the records, True), or (position of the first malformed record, False).
    """
    at = np.int64(begun)
    for row in range(bounds.shape[0]):
        record = at
        for field in range(_FIELDS):
            size, at = read_long(data, at, end)
            if at < 0 or size < 0 or size > end - at:
                return record, False
            bounds[row, field, 0] = at
            at += size
            bounds[row, field, 1] = at
    return at, True


@njit(cache=True)
def _put(buffer, start, stop, out, at):  # type: ignore[no-untyped-def]
    at = write_long(stop - start, out, at)
    out[at : at + stop - start] = buffer[start:stop]
    return at + stop - start


@njit(cache=True)
def encode_reports(  # type: ignore[no-untyped-def]
    payloads,
    payload_starts,
    payload_stops,
    key_ids,
    key_id_starts,
    key_id_stops,
    infos,
    info_starts,
    info_stops,
    start,
    stop,
    out,
):
    """Write records ``start`` to ``stop`` into ``out``, which needs room for ten more bytes per field."""
    at = np.int64(0)
    for row in range(start, stop):
        at = _put(payloads, payload_starts[row], payload_stops[row], out, at)
        at = _put(key_ids, key_id_starts[row], key_id_stops[row], out, at)
        at = _put(infos, info_starts[row], info_stops[row], out, at)
    return at
