"""The data sets of the LOLOHA paper's evaluation (§5.1): Syn, generated here; DB_MT, DB_DE and Adult, from files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggservice.mechanisms import Bits, Real, bernoulli_batch, uniform_below_batch
from ldp_client.checks import is_count, short_text
from ldp_client.errors import DataError

_FILES = {"DB_MT": ("PWGTP_Montana.csv", 10_336, 1_412), "DB_DE": ("PWGTP_Delaware.csv", 9_123, 1_234)}
_COLLECTIONS = 80

#: The data sets that figures are made on by default; ``ADULT`` is made on request.
NAMES = ("Syn", *_FILES)
ADULT = "Adult"
ALL_NAMES = (*NAMES, ADULT)

#: Adult (§5.1): people without unknown attributes in UCI's two files, values of their hours per week, and weeks.
_ADULT_USERS, _ADULT_VALUES, ADULT_COLLECTIONS = 45_222, 96, 260
_ADULT_FILES = ("Adult.csv", "adult.data")
_HOURS = "hours-per-week"
#: UCI's files have no header: 14 attributes, of which hours per week is the thirteenth, and the income.
_UCI_COLUMNS, _UCI_HOURS = 15, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Values 0, …, k − 1 of each user (row) at each collection (column), and b for dBitFlipPM (§5.2).

    ``labels`` are the k numbers that the values represent, in order.
    """

    name: str
    labels: NDArray[np.int64]
    buckets: int
    values: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.size or not 0 <= self.values.min() <= self.values.max() < self.k:
            raise DataError(f"{self.name}: values must be a table of integers in [0, {self.k})")
        if not 2 <= self.buckets <= self.k:
            raise DataError(f"{self.name}: the number of buckets must be 2 to {self.k}, not {self.buckets}")

    @property
    def k(self) -> int:
        """The number of values."""
        return self.labels.size

    @property
    def users(self) -> int:
        """The number of users, n."""
        return self.values.shape[0]

    @property
    def collections(self) -> int:
        """The number of collections, τ."""
        return self.values.shape[1]

    def part(self, users: int, collections: int) -> Dataset:
        """Return the first ``users`` users and ``collections`` collections, over the same values."""
        part = self.values[:users, :collections]
        return Dataset(name=self.name, labels=self.labels, buckets=self.buckets, values=part)


def synthetic_dataset(bits: Bits, *, users: int = 10_000, k: int = 360, collections: int = 120) -> Dataset:
    """Return Syn: a uniform value first, and at each later collection a new uniform one with probability ¼."""
    if not is_count(users, 1) or not is_count(k, 2) or not is_count(collections, 1):
        raise DataError(
            "Syn needs at least 1 user, 2 values and 1 collection, got (users, k, collections) = "
            f"{short_text((users, k, collections))}"
        )
    values = np.empty((users, collections), dtype=np.int64)
    values[:, 0] = uniform_below_batch(bits, k, users)
    quarter = Real.of(Fraction(1, 4))
    for t in range(1, collections):
        change = bernoulli_batch(bits, quarter, users)
        values[:, t] = np.where(change, uniform_below_batch(bits, k, users), values[:, t - 1])
    return Dataset(name="Syn", labels=np.arange(k), buckets=k, values=values)


def counters(path: Path, name: str, *, bucket_width: int = 4) -> Dataset:
    """Return a table of counters with a header line, one row per user and one column per collection.

    The distinct numbers, in order, become the values 0, …, k − 1, as in the paper; buckets are ⌊k/width⌋.
    """
    table = _table(path)
    found, values = np.unique(table, return_inverse=True)
    buckets = max(2, found.size // bucket_width)
    if found.size < 2:
        raise DataError(f"{path} holds a single number: give a file with at least two different values")
    return Dataset(name=name, labels=found, buckets=buckets, values=values.reshape(table.shape).astype(np.int64))


def _table(path: Path) -> NDArray[np.int64]:
    """Return the numbers of a file. An error names the row but shows none of it: the cells are users' values."""
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
            f"{path} is not a table of 64-bit integers with a header line: "
            f"correct row {len(lines) + 1} below the header"
        )
    if header is None or not lines or not lines[0].size:
        raise DataError(f"{path} holds no table of users and collections with a header line")
    uneven = [number for number, line in enumerate(lines, 1) if line.size != lines[0].size]
    if uneven:
        raise DataError(f"{path}: row {uneven[0]} and the first row have different numbers of columns: correct one")
    return np.array(lines, dtype=np.int64)


def adult(path: Path, bits: Bits, collections: int = ADULT_COLLECTIONS) -> Dataset:
    """Return Adult: hours per week of UCI's census data, permuted anew for each collection; b = k (§5.2).

    ``path`` is a CSV file with a header that has the column hours-per-week, or UCI's adult.data with adult.test beside
    it. People with an unknown attribute (?) are left out, as in the paper; DataError unless 45,222 people with 96
    values are left. Each order is that of 64-bit random words.
    """
    hours = _hours(path)
    if path.name == "adult.data":
        hours = np.concatenate((hours, _hours(path.with_name("adult.test"))))
    found, values = np.unique(hours, return_inverse=True)
    if (hours.size, found.size) != (_ADULT_USERS, _ADULT_VALUES):
        raise DataError(
            f"{path} is not Adult of the paper: {hours.size} people without unknown attributes and {found.size} values "
            f"of {_HOURS} instead of {_ADULT_USERS} and {_ADULT_VALUES}: give UCI's adult.data with adult.test beside "
            "it, or both in one CSV file with a header"
        )
    orders = np.empty((hours.size, collections), dtype=np.int64)
    for t in range(collections):
        orders[:, t] = values[np.argsort(bits.words(hours.size), kind="stable")]
    return Dataset(name=ADULT, labels=found, buckets=found.size, values=orders)


def _hours(path: Path) -> NDArray[np.int64]:
    """Return the hours per week in a file. An error names the row but shows none of it."""
    column, columns, hours, row_number = _UCI_HOURS, _UCI_COLUMNS, [], 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row_number, row in enumerate(csv.reader(file, skipinitialspace=True), 1):
                cells = [cell.strip() for cell in row]
                if row_number == 1 and _HOURS in cells:
                    column, columns = cells.index(_HOURS), len(cells)
                elif len(cells) == columns and "?" not in cells:
                    hours.append(int(cells[column]))
                elif len(cells) != columns and any(cells) and not cells[0].startswith("|"):  # adult.test's first line
                    raise ValueError
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, csv.Error):
        hours = []
    if not hours:
        raise DataError(
            f"{path} is not a table of people with {_HOURS}, or row {row_number} is broken: give UCI's adult.data, "
            "or a CSV file with a header"
        )
    return np.array(hours, dtype=np.int64)


def _adult_file(given: Path | None) -> Path:
    """Return the file of Adult: ``given`` itself, or a file with one of its usual names in the folder ``given``."""
    candidates = [] if given is None else [given] if given.is_file() else [given / name for name in _ADULT_FILES]
    found = [path for path in candidates if path.is_file()]
    if not found:
        where = "no file or folder was given" if given is None else f"it is not at {given}"
        raise DataError(
            f"Adult cannot be read, {where}: give the file, or the folder of {' or '.join(_ADULT_FILES)} (--data)"
        )
    return found[0]


def check_dataset(name: str, folder: Path | None) -> None:
    """Raise ``DataError`` if ``load_dataset`` would not find a data set."""
    if name not in ALL_NAMES:
        raise DataError(f"there is no data set {name!r}: choose one of {', '.join(ALL_NAMES)}, or give a file")
    if name == ADULT:
        _adult_file(folder)
    if name in _FILES and (folder is None or not (folder / _FILES[name][0]).is_file()):
        where = "no folder was given" if folder is None else f"it is not in {folder}"
        raise DataError(f"{_FILES[name][0]} cannot be read, {where}: give the folder of {name} (--data)")


def load_dataset(name: str, bits: Bits, folder: Path | None) -> Dataset:
    """Return a data set of the paper by name: Syn drawn from ``bits``, the others read from ``folder``.

    For Adult, ``folder`` may also be the file itself.
    """
    if name == "Syn":
        return synthetic_dataset(bits)
    if name == ADULT:
        return adult(_adult_file(folder), bits)
    check_dataset(name, folder)
    assert folder is not None
    file, users, k = _FILES[name]
    data = counters(folder / file, name)
    if (data.users, data.k, data.collections) != (users, k, _COLLECTIONS):
        raise DataError(
            f"{folder / file} is not {name} of the paper: n = {data.users}, k = {data.k}, τ = {data.collections} "
            f"instead of {users}, {k}, {_COLLECTIONS}"
        )
    return data
