"""Where a summary goes: into the ledger itself, or into Avro shards that appear once the job is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aggservice.engine.errors import ResultWriteError
from aggservice.engine.release.result import ResultHeader, Rows
from aggservice.engine.shuffle.rows import ShuffledRows
from aggservice.wire import BucketRows, write_buckets
from aggservice.wire.avro.shards import shard_name
from aggservice.wire.avro.shuffled import write_shuffled

ROWS_PER_SHARD = 4_000_000
"""About 100 MB of Avro, the deployed service's shard size."""
_ROW_BYTES = 4


class Stage(Protocol):
    """A folder that only the service can read, until the ledger has the digests of its files."""

    def path(self, name: str) -> Path:
        """Return where to write the file ``name``."""


class StagedRows(Protocol):
    """Noisy rows that are in files already, under other names."""

    def __len__(self) -> int:
        """How many rows there are."""

    def write_shards(self, paths: Sequence[Path], rows_per_shard: int) -> None:
        """Write the shards; may be called again."""


@dataclass(frozen=True, slots=True)
class InLedger:
    """Keep the rows in the ledger, beside the entry that paid for them."""


class Remote(Protocol):
    """A folder of files that is not on this machine."""

    url: str

    def upload(self, folder: Path) -> None:
        """Copy every file below a folder there; StagingError if that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroShards:
    """Write ``[prefix]-[shard]-of-[total]`` files; ``prefix`` is a path, and its ``.avro`` moves to their end.

    With ``remote``, the files appear there, and ``prefix`` is a name.
    """

    prefix: Path
    rows_per_shard: int = ROWS_PER_SHARD
    remote: Remote | None = None

    @property
    def folder(self) -> Path | str:
        """The folder that the files appear in, or its URL."""
        return self.prefix.parent if self.remote is None else self.remote.url

    @property
    def location(self) -> str:
        """What tells this destination from all others."""
        return str(self.prefix) if self.remote is None else f"{self.remote.url}/{self.prefix}"

    @property
    def header_name(self) -> str:
        """The file that holds the header: counters, statement and names of the shards, as JSON."""
        return f"{self.prefix.name.removesuffix('.avro')}-statement.json"

    def names(self, row_count: int) -> tuple[str, ...]:
        """Return the names of the shards of that many rows; there is at least one."""
        total = max(1, -(-row_count // self.rows_per_shard))
        return tuple(shard_name(self.prefix.name, shard, total) for shard in range(1, total + 1))

    def least_bytes(self, row_count: int) -> int:
        """Return how many bytes that many rows take at least: lengths, a bucket and a metric each."""
        return row_count * _ROW_BYTES

    def write(self, stage: Stage, header: ResultHeader, rows: Rows | ShuffledRows | StagedRows) -> None:
        """Write every shard and the header into the stage."""
        paths = [stage.path(name) for name in self.names(len(rows))]
        try:
            if isinstance(rows, ShuffledRows):
                for path, shard in zip(paths, list(rows.pages(self.rows_per_shard)) or [rows], strict=True):
                    write_shuffled(path, shard.to_list())
            elif isinstance(rows, Rows):
                for path, page in zip(paths, self.pages(rows), strict=True):
                    write_buckets(path, summary_rows(page))
            else:
                rows.write_shards(paths, self.rows_per_shard)
            stage.path(self.header_name).write_bytes(header.to_bytes())
        except OSError as problem:
            raise ResultWriteError(f"the summary could not be staged: {problem.strerror}") from problem

    def pages(self, rows: Rows) -> list[Rows]:
        """Return the rows of each shard."""
        return list(rows.pages(self.rows_per_shard)) or [rows]


Destination = InLedger | AvroShards


def summary_rows(rows: Rows) -> BucketRows:
    """Return rows as the Avro writer takes them, without copying."""
    return BucketRows(key_high=rows.high, key_low=rows.low, numbers=rows.metrics.reshape(-1, 1))
