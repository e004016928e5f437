"""Where a summary goes: into the ledger itself, or into Avro shards that appear once the job is paid for.

With a sealer, rows are sealed to the caller's key before they are stored, and the ledger's digests are of sealed bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aggservice.engine.errors import ResultWriteError
from aggservice.engine.release.result import ResultHeader, Rows, sealed_rows
from aggservice.engine.shuffle.rows import ShuffledRows
from aggservice.wire import BucketRows, write_buckets
from aggservice.wire.avro.shards import shard_name
from aggservice.wire.avro.shuffled import write_shuffled
from aggservice.wire.hpke.summaries import ROW_BYTES, SEALED_SUFFIX, SummarySealer

ROWS_PER_SHARD = 4_000_000
"""About 100 MB of Avro, the deployed service's shard size."""
_AVRO_ROW_BYTES = 4


class Stage(Protocol):
    """A folder that only the service can read, until the ledger has the digests of its files."""

    def path(self, name: str) -> Path:
        """Return where to write the file ``name``."""


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
        """A text that identifies this destination."""
        return str(self.prefix) if self.remote is None else f"{self.remote.url}/{self.prefix}"

    @property
    def header_name(self) -> str:
        """The file that holds the header: counters, statement and names of the shards, as JSON."""
        return f"{self.prefix.name.removesuffix('.avro')}-statement.json"

    def names(self, row_count: int) -> tuple[str, ...]:
        """Return the names of the shards for ``row_count`` rows; there is at least one."""
        total = max(1, -(-row_count // self.rows_per_shard))
        suffix = "" if self.sealer is None else SEALED_SUFFIX
        return tuple(shard_name(self.prefix.name, shard, total) + suffix for shard in range(1, total + 1))

    def least_bytes(self, row_count: int) -> int:
        """Return the least number of bytes that ``row_count`` rows take."""
        return row_count * (_AVRO_ROW_BYTES if self.sealer is None else ROW_BYTES)

    def write(self, stage: Stage, header: ResultHeader, rows: Rows | ShuffledRows | StagedRows) -> None:
        """Write every shard and the header into the stage."""
        paths = [stage.path(name) for name in self.names(len(rows))]
        try:
            if isinstance(rows, Rows | ShuffledRows):
                pages: list[Rows | ShuffledRows] = [*rows.pages(self.rows_per_shard)] or [rows]
                for path, page in zip(paths, pages, strict=True):
                    write_shard(path, page, name=path.name, sealer=self.sealer)
            else:
                rows.write_shards(paths, self.rows_per_shard, self.sealer)
            stage.path(self.header_name).write_bytes(header.to_bytes())
        except OSError as problem:
            raise ResultWriteError(f"the summary could not be staged: {problem.strerror}") from problem

    def pages(self, rows: Rows) -> list[Rows]:
        """Return the rows of each shard."""
        return list(rows.pages(self.rows_per_shard)) or [rows]


Destination = InLedger | AvroShards


def write_shard(path: Path, rows: Rows | ShuffledRows, *, name: str, sealer: SummarySealer | None) -> None:
    """Write the shard ``name`` at ``path``: as Avro, or sealed."""
    if sealer is not None:
        with path.open("wb") as file:
            file.writelines(sealed_rows(sealer, name, rows))
    elif isinstance(rows, ShuffledRows):
        write_shuffled(path, rows.to_list())
    else:
        write_buckets(path, summary_rows(rows))


def summary_rows(rows: Rows) -> BucketRows:
    """Return rows as the Avro writer takes them, without copying."""
    return BucketRows(key_high=rows.high, key_low=rows.low, numbers=rows.metrics.reshape(-1, 1))
