"""Turns an event log into the events of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np

from aggservice.campaign.columns import Conversions, Events, Impressions, Ints
from aggservice.campaign.errors import CampaignError
from aggservice.campaign.settings.campaign import DAY_MS, Campaign, LogTable, LogTables
from aggservice.campaign.settings.population import Extent, PopulationModel
from aggservice.campaign.world.logs import (
    LOG_READERS,
    NAMES,
    LogReader,
    dedup_keys_of,
    load_tables,
    names_of,
    numbers_of,
    reader_of,
    times_of,
)
from aggservice.files.settings import Known, kind, read_settings, setting
from aggservice.files.toml import Section
from aggservice.mechanisms import Bits


def _log_path(section: Section, key: str, known: Known) -> Path:
    """Return a file, or a folder of files of this kind if the log reader takes folders."""
    path = section.path_to(key)
    if path is None or not path.is_dir() or not (reader := reader_of(path, known.reader)).folders:
        return section.existing_file(key, example=f"{key}.csv")
    if not reader.files(path, key.removesuffix("s")):
        problem = "is a folder without such files"
        section.refuse(key, problem, f"Put files named *{key.removesuffix('s')}*.json below it")
    return path


def _log_columns(section: Section, key: str, known: Known) -> dict[str, str]:
    inner = section.section(key)
    return {name: inner.text(name) for name in inner.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFiles:
    """The files of a log, and their names for its columns."""

    reader: type[LogReader] | None = kind(
        "a [log reader](extending.md#a-log-reader): `csv`, `parquet`, `json`, or one of yours by name or `module:Name`",
        LOG_READERS,
        default=None,
        shown="by the file's name",
    )
    sources: Path = setting(
        "`.csv`, `.parquet`, or `.json` as measurement-simulation reads it; or a folder of its `*source*.json`, by "
        "year/month/day if you like",
        read=_log_path,
        allowed="path",
    )
    triggers: Path = setting("the same for triggers", read=_log_path, allowed="path")
    columns: Mapping[str, str] = setting(
        "your names for `time`, `device`, `destination`, `value`, `click`, `dedup_key`; see below",
        read=_log_columns,
        default=lambda known: {},
        shown="the same",
        allowed="table of texts",
    )


def extent_of(tables: LogTables) -> Extent:
    """Return the extent of a log; it must have at least one row."""
    times = [one for table in tables.both for one in times_of(table)]
    if not times:
        raise CampaignError("the log has no rows: give it at least one")
    start = min(times) // DAY_MS * DAY_MS
    destinations = {one for table in tables.both if "destination" in table for one in names_of(table, "destination")}
    return Extent(
        people=len({one for table in tables.both for one in names_of(table, "device")}),
        start_ms=start,
        days=max(1, -(-(max(times) + 1 - start) // DAY_MS)),
        destinations=tuple(sorted(destinations)) or ("https://shop.example",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPopulation(PopulationModel):
    """A log of sources and triggers; ``shift_ms`` is added to all its times.

    ``only_half`` 0 or 1 leaves out the devices of the other half, so that one half can choose and the other judge.
    """

    name = "log"
    has_columns = True

    tables: LogTables
    columns: Mapping[str, str]
    shift_ms: int = 0
    only_half: int | None = None

    @classmethod
    def read(cls, section: Section) -> Self:
        """Read both files of the log, and its extent."""
        files = read_settings(section, LogFiles)
        remedy = 'Say which column is which: [population.log.columns] time = "when"'
        try:
            tables = load_tables(files.sources, files.triggers, files.columns, section.opened, files.reader)
            remedy = "Correct the log, or name another column"
            return cls(tables=tables, columns=files.columns, extent=extent_of(tables))
        except CampaignError as problem:
            section.refuse("", f"cannot be used: {problem}", remedy)

    @classmethod
    def example(cls, folder: Path) -> Mapping[str, Any]:
        """Return a log of two files in CSV."""
        rows = [f"{1_700_000_000 + 9_000 * n},d{n % 7},{'abc'[n % 3]},{'pq'[n % 2]}" for n in range(40)]
        for name in ("sources", "triggers"):
            (folder / f"{name}.csv").write_text("\n".join(["time,device,ad,product", *rows]), encoding="utf-8")
        return {name: str(folder / f"{name}.csv") for name in ("sources", "triggers")}

    def column(self, origin: str, name: str) -> Sequence[Any]:
        return (self.tables.sources if origin == "impression" else self.tables.triggers).column(name)

    def check_campaign(self, top: Section, campaign: Campaign) -> None:
        """Refuse names of columns that nothing reads."""
        known = (*NAMES, *(one.column or one.name for one in campaign.keys.fields))
        for name in self.columns:
            if name not in known:
                columns = top.section("population").section("log").section("columns")
                similar = get_close_matches(name, known, 1)
                hint = f"Did you mean {similar[0]!r}? " if similar else ""
                columns.refuse(name, "is not a column of a log", f"{hint}Columns: {', '.join(dict.fromkeys(known))}")

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(table.file for table in self.tables.both)

    def shifted(self, by_ms: int) -> Self:
        return replace(self, shift_ms=self.shift_ms + by_ms)

    def half(self, which: int) -> Self:
        """Return the log of half of the devices, by a hash of their names."""
        return replace(self, only_half=which)

    def events(self, campaign: Campaign, bits: Bits) -> Events:
        """Return the rows of the log within the campaign's days as events, in order of time.

        Devices are compared as text, dedup keys exactly. Without a destination column every row is at the first
        destination; without a value column a conversion is worth 1.
        """
        devices: dict[str, int] = {}
        for table in self.tables.both:
            for one in names_of(table, "device"):
                devices.setdefault(one, len(devices))
        start = campaign.population.start_ms
        end = start + campaign.population.days * DAY_MS
        columns = []
        for table in self.tables.both:
            time = np.array(times_of(table), dtype=np.int64) + self.shift_ms
            inside = (time >= start) & (time < end)
            if self.only_half is not None:
                inside &= np.array([_half(one) == self.only_half for one in names_of(table, "device")], dtype=np.bool_)
            rows = np.flatnonzero(inside)
            rows = rows[np.argsort(time[rows], kind="stable")]
            owner = np.array([devices[one] for one in names_of(table, "device")], dtype=np.int64)
            columns.append((rows, time, owner))
        table, (rows, time, owner) = self.tables.sources, columns[0]
        click = _numbers(table, "click", time.size, 0)[rows] != 0
        codes = _codes(campaign, table, rows, "impression")
        for field in campaign.keys.fields:
            if field.origin == "interaction":
                codes[field.name] = click.astype(np.int64)
            elif field.origin == "site":
                codes[field.name] = field.coded(np.zeros(rows.size, dtype=np.int64))
        impressions = Impressions(
            time_ms=time[rows],
            device=owner[rows],
            destination=_destination_indexes(campaign, table, time.size)[rows],
            click=click,
            codes=codes,
        )
        table, (rows, time, owner) = self.tables.triggers, columns[1]
        dedup_key = dedup_keys_of(table.column("dedup_key")) if "dedup_key" in table else [-1] * time.size
        conversions = Conversions(
            time_ms=time[rows],
            device=owner[rows],
            destination=_destination_indexes(campaign, table, time.size)[rows],
            value=np.maximum(_numbers(table, "value", time.size, 1)[rows], 0),
            dedup_key=np.array(dedup_key, dtype=np.int64)[rows],
            codes=_codes(campaign, table, rows, "conversion"),
        )
        return Events(impressions=impressions, conversions=conversions, devices=len(devices))


def _half(device: str) -> int:
    """Return the half of a device: a hash of its name, so that it is the same in every table and every run."""
    return sha256(device.encode()).digest()[0] & 1


def _numbers(table: LogTable, name: str, size: int, default: int) -> Ints:
    if name not in table:
        return np.full(size, default, dtype=np.int64)
    return np.rint(numbers_of(table, name, default)).astype(np.int64)


def _destination_indexes(campaign: Campaign, table: LogTable, size: int) -> Ints:
    if "destination" not in table:
        return np.zeros(size, dtype=np.int64)
    return _indexes(table, "destination", "destination", campaign.population.destinations)


def _codes(campaign: Campaign, table: LogTable, rows: Ints, origin: str) -> dict[str, Ints]:
    return {
        field.name: field.coded(_indexes(table, field.column or field.name, field.name, field.occurring)[rows])
        for field in campaign.keys.fields
        if field.origin == origin
    }


def _indexes(table: LogTable, column: str, name: str, values: Sequence[str]) -> Ints:
    index_of = {value: index for index, value in enumerate(values)}
    given = table.column(column)
    for row, one in enumerate(given):
        if str(one) not in index_of:
            raise CampaignError(f"{table.file.name}, row {row + 1}: {one!r} is not among the values of {name}")
    return np.array([index_of[str(one)] for one in given], dtype=np.int64)
