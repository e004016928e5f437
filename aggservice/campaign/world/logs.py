"""Log readers, which read event logs as columns: CSV, Parquet, and the JSON of measurement-simulation."""

from __future__ import annotations

import csv
import datetime
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar

from aggservice.campaign.errors import CampaignError, CampaignFileError, MissingExtraError
from aggservice.campaign.settings.campaign import LogTable, LogTables
from aggservice.campaign.stages import digest_of
from aggservice.files.below import Opener, open_any
from aggservice.files.toml import read_text
from aggservice.kinds import Kinds

#: The columns of a log, and their names in measurement-simulation's JSON.
NAMES = {
    "time": "timestamp",
    "device": "user_id",
    "destination": "destination",
    "value": "value",
    "click": "click",
    "dedup_key": "dedup_key",
}


_LAST_MS = 253_402_300_799_999


class LogReader(ABC):
    """How a log is read: columns by name from its files, which ``opened`` opens. One class per format.

    ``suffixes`` are those of files that it reads unless the campaign names another reader; with ``folders``, it reads
    folders too. ``names`` are the format's own names for the columns of ``NAMES``.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    folders: ClassVar[bool] = False
    names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    @abstractmethod
    def example(cls, folder: Path) -> tuple[Path, Mapping[str, Sequence[Any]]]:
        """Write a small file for the kit; return its path and the columns that ``read`` must give."""

    def files(self, path: Path, kind: str) -> list[Path]:
        """Return the files of a log's sources or triggers (``kind``)."""
        return [path]

    @abstractmethod
    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        """Return columns of equal length; ``CampaignError`` names the file and what is wrong."""


def load_tables(
    sources: Path,
    triggers: Path,
    names: Mapping[str, str],
    opened: Opener = open_any,
    reader: type[LogReader] | None = None,
) -> LogTables:
    """Read both files of a log and check that each has a time and a device."""
    own = {**reader_of(sources, reader).names, **names}
    read = []
    for path, kind in ((sources, "source"), (triggers, "trigger")):
        files = (chosen := reader_of(path, reader)).files(path, kind)
        digest = digest_of(*(_content(file, opened) for file in files), own)
        read.append(LogTable(columns=chosen.read(files, opened), file=path, names=own, digest=digest))
    for table in read:
        for name in ("time", "device"):
            table.column(name)
    return LogTables(sources=read[0], triggers=read[1])


def _content(path: Path, opened: Opener) -> bytes:
    try:
        with opened(path) as file:
            return file.read()
    except OSError as problem:
        raise CampaignError(f"{path.name} cannot be read: {problem.strerror or problem}") from None


def times_of(table: LogTable) -> list[int]:
    """Return times in milliseconds since 1970, from seconds, milliseconds or ISO 8601 (UTC if without an offset).

    A number after the year 9999 is refused: it is probably in microseconds.
    """
    found = []
    for row, value in enumerate(table.column("time")):
        try:
            found.append(time_ms_of(value))
        except ValueError as problem:
            raise CampaignError(f"{table.file.name}, row {row + 1}: the time is {problem}") from None
    return found


def time_ms_of(value: Any) -> int:
    """Return a time of a log in milliseconds; ``ValueError`` with the value and what to write instead."""
    try:
        if isinstance(value, datetime.datetime):
            moment = value
        elif isinstance(value, str) and not value.strip().lstrip("-").isdigit():
            moment = datetime.datetime.fromisoformat(value)
        else:
            number = int(value)
            if number > _LAST_MS:
                raise ValueError
            return number if number >= 10**11 else number * 1000
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return round(moment.timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r}; write seconds, milliseconds or ISO 8601") from None


def log_files(path: Path, kind: str) -> list[Path]:
    """Return the files of a log's sources or triggers: ``path`` itself, or the JSON files below it with ``kind`` in
    their names, in order of their paths, which measurement-simulation makes of year, month and day.
    """
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*.json") if kind in file.name and file.is_file())


def read_table(path: Path, opened: Opener = open_any) -> dict[str, list[Any]]:
    """Return the columns of a file by name, read by the log reader of its suffix."""
    return reader_of(path).read([path], opened)


def reader_of(path: Path, given: type[LogReader] | None = None) -> LogReader:
    """Return the given reader or, without one, that of a path; CSV is for every other file."""
    known = (LOG_READERS[name] for name in LOG_READERS)
    fits = (one for one in known if path.suffix in one.suffixes or (one.folders and path.is_dir()))
    return (given or next(fits, CsvLog))()


_EXAMPLE = {"time": ["1700000000", "1700000060"], "device": ["one", "two"], "ad": ["a", "b"]}


class CsvLog(LogReader):
    """CSV in UTF-8 with a header; every value is text."""

    name = "csv"
    suffixes = (".csv",)

    @classmethod
    def example(cls, folder: Path) -> tuple[Path, Mapping[str, Sequence[Any]]]:
        path, rows = folder / "log.csv", [_EXAMPLE, *zip(*_EXAMPLE.values(), strict=True)]
        path.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8")
        return path, _EXAMPLE

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        (path,) = files
        try:
            with TextIOWrapper(opened(path), newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                names = next(reader, [])
                rows = [row for row in reader if row]
        except (OSError, UnicodeDecodeError, csv.Error) as problem:
            raise CampaignError(f"{path.name} cannot be read as CSV: {problem}") from None
        names = [name.strip() for name in names]
        _check_names(names, path)
        for number, row in enumerate(rows, 2):
            if len(row) != len(names):
                raise CampaignError(
                    f"{path.name}, line {number}, has {len(row)} fields, not {len(names)} like the header"
                )
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _check_names(names: Sequence[str], path: Path) -> None:
    # Columns without a name, which spreadsheets leave at the end, are ignored.
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise CampaignError(f"{path.name} has two columns of the same name: {', '.join(map(repr, twice))}")


class ParquetLog(LogReader):
    """Parquet; values have the types of its columns."""

    name = "parquet"
    suffixes = (".parquet",)

    @classmethod
    def example(cls, folder: Path) -> tuple[Path, Mapping[str, Sequence[Any]]]:
        parquet, path = _pyarrow_parquet("log.parquet"), folder / "log.parquet"
        import pyarrow

        parquet.write_table(pyarrow.table(_EXAMPLE), path)
        return path, _EXAMPLE

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        (path,) = files
        parquet = _pyarrow_parquet(path.name)
        try:
            with opened(path) as file:
                table = parquet.read_table(file)
            _check_names(table.column_names, path)
            return {name: _parquet_column(table.column(name)) for name in table.column_names}
        except (OSError, ValueError) as problem:
            raise CampaignError(f"{path.name} cannot be read as Parquet: {problem}") from None


def _pyarrow_parquet(what: str) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(
            f"reading {what} needs pyarrow: install it with pip install 'aggservice[parquet]'"
        ) from None
    return pyarrow.parquet


def _parquet_column(column: Any) -> list[Any]:
    """Return the values of a column; nanoseconds are cut to microseconds, the resolution of Python's datetime."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pyarrow.timestamp("us", tz=column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values


class JsonLog(LogReader):
    """The JSON of measurement-simulation: a file, or a folder of files.

    Nested objects become columns: ``aggregation_keys.campaign``, ``filter_data.type`` (the first value),
    ``aggregatable_values.total``, ``aggregatable_trigger_data.key_piece`` (the first).
    """

    name = "json"
    suffixes = (".json",)
    folders = True
    names = NAMES

    @classmethod
    def example(cls, folder: Path) -> tuple[Path, Mapping[str, Sequence[Any]]]:
        path, rows = folder / "log.json", zip(*_EXAMPLE.values(), strict=True)
        path.write_text("\n".join(json.dumps(dict(zip(_EXAMPLE, row, strict=True))) for row in rows), encoding="utf-8")
        return path, _EXAMPLE

    def files(self, path: Path, kind: str) -> list[Path]:
        return log_files(path, kind)

    def read(self, files: Sequence[Path], opened: Opener) -> dict[str, list[Any]]:
        """Return the columns of all files, in order of their names."""
        flat = [_flattened(row) for path in files for row in json_rows(path, opened)]
        names = sorted({name for row in flat for name in row})
        return {name: [row.get(name, "") for row in flat] for name in names}


LOG_READERS: Kinds[type[LogReader]] = Kinds(
    "log reader", base=LogReader, builtin={one.name: one for one in (CsvLog, ParquetLog, JsonLog)}
)


def json_rows(path: Path, opened: Opener = open_any) -> list[dict[str, Any]]:
    """Return the objects of a JSON file, which holds them one after the other or in lists."""
    remedy = "Name measurement-simulation's JSON, a CSV file or a Parquet file"
    text = read_text(path, remedy=remedy, error=CampaignFileError, opened=opened)
    decoder, rows, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at].isspace() or text[at] == ",":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as problem:
            raise CampaignError(f"{path.name} is not JSON, one object after the other: {problem}") from None
        rows += value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise CampaignError(f"{path.name} must hold JSON objects")
    return rows


def _flattened(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        inner = value
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            inner = {key: one[key] for one in reversed(value) for key in one}
        if isinstance(inner, dict):
            for key, one in inner.items():
                found[f"{name}.{key}"] = one[0] if isinstance(one, list) and one else one
        elif not isinstance(inner, list):
            found[name] = inner
    for name in ("web_destination", "attribution_destination"):
        if name in found:
            found.setdefault("destination", found[name])
    if "source_type" in found:
        found["click"] = int(str(found["source_type"]).lower() == "navigation")
    for name in ("event_trigger_data.deduplication_key", "deduplication_key"):
        if name in found:
            found.setdefault("dedup_key", found[name])
    return found


def numbers_of(table: LogTable, name: str, default: float | None = None) -> list[float]:
    """Return a column as numbers, with ``default`` for missing ones; an error names the row that is not a number."""
    found = []
    for row, value in enumerate(table.column(name)):
        where = f"{table.file.name}, row {row + 1}: {name} is {value!r}, which is"
        try:
            number = default if default is not None and value in ("", None) else float(value)
        except (TypeError, ValueError):
            raise CampaignError(f"{where} not a number") from None
        if not abs(number) < 1e18:
            raise CampaignError(f"{where} not a finite number")
        found.append(number)
    return found


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def names_of(table: LogTable, name: str) -> list[str]:
    """Return a column as text; a missing value is an error that names the row."""
    values = table.column(name)
    for row, value in enumerate(values):
        if _is_missing(value):
            raise CampaignError(f"{table.file.name}, row {row + 1}, has no {name}")
    return [str(value) for value in values]


def dedup_keys_of(values: Sequence[Any]) -> list[int]:
    """Return the same number for the same key, and −1 for a key that is missing or −1.

    Keys are 64-bit whole numbers, which a float could not hold, or any text.
    """
    numbers: dict[int | str, int] = {}
    found = []
    for value in values:
        if _is_missing(value):
            found.append(-1)
            continue
        try:
            key: int | str = int(value) if not isinstance(value, float) or value.is_integer() else str(value)
        except (TypeError, ValueError):
            key = str(value)
        found.append(-1 if key == -1 else numbers.setdefault(key, len(numbers)))
    return found


def read_column(path: Path, name: str, opened: Opener = open_any) -> list[float]:
    """Return one column of numbers of a log."""
    found = numbers_of(LogTable(columns=read_table(path, opened=opened), file=path, names={}), name)
    if not found:
        raise CampaignError(f"{path.name} has no rows: give it at least one")
    return found
