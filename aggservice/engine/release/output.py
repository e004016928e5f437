"""Where a summary goes: into the ledger itself, or into Avro shards that appear once the job is paid for.

With a sealer, rows are sealed to the caller's key before they are stored, and the ledger's digests are of sealed bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from aggservice.job.errors import ResultWriteError
from aggservice.job.result import ResultHeader, Rows, ShuffledRows, sealed_rows
from aggservice.wire import BucketRows, write_buckets
from aggservice.wire.avro.shards import shard_name
from aggservice.wire.avro.shuffled import write_shuffled
from aggservice.wire.hpke.summaries import SEALED_SUFFIX, SummarySealer

ROWS_PER_SHARD = 4_000_000
"""About 100 MB of Avro, the deployed service's shard size."""
_ROW_BYTES = 27
"""The longest row of a summary: a bucket of 16 bytes and its length, and a number of 10 bytes. Sealed, it has 24."""
_STATEMENT_BYTES, _SHARD_NAME_BYTES = 64 << 10, 320
_FILE_BYTES, _BLOCK_BYTES, _PER_BLOCK_BYTES = 8 << 10, 1 << 15, 128
"""The header of a shard, and for each block of this many bytes its count, length and marker, or tag and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBound:
    """The most that a result can take, from public numbers: declared keys and the sizes of payloads.

    A job takes this room before it is charged, where other callers can measure it. So it must not depend on anything
    that reports contain.
    """

    rows: int
    declared: int = 0
    row_bytes: int = _ROW_BYTES


class Stage(Protocol):
    """A folder that only the service can read, until the ledger has the digests of its files."""

    def path(self, name: str) -> Path:
        """Return where to write the file ``name``."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open the file ``name`` for writing, in room that was allocated for it."""


class StagedRows(Protocol):
    """Noisy rows that are in files already, under other names."""

    def __len__(self) -> int:
        """How many rows there are."""

    def write_shards(self, paths: Sequence[Path], rows_per_shard: int, sealer: SummarySealer | None) -> None:
        """Write the shards, each by ``write_shard``; may be called again."""


@dataclass(frozen=True, slots=True)
class InLedger:
    """Keep the rows in the ledger, beside the entry that paid for them."""

    sealer: SummarySealer | None = None


class Remote(Protocol):
    """A folder of files that is not on this machine."""

    url: str

    def upload(self, folder: Path) -> None:
        """Copy every file below ``folder`` to this folder; StagingError if that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroShards:
    """Write ``[prefix]-[shard]-of-[total]`` files; ``prefix`` is a path. If it ends in ``.avro``, so do they.

    With ``remote``, the files are published there, and ``prefix`` is a name. Sealed files also end in ``.sealed``.
    """

    prefix: Path
    rows_per_shard: int = ROWS_PER_SHARD
    remote: Remote | None = None
    sealer: SummarySealer | None = None

    @property
    def folder(self) -> Path | str:
        """The folder that the files appear in, or its URL."""
        return self.prefix.parent if self.remote is None else self.remote.url

    @property
    def location(self) -> str:
        """A text that identifies this destination: prefixes with and without ``.avro`` share a header, so also this."""
        text = str(self.prefix) if self.remote is None else f"{self.remote.url}/{self.prefix}"
        return text.removesuffix(".avro")

    @property
    def header_name(self) -> str:
        """The file that holds the header: counters, statement and names of the shards, as JSON."""
        return f"{self.prefix.name.removesuffix('.avro')}-statement.json"

    def names(self, row_count: int) -> tuple[str, ...]:
        """Return the names of the shards for ``row_count`` rows; there is at least one."""
        total = max(1, -(-row_count // self.rows_per_shard))
        suffix = "" if self.sealer is None else SEALED_SUFFIX
        return tuple(shard_name(self.prefix.name, shard, total) + suffix for shard in range(1, total + 1))

    def room(self, bound: ResultBound) -> list[int]:
        """Return the most bytes that each file can have: the header, then every shard that there can be."""
        shards = max(1, -(-bound.rows // self.rows_per_shard))
        sizes = [_STATEMENT_BYTES + shards * _SHARD_NAME_BYTES]
        for shard in range(shards):
            rows = min(self.rows_per_shard, bound.rows - shard * self.rows_per_shard)
            body = rows * bound.row_bytes
            sizes.append(_FILE_BYTES + body + (1 + body // _BLOCK_BYTES) * _PER_BLOCK_BYTES)
        return sizes

    def write(self, stage: Stage, header: ResultHeader, rows: Rows | ShuffledRows | StagedRows) -> None:
        """Write the header and every shard into the stage, in the order of ``room``."""
        names = self.names(len(rows))
        try:
            with stage.create(self.header_name) as file:
                file.write(header.to_bytes())
            if isinstance(rows, Rows | ShuffledRows):
                pages: list[Rows | ShuffledRows] = [*rows.pages(self.rows_per_shard)] or [rows]
                for name, page in zip(names, pages, strict=True):
                    with stage.create(name) as file:
                        write_shard(file, page, name=name, sealer=self.sealer)
            else:
                rows.write_shards([stage.path(name) for name in names], self.rows_per_shard, self.sealer)
        except OSError as problem:
            raise ResultWriteError(f"the summary could not be staged: {problem.strerror}") from problem

    def pages(self, rows: Rows) -> list[Rows]:
        """Return the rows of each shard."""
        return list(rows.pages(self.rows_per_shard)) or [rows]


Destination = InLedger | AvroShards


def write_shard(target: Path | BinaryIO, rows: Rows | ShuffledRows, *, name: str, sealer: SummarySealer | None) -> None:
    """Write the shard ``name`` to a path or an open file: as Avro, or sealed."""
    if sealer is not None:
        with target.open("wb") if isinstance(target, Path) else nullcontext(target) as file:
            file.writelines(sealed_rows(sealer, name, rows))
    elif isinstance(rows, ShuffledRows):
        write_shuffled(target, rows.to_list())
    else:
        write_buckets(target, summary_rows(rows))


def summary_rows(rows: Rows) -> BucketRows:
    """Return rows as the Avro writer takes them, without copying."""
    return BucketRows(key_high=rows.high, key_low=rows.low, numbers=rows.metrics.reshape(-1, 1))
