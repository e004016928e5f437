"""The messages between tasks: columns of many rows, and a few facts per file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from aggservice.job.errors import EngineError

FINGERPRINT_BYTES = 16


def joint_fingerprint(found: Mapping[int, bytes]) -> bytes:
    """Return one fingerprint of several files, from the fingerprint of each file number."""
    joint = blake2b(digest_size=FINGERPRINT_BYTES)
    for split, fingerprint in sorted(found.items()):
        joint.update(split.to_bytes(8, "big") + fingerprint)
    return joint.digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdBlob:
    """Ids of OK reports of a file with their row among its OK reports, and the units they pay with, row by row.

    The last blob of a file for each partition has its ``fingerprint``.
    """

    split: int
    rows: NDArray[np.int64]
    ids: NDArray[np.uint64]
    units: NDArray[np.uint8]
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SumBlob:
    """Contributions of a file, added up per key.

    The last blob of a file for each partition has its ``fingerprint``; of one task's blobs either all arrive or none.
    """

    split: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    sums: NDArray[np.int64]
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepeatedBlob:
    """Contributions of repeated reports, per key: to be subtracted again."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    sums: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DomainBlob:
    """Declared keys of a domain file with their row in it."""

    split: int
    rows: NDArray[np.int64]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportFacts:
    """What is counted about a file of reports; all of it public. ``problem`` is why the file could not be read."""

    split: int
    statuses: NDArray[np.int64]
    apis: tuple[int, ...]
    debug_days: frozenset[bytes]
    payload_bytes: int
    fingerprint: bytes
    problem: EngineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainFacts:
    """How many rows a domain file has. ``problem`` is why it could not be read."""

    split: int
    rows: int
    problem: EngineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdReceipt:
    """What a partition of report ids found: facts, how many reports were repeated, and the files it wrote.

    ``units`` holds the distinct units of the other reports, sorted; ``repeats`` the split and row of each repeated one.
    ``fingerprint`` stands for the contents of all files whose ids it compared.
    """

    reports: tuple[ReportFacts, ...]
    domains: tuple[DomainFacts, ...]
    units: str
    unit_count: int
    repeats: str
    repeated: int
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """A partition of keys that was released into the file ``name``; only files with a receipt are ever used.

    ``declared`` and ``found`` count its rows. ``undeclared`` is the true total of keys that were not declared, for the
    one draw of the others total, and 0 if the job does not ask for it; ``released`` is the total of discovered rows.
    """

    partition: int
    name: str
    declared: int
    found: int
    undeclared: int
    released: int


Blob = IdBlob | SumBlob | RepeatedBlob | DomainBlob | ReportFacts | DomainFacts
