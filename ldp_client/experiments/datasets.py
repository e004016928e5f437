"""The data sets of the LOLOHA paper's evaluation (§5.1): Syn, made here, and DB_MT and DB_DE, read from files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, uniform_below_batch
from ldp_client.checks import is_count, shown
from ldp_client.errors import DataError

_FILES = {"DB_MT": ("PWGTP_Montana.csv", 10_336, 1_412), "DB_DE": ("PWGTP_Delaware.csv", 9_123, 1_234)}
_COLLECTIONS = 80

NAMES = ("Syn", *_FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Values 0, …, k − 1 of each user (row) at each collection (column), and b for dBitFlipPM (§5.2).

    ``labels`` are the k numbers that the values stand for, in order.
    """

    name: str
    labels: NDArray[np.int64]
    buckets: int
    values: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.size or not 0 <= self.values.min() <= self.values.max() < self.k:
            raise DataError(f"{self.name}: values must be a table of whole numbers in [0, {self.k})")
        if not 2 <= self.buckets <= self.k:
            raise DataError(f"{self.name}: between 2 and {self.k} buckets, not {self.buckets}")

    @property
    def k(self) -> int:
        """How many values there are."""
        return self.labels.size

    @property
    def users(self) -> int:
        """n."""
        return self.values.shape[0]

    @property
    def collections(self) -> int:
        """τ."""
        return self.values.shape[1]

    def part(self, users: int, collections: int) -> Dataset:
        """Return the first ``users`` users and ``collections`` collections, over the same values."""
        part = self.values[:users, :collections]
        return Dataset(name=self.name, labels=self.labels, buckets=self.buckets, values=part)


def synthetic(bits: Bits, *, users: int = 10_000, k: int = 360, collections: int = 120) -> Dataset:
    """Return Syn: a uniform value first, and at each later collection a fresh uniform one with probability ¼."""
    if not is_count(users, 1) or not is_count(k, 2) or not is_count(collections, 1):
        raise DataError(f"Syn has users, at least two values, and collections: not {shown((users, k, collections))}")
    values = np.empty((users, collections), dtype=np.int64)
    values[:, 0] = uniform_below_batch(bits, k, users)
    quarter = Real.of(Fraction(1, 4))
    for t in range(1, collections):
        change = bernoulli_batch(bits, quarter, users)
        values[:, t] = np.where(change, uniform_below_batch(bits, k, users), values[:, t - 1])
    return Dataset(name="Syn", labels=np.arange(k), buckets=k, values=values)


def counters(path: Path, name: str, *, bucket_width: int = 4) -> Dataset:
    """Return a table of counters with a header line, a row a user and a column a collection.

    The distinct numbers, in order, become the values 0, …, k − 1, as in the paper; buckets are ⌊k/width⌋.
    """
    table = _table(path)
    found, values = np.unique(table, return_inverse=True)
    buckets = max(2, found.size // bucket_width)
    if found.size < 2:
        raise DataError(f"{path} holds one number over and over: there is no frequency to estimate")
    return Dataset(name=name, labels=found, buckets=buckets, values=values.reshape(table.shape).astype(np.int64))


def _table(path: Path) -> NDArray[np.int64]:
    """Return the numbers of a file. An error names the line, and holds nothing of it: the cells are users' values."""
    lines: list[NDArray[np.int64]] = []
    broken = False
    try:
        with path.open(newline="", encoding="ascii") as file:
            rows = csv.reader(file)
            header = next(rows, None)
            lines.extend(np.array([int(cell) for cell in row], dtype=np.int64) for row in rows)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, OverflowError, csv.Error):
        broken = True
    if broken:
        raise DataError(
            f"{path} is not a table of whole numbers of at most 64 bits with a header line: "
            f"mend the row after {len(lines)} good ones"
        )
    if header is None or not lines or not lines[0].size:
        raise DataError(f"{path} holds no table of users and collections with a header line")
    uneven = [number for number, line in enumerate(lines, 1) if line.size != lines[0].size]
    if uneven:
        raise DataError(f"{path}: row {uneven[0]} has another number of columns than the first")
    return np.array(lines, dtype=np.int64)


def load(name: str, bits: Bits, folder: Path | None) -> Dataset:
    """Return a data set of the paper by name; ``bits`` make Syn, ``folder`` holds the census files."""
    if name == "Syn":
        return synthetic(bits)
    if name not in _FILES:
        raise DataError(f"there is no data set {name!r}: choose one of {', '.join(NAMES)}, or give a file")
    file, users, k = _FILES[name]
    if folder is None or not (folder / file).is_file():
        raise DataError(f"{name} is read from {file}: give the folder that holds it (--data), not {folder}")
    data = counters(folder / file, name)
    if (data.users, data.k, data.collections) != (users, k, _COLLECTIONS):
        raise DataError(
            f"{folder / file} is not {name} of the paper: n = {data.users}, k = {data.k}, τ = {data.collections} "
            f"instead of {users}, {k}, {_COLLECTIONS}"
        )
    return data
