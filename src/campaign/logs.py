"""Logs of one's own: columns of CSV and Parquet files, read whole."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign.errors import CampaignError, MissingExtraError


def read_table(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a CSV file (text) or a Parquet file (typed), by name."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise CampaignError(f"{path.name} cannot be read as CSV: {problem}") from None
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise CampaignError(f"{path.name}, line {number}, has {len(row)} fields and the header {len(names)}")
    return {name.strip(): [row[place] for row in rows] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            f"reading {path.name} needs pyarrow: install it with pip install 'aggservice[parquet]'"
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as problem:
        raise CampaignError(f"{path.name} cannot be read as Parquet: {problem}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def column_of(table: dict[str, list[Any]], name: str, path: Path) -> list[Any]:
    """Return one column, or say which there are."""
    if name not in table:
        raise CampaignError(f"{path.name} has no column {name!r}; it has {', '.join(map(repr, table))}")
    return table[name]


def numbers_of(values: Sequence[Any], name: str, path: Path) -> list[float]:
    """Return a column as numbers; a row that is none is named."""
    found = []
    for row, value in enumerate(values):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise CampaignError(f"{path.name}, row {row + 1}: {name} is {value!r} and not a number") from None
        if not abs(number) < 1e18:
            raise CampaignError(f"{path.name}, row {row + 1}: {name} is {value!r}, which is no finite number")
        found.append(number)
    return found


def read_column(path: Path, name: str) -> list[float]:
    """Return one column of numbers of a log."""
    found = numbers_of(column_of(read_table(path), name, path), name, path)
    if not found:
        raise CampaignError(f"{path.name} has no rows")
    return found
