"""The operator's settings for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The cluster, any of Spark's own settings by name, and the input size in bytes from which a job runs there.

    ``keys`` is the file of private keys. Executors read it themselves at the same path, so that keys never travel in a
    task; None is for reports that are not sealed. The sizes bound the memory of a task: ``partition_rows`` keys or
    units, and ``partition_bytes`` of report files whose ids are compared in one task.
    """

    master: str
    keys: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    least_input_bytes: int = 0
    partition_rows: int = 2_000_000
    partition_bytes: int = 512 << 20
